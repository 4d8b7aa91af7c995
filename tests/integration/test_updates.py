"""Tests of updates: what is due, and code of an earlier version on tables of a newer one."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from backend.database import engine, migrate
from backend.database.engine import Database, DatabaseUnavailableError, TablesLockedError
from backend.database.revisions import Migration, find_compatible
from backend.settings import DATABASE_NAME
from tests.support.player import Player
from tests.support.process import environment, run_command
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from backend.cli import main; sys.exit(main())"


def test_what_is_due_is_listed_and_not_done(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    listed = run_command(folder, "migrate", "--check")
    assert listed.returncode == 1
    lines = listed.stdout.splitlines()
    first = "Accounts and their keys, jobs, quotas, and the state of the search index."
    assert lines[0] == f"2026_11_1    contract  {first}"
    assert lines[-1] == f"{len(migrate.list_migrations(migrate.HEAD))} due."
    assert not (folder / DATABASE_NAME).exists()

    assert run_command(folder, "migrate", "--to", "2026_11_27").returncode == 0
    listed = run_command(folder, "migrate", "--check")
    assert listed.stdout.splitlines()[0].split()[:2] == ["2026_11_28", "expand"]
    assert run_command(folder, "migrate").returncode == 0
    listed = run_command(folder, "migrate", "--check")
    assert (listed.returncode, listed.stdout) == (0, "Nothing is due.\n")


@pytest.mark.every_database
async def test_tables_of_a_newer_version_are_used_if_they_are_compatible(
    database: Database,
) -> None:
    async with database.write() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '2099_1'"))
        await session.execute(text("INSERT INTO compatible_revisions VALUES ('2099_1')"))
    assert await migrate.upgrade(database) is False
    assert await migrate.find_due(database) == []
    assert await migrate.current_revision(database) == "2099_1"
    async with database.write() as session:
        own = text("DELETE FROM compatible_revisions WHERE revision = :own")
        await session.execute(own, {"own": migrate.HEAD})
    for ask in (migrate.upgrade, migrate.find_due):
        with pytest.raises(migrate.SchemaError, match=r"has revision 2099_1.*restore a backup"):
            await ask(database)


def test_code_before_a_contraction_is_compatible_once_it_does_without() -> None:
    def make(revision: str, replaced_in: str | None = None) -> Migration:
        return Migration(revision, "", "contract" if replaced_in else "expand", replaced_in)

    history = [make("1", "1"), make("2"), make("3")]
    assert find_compatible(history) == ["1", "2", "3"]
    assert find_compatible([*history, make("4", "2")]) == ["2", "3", "4"]
    assert find_compatible([*history, make("4", "4"), make("5")]) == ["4", "5"]
    assert find_compatible([*history, make("4", "3"), make("5", "2")]) == ["3", "4", "5"]


async def test_versions_that_a_migration_shuts_out_stay_out_if_a_later_one_fails(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.MIGRATIONS, folder)
    for revision, before, work in (
        ("2099_1", migrate.HEAD, "pass"),
        ("2099_2", "2099_1", "raise ConnectionError"),
    ):
        source = f"revision, down_revision = {revision!r}, {before!r}\ndef upgrade(): {work}\n"
        (folder / "versions" / f"{revision}.py").write_text(source)
    database = Database(postgres_url)
    monkeypatch.setattr(migrate, "MIGRATIONS", folder)
    monkeypatch.setattr(migrate, "HEAD", "2099_2")
    with pytest.raises(DatabaseUnavailableError):
        await migrate.upgrade(database)
    assert await migrate.current_revision(database) == "2099_1"
    async with database.read() as session:
        compatible = await session.scalars(text("SELECT revision FROM compatible_revisions"))
        assert list(compatible) == ["2099_1"]
    await database.dispose()


async def test_a_migration_that_expands_only_adds(database: Database) -> None:
    migrations = migrate.list_migrations(migrate.HEAD)
    first = next(n for n, each in enumerate(migrations) if each.phase == "expand")
    assert {each.phase for each in migrations[:first]} == {"contract"}
    await migrate.downgrade(database, migrations[first - 1].revision)
    before = await read_tables(database)
    for each in migrations[first:]:
        await migrate.upgrade(database, each.revision)
        after = await read_tables(database)
        if each.phase == "expand":
            assert find_obstacles(before, after) == [], each
        before = after


async def read_tables(database: Database) -> dict[str, dict[str, Any]]:
    """Columns and constraints by table."""

    def read(connection: Connection) -> dict[str, dict[str, Any]]:
        inspector = inspect(connection)
        return {
            name: {
                "columns": {each["name"]: each for each in inspector.get_columns(name)},
                "constraints": {
                    *(
                        ("unique", *each["column_names"])
                        for each in inspector.get_unique_constraints(name)
                    ),
                    *(
                        ("unique", *each["column_names"])
                        for each in inspector.get_indexes(name)
                        if each["unique"]
                    ),
                    *(
                        ("reference", *each["constrained_columns"])
                        for each in inspector.get_foreign_keys(name)
                    ),
                    *(("check", each["sqltext"]) for each in inspector.get_check_constraints(name)),
                },
            }
            for name in inspector.get_table_names()
        }

    async with database.engine.connect() as connection:
        return await connection.run_sync(read)


def find_obstacles(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]
) -> list[str]:
    """What code that knows only the tables `before` would stumble over."""
    found: list[str] = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            found.append(f"{name} is gone")
            continue
        gone = old["columns"].keys() - new["columns"].keys()
        found += [f"{name}.{each} is gone" for each in sorted(gone)]
        for column, value in new["columns"].items():
            known = old["columns"].get(column)
            if known is None and not value["nullable"] and value["default"] is None:
                found.append(f"{name}.{column} is required")
            if known is not None and (str(known["type"]), known["nullable"]) != (
                str(value["type"]),
                value["nullable"],
            ):
                found.append(f"{name}.{column} has changed")
        added = new["columns"].keys() - old["columns"].keys()
        for kind, *columns in sorted(new["constraints"] - old["constraints"]):
            if not added & set(columns):
                found.append(f"{name}: {kind} of {', '.join(columns)} is new")
    return found


async def test_tables_are_changed_while_turns_are_stored(postgres_url: str) -> None:
    replicas = [Database(postgres_url) for _ in range(3)]
    player = replicas[2]
    await migrate.downgrade(replicas[0], "2026_11_27")
    write = text("LOCK TABLE turns IN ROW EXCLUSIVE MODE")
    patience = text("SET LOCAL lock_timeout = '5s'")
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE :query AND wait_event_type = 'Lock'"
    )

    async def wait_for(statement: str) -> None:
        async def is_waiting() -> bool:
            async with player.read() as session:
                return bool(await session.scalar(waiting, {"query": f"{statement}%"}))

        await until(is_waiting)

    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(player.write())
        await reader.execute(text("LOCK TABLE token_ledger IN ACCESS SHARE MODE"))
        async with player.write() as unfinished:
            await unfinished.execute(write)
            upgrades = [asyncio.create_task(migrate.upgrade(each)) for each in replicas[:2]]
            await wait_for("CREATE INDEX CONCURRENTLY")
            async with player.write() as session:
                await session.execute(patience)
                await session.execute(write)
        await wait_for("ALTER TABLE token_ledger")
        # A turn changes its row, and then counts its tokens.
        async with player.write() as turn:
            await turn.execute(write)
            await stack.aclose()
            await turn.execute(patience)
            await turn.execute(text("LOCK TABLE token_ledger IN ROW EXCLUSIVE MODE"))
    await asyncio.gather(*upgrades)
    assert await migrate.current_revision(player) == migrate.HEAD
    for each in replicas:
        await each.dispose()


LOCKED = "token_ledger"
"""A table that the migrations after 2026_11_27 change."""


async def test_a_migration_that_waits_for_a_long_transaction_lets_others_read(
    postgres_url: str,
) -> None:
    replicas = [Database(postgres_url) for _ in range(2)]
    player = replicas[1]
    await migrate.downgrade(replicas[0], "2026_11_27")
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE%' "
        "AND wait_event_type = 'Lock'"
    )

    async def is_waiting() -> bool:
        async with player.read() as session:
            return bool(await session.scalar(waiting))

    async with player.write() as reader:
        await reader.execute(text(f"LOCK TABLE {LOCKED} IN ACCESS SHARE MODE"))
        upgrade = asyncio.create_task(migrate.upgrade(replicas[0]))
        await until(is_waiting)
        async with player.read() as session:
            # It waits behind the migration, until that gives up for a moment.
            assert await session.scalar(text(f"SELECT count(*) FROM {LOCKED}")) == 0
        assert not upgrade.done()
    assert await upgrade
    assert await migrate.current_revision(player) == migrate.HEAD
    for each in replicas:
        await each.dispose()


async def test_a_migration_names_the_query_that_finds_the_holder_of_a_lock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TABLE_LOCK_PAUSES", ())
    monkeypatch.setattr(engine, "TABLE_LOCK_SECONDS", 0.1)
    database = Database(postgres_url)
    await migrate.downgrade(database, "2026_11_27")
    async with database.write() as reader:
        await reader.execute(text(f"LOCK TABLE {LOCKED} IN ACCESS SHARE MODE"))
        with pytest.raises(TablesLockedError, match="pg_stat_activity"):
            await migrate.upgrade(database)
    assert await migrate.upgrade(database)
    assert await migrate.current_revision(database) == migrate.HEAD
    await database.dispose()


@pytest.mark.release
@pytest.mark.every_database
def test_code_of_the_last_release_plays_on_the_tables_of_this_version(
    tmp_path: Path, database_url: str
) -> None:
    ask = ["git", "describe", "--tags", "--abbrev=0", "--match=v[0-9]*"]
    tag = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if not tag:
        pytest.skip("no release is tagged in this checkout")
    data, release = tmp_path / "data", tmp_path / "release"
    release.mkdir()
    parts = ["git", "archive", tag, "backend", "prompts"]
    packed = subprocess.run(parts, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=release, input=packed.stdout, check=True)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "--data-dir", str(data)],
        cwd=release,
        env=environment(database_url=database_url, embedder="none"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            assert " at http" in greeting, tag
            assert "text.delta" in Player(greeting.split()[-1]).read_reply("Hello.")
        finally:
            process.terminate()
