"""Tests that a canary in every text field is readable by its owner only.

A user writes the word into every text field, plays turns with every ending, and sends requests
that are refused. Then the tests search for the word in the database's files and tables, in the
index, in the log, and in the temporary folder.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from backend.database.engine import Database
from scripts.torture.canary import find_in_folder, sightings
from tests.integration.security.singer import API, NEEDLES, PASSWORD, WORD, Player, Scribe, sing
from tests.support.logs import Logged, caught_logs
from tests.support.memory import settled, working
from tests.support.models import asking
from tests.support.server import Account, Running, ok, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def model() -> AsyncGenerator[Scribe]:
    async with Scribe() as model:
        yield model


@pytest.fixture
def no_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Return the folder of libraries' temporary files. Python's `tempfile` has none."""
    folder = tmp_path_factory.mktemp("temporary")
    for name in ("TMPDIR", "TEMP", "TMP", "SQLITE_TMPDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder / "no such folder"))
    yield folder
    assert list(folder.iterdir()) == []


async def crash(server: Running, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(sing("crash"))

    with monkeypatch.context() as broken:
        broken.setattr(server.parts.chats, "list_chats", fail)
        answer = await account.client.get(f"{API}/chats", params={"after": WORD})
        assert answer.status_code in {422, 500}
        answer = await account.client.get(f"{API}/chats")
        assert answer.status_code == 500
        assert sightings(NEEDLES, answer.content) == []


async def remember(server: Running, account: Account) -> None:
    """Index everything, and search."""
    await settled(server)
    for kind in ("lore", "message", "event"):
        query = {"q": WORD, "sources": kind}
        found = ok(await account.client.get(f"{API}/search", params=query))["items"]
        assert WORD in found[0]["text"], kind
    assert await server.parts.memory.collections.current.count() > 10
    refused = await account.client.get(f"{API}/search", params={"q": WORD, "sources": WORD})
    assert refused.status_code == 422


def shown(cell: object) -> object:
    return cell.hex() if isinstance(cell, bytes) else cell


async def dump(database: Database) -> bytes:
    """Return every row of every table as text."""
    names = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if database.is_sqlite
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    lines: list[str] = []
    async with database.read() as session:
        for table in list(await session.scalars(text(names))):
            rows = await session.execute(text(f'SELECT * FROM "{table}"'))
            lines += [f"{table}: {[shown(cell) for cell in row]}" for row in rows]
    return "\n".join(lines).encode()


def test_the_search_finds_the_canary_in_every_disguise() -> None:
    word = WORD.encode()
    for text_around in (b"", b"x", b"xy", b"xyz"):
        data = text_around + word + b" and more"
        for hidden in (
            data,
            data.upper(),
            data.hex().encode(),
            base64.b64encode(data),
            base64.urlsafe_b64encode(data),
            base64.b64encode(data.decode().encode("utf-16-le")),
            data.decode().encode("utf-16-be"),
        ):
            assert sightings(NEEDLES, b"\0\xff" + hidden), hidden
    assert sightings(NEEDLES, b"kanarienvogel, some other one") == []


async def test_the_canary_is_found_nowhere(
    database_url: str,
    tmp_path: Path,
    model: Scribe,
    no_temporary_files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with caught_logs() as logged:
        async with (
            running(database_url, tmp_path, **asking(model)) as server,
            working(server.parts),
            server.browser() as client,
        ):
            client.headers["User-Agent"] = sing("browser")
            body = {"username": sing("user"), "password": PASSWORD}
            made = ok(await client.post(f"{API}/accounts", json=body), 201)
            account = Account(client, sing("user"), made["recovery_code"], made["user"])
            await Player(account, model).play()
            await crash(server, account, monkeypatch)
            await remember(server, account)
            rows = await dump(server.parts.database)
            assert len(rows) > 20_000
            assert sightings(NEEDLES, rows) == []
            assert find_in_folder(NEEDLES, tmp_path) == {}
            metrics = await client.get("/metrics")
            assert sightings(NEEDLES, metrics.content) == []
        assert find_in_folder(NEEDLES, tmp_path) == {}
        check_log(logged)
    if make_url(database_url).get_backend_name() == "sqlite":
        assert (tmp_path / "talekeeper.sqlite3").stat().st_size > 100_000


def check_log(logged: Logged) -> None:
    assert len(logged.lines("request.finished")) > 60
    assert len(logged.lines("request.crashed")) == 1
    assert sightings(NEEDLES, logged.text.encode()) == []
