"""Tests that installations of earlier versions open with all their contents.

`scripts/write_installation.py` says how they were written, and how to add one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import tarfile
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from backend.database import migrate
from backend.database.engine import Database
from backend.vault.root import load_root_keys
from tests.support.databases import restored
from tests.support.memory import context_of, take_turn, texts_found, whole
from tests.support.server import Account, Running, ok, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | None"
API = "/api/v1"
INSTALLATIONS = Path(__file__).parents[1] / "fixtures" / "installations"
LINE = "I find the golden bell in the lamp room."


@dataclass(frozen=True)
class Installation:
    """A copy of a data folder, its migrated database, and recorded answers."""

    folder: Path
    database_url: str
    written: dict[str, Any]

    @contextlib.asynccontextmanager
    async def open(self, **settings: Any) -> AsyncGenerator[Running]:
        root = load_root_keys(self.folder / "root.key")
        settings = {"embedder": "none", **settings}
        async with running(self.database_url, self.folder, root=root, **settings) as server:
            yield server

    @contextlib.asynccontextmanager
    async def sign_in(self, server: Running) -> AsyncGenerator[Account]:
        name, password = self.written["username"], self.written["password"]
        async with server.signed_in(name, password) as account:
            yield account


def archives(database: str) -> list[Any]:
    marks = [pytest.mark.postgres] if database == "postgres" else []
    return [
        pytest.param(path, id=f"{path.parent.name}-{database}", marks=marks)
        for path in sorted(INSTALLATIONS.glob(f"*/{database}.tar.xz"))
    ]


@pytest.fixture(params=[*archives("sqlite"), *archives("postgres")])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Installation]:
    unpack(request.param, tmp_path)
    written = json.loads((tmp_path / "written.json").read_text(encoding="utf-8"))
    dump = tmp_path / "database.sql"
    with contextlib.ExitStack() as stack:
        if dump.exists():
            server = request.getfixturevalue("postgres_server")
            url = stack.enter_context(restored(server, dump))
        else:
            url = f"sqlite+aiosqlite:///{tmp_path / 'talekeeper.sqlite3'}"
        asyncio.run(upgrade(url))
        yield Installation(tmp_path, url, written)


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        # Python 3.11.2, which Debian has, does not know the argument.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(folder, **safely)  # noqa: S202  # our own fixture


async def upgrade(url: str, target: str = "head") -> None:
    database = Database(url)
    try:
        await migrate.upgrade(database, target)
    finally:
        await database.dispose()


def keep_members(answer: Json, old: Json) -> Json:
    """Leave out members of an answer that the older version did not have."""
    if isinstance(old, dict) and isinstance(answer, dict):
        return {name: keep_members(answer[name], old[name]) for name in old if name in answer}
    if isinstance(old, list) and isinstance(answer, list) and len(old) == len(answer):
        return [keep_members(*pair) for pair in zip(answer, old, strict=True)]
    return answer


def list_found(answer: dict[str, Any]) -> tuple[str, set[str]]:
    """The best result of a search, and all results. Scores may change from version to version."""
    found = [item["source_id"] for item in answer["items"]]
    return found[0], set(found)


async def test_an_old_installation_has_all_its_texts_and_settings(
    installation: Installation,
) -> None:
    written = installation.written
    # Without workers no index is rebuilt, so the search uses the old one.
    async with (
        installation.open(job_workers=0) as server,
        installation.sign_in(server) as ada,
        server.program(written["api_key"]) as program,
    ):
        for name, old in written["answers"].items():
            answer = ok(await ada.client.get(API + written["paths"][name]))
            if name == "search":
                assert list_found(answer) == list_found(old)
            else:
                assert keep_members(answer, old) == old
        # The API key also opens sealed texts.
        old = written["answers"]["messages"]
        answer = ok(await program.get(API + written["paths"]["messages"]))
        assert keep_members(answer, old) == old


async def test_play_goes_on_in_an_old_installation(installation: Installation) -> None:
    written = installation.written
    chat = written["chat_id"]
    async with installation.open() as server:
        async with installation.sign_in(server) as ada:
            reply = await take_turn(ada, chat, text=LINE)
            *_, line, last = await ada.messages(chat)
            assert (line["text"], last["id"], last["status"]) == (LINE, reply, "complete")
            prompt = whole(await context_of(ada, reply))
            for text in (
                "Old Tobin keeps the lamp.",
                "[Day 1 | Garrik | at the-flooded-chapel]",
                "Garrik kills the drowned warden on the causeway.",
            ):
                assert text in prompt

            # The owner has opted in to the chronicle, so the agent also reads the new line.
            async def is_told() -> bool:
                answer = ok(await ada.client.get(API + written["paths"]["events"]))
                return any(LINE in event["summary"] for event in answer["items"])

            async def is_indexed() -> bool:
                return LINE in await texts_found(ada, "golden bell", sources="message")

            await until(is_told)
            await until(is_indexed)
        recovery = {name: written[name] for name in ("username", "recovery_code")}
        recovery["new_password"] = "another lamp in the window"
        async with server.browser() as client:
            ok(await client.post(f"{API}/recoveries", json=recovery), 201)
        async with server.signed_in("ada", recovery["new_password"]) as ada:
            assert (await ada.messages(chat))[-1]["id"] == reply


@pytest.mark.parametrize("archive", archives("sqlite"))
def test_migrations_still_make_the_tables_of_an_old_installation(
    archive: Path, tmp_path: Path
) -> None:
    unpack(archive, tmp_path)
    old, new = tmp_path / "talekeeper.sqlite3", tmp_path / "new.sqlite3"
    revision = query(old, "SELECT version_num FROM alembic_version")[0][0]
    asyncio.run(upgrade(f"sqlite+aiosqlite:///{new}", revision))
    tables = (
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' "
        "ORDER BY type, name"
    )
    assert query(new, tables) == query(old, tables)


def query(file: Path, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()
