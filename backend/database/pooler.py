"""Connections to PostgreSQL through a pooler in transaction mode, such as PgBouncer.

Such a pooler chooses a server connection for each transaction. Nothing can be kept on a connection
from one transaction to the next: no prepared statements, settings, locks or temporary tables.
Decision 0090 explains how a pooler is recognised.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

WITHOUT_CACHES: dict[str, Any] = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    # The unnamed statement: no other process can have it, and the next one replaces it. Named
    # statements would remain on connections of the pooler that this process never gets again.
    "prepared_statement_name_func": str,
}
"""Options of the driver and of SQLAlchemy. Each statement is prepared again."""


class PoolerDetector:
    """Finds out at the first connection of an engine whether a pooler is in between.

    `is_found` is None before that. A pooler cannot be recognised by its name or version, but it
    answers with another process id than PostgreSQL, because it has to receive cancellations itself.
    """

    def __init__(self, *, is_found: bool | None = None) -> None:
        self.is_found = is_found

    def connect(self, dialect: Any, args: Any, options: Any) -> Any:
        """Open a connection with the options that suit the server."""
        if self.is_found is None:
            connection = dialect.connect(*args, **{**options, **WITHOUT_CACHES})
            try:
                self.is_found = await_only(_is_pooled(connection.driver_connection))
            except BaseException:
                connection.terminate()
                raise
            if self.is_found:
                return connection
            connection.close()
        if self.is_found:
            options = {**options, **WITHOUT_CACHES}
        return dialect.connect(*args, **options)


async def _is_pooled(driver: Any) -> bool:
    # In a transaction, because a statement takes two messages, and a pooler must not send them to
    # different servers.
    async with driver.transaction():
        server_pid = await driver.fetchval("SELECT pg_backend_pid()")
    return bool(server_pid != driver.get_server_pid())


def send_alone(engine: AsyncEngine, pooler: PoolerDetector) -> None:
    """Let statements outside a transaction be one message if there is a pooler.

    They have no parameters and no result, such as `CREATE INDEX CONCURRENTLY`. Otherwise a pooler
    could have them prepared by one server, and executed by another.
    """

    @event.listens_for(engine.sync_engine, "do_execute")
    def _execute(_cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        connection = context.root_connection.connection
        if parameters or not (pooler.is_found and connection.dbapi_connection.autocommit):
            return False
        await_only(connection.driver_connection.execute(statement))
        return True


def skip_json_types(engine: AsyncEngine) -> None:
    """Do not let SQLAlchemy look up the JSON types at each new connection.

    It does so outside a transaction. No column has one of them.
    """

    async def skip(_connection: Any) -> None:
        pass

    dialect: Any = engine.dialect
    dialect.setup_asyncpg_json_codec = dialect.setup_asyncpg_jsonb_codec = skip
