"""Floors of imports and exports: the same messages through the bare driver, and through `zipfile`.

The floor of an import parses each line, seals each text with its author, and inserts the rows. That
of an export reads these rows, opens them and writes them as lines. They count no tokens, keep no
members of the file and check nothing.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID
from zipfile import ZipFile

import asyncpg  # type: ignore[import-untyped]  # it has no types
from sqlalchemy import make_url

from backend.chats.models import CHAT_TITLE, MESSAGE_AUTHOR, MESSAGE_CONTENT
from backend.database.base import new_id, now
from backend.database.sqlite_connection import BUSY_TIMEOUT_MS
from backend.vault.sealing import Sealer

BATCH_ROWS = 1_000
"""Rows of each transaction."""
BATCH_POSITIONS = 200
"""Messages that are read at once, with their swipes."""

_COLUMNS = (
    *("id", "user_id", "chat_id", "parent_id", "position", "role", "status", "hidden"),
    *("is_active", "is_selected", "tokens", "path_tokens", "token_counts", "scene_place"),
    *("sealed_author", "sealed_content", "created_at", "updated_at"),
)
_SELECT = (
    "SELECT id, sealed_author, sealed_content FROM messages "
    "WHERE chat_id = {} AND position >= {} AND position < {} ORDER BY position, id"
)


class _Driver(Protocol):
    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None: ...

    async def read(self, chat_id: UUID, first: int, end: int) -> Sequence[Any]: ...

    async def close(self) -> None: ...


class MessageFloor:
    """One chat in an empty database, written and read without the server's code."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._chat_id = new_id()
        self._sealer = Sealer(new_id(), {1: b"d" * 32}, user_key=b"u" * 32)
        self._positions = 0

    async def store(self, lines: Iterable[bytes]) -> float:
        """Insert the messages of the lines; return the seconds."""
        driver = await _connect(self._url)
        await self._create_chat(driver)
        rows: list[tuple[Any, ...]] = []
        began = time.perf_counter()
        for row in self._make_rows(lines):
            rows.append(row)
            if len(rows) == BATCH_ROWS:
                await driver.insert("messages", _COLUMNS, rows)
                rows.clear()
        await driver.insert("messages", _COLUMNS, rows)
        seconds = time.perf_counter() - began
        await driver.close()
        return seconds

    async def export(self, write: Callable[[bytes], object]) -> float:
        """Write all messages as lines; return the seconds."""
        driver, sealer = await _connect(self._url), self._sealer
        began = time.perf_counter()
        for first in range(0, self._positions, BATCH_POSITIONS):
            for key, author, text in await driver.read(
                self._chat_id, first, first + BATCH_POSITIONS
            ):
                row_id = UUID(bytes=key) if isinstance(key, bytes) else UUID(str(key))
                line = {
                    "name": sealer.open(MESSAGE_AUTHOR, row_id, author),
                    "mes": sealer.open(MESSAGE_CONTENT, row_id, text),
                }
                write(json.dumps(line).encode() + b"\n")
        seconds = time.perf_counter() - began
        await driver.close()
        return seconds

    async def _create_chat(self, driver: _Driver) -> None:
        sealer, chat_id, at = self._sealer, self._chat_id, now()
        user = {
            "id": sealer.user_id,
            "name_lookup": b"bench",
            "wrapped_name": b"",
            "is_administrator": False,
            "is_disabled": False,
            "key_generation": 1,
            "newest_data_key": 1,
            "key_mode": "per_job",
            "wrapped_derivation_key": b"",
            "settings_mac": b"",
            "settings_revision": 0,
            "scripts_revision": 0,
            "new_data_key_due": False,
            "created_at": at,
        }
        chat = {
            "id": chat_id,
            "user_id": sealer.user_id,
            "sealed_title": sealer.seal(CHAT_TITLE, chat_id, "Bench"),
            "chronicle_enabled": False,
            "count_unit": "o200k_base",
            "revision": 1,
            "created_at": at,
            "updated_at": at,
        }
        await driver.insert("users", tuple(user), [tuple(user.values())])
        await driver.insert("chats", tuple(chat), [tuple(chat.values())])

    def _make_rows(self, lines: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        sealer, parent, at = self._sealer, None, now()
        for line in lines:
            message = json.loads(line)
            if "mes" not in message:
                continue
            above = parent
            for place, text in enumerate(message.get("swipes") or [message["mes"]]):
                row_id, is_first = new_id(), place == 0
                parent = row_id if is_first else parent
                role = "user" if message["is_user"] else "assistant"
                author = sealer.seal(MESSAGE_AUTHOR, row_id, message["name"])
                content = sealer.seal(MESSAGE_CONTENT, row_id, text)
                yield (
                    *(row_id, sealer.user_id, self._chat_id, above, self._positions, role),
                    *("complete", False, is_first, is_first, 0, 0, "{}", 0),
                    *(author, content, at, at),
                )
            self._positions += 1


class _Sqlite:
    """SQLite with the server's settings for durability."""

    def __init__(self, file: str) -> None:
        self._connection = sqlite3.connect(
            file, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
        )
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self._connection.execute(f"PRAGMA {pragma}")

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        statement = _make_insert(table, columns, "?" * len(columns))
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, [tuple(map(_adapt, row)) for row in rows])
        self._connection.execute("COMMIT")

    async def read(self, chat_id: UUID, first: int, end: int) -> Sequence[Any]:
        query = _SELECT.format("?", "?", "?")
        return self._connection.execute(query, (chat_id.bytes, first, end)).fetchall()

    async def close(self) -> None:
        self._connection.close()


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        places = [f"${place}" for place in range(1, len(columns) + 1)]
        async with self._connection.transaction():
            await self._connection.executemany(_make_insert(table, columns, places), rows)

    async def read(self, chat_id: UUID, first: int, end: int) -> Sequence[Any]:
        query = _SELECT.format("$1", "$2", "$3")
        rows: Sequence[Any] = await self._connection.fetch(query, chat_id, first, end)
        return rows

    async def close(self) -> None:
        await self._connection.close()


def _make_insert(table: str, columns: Sequence[str], places: Sequence[str]) -> str:
    names, values = ", ".join(columns), ", ".join(places)
    return f"INSERT INTO {table} ({names}) VALUES ({values})"  # noqa: S608  # names of columns


def _adapt(value: Any) -> Any:
    """Return a value as the server stores it in SQLite."""
    if isinstance(value, UUID):
        return value.bytes
    return value if value is None or isinstance(value, int | str | bytes) else str(value)


async def _connect(url: str) -> _Driver:
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return _Sqlite(str(address.database))
    dsn = address.set(drivername="postgresql").render_as_string(hide_password=False)
    return _Postgres(await asyncpg.connect(dsn))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a chat, or of all chats in a zip."""
    if path.suffix != ".zip":
        with path.open("rb") as file:
            yield from file
        return
    with ZipFile(path) as folder:
        for name in folder.namelist():
            if name.endswith(".jsonl"):
                with folder.open(name) as lines:
                    yield from lines


async def time_zip(source: Path, target: Path) -> float:
    """Write the files of a zip to another one as they are packed there; return the seconds."""
    return await asyncio.to_thread(_copy_zip, source, target)


def _copy_zip(source: Path, target: Path) -> float:
    """Measure the writing only, because the server does not read a zip."""
    seconds = 0.0
    with ZipFile(source) as old, ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            began = time.perf_counter()
            new.writestr(info.filename, data, compress_type=info.compress_type)
            seconds += time.perf_counter() - began
    return seconds
