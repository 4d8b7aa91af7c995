"""Chronicles: create, read, change, list, delete; and the chronicles of chats and their copies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import delete, insert, select, text, update

from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles import repository
from backend.chronicles.events import MAX_CHRONICLES
from backend.chronicles.models import Chronicle, ChronicleEvent, EventSource
from backend.database.base import new_id, now
from backend.lorebooks.authoring import EntryOrigin, add_entry, chronicle_book, is_own
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.memory.models import IndexChange
from tests.integration.chronicles.chroniclers import Chronicler
from tests.integration.chronicles.test_witnesses import Stage
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, ok, problem, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_new_chronicle_is_empty(writer: Chronicler) -> None:
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
async def test_invalid_bodies_are_refused(writer: Chronicler, body: dict[str, Any]) -> None:
    problem(await writer.ask("POST", "/chronicles", json=body), 422, "validation-failed")
    assert (await writer.get("/chronicles"))["items"] == []


@pytest.mark.every_database
async def test_a_patch_keeps_absent_fields_and_resets_null(writer: Chronicler) -> None:
    path = f"/chronicles/{await writer.new_chronicle('The coast', description='Of the drowned.')}"
    changed = await writer.patch(path, name="The shore")
    assert (changed["name"], changed["description"]) == ("The shore", "Of the drowned.")
    assert changed["revision"] == 2
    assert (await writer.patch(path, description=None))["description"] == ""
    problem(await writer.ask("PATCH", path, json={"name": None}), 422, "validation-failed")
    problem(await writer.ask("PATCH", path, json={"events": []}), 422, "validation-failed")
    assert (await writer.get(path))["name"] == "The shore"


async def test_a_change_of_an_old_revision_is_refused(writer: Chronicler) -> None:
    path = f"/chronicles/{await writer.new_chronicle()}"
    await writer.patch(path, name="The shore")
    stale = {"If-Match": '"1"'}
    answer = await writer.ask("PATCH", path, json={"name": "The coast"}, headers=stale)
    assert problem(answer, 412, "revision-mismatch")["revision"] == 2
    problem(await writer.ask("DELETE", path, headers=stale), 412, "revision-mismatch")
    ok(await writer.ask("DELETE", path, headers={"If-Match": '"2"'}), 204)
    problem(await writer.ask("GET", path), 404, "chronicle-not-found")


@pytest.mark.every_database
async def test_lists_are_paged_newest_first(writer: Chronicler) -> None:
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


async def test_a_list_shows_the_events_and_chats_of_each_chronicle(
    writer: Chronicler, chat: str
) -> None:
    first, second = await writer.new_chronicle("First"), await writer.new_chronicle("Second")
    old = await writer.new_event(first)
    new = await writer.new_event(first)
    await writer.change(old, superseded_by=new["id"])
    await writer.settle(chat, chronicle_id=first)
    shown = {each["id"]: each for each in (await writer.get("/chronicles"))["items"]}
    assert (shown[first]["event_count"], shown[first]["current_count"]) == (2, 1)
    assert (shown[second]["event_count"], shown[second]["current_count"]) == (0, 0)
    assert (shown[first]["chat_ids"], shown[second]["chat_ids"]) == ([chat], [])


async def test_a_chronicle_names_its_lorebook(writer: Chronicler, server: Running) -> None:
    chronicle = await writer.new_chronicle()
    book = await _with_book(writer, server, chronicle)
    assert (await writer.get(f"/chronicles/{chronicle}"))["lorebook_id"] == book


async def test_chats_outlive_their_chronicle(
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
async def test_old_settings_are_stale_after_a_deletion(writer: Chronicler, chat: str) -> None:
    chronicle = await writer.new_chronicle()
    await writer.settle(chat, chronicle_id=chronicle)
    seen = (await writer.ask("GET", f"/chats/{chat}/settings")).headers["etag"]
    await writer.delete(f"/chronicles/{chronicle}")
    answer = await writer.ask(
        "PATCH", f"/chats/{chat}/settings", json={"model": "demo"}, headers={"If-Match": seen}
    )
    problem(answer, 412, "revision-mismatch")


@pytest.mark.every_database
async def test_its_contents_are_deleted_too(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle, kept = await writer.new_chronicle("Going"), await writer.new_chronicle("Staying")
    [greeting] = await writer.account.messages(chat)
    event = await writer.new_event(chronicle, source_message_ids=[greeting["id"]])
    await writer.new_event(kept, source_message_ids=[greeting["id"]])
    book = await _with_book(writer, server, chronicle)
    await writer.delete(f"/chronicles/{chronicle}")
    problem(await writer.ask("GET", f"/lorebooks/{book}"), 404, "lorebook-not-found")
    left = [
        select(ChronicleEvent.id).where(ChronicleEvent.chronicle_id == UUID(chronicle)),
        select(EventSource.event_id).where(EventSource.event_id == UUID(event["id"])),
        select(LoreEntryRow.id).where(LoreEntryRow.lorebook_id == UUID(book)),
    ]

    async def is_empty() -> bool:
        async with server.parts.database.read() as session:
            return not any([(await session.scalars(query)).all() for query in left])

    await until(is_empty)
    assert await writer.summaries(kept) == ["The lamp went out."]


async def test_an_account_has_a_maximum_of_chronicles(writer: Chronicler, server: Running) -> None:
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


@pytest.mark.every_database
async def test_the_index_is_told_of_a_deleted_chronicle(idle: Running) -> None:
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
    """Add a lorebook with an entry to a chronicle; return its id."""
    book = await writer.post("/lorebooks", name="What came up")
    await writer.post(f"/lorebooks/{book['id']}/entries", keys=["lamp"], content="It is out.")
    async with server.parts.database.write() as session:
        row = await session.get(Lorebook, UUID(book["id"]))
        assert row is not None
        row.chronicle_id = UUID(chronicle_id)
    book_id: str = book["id"]
    return book_id


async def test_unknown_chronicles_are_not_found(writer: Chronicler) -> None:
    path = f"/chronicles/{uuid4()}"
    problem(await writer.ask("GET", path), 404, "chronicle-not-found")
    problem(await writer.ask("GET", f"{path}/events"), 404, "chronicle-not-found")
    body = {"summary": "The lamp went out."}
    problem(await writer.ask("POST", f"{path}/events", json=body), 404, "chronicle-not-found")


VERSION_FIELDS = {"id", "chronicle_id", "revision", "created_at", "updated_at"}
"""Fields that differ between an event and its copy."""


async def enlist(writer: Chronicler, chat: str) -> str:
    """Enable the chronicle of a chat; return its id."""
    settings = await writer.settle(chat, chronicle_enabled=True)
    chronicle_id: str = settings["chronicle_id"]
    return chronicle_id


async def fork(writer: Chronicler, chat: str, message: str) -> tuple[str, str]:
    """Fork a chat; return the ids of the fork and its chronicle."""
    made = await writer.post(f"/chats/{chat}/fork", message_id=message)
    settings = await writer.get(f"/chats/{made['id']}/settings")
    return made["id"], settings.get("chronicle_id", "")


async def read_events(writer: Chronicler, chronicle: str) -> dict[str, dict[str, Any]]:
    page = await writer.page(chronicle, limit=100, current=False)
    return {event["summary"]: event for event in page["items"]}


def without_versions(event: dict[str, Any], *without: str) -> dict[str, Any]:
    return {
        name: value for name, value in event.items() if name not in VERSION_FIELDS | set(without)
    }


async def swipe(writer: Chronicler, message: str) -> str:
    """Regenerate a reply; return the id of the new one."""
    chat = (await writer.get(f"/messages/{message}"))["chat_id"]
    answer = await writer.account.turn(chat, regenerate_of=message)
    reply: str = answer[0].data["reply_id"]
    return reply


async def test_a_new_chronicle_gets_the_title_of_its_chat(writer: Chronicler, chat: str) -> None:
    await writer.patch(f"/chats/{chat}", title="The night ferry")
    chronicle = await enlist(writer, chat)
    assert (await writer.get(f"/chronicles/{chronicle}"))["name"] == "The night ferry"


async def test_the_maximum_applies_to_forks_too(
    writer: Chronicler, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MAX_CHRONICLES", 0)
    path = f"/chats/{chat}/settings"
    full = await writer.ask("PATCH", path, json={"chronicle_enabled": True})
    problem(full, 409, "chronicle-full")
    assert not (await writer.get(path)).get("chronicle_enabled")
    monkeypatch.setattr(repository, "MAX_CHRONICLES", 1)
    await enlist(writer, chat)
    chats = await writer.get("/chats")
    [leaf] = await writer.account.messages(chat)
    body = {"message_id": leaf["id"]}
    refused = await writer.ask("POST", f"/chats/{chat}/fork", json=body)
    assert "needs a chronicle of its own" in problem(refused, 409, "chronicle-full")["detail"]
    assert await writer.get("/chats") == chats


@pytest.mark.every_database
async def test_null_removes_or_replaces_the_chronicle(writer: Chronicler, chat: str) -> None:
    first = await enlist(writer, chat)
    second = (await writer.settle(chat, chronicle_id=None))["chronicle_id"]
    assert second not in (None, first)
    settings = await writer.settle(chat, chronicle_id=None, chronicle_enabled=False)
    assert settings.get("chronicle_id") is None


async def test_a_fork_has_its_own_chronicle(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle = await enlist(writer, chat)
    await writer.say(chat)
    path = await writer.say(chat, "And further.")
    greeting, line, reply, later = (each["id"] for each in path[:4])
    other = str((await writer.account.new_chat())["id"])
    elsewhere = (await writer.say(other))[0]["id"]
    await writer.new_event(chronicle, "Of no message.", pinned=True, day=3, who=["Mara"])
    await writer.new_event(chronicle, "Of the way.", source_message_ids=[greeting, reply])
    await writer.new_event(chronicle, "Of what follows.", source_message_ids=[line, later])
    await writer.new_event(chronicle, "Of elsewhere.", source_message_ids=[elsewhere])
    await writer.new_event(chronicle, "Of both.", source_message_ids=[line, elsewhere])
    originals = await read_events(writer, chronicle)
    await writer.change(originals["Of no message."], superseded_by=originals["Of the way."]["id"])
    await writer.change(originals["Of the way."], superseded_by=originals["Of what follows."]["id"])
    originals = await read_events(writer, chronicle)
    copy, own = await fork(writer, chat, reply)
    assert own != chronicle
    copies = await read_events(writer, own)
    assert copies.keys() == originals.keys() - {"Of what follows."}
    led = ("source_message_ids", "source_chat_ids", "superseded_by", "is_current")
    for summary, event in copies.items():
        assert without_versions(event, *led) == without_versions(originals[summary], *led)
        assert event["id"] != originals[summary]["id"]
    lines = [each["id"] for each in await writer.account.messages(copy)]
    assert copies["Of the way."]["source_message_ids"] == [lines[0], lines[2]]
    assert copies["Of the way."]["source_chat_ids"] == [copy]
    assert copies["Of elsewhere."]["source_message_ids"] == [elsewhere]
    assert set(copies["Of both."]["source_message_ids"]) == {lines[1], elsewhere}
    assert copies["Of no message."]["superseded_by"] == copies["Of the way."]["id"]
    assert copies["Of the way."]["superseded_by"] is None
    assert copies["Of the way."]["is_current"]
    assert await read_events(writer, chronicle) == originals
    async with server.parts.database.read() as session:
        fork_row = await session.get_one(Chat, UUID(copy))
        row = await session.get_one(Chat, UUID(chat))
    assert fork_row.chronicle_enabled
    assert fork_row.chronicle_since == row.chronicle_since is not None


async def test_a_swipe_in_a_fork_keeps_the_original(writer: Chronicler, chat: str) -> None:
    chronicle = await enlist(writer, chat)
    reply = (await writer.say(chat))[-1]["id"]
    await writer.new_event(chronicle, "The door fell.", source_message_ids=[reply])
    copy, own = await fork(writer, chat, reply)
    await swipe(writer, (await writer.account.messages(copy))[-1]["id"])
    assert not (await read_events(writer, own))["The door fell."]["is_current"]
    assert (await read_events(writer, chronicle))["The door fell."]["is_current"]


async def test_a_chat_without_a_chronicle_is_forked_without(writer: Chronicler, chat: str) -> None:
    reply = (await writer.say(chat))[-1]["id"]
    assert (await fork(writer, chat, reply))[1] == ""
    assert (await writer.get("/chronicles"))["items"] == []


@pytest.mark.every_database
async def test_a_fork_copies_the_lorebook(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle = await enlist(writer, chat)
    await writer.say(chat)
    path = await writer.say(chat, "And further.")
    reply, last = path[2]["id"], path[-1]["id"]
    other = str((await writer.account.new_chat())["id"])
    elsewhere = (await writer.say(other))[-1]["id"]
    identity = await identity_of(server, writer.account)
    async with server.parts.database.write() as session:
        sealer = identity.sealer
        book = await chronicle_book(session, sealer, UUID(chronicle), name="Of the coast")
        for title, where, message in (
            ("Lamp", chat, reply),
            ("Later", chat, last),
            ("Far", other, elsewhere),
        ):
            entry = LoreEntry(title=title, keys=[title.lower()], content=f"{title}.")
            origin = EntryOrigin(new_id(), UUID(where), UUID(message))
            await add_entry(session, sealer, book, entry, origin)
        book_id = str(book.id)
    await writer.post(f"/lorebooks/{book_id}/entries", title="Hers", keys=["hers"])
    ok(await writer.ask("PUT", f"/chats/{chat}/lorebooks/{book_id}", json={"state": "off"}))
    copy, own = await fork(writer, chat, reply)
    [item] = (await writer.get(f"/chats/{copy}/lorebooks"))["items"]
    own_book = item["lorebook"]
    assert own_book["id"] != book_id
    assert (own_book["chronicle_id"], own_book["name"]) == (own, "Of the coast")
    assert (item["source"], item["is_off"]) == ("chronicle", True)
    async with server.parts.database.read() as session:
        rows = list(
            await session.scalars(
                select(LoreEntryRow)
                .where(LoreEntryRow.lorebook_id == UUID(own_book["id"]))
                .order_by(LoreEntryRow.place)
            )
        )
    page = await writer.get(f"/lorebooks/{own_book['id']}/entries")
    assert [each["title"] for each in page["items"]] == ["Lamp", "Far", "Hers"]
    lamp, far, hers = rows
    copied = [each["id"] for each in await writer.account.messages(copy)]
    assert (str(lamp.source_chat_id), str(lamp.source_message_id)) == (copy, copied[2])
    assert (str(far.source_chat_id), str(far.source_message_id)) == (other, elsewhere)
    assert [is_own(row) for row in rows] == [True, True, False]
    assert hers.source_chat_id is None
    assert {row.agent_run_id for row in rows} == {None}
    left = await writer.get(f"/lorebooks/{book_id}/entries")
    assert [each["title"] for each in left["items"]] == ["Lamp", "Later", "Far", "Hers"]


@pytest.mark.every_database
async def test_inactive_events_are_deleted(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle = await enlist(writer, chat)
    first = (await writer.say(chat))[-1]["id"]
    other = str((await writer.account.new_chat())["id"])
    elsewhere = (await writer.say(other))[-1]["id"]
    await writer.new_event(chronicle, "Left.", source_message_ids=[first])
    await writer.new_event(chronicle, "Left, of both.", source_message_ids=[first, elsewhere])
    second = await swipe(writer, first)
    await writer.new_event(chronicle, "Kept.", source_message_ids=[second])
    await writer.new_event(chronicle, "Kept, of both.", source_message_ids=[second, elsewhere])
    await writer.new_event(chronicle, "Of elsewhere.", source_message_ids=[elsewhere])
    await writer.new_event(chronicle, "Of no message.")
    await writer.delete(f"/chats/{chat}")
    left = await read_events(writer, chronicle)
    assert left.keys() == {"Kept.", "Kept, of both.", "Of elsewhere.", "Of no message."}
    assert all(event["is_current"] for event in left.values())
    assert left["Kept."]["source_message_ids"] == []
    assert left["Kept, of both."]["source_message_ids"] == [elsewhere]
    await swipe(writer, elsewhere)
    left = await read_events(writer, chronicle)
    assert {name for name, event in left.items() if event["is_current"]} == {
        "Kept.",
        "Of no message.",
    }
    async with server.parts.database.read() as session:
        chats = await session.scalars(
            select(EventSource.chat_id)
            .join(ChronicleEvent)
            .where(ChronicleEvent.chronicle_id == UUID(chronicle))
        )
        assert set(map(str, chats)) == {other}


async def test_an_event_that_another_chat_left_stays(writer: Chronicler, chat: str) -> None:
    chronicle = await enlist(writer, chat)
    here = (await writer.say(chat))[-1]["id"]
    other = str((await writer.account.new_chat())["id"])
    elsewhere = (await writer.say(other))[-1]["id"]
    await writer.new_event(chronicle, "Of both.", source_message_ids=[here, elsewhere])
    await swipe(writer, elsewhere)
    await writer.delete(f"/chats/{chat}")
    assert not (await read_events(writer, chronicle))["Of both."]["is_current"]
    ok(await writer.ask("POST", f"/messages/{elsewhere}/activate"))
    assert (await read_events(writer, chronicle))["Of both."]["is_current"]


Change = Callable[[Chronicler, str, list[dict[str, Any]]], Awaitable[httpx.Response]]


async def create_event(
    writer: Chronicler, path: str, events: list[dict[str, Any]]
) -> httpx.Response:
    body = {"summary": "A bell.", "source_message_ids": events[0]["source_message_ids"]}
    return await writer.ask("POST", f"{path}/events", json=body)


async def change_event(
    writer: Chronicler, path: str, events: list[dict[str, Any]]
) -> httpx.Response:
    body = {"source_message_ids": events[0]["source_message_ids"]}
    return await writer.ask("PATCH", f"{path}/events/{events[1]['id']}", json=body)


async def merge_events(
    writer: Chronicler, path: str, events: list[dict[str, Any]]
) -> httpx.Response:
    body = {"event_ids": [each["id"] for each in events]}
    return await writer.ask("POST", f"{path}/events/merge", json=body)


async def import_file(
    writer: Chronicler, path: str, events: list[dict[str, Any]]
) -> httpx.Response:
    members = ("happened_at", "source_message_ids")
    event = {"summary": "A bell.", **{each: events[0][each] for each in members}}
    file = {"format": "talekeeper-chronicle", "version": 1, "events": [event]}
    files = {"file": ("tale.json", json.dumps(file).encode())}
    return await writer.ask("POST", f"{path}/import", files=files)


async def delete_chronicle(
    writer: Chronicler, path: str, events: list[dict[str, Any]]
) -> httpx.Response:
    del events
    return await writer.ask("DELETE", path)


@pytest.fixture
async def busy(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(postgres_url, tmp_path, job_workers=0) as server:
        yield server


@pytest.mark.postgres
@pytest.mark.parametrize(
    "send", [create_event, change_event, merge_events, import_file, delete_chronicle]
)
async def test_a_change_waits_for_the_lock_of_its_chat(busy: Running, send: Change) -> None:
    async with busy.account("Ada") as ada:
        writer = Chronicler(ada)
        chat = (await ada.new_chat())["id"]
        reply = (await writer.say(chat))[-1]["id"]
        chronicle = await writer.new_chronicle()
        await writer.settle(chat, chronicle_id=chronicle)
        events = [
            await writer.new_event(chronicle, source_message_ids=[reply]),
            await writer.new_event(chronicle),
        ]
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with busy.parts.database.write() as holder:
            await get_chat(holder, UUID(chat), owner_id=UUID(ada.user["id"]), lock=True)
            asked = send(writer, f"/chronicles/{chronicle}", events)
            asking = asyncio.create_task(cast("Any", asked))
            await until(lambda: holder.scalar(waiting))
            free = select(Chronicle.id).where(Chronicle.id == UUID(chronicle))
            assert await holder.scalar(free.with_for_update(nowait=True)) is not None
        answer: httpx.Response = await asking
        assert answer.is_success, answer.text


@pytest.mark.postgres
async def test_a_chat_is_deleted_while_a_job_deletes_events_of_it(busy: Running) -> None:
    async with busy.account("Ada") as ada:
        stage = Stage(ada)
        await stage.set_up(busy)
        await stage.send("Bor", "absent")
        event = UUID((await stage.record(await stage.tell()))["id"])
        chronicle = UUID(stage.chronicle)
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with busy.parts.database.write() as holder:
            hidden = update(Chronicle).where(Chronicle.id == chronicle)
            await holder.execute(hidden.values(deleted_at=now()))
            await holder.execute(delete(ChronicleEvent).where(ChronicleEvent.id == event))
            asking = asyncio.create_task(ada.ask("DELETE", f"/chats/{stage.chat}"))
            await until(lambda: holder.scalar(waiting))
        answer = await asking
        assert answer.is_success, answer.text
