"""Tests of the deletion of large campaigns, chronicles and lorebooks, by a job."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, insert, select, update

from backend.campaigns.models import Campaign, CampaignChange, CampaignItem
from backend.chats.deletion import ABANDONED_AFTER
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.container import SOURCES
from backend.database import batches, migrate
from backend.database.base import Base, get_table, new_id, now
from backend.database.batches import OutOfBatchesError
from backend.enrichment.models import EnrichmentRun
from backend.jobs.deletions import CONTAINER_DELETE_KIND, Root
from backend.jobs.models import Job
from backend.lorebooks.models import Lorebook, LorebookLink, LoreEntryRow
from backend.operations.deletions import CONTAINERS, Container, delete_hidden_container
from tests.integration.accounts.test_deletion import live, rows
from tests.integration.turns.seeding import identity_of
from tests.support.memory import forgotten, settled
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

COPIES = 60
"""Rows that a container gets in addition."""

CHILDREN: dict[Root, list[type[Base]]] = {
    "lorebook": [LoreEntryRow],
    "chronicle": [ChronicleEvent],
    "campaign": [CampaignItem, CampaignChange],
}
PATHS: dict[Root, str] = {
    "lorebook": "/lorebooks",
    "chronicle": "/chronicles",
    "campaign": "/campaigns",
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a transaction take few rows."""
    monkeypatch.setattr(batches, "MAX_ROWS", 20)
    monkeypatch.setattr(batches, "PAGE_ROWS", 50)


@pytest.fixture
async def either(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(database_url, tmp_path) as server:
        yield server


async def make(account: Account, root: Root) -> dict[str, str]:
    """Make a container with a row. Return the paths of both."""
    made = await account.post(PATHS[root], {"name": "Seagate"}, 201)
    path = f"{PATHS[root]}/{made['id']}"
    children, body = {
        "lorebook": ("entries", {"title": "Ember", "keys": ["lamp"], "content": "The lamp."}),
        "chronicle": ("events", {"summary": "The lamp of Seagate went out."}),
        "campaign": ("facts", {"text": "The lamp of Seagate is out."}),
    }[root]
    child = await account.post(f"{path}/{children}", body, 201)
    return {"id": made["id"], "path": path, "child": f"{path}/{children}/{child['id']}"}


async def lengthen(server: Running, root: Root, row_id: str) -> None:
    """Add copies of the last row, which no one can open."""
    for model in CHILDREN[root]:
        table = get_table(model)
        column = table.c[f"{root}_id"]
        async with server.parts.database.write() as session:
            order = table.c.get("seq", table.c.id)
            query = select(table).where(column == UUID(row_id)).order_by(order.desc()).limit(1)
            last = dict((await session.execute(query)).mappings().one())
            copies = [{**last, "id": new_id()} for _ in range(COPIES)]
            for number, each in enumerate(copies, 1):
                for name in ("place", "seq"):
                    if name in each and model is not ChronicleEvent:
                        each[name] = last[name] + number
            await session.execute(insert(table), copies)


async def count(server: Running, model: type[Base], *where: Any) -> int:
    async with server.parts.database.read() as session:
        query = select(func.count()).select_from(model).where(*where)
        return await session.scalar(query) or 0


async def delete(server: Running, model: type[Container], row_id: str) -> None:
    await delete_hidden_container(server.parts.database, UUID(row_id), model=model)
    assert await count(server, model, model.id == UUID(row_id)) == 0


@pytest.mark.parametrize("root", CONTAINERS)
async def test_a_deleted_one_is_out_of_reach_before_its_rows_are(
    either: Running, root: Root
) -> None:
    async with either.account("Ada") as ada:
        made = await make(ada, root)
        await lengthen(either, root, made["id"])
        await settled(either)
        await either.parts.worker.aclose()  # as if the process were killed after the request
        await ada.delete(made["path"])

        model, children = CONTAINERS[root], CHILDREN[root][0]
        assert await count(either, model) == 1
        assert await count(either, children) > COPIES
        slug = f"{root}-not-found"
        problem(await ada.ask("GET", made["path"]), 404, slug)
        problem(await ada.ask("DELETE", made["path"]), 404, slug)
        assert (await ada.ask("GET", made["child"])).status_code == 404
        assert (await ada.get(PATHS[root]))["items"] == []
        assert (await ada.get("/search", q="lamp"))["items"] == []
        await make(ada, root)

        times, row_id = 0, UUID(made["id"])
        while await count(either, model, model.id == row_id):
            left, times = await count(either, children), times + 1
            with contextlib.suppress(OutOfBatchesError):
                await delete_hidden_container(
                    either.parts.database, row_id, model=model, max_batches=2
                )
            assert await count(either, children) <= left
        assert times > 1
        [kept] = (await ada.get(PATHS[root]))["items"]
        await delete_hidden_container(either.parts.database, UUID(kept["id"]), model=model)
        ok(await ada.ask("GET", f"{PATHS[root]}/{kept['id']}"))
        assert await count(either, children) > 0


@pytest.mark.parametrize("root", CONTAINERS)
async def test_a_job_deletes_the_rows_and_the_points(either: Running, root: Root) -> None:
    async with either.account("Ada") as ada:
        await settled(either)
        before = await rows(either)
        made = await make(ada, root)
        await settled(either)
        await lengthen(either, root, made["id"])
        await ada.delete(made["path"])

        async def is_gone() -> bool:
            left = [await count(either, each) for each in (CONTAINERS[root], *CHILDREN[root])]
            return not any(left)

        await until(is_gone)
        await settled(either)
        await forgotten(either)
        own = {"jobs", "index_changes", "index_states", "storage_ledger"}
        if root == "campaign":
            own.add("chronicles")  # a campaign leaves its chronicle
        after = await rows(either)
        assert {name for name in after if after[name] != before[name]} <= own


async def test_a_chronicle_takes_its_lorebook_along_and_leaves_its_chats(either: Running) -> None:
    async with either.account("Ada") as ada:
        await live(ada)
        [chronicle] = [each for each in (await ada.get("/chronicles"))["items"] if each["chat_ids"]]
        book_id = (await make(ada, "lorebook"))["id"]
        async with either.parts.database.write() as session:
            own = update(Lorebook).where(Lorebook.id == UUID(book_id))
            await session.execute(own.values(chronicle_id=UUID(chronicle["id"])))
        await settled(either)
        month = await ada.get("/usage/month")
        await either.parts.worker.aclose()
        await ada.delete(f"/chronicles/{chronicle['id']}")
        book = f"/lorebooks/{book_id}"
        problem(await ada.ask("GET", book), 404, "lorebook-not-found")
        for chat_id in chronicle["chat_ids"]:
            chat = await ada.get(f"/chats/{chat_id}/settings")
            assert chat.get("chronicle_id") is None
            linked = (await ada.get(f"/chats/{chat_id}/lorebooks"))["items"]
            assert book_id not in [each["lorebook"]["id"] for each in linked]
        assert await ada.get("/usage/month") == month
        await delete(either, Chronicle, chronicle["id"])
        await delete(either, Lorebook, book_id)
        assert await ada.get("/usage/month") == month


@pytest.mark.parametrize("root", CONTAINERS)
async def test_a_search_that_began_before_finds_nothing_of_it(either: Running, root: Root) -> None:
    [source] = [each for each in SOURCES if each.table.containers is get_table(CONTAINERS[root])]
    async with either.account("Ada") as ada:
        sealer = (await identity_of(either, ada)).sealer
        made = await make(ada, root)
        container_id, row_id = UUID(made["id"]), UUID(made["child"].rpartition("/")[2])

        async def read() -> tuple[int, int]:
            async with either.parts.database.read() as session:
                found = await source.recall(session, sealer, [row_id])
                rows = await source.rows(session, sealer, container_id, [row_id], neighbours=True)
            return len(found), len(rows)

        assert await read() == (1, 1)
        await either.parts.worker.aclose()
        await ada.delete(made["path"])
        assert await read() == (0, 0)


async def test_messages_and_chats_can_be_deleted_while_their_book_is(either: Running) -> None:
    async with either.account("Ada") as ada:
        character = await ada.new_character(alternate_greetings=["A knock."])
        chat_id = (await ada.new_chat(character_ids=[character["id"]]))["id"]
        [active] = await ada.messages(chat_id)
        swipes = (await ada.get(f"/messages/{active['id']}/siblings"))["items"]
        [inactive] = [each for each in swipes if each["id"] != active["id"]]
        book = await make(ada, "lorebook")
        for message in (active, inactive):
            await ada.post(
                f"{book['path']}/entries", {"keys": ["lamp"], "content": message["id"]}, 201
            )
        async with either.parts.database.write() as session:
            own = select(LoreEntryRow).where(LoreEntryRow.lorebook_id == UUID(book["id"]))
            written = (await session.scalars(own.order_by(LoreEntryRow.place))).all()
            for row, message in zip(written[1:], (active, inactive), strict=True):
                row.source_chat_id, row.source_message_id = UUID(chat_id), UUID(message["id"])
        await settled(either)
        await either.parts.worker.aclose()
        await ada.delete(book["path"])

        await ada.delete(f"/messages/{active['id']}", 200, alone=True)
        [removed] = await ada.messages(chat_id)
        assert removed["removed"]
        await ada.delete(f"/chats/{chat_id}")
        problem(await ada.ask("GET", f"/chats/{chat_id}"), 404, "chat-not-found")


async def test_a_link_that_was_added_during_the_deletion_is_not_listed(either: Running) -> None:
    async with either.account("Ada") as ada:
        character, book = await ada.new_character(), await make(ada, "lorebook")
        await either.parts.worker.aclose()
        await ada.delete(book["path"])
        async with either.parts.database.write() as session:
            owner_id = (await session.get_one(Lorebook, UUID(book["id"]))).user_id
            session.add(
                LorebookLink(
                    user_id=owner_id,
                    lorebook_id=UUID(book["id"]),
                    character_id=UUID(character["id"]),
                )
            )
        linked = await ada.get(f"/characters/{character['id']}/lorebooks")
        assert linked["items"] == []


async def test_runs_go_with_their_chronicle(either: Running) -> None:
    async with either.account("Ada") as ada:
        chat_id = await live(ada)
        view = await ada.get(f"/chats/{chat_id}/enrichment")
        runs = {each["id"] for each in view["items"]}
        async with either.parts.database.read() as session:
            query = select(EnrichmentRun.id).where(EnrichmentRun.chronicle_id.is_not(None))
            gone = {str(each) for each in await session.scalars(query)}
        assert gone
        assert gone <= runs
        await settled(either)
        await either.parts.worker.aclose()
        await ada.delete(f"/chronicles/{view['chronicle_id']}")

        view = await ada.get(f"/chats/{chat_id}/enrichment")
        assert {each["id"] for each in view["items"]} == runs - gone
        run = f"/enrichment/runs/{gone.pop()}"
        problem(await ada.ask("GET", run), 404, "run-not-found")
        problem(await ada.ask("POST", f"{run}/undo", json={}), 404, "run-not-found")


async def test_a_forgotten_deletion_gets_another_job(either: Running) -> None:
    async with either.account("Ada") as ada:
        made = {root: await make(ada, root) for root in CONTAINERS}
        await settled(either)
        await either.parts.worker.aclose()
        for each in made.values():
            await ada.delete(each["path"])
        past = now() - 2 * ABANDONED_AFTER
        async with either.parts.database.write() as session:
            await session.execute(get_table(Job).delete().where(Job.kind == CONTAINER_DELETE_KIND))
            for model in (Campaign, Chronicle, Lorebook):
                hidden = update(model).where(model.deleted_at.is_not(None))
                await session.execute(hidden.values(deleted_at=past))
        await either.parts.deletions.schedule()
        await either.parts.deletions.schedule()
        assert await count(either, Job, Job.kind == CONTAINER_DELETE_KIND) == len(made)


async def test_a_downgrade_shows_none_of_them_again(either: Running) -> None:
    async with either.account("Ada") as ada:
        made = {root: await make(ada, root) for root in CONTAINERS}
        await settled(either)
        await either.parts.worker.aclose()
        for container in made.values():
            await ada.delete(container["path"])
        await migrate.downgrade(either.parts.database, "2026_11_36")
        await migrate.upgrade(either.parts.database)
        for root, model in CONTAINERS.items():
            assert await count(either, model, model.id == UUID(made[root]["id"])) == 0
            for each in CHILDREN[root]:
                assert await count(either, each) == 0
