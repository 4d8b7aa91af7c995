"""What is deleted is gone from SQLite's files, the write-ahead log among them.

The files are read as a thief would read them: byte by byte, for the blobs as they were in the rows.
"""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import delete, select, text, update

from backend.accounts.keys.sealed_tables import find_model_tables
from backend.accounts.models import DataKey, IdempotentRequest, KeySlot
from backend.database import sqlite_connection
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.jobs.queue import NewJob
from backend.quotas.ledgers import StorageLedger
from tests.support.server import PASSWORD, Account, Running, ok, running
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

ME = "/api/v1/me"
NEW = "an even finer password"
PIECE = 24
"""Bytes of a blob that are looked for: more than come together by chance."""


def lies_in(folder: Path, blob: bytes) -> list[str]:
    """The database's files with a piece of the blob in them."""
    pieces = {blob[at : at + PIECE] for at in (0, len(blob) // 2, len(blob) - PIECE)}
    return [
        file.name
        for file in sorted(folder.glob("*.sqlite3*"))
        if any(piece in file.read_bytes() for piece in pieces)
    ]


def sightings(folder: Path, blobs: list[bytes]) -> list[list[str]]:
    return [found for blob in blobs if (found := lies_in(folder, blob))]


async def keys_of(server: Running, account: Account) -> list[bytes]:
    """Whatever opens the account's texts, as it lies in the database."""
    user_id = UUID(account.user["id"])
    async with server.parts.database.read() as session:
        found: list[bytes] = []
        for query in (
            select(KeySlot.wrapped).where(KeySlot.user_id == user_id),
            select(DataKey.wrapped).where(DataKey.user_id == user_id),
            select(Job.wrapped_key).where(Job.user_id == user_id, Job.wrapped_key.is_not(None)),
        ):
            found += [each for each in await session.scalars(query) if each]
    return found


async def texts_of(server: Running, account: Account, *tables: str) -> list[bytes]:
    """The account's sealed texts."""
    user_id, found = UUID(account.user["id"]), list[bytes]()
    async with server.parts.database.read() as session:
        for sealed in find_model_tables():
            for column in sealed.columns:
                query = select(column).where(sealed.owner == user_id, column.is_not(None))
                if not tables or sealed.table.name in tables:
                    found += await session.scalars(query)
    return found


async def later_job(server: Running, account: Account) -> bytes:
    """A job with its key, which nothing does today; the key as it lies in the row."""
    queue, user_id = server.parts.queue, UUID(account.user["id"])
    identity = await server.parts.sessions.authenticate(
        account.client.cookies["talekeeper_session"], "session"
    )
    assert identity is not None
    async with server.parts.database.write() as session:
        job_id = await queue.enqueue(
            session,
            NewJob("index", user_id, run_after=now() + timedelta(days=1)),
            key=queue.grant(identity.sealer, "per_job"),
        )
        wrapped = await session.scalar(select(Job.wrapped_key).where(Job.id == job_id))
    assert wrapped is not None
    return wrapped


async def test_a_deleted_account_leaves_neither_keys_nor_texts_in_the_files(
    server: Running, ada: Account, tmp_path: Path
) -> None:
    chat = (await ada.new_chat(title="The lighthouse"))["id"]
    await ada.turn(chat, text="Tell me. " * 2_000)
    await later_job(server, ada)
    blobs = [*await keys_of(server, ada), *await texts_of(server, ada)]
    assert len(blobs) > 8
    assert len(sightings(tmp_path, blobs)) == len(blobs)

    gone = await ada.client.request("DELETE", ME, json={"password": PASSWORD})
    assert gone.status_code == 204

    assert sightings(tmp_path, blobs) == []


async def test_a_switch_to_sealed_leaves_no_jobs_key_in_the_files(
    server: Running, ada: Account, tmp_path: Path
) -> None:
    wrapped = await later_job(server, ada)
    assert lies_in(tmp_path, wrapped)

    ok(await ada.client.patch(ME, json={"key_mode": "sealed"}))

    assert lies_in(tmp_path, wrapped) == []


async def test_a_replaced_password_and_an_ended_session_leave_nothing_in_the_files(
    server: Running, ada: Account, tmp_path: Path
) -> None:
    async with server.signed_in("Ada") as other:
        change = {"current_password": PASSWORD, "new_password": NEW}
        before = await slots_of(server, "password")
        ok(await ada.client.post(f"{ME}/password", json=change), 204)
        assert sightings(tmp_path, before) == []
        del other
    sessions = await slots_of(server, "session")
    ok(await ada.client.delete("/api/v1/sessions/current"), 204)
    assert sightings(tmp_path, sessions) == []


async def slots_of(server: Running, kind: str) -> list[bytes]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(KeySlot.wrapped).where(KeySlot.kind == kind)))


async def test_whatever_else_is_deleted_is_gone_from_the_files_soon(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "EMPTY_INTERVAL_SECONDS", 0.1)
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        chat = (await ada.new_chat(title="The lighthouse"))["id"]
        await ada.turn(chat, text="Tell me.")
        blobs = await texts_of(server, ada, "chats", "messages")
        assert len(sightings(tmp_path, blobs)) == len(blobs)
        ok(await ada.client.delete(f"/api/v1/chats/{chat}"), 204)
        async with asyncio.timeout(PATIENCE):
            while sightings(tmp_path, blobs):
                await asyncio.sleep(0.05)


async def test_a_stop_leaves_an_empty_log(sqlite_url: str, tmp_path: Path) -> None:
    reader = Database(sqlite_url)  # as another process has it, so that the log is not deleted
    async with reader.read() as session:
        await session.execute(text("SELECT 1"))
    async with running(sqlite_url, tmp_path) as server, server.account("Ada") as ada:
        await ada.new_chat(title="The lighthouse")
        assert (tmp_path / "talekeeper.sqlite3-wal").stat().st_size > 0
    assert (tmp_path / "talekeeper.sqlite3-wal").stat().st_size == 0
    await reader.dispose()


async def add_slots(database: Database, count: int) -> list[bytes]:
    rows = [
        IdempotentRequest(
            id=new_id(),
            user_id=new_id(),
            key_digest=os.urandom(32),
            request_digest=b"",
            sealed_response=os.urandom(random.choice((40, 400, 4_000, 40_000))),
        )
        for _ in range(count)
    ]
    async with database.write() as session:
        await session.execute(text("PRAGMA defer_foreign_keys=ON"))
        session.add_all(rows)
        await session.flush()
        found = [row.sealed_response or b"" for row in rows]
        ids = [row.id for row in rows]
        kept = ids[::3]
        await session.execute(
            update(IdempotentRequest)
            .where(IdempotentRequest.id.in_(kept))
            .values(sealed_response=os.urandom(60))
        )
        await session.execute(delete(IdempotentRequest))
        await session.execute(delete(StorageLedger))  # of accounts that there are none of
    return found


async def test_pages_that_were_freed_or_split_keep_nothing(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    blobs = await add_slots(database, 300)
    assert await database.log.empty()
    assert sightings(tmp_path, blobs) == []
    await database.dispose()


def size_of(file: Path) -> int:
    return file.stat().st_size


async def test_a_reader_in_the_way_is_waited_for_and_holds_up_neither_answers_nor_writers(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "EMPTY_INTERVAL_SECONDS", 0.1)
    database, other = Database(sqlite_url), Database(sqlite_url)
    await database.log.empty()
    async with other.read() as reading:
        await reading.execute(text("SELECT * FROM users"))
        await add_slots(database, 3)
        assert not await database.log.empty_now()
        await add_slots(database, 3)
    keeping = asyncio.create_task(database.log.keep_empty())
    file = Path(database.place + "-wal")
    async with asyncio.timeout(PATIENCE):
        while size_of(file):
            await asyncio.sleep(0.05)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    for each in (database, other):
        await each.dispose()


async def test_writers_go_on_beside_a_log_that_is_emptied_all_the_time(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    is_over = asyncio.Event()

    async def empty() -> int:
        count = 0
        while not is_over.is_set():
            count += await database.log.empty()
            await asyncio.sleep(0)
        return count

    emptying = asyncio.create_task(empty())
    await asyncio.gather(*(add_slots(database, 2) for _ in range(30)))
    is_over.set()
    assert await emptying > 0
    await database.dispose()


@pytest.mark.postgres
async def test_postgresql_has_no_such_log(postgres_url: str) -> None:
    database = Database(postgres_url)
    async with database.write() as session:
        await session.execute(text("SELECT 1"))
    assert await database.log.empty()
    await database.dispose()
