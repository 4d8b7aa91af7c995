"""Tests of the separation of accounts in the index, and of the keys that indexing needs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.jobs.models import Job
from backend.memory.index.protocol import Kind, Point, Sparse, SparseName
from backend.memory.indexing import sources
from backend.memory.indexing.outbox import REINDEX, note_change
from backend.memory.models import IndexChange
from backend.memory.runtime import index_folder
from tests.support.memory import (
    API,
    Start,
    forgotten,
    link,
    new_book,
    points_of,
    preview,
    reasons,
    reconcile,
    rows_of,
    search,
    set_chat,
    settled,
    stored_rows,
    tell,
    texts_found,
)
from tests.support.points import point, terms
from tests.support.server import PASSWORD, Account, Running, ok
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where did the captain bury the astrolabe, under which bell?"


async def write(server: Running, account: Account) -> tuple[str, str]:
    """Make a chat with a memory and a book with an entry. Return their ids."""
    chat = str((await account.new_chat())["id"])
    await tell(server, account, chat, [FACT, *[f"Roof {n}." for n in range(40)]])
    await set_chat(account, chat, budgets={"history": 60}, memory={"min_relevance": 0})
    entry = {"title": "Chapel", "keys": ["nave"], "content": "A chapel with a bell, and bats."}
    book = await new_book(account, entry)
    await link(account, chat, book)
    await settled(server)
    return chat, book


async def test_equal_texts_of_two_people_are_each_one_s_own(start: Start) -> None:
    async with (
        start(embedder="none") as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        written = {account.name: await write(server, account) for account in (ada, ben)}
        for account, other in ((ada, ben), (ben, ada)):
            chat, book = written[account.name]
            theirs = set(written[other.name])
            found = [*await search(account, "bell chapel"), *await search(account, QUESTION)]
            assert {item["container_id"] for item in found} == {chat, book}
            assert [item["text"] for item in found].count(FACT) == 2
            context = await preview(account, chat, QUESTION)
            assert not [each for each in theirs if each in str(context)]
            mine = set(map(str, await stored_rows(server, UUID(account.user["id"]))))
            assert {item["source_id"] for item in context["retrieved"]} <= mine
            # Common words alone do not activate lore.
            assert "Chapel" not in reasons(context)

        # Equal texts of two accounts have different term ids.
        index = server.parts.memory.collections.current
        gone = UUID(ben.user["id"])
        assert await index.owners() == {UUID(ada.user["id"]), gone}
        before = await points_of(index, UUID(ada.user["id"]))
        deleted = await ben.client.request("DELETE", f"{API}/me", json={"password": PASSWORD})
        ok(deleted, 204)
        await settled(server)
        assert await index.owners() == {UUID(ada.user["id"])}
        assert await index.count(gone) == 0
        assert await points_of(index, UUID(ada.user["id"])) == before
        assert FACT in await texts_found(ada, QUESTION)


@pytest.mark.parametrize("mode", ["managed", "per_job", "sealed"])
@pytest.mark.every_database
async def test_a_lost_index_is_made_again_as_soon_as_there_is_a_key(
    start: Start, mode: str
) -> None:
    async with start(embedder="none") as server:
        folder = index_folder(server.parts.settings)
        async with server.account("Ada") as ada:
            ok(await ada.client.patch(f"{API}/me", json={"key_mode": mode}))
            chat, _ = await write(server, ada)
            before = await search(ada, "bell chapel captain")
            assert len(before) > 1
    shutil.rmtree(folder)

    user_id = UUID(ada.user["id"])
    async with start(embedder="none") as server:
        index = server.parts.memory.collections.current

        async def waits() -> bool:
            async with server.parts.database.read() as session:
                job = await session.scalar(select(Job).where(Job.kind == REINDEX))
            return job is not None and job.state == "waiting_key"

        if mode == "managed":
            await settled(server)
            points = await points_of(index, user_id)
            assert rows_of(points).keys() == await stored_rows(server, user_id)
        else:
            await until(waits)
            assert await index.count() == 0
        async with server.signed_in("Ada") as ada:
            ok(await ada.client.get(f"{API}/me"))
            await settled(server)
            assert await search(ada, "bell chapel captain") == before
            assert FACT in str(await preview(ada, chat, QUESTION))


@pytest.mark.every_database
async def test_points_that_work_under_way_puts_back_after_a_deletion_go_as_well(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(embedder="none") as server, server.account("Ben") as ben:
        index, gone = server.parts.memory.collections.current, UUID(ben.user["id"])
        begun, may_go_on = asyncio.Event(), asyncio.Event()
        store = index.upsert

        async def held(points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
            begun.set()
            await may_go_on.wait()
            await store(points, instead_of=instead_of)

        monkeypatch.setattr(index, "upsert", held)
        chat = str((await ben.new_chat())["id"])
        await tell(server, ben, chat, [FACT], indexed=False)
        await begun.wait()
        deleted = await ben.client.request("DELETE", f"{API}/me", json={"password": PASSWORD})
        assert deleted.status_code == 204
        await settled(server)
        may_go_on.set()
        await until(index.owners)
        await forgotten(server)
        assert await index.count(gone) == 0


async def test_the_nightly_look_mends_what_is_missing_and_deletes_strays_without_any_key(
    start: Start,
) -> None:
    async with start(embedder="none") as server:
        index = server.parts.memory.collections.current
        async with server.account("Ada") as ada:
            user_id = UUID(ada.user["id"])
            chat, book = await write(server, ada)
            stored = await stored_rows(server, user_id)
            points = await points_of(index, user_id)
            before = {each.source_id: each for each in points}
            rows = sorted(before)
            ok(await ada.client.delete(f"{API}/sessions/current"), 204)

        await index.delete_sources(user_id, rows[:5])
        await index.delete_container(user_id, UUID(book))
        stranger, stray = UUID(int=1), UUID(int=2)
        vector: dict[SparseName, Sparse] = {"sparse": terms({1: 1.0})}
        strays = [
            point(stranger, stray, dense={}, sparse=vector),
            point(user_id, stray, dense={}, sparse=vector),
            point(user_id, UUID(chat), dense={}, sparse=vector),
            # Earlier versions made points of scenes, with the ids of their first messages.
            point(user_id, UUID(chat), kind="scene", source=rows[5], dense={}, sparse=vector),
            point(user_id, UUID(chat), kind="scene", dense={}, sparse=vector),
        ]
        await index.upsert(strays)
        assert await index.owners() == {user_id, stranger}
        await reconcile(server)
        assert await index.owners() == {user_id}
        assert rows_of(await points_of(index, user_id)).keys() < stored

        async with server.signed_in("Ada") as ada:
            ok(await ada.client.get(f"{API}/me"))
            await settled(server)
            after = await points_of(index, user_id)
            assert rows_of(after).keys() == stored
            assert all(before[each.source_id] == each for each in after)
            assert FACT in await texts_found(ada, QUESTION)


@pytest.mark.every_database
async def test_the_nightly_look_notes_a_row_once_until_the_user_signs_in(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(embedder="none") as server:
        index = server.parts.memory.collections.current
        async with server.account("Ada") as ada:
            user_id = UUID(ada.user["id"])
            chat, book = await write(server, ada)
            stored = await stored_rows(server, user_id)
            ok(await ada.client.delete(f"{API}/sessions/current"), 204)
        before = {point.version for point in await points_of(index, user_id)}

        async def note(kind: Kind, container: str, source_ids: list[UUID] | None) -> None:
            async with server.parts.database.write() as session:
                await note_change(
                    session,
                    user_id,
                    kind=kind,
                    container_id=UUID(container),
                    source_ids=source_ids,
                )

        async def list_noted(container: str) -> list[UUID | None]:
            query = select(IndexChange.source_id).where(IndexChange.container_id == UUID(container))
            async with server.parts.database.read() as session:
                return sorted(await session.scalars(query), key=str)

        monkeypatch.setattr(sources, "POINT_FORMAT", sources.POINT_FORMAT + 1)
        points = await points_of(index, user_id)
        lines = sorted({each.source_id for each in points if each.container_id == UUID(chat)})
        await note("message", chat, lines[:3])
        await note("lore", book, None)
        for _ in range(2):
            await reconcile(server)
            assert await list_noted(chat) == lines
            assert await list_noted(book) == [None]
        # A change is always noted, because the indexer may be reading the older state of the row.
        await note("message", chat, lines[:1])
        assert await list_noted(chat) == [lines[0], *lines]

        async with server.signed_in("Ada") as ada:
            ok(await ada.client.get(f"{API}/me"))
            await settled(server)
            after = await points_of(index, user_id)
            assert rows_of(after).keys() == stored
            assert before.isdisjoint(point.version for point in after)
            assert await list_noted(chat) == await list_noted(book) == []
