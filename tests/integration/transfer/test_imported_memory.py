"""Imported chats are searched like any other, once one background job has indexed them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.database.base import new_id
from backend.jobs.models import Job
from backend.memory.indexing.outbox import INDEX_IMPORTED
from backend.memory.models import IndexChange
from backend.transfer.contracts import ChatTarget
from tests.integration.turns.seeding import identity_of
from tests.support.memory import remembering, search, settled, texts_found
from tests.support.server import Account, Running
from tests.support.stored_chats import make_header, make_line, read, report_nothing, write_lines

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

FACT = "The captain buried the astrolabe under the chapel bell."


async def import_chat(server: Running, account: Account, texts: list[str]) -> UUID:
    data = write_lines([make_header(), *map(make_line, texts)])
    target = ChatTarget(file_name="Mara.jsonl", digest=new_id().bytes)
    result = await server.parts.chat_importer.store(
        await identity_of(server, account), read(data), target, report=report_nothing
    )
    assert result.item_id is not None
    return result.item_id


async def test_a_line_far_back_in_an_imported_chat_is_found(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        remembering(database_url, tmp_path) as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        chat_id = await import_chat(server, ada, [FACT, *(f"Day {n}." for n in range(450))])
        await import_chat(server, ada, ["Nothing happens."])
        await settled(server)
        [found, *_] = await search(ada, "Where is the astrolabe?")
        assert (found["text"], found["container_id"]) == (FACT, str(chat_id))
        assert await texts_found(ben, "astrolabe") == []
        async with server.parts.database.read() as session:
            jobs = list(await session.scalars(select(Job).where(Job.kind == INDEX_IMPORTED)))
            notes = list(await session.scalars(select(IndexChange)))
        assert {job.state for job in jobs} == {"done"}
        assert notes == []


async def test_a_turn_in_an_imported_chat_is_found_with_the_rest(
    database_url: str, tmp_path: Path
) -> None:
    async with remembering(database_url, tmp_path) as server, server.account("Ada") as ada:
        chat_id = await import_chat(server, ada, [FACT])
        await ada.turn(str(chat_id), text="I hide the sextant in the well.")
        await settled(server)
        assert FACT in await texts_found(ada, "astrolabe")
        assert "I hide the sextant in the well." in await texts_found(ada, "sextant")
