"""Database migrations with Alembic."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect, text

import backend
from backend.database.engine import Database, translate_errors
from backend.database.revisions import Migration, is_compatible, store_compatible
from backend.errors import AppError

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "2026_11_40"
"""The newest revision. A constant, so that a start without migrations need not import Alembic."""


class SchemaError(AppError):
    """The database schema does not belong to this version of Talekeeper."""

    status, slug, title = 503, "schema-mismatch", "The database belongs to another version"


async def current_revision(database: Database) -> str | None:
    async with database.read() as session:
        return await (await session.connection()).run_sync(read_revision)


def read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return None if found is None else str(found)


async def upgrade(database: Database, target: str = "head") -> bool:
    """Upgrade the tables to `target`. Return False if there was nothing to do.

    Replicas that start at the same time wait for each other. Tables of a newer version stay as they
    are, if this version can use them; otherwise `SchemaError` is raised.
    """
    if target == "head":
        revision = await current_revision(database)
        if revision == HEAD or (revision and await is_usable(database, revision)):
            return False
    await _run(database, target, down=False)
    return True


async def find_due(database: Database) -> list[Migration]:
    """Return the migrations that are due, in order. Raises `SchemaError`, as `upgrade` does."""
    revision = await current_revision(database)
    if revision == HEAD or (revision and await is_usable(database, revision)):
        return []
    refuse_unknown(revision, database)
    migrations = list_migrations(HEAD)
    done = 0 if revision is None else len(list_migrations(revision))
    return migrations[done:]


async def is_usable(database: Database, revision: str) -> bool:
    """True if a newer version made the tables, and this version can use them."""
    if is_known(revision):
        return False
    async with database.read() as session:
        connection = await session.connection()
        return await connection.run_sync(is_compatible, HEAD)


async def downgrade(database: Database, target: str) -> None:
    """Downgrade the tables to `target` (`base`: no tables). Data of newer columns is lost."""
    await _run(database, target, down=True)


async def _run(database: Database, target: str, *, down: bool) -> None:
    from alembic import command  # noqa: PLC0415  # slow to import and rarely needed
    from alembic.util import CommandError  # noqa: PLC0415  # as above

    def run(connection: Connection) -> None:
        migrations = list_migrations(HEAD)
        revisions = [each.revision for each in migrations]

        def store(*, heads: Collection[str], **_: Any) -> None:
            for revision in heads:
                store_compatible(connection, migrations[: revisions.index(revision) + 1])

        config = alembic_config()
        # In the transaction of each migration, because the next one may fail.
        config.attributes.update(connection=connection, on_version_apply=store)
        (command.downgrade if down else command.upgrade)(config, target)

    revision = await current_revision(database)
    refuse_unknown(revision, database)
    try:
        async with translate_errors():
            await database.change_tables(run)
    except CommandError as error:
        raise SchemaError(
            f"There is no migration from revision {revision or 'base'} to {target}. "
            f"The newest revision is {HEAD}."
        ) from error


def refuse_unknown(revision: str | None, database: Database) -> None:
    if revision is None or is_known(revision):
        return
    raise SchemaError(
        f"The database {database.place} has revision {revision}, which Talekeeper "
        f"{backend.__version__} does not know (its newest is {HEAD}). Nothing was changed. If a "
        "newer Talekeeper wrote it, install that version again. Otherwise restore a backup of "
        "this version, or start with another database and import your exports."
    )


def is_known(revision: str) -> bool:
    """True if this version has the migration to the revision."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415  # as above
    from alembic.util import CommandError  # noqa: PLC0415  # as above

    try:
        ScriptDirectory.from_config(alembic_config()).get_revision(revision)
    except CommandError:
        return False
    return True


def list_migrations(newest: str) -> list[Migration]:
    """Return the migrations up to a revision, oldest first."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415  # as above

    scripts = ScriptDirectory.from_config(alembic_config()).iterate_revisions(newest, "base")
    return [Migration.from_script(each) for each in scripts][::-1]


def alembic_config() -> Config:
    from alembic.config import Config  # noqa: PLC0415  # slow to import and rarely needed

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
