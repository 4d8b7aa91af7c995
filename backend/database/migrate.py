"""Bringing the database's tables to the form that the code expects."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from backend.database.engine import Database, DatabaseUnavailableError, translated
from backend.errors import AppError

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "2026_11_21"
"""Newest revision: known here so that a start needs no Alembic when nothing is to be done."""


class SchemaError(AppError):
    """The tables are not those of this version of Talekeeper."""

    status, slug, title = 503, "schema-mismatch", "The database is of another version"


async def current_revision(database: Database) -> str | None:
    """The revision that the tables are at; None for an empty database.

    This, and what is below, raises `DatabaseUnavailableError`, which says where the database is.
    """

    def read(connection: Connection) -> str | None:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return None if found is None else str(found)

    async with _naming(database), database.read() as session:
        return await (await session.connection()).run_sync(read)


async def upgrade(database: Database, target: str = "head") -> bool:
    """Bring the tables up to `target`; whether there was anything to do.

    Replicas that start together take turns. Raises `SchemaError` when the database is newer than
    this version.
    """
    if target == "head" and await current_revision(database) == HEAD:
        return False
    await _run(database, target, down=False)
    return True


async def downgrade(database: Database, target: str) -> None:
    """Take the tables back to `target` (`base` is none at all). Data of newer columns is lost."""
    await _run(database, target, down=True)


async def _run(database: Database, target: str, *, down: bool) -> None:
    from alembic import command  # noqa: PLC0415  # slow to import, and seldom needed
    from alembic.util import CommandError  # noqa: PLC0415  # as above

    def run(connection: Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        (command.downgrade if down else command.upgrade)(config, target)

    try:
        async with _naming(database), translated():
            await database.change_tables(run)
    except CommandError as error:
        raise SchemaError(
            f"Its tables are at a revision that this version does not know ({HEAD} is its newest). "
            "Run the version of Talekeeper that wrote it, or a newer one."
        ) from error


@asynccontextmanager
async def _naming(database: Database) -> AsyncGenerator[None]:
    """Say where the database is, when it does not answer."""
    try:
        yield
    except DatabaseUnavailableError as error:
        raise DatabaseUnavailableError(
            f"The database at {database.place} does not answer."
        ) from error


def alembic_config() -> Config:
    """Alembic's configuration, for the commands above and for making new revisions."""
    from alembic.config import Config  # noqa: PLC0415  # slow to import, and seldom needed

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
