"""Tests of files that are pruned while a message begins to refer to them, in two sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import and_, delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.errors import UnknownFileError
from backend.chats.files import (
    IS_UNUSED,
    FileName,
    WaitingFile,
    claim_files,
    copy_references,
    insert_files,
    load_waiting_files,
    seal_reference,
)
from backend.chats.models import MessageFile, StoredFile
from backend.database.base import now
from backend.database.engine import Database
from backend.operations import pruning
from backend.operations.pruning import prune
from tests.integration.characters.pictures import picture
from tests.integration.turns.seeding import identity_of
from tests.integration.turns.test_pictures import read_picture, upload
from tests.support.server import Running, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

KEY = 4_217
"""An advisory lock, at which the conditions of pruning wait."""

IN_LINE = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = :key AND NOT granted"
)


@dataclass
class Shelf:
    """A file that is due for pruning, and two messages without files."""

    server: Running
    identity: Identity
    file: WaitingFile
    message_ids: list[UUID]
    read: Callable[[], Awaitable[bytes]]

    @property
    def database(self) -> Database:
        return self.server.parts.database

    async def prune(self) -> None:
        await prune(self.database, self.server.parts.settings)

    async def refer(self, session: AsyncSession) -> None:
        """Add the same picture to the first message."""
        name, digest = FileName(name="map.png", path=""), self.file.digest
        sealer, message_id = self.identity.sealer, self.message_ids[0]
        reference = seal_reference(sealer, message_id, name, place=0, digest=digest)
        await insert_files(session, self.identity.user_id, [], [reference])

    async def is_kept(self) -> bool:
        async with self.database.read() as session:
            files = list(await session.scalars(select(MessageFile.file_id)))
        assert files == [self.file.id]
        return bool(await self.read())


@pytest.fixture
async def shelf(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Shelf]:
    async with running(postgres_url, tmp_path) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text="Look!")
        found = await upload(ada, chat, picture(width=8, height=8))
        identity = await identity_of(server, ada)
        async with server.parts.database.write() as session:
            files = await load_waiting_files(session, identity.sealer, [UUID(found["id"])])
            due = update(StoredFile).values(waits_until=now() - timedelta(minutes=1))
            await session.execute(due)
        ids = [UUID(each["id"]) for each in await ada.messages(chat)]
        yield Shelf(server, identity, files[0], ids, lambda: read_picture(ada, found))


@asynccontextmanager
async def holding(database: Database) -> AsyncGenerator[None]:
    async with database.engine.connect() as connection:
        await connection.execute(select(text(f"pg_advisory_xact_lock({KEY})")))
        yield


async def wait_for_line(database: Database, length: int) -> None:
    async def is_waiting() -> bool:
        async with database.read() as session:
            return bool(await session.scalar(IN_LINE, {"key": KEY}) == length)

    await until(is_waiting)


async def test_a_file_stays_that_a_message_refers_to_after_it_was_found_unused(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = text(f"pg_advisory_xact_lock({KEY})::text IS NOT NULL")
    monkeypatch.setattr(pruning, "IS_UNUSED", and_(IS_UNUSED, waits))
    released = asyncio.Event()

    async def hold_again() -> None:
        async with holding(shelf.database):
            await released.wait()

    async with holding(shelf.database):
        pruned = asyncio.create_task(shelf.prune())
        await wait_for_line(shelf.database, 1)  # it reads the keys
        again = asyncio.create_task(hold_again())
        await wait_for_line(shelf.database, 2)
    await wait_for_line(shelf.database, 1)  # it has seen that no message refers to the file
    async with shelf.database.write() as session:
        await shelf.refer(session)
    released.set()
    await asyncio.gather(pruned, again)
    assert await shelf.is_kept()


async def test_a_file_stays_that_an_open_transaction_refers_to(shelf: Shelf) -> None:
    async with shelf.database.write() as session:
        await shelf.refer(session)
        await shelf.prune()
    assert await shelf.is_kept()


async def test_a_line_whose_file_is_pruned_at_the_same_time_is_refused(shelf: Shelf) -> None:
    async def claim() -> None:
        async with shelf.database.write() as session:
            await claim_files(session, shelf.identity.user_id, [shelf.file])

    async with shelf.database.write() as session:
        await session.execute(delete(StoredFile))
        claimed = asyncio.create_task(claim())
        await asyncio.wait([claimed], timeout=0.3)
        assert not claimed.done()
    with pytest.raises(UnknownFileError):
        await claimed


async def test_a_copy_of_a_message_whose_file_is_deleted_has_no_content(shelf: Shelf) -> None:
    original, copy = shelf.message_ids
    async with shelf.database.write() as session:
        await shelf.refer(session)

    async def copy_files() -> None:
        async with shelf.database.write() as session:
            await copy_references(session, shelf.identity.sealer, {original: copy})

    async with shelf.database.write() as session:
        await session.execute(delete(MessageFile))
        await session.execute(delete(StoredFile))
        copied = asyncio.create_task(copy_files())
        await asyncio.wait([copied], timeout=0.3)
        assert not copied.done()
    await copied
    async with shelf.database.read() as session:
        [row] = await session.scalars(select(MessageFile))
    assert (row.message_id, row.file_id) == (copy, None)
