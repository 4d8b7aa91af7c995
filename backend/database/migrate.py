"""Bringing the database's tables to the form that the code expects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

import backend
from backend.database.engine import Database, translate_errors
from backend.errors import AppError

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "2026_11_22"
"""Newest revision: known here so that a start needs no Alembic when nothing is to be done."""


class SchemaError(AppError):
    """The tables are not those of this version of Talekeeper."""

    status, slug, title = 503, "schema-mismatch", "The database is of another version"


async def current_revision(database: Database) -> str | None:
    """The revision that the tables are at; None for an empty database."""

    def read(connection: Connection) -> str | None:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return None if found is None else str(found)

    async with database.read() as session:
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

    revision = await current_revision(database)
    refuse_unknown(revision, database)
    try:
        async with translate_errors():
            await database.change_tables(run)
    except CommandError as error:
        raise SchemaError(
            f"From revision {revision or 'base'} there is no way to {target}; {HEAD} is the newest."
        ) from error


def refuse_unknown(revision: str | None, database: Database) -> None:
    """Raise `SchemaError` if this version does not know the revision that the tables are at."""
    if revision is None or _is_known(revision):
        return
    raise SchemaError(
        f"The database {database.place} is at revision {revision}. Talekeeper "
        f"{backend.__version__} does not know it ({HEAD} is its newest), and changed nothing. If "
        "a newer Talekeeper wrote it, install that one again. Otherwise put a backup of this "
        "version in its place, or start with another database and bring your exports in there."
    )


def _is_known(revision: str) -> bool:
    from alembic.script import ScriptDirectory  # noqa: PLC0415  # as above
    from alembic.util import CommandError  # noqa: PLC0415  # as above

    try:
        ScriptDirectory.from_config(alembic_config()).get_revision(revision)
    except CommandError:
        return False
    return True


def alembic_config() -> Config:
    """Alembic's configuration, for the commands above and for making new revisions."""
    from alembic.config import Config  # noqa: PLC0415  # slow to import, and seldom needed

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
