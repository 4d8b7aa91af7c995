"""Chronicles: made, read, changed, listed, deleted, and who uses them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select

from backend.chats.models import Chat
from backend.chronicles.events import MAX_CHRONICLES
from backend.chronicles.models import Chronicle, ChronicleEvent, EventSource
from backend.database.base import new_id
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.memory.models import IndexChange
from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import Running, ok, problem, running

pytestmark = pytest.mark.anyio


async def test_a_chronicle_starts_empty_with_what_it_was_given(writer: Chronicler) -> None:
    made = await writer.post("/chronicles", name="The coast", description="Of the drowned.")
    assert (made["name"], made["description"]) == ("The coast", "Of the drowned.")
    assert (made["event_count"], made["current_count"], made["chat_ids"]) == (0, 0, [])
    assert (made["lorebook_id"], made["revision"]) == (None, 1)
    answer = await writer.ask("GET", f"/chronicles/{made['id']}")
    assert ok(answer) == made
    assert answer.headers["etag"] == '"1"'


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": " "},
        {"name": "The coast", "nmae": "The coast"},
        {"name": "c" * 501},
        {"name": "The coast", "description": "d" * 20_001},
    ],
)
async def test_what_is_not_of_the_right_form_is_refused(
    writer: Chronicler, body: dict[str, Any]
) -> None:
    problem(await writer.ask("POST", "/chronicles", json=body), 422, "validation-failed")
    assert (await writer.get("/chronicles"))["items"] == []


@pytest.mark.every_database
async def test_a_patch_leaves_what_is_absent_and_clears_what_is_null(writer: Chronicler) -> None:
    path = f"/chronicles/{await writer.new_chronicle('The coast', description='Of the drowned.')}"
    changed = await writer.patch(path, name="The shore")
    assert (changed["name"], changed["description"]) == ("The shore", "Of the drowned.")
    assert changed["revision"] == 2
    assert (await writer.patch(path, description=None))["description"] == ""
    problem(await writer.ask("PATCH", path, json={"name": None}), 422, "validation-failed")
    problem(await writer.ask("PATCH", path, json={"events": []}), 422, "validation-failed")
    assert (await writer.get(path))["name"] == "The shore"


async def test_a_change_of_what_was_seen_earlier_is_refused(writer: Chronicler) -> None:
    path = f"/chronicles/{await writer.new_chronicle()}"
    await writer.patch(path, name="The shore")
    stale = {"If-Match": '"1"'}
    answer = await writer.ask("PATCH", path, json={"name": "The coast"}, headers=stale)
    assert problem(answer, 412, "revision-mismatch")["revision"] == 2
    problem(await writer.ask("DELETE", path, headers=stale), 412, "revision-mismatch")
    ok(await writer.ask("DELETE", path, headers={"If-Match": '"2"'}), 204)
    problem(await writer.ask("GET", path), 404, "chronicle-not-found")


@pytest.mark.every_database
async def test_lists_go_on_page_by_page_newest_first(writer: Chronicler) -> None:
    made = [await writer.new_chronicle(f"The {place}") for place in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await writer.get("/chronicles", **query)
        seen += [each["id"] for each in page["items"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert seen == made[::-1]


async def test_a_list_says_what_each_holds_and_who_uses_it(writer: Chronicler, chat: str) -> None:
    first, second = await writer.new_chronicle("First"), await writer.new_chronicle("Second")
    old = await writer.new_event(first)
    new = await writer.new_event(first)
    await writer.change(old, superseded_by=new["id"])
    await writer.settle(chat, chronicle_id=first)
    shown = {each["id"]: each for each in (await writer.get("/chronicles"))["items"]}
    assert (shown[first]["event_count"], shown[first]["current_count"]) == (2, 1)
    assert (shown[second]["event_count"], shown[second]["current_count"]) == (0, 0)
    assert (shown[first]["chat_ids"], shown[second]["chat_ids"]) == ([chat], [])


async def test_a_chronicle_names_the_lorebook_that_belongs_to_it(
    writer: Chronicler, server: Running
) -> None:
    chronicle = await writer.new_chronicle()
    book = await _with_book(writer, server, chronicle)
    assert (await writer.get(f"/chronicles/{chronicle}"))["lorebook_id"] == book


async def test_chats_go_on_without_a_chronicle_that_is_deleted(
    writer: Chronicler, chat: str, server: Running
) -> None:
    chronicle = await writer.new_chronicle()
    other = str((await writer.account.new_chat())["id"])
    await writer.settle(chat, chronicle_id=chronicle, chronicle_enabled=True)
    await writer.settle(other, chronicle_enabled=True)
    await writer.delete(f"/chronicles/{chronicle}")
    settings = await writer.get(f"/chats/{chat}/settings")
    assert settings.get("chronicle_id") is None
    assert settings.get("chronicle_enabled", False) is False
    async with server.parts.database.read() as session:
        row = (await session.scalars(select(Chat).where(Chat.id == UUID(chat)))).one()
        kept = (await session.scalars(select(Chat).where(Chat.id == UUID(other)))).one()
    assert (row.chronicle_id, row.chronicle_enabled) == (None, False)
    assert kept.chronicle_id is not None
    assert kept.chronicle_enabled


@pytest.mark.every_database
async def test_settings_that_were_read_before_a_chronicle_went_are_stale(
    writer: Chronicler, chat: str
) -> None:
    chronicle = await writer.new_chronicle()
    await writer.settle(chat, chronicle_id=chronicle)
    seen = (await writer.ask("GET", f"/chats/{chat}/settings")).headers["etag"]
    await writer.delete(f"/chronicles/{chronicle}")
    answer = await writer.ask(
        "PATCH", f"/chats/{chat}/settings", json={"model": "demo"}, headers={"If-Match": seen}
    )
    problem(answer, 412, "revision-mismatch")


@pytest.mark.every_database
async def test_with_a_chronicle_go_its_events_and_its_lorebook(
    writer: Chronicler, chat: str, server: Running
) -> None:
    chronicle, kept = await writer.new_chronicle("Going"), await writer.new_chronicle("Staying")
    [greeting] = await writer.account.messages(chat)
    event = await writer.new_event(chronicle, source_message_ids=[greeting["id"]])
    await writer.new_event(kept, source_message_ids=[greeting["id"]])
    book = await _with_book(writer, server, chronicle)
    await writer.delete(f"/chronicles/{chronicle}")
    problem(await writer.ask("GET", f"/lorebooks/{book}"), 404, "lorebook-not-found")
    async with server.parts.database.read() as session:
        for query in (
            select(ChronicleEvent).where(ChronicleEvent.chronicle_id == UUID(chronicle)),
            select(EventSource).where(EventSource.event_id == UUID(event["id"])),
            select(LoreEntryRow).where(LoreEntryRow.lorebook_id == UUID(book)),
        ):
            assert (await session.scalars(query)).all() == []
    assert await writer.summaries(kept) == ["The lamp went out."]


async def test_an_account_holds_so_many_chronicles(writer: Chronicler, server: Running) -> None:
    user_id = UUID(writer.account.user["id"])
    await writer.new_chronicle()
    async with server.parts.database.write() as session:
        rows = [
            {"id": new_id(), "user_id": user_id, "sealed_chronicle": b""}
            for _ in range(MAX_CHRONICLES - 1)
        ]
        await session.execute(insert(Chronicle), rows)
    answer = await writer.ask("POST", "/chronicles", json={"name": "One more"})
    assert problem(answer, 409, "chronicle-full")["allowed"] == MAX_CHRONICLES


@pytest.mark.every_database
async def test_names_are_sealed(writer: Chronicler, server: Running) -> None:
    chronicle = await writer.new_chronicle("The drowned coast")
    await writer.new_event(chronicle, "Mara found the lens.")
    async with server.parts.database.read() as session:
        stored = await session.get(Chronicle, UUID(chronicle))
        [event] = await session.scalars(
            select(ChronicleEvent).where(ChronicleEvent.chronicle_id == UUID(chronicle))
        )
    assert stored is not None
    assert b"drowned" not in stored.sealed_chronicle
    assert b"Mara" not in event.sealed_event


@pytest.fixture
async def idle(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A Talekeeper in which nobody works on jobs."""
    async with running(database_url, tmp_path, job_workers=0) as server:
        yield server


@pytest.mark.every_database
async def test_the_index_is_told_what_goes_with_a_chronicle(idle: Running) -> None:
    async with idle.account() as account:
        writer = Chronicler(account)
        chronicle = await writer.new_chronicle()
        book = await _with_book(writer, idle, chronicle)
        await writer.delete(f"/chronicles/{chronicle}")
    async with idle.parts.database.read() as session:
        rows = (await session.scalars(select(IndexChange))).all()
    noted = {(row.kind, str(row.container_id), row.source_id) for row in rows}
    assert {("event", chronicle, None), ("lore", book, None)} <= noted


async def _with_book(writer: Chronicler, server: Running, chronicle_id: str) -> str:
    """Give a chronicle a lorebook with an entry; the book's id."""
    book = await writer.post("/lorebooks", name="What came up")
    await writer.post(f"/lorebooks/{book['id']}/entries", keys=["lamp"], content="It is out.")
    async with server.parts.database.write() as session:
        row = await session.get(Lorebook, UUID(book["id"]))
        assert row is not None
        row.chronicle_id = UUID(chronicle_id)
    book_id: str = book["id"]
    return book_id


async def test_what_is_not_there_is_not_found(writer: Chronicler) -> None:
    path = f"/chronicles/{uuid4()}"
    problem(await writer.ask("GET", path), 404, "chronicle-not-found")
    problem(await writer.ask("GET", f"{path}/events"), 404, "chronicle-not-found")
    body = {"summary": "The lamp went out."}
    problem(await writer.ask("POST", f"{path}/events", json=body), 404, "chronicle-not-found")
