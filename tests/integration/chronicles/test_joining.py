"""A chat's chronicle: when the chat comes to it, is copied, and goes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.chats.models import Chat
from backend.chronicles import repository
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.database.base import new_id
from backend.lorebooks.authoring import EntryOrigin, add_entry, chronicle_book, is_own
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.models import LoreEntryRow
from tests.integration.chronicles.chroniclers import Chronicler
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, ok, problem

pytestmark = pytest.mark.anyio

LOOK = {"id", "chronicle_id", "revision", "created_at", "updated_at"}
"""What tells an event from its copy."""


async def enlist(writer: Chronicler, chat: str) -> str:
    """Give a chat a chronicle of its own."""
    settings = await writer.settle(chat, chronicle_enabled=True)
    chronicle_id: str = settings["chronicle_id"]
    return chronicle_id


async def fork(writer: Chronicler, chat: str, message: str) -> tuple[str, str]:
    """(copy of a chat, its chronicle)."""
    made = await writer.post(f"/chats/{chat}/fork", message_id=message)
    settings = await writer.get(f"/chats/{made['id']}/settings")
    return made["id"], settings.get("chronicle_id", "")


async def events(writer: Chronicler, chronicle: str) -> dict[str, dict[str, Any]]:
    page = await writer.page(chronicle, limit=100, current=False)
    return {event["summary"]: event for event in page["items"]}


def bare(event: dict[str, Any], *without: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in LOOK | set(without)}


async def swipe(writer: Chronicler, message: str) -> str:
    """Another reply in place of one; its id."""
    chat = (await writer.get(f"/messages/{message}"))["chat_id"]
    answer = await writer.account.turn(chat, regenerate_of=message)
    reply: str = answer[0].data["reply_id"]
    return reply


async def test_a_new_chronicle_is_called_as_its_chat(writer: Chronicler, chat: str) -> None:
    await writer.patch(f"/chats/{chat}", title="The night ferry")
    chronicle = await enlist(writer, chat)
    assert (await writer.get(f"/chronicles/{chronicle}"))["name"] == "The night ferry"


async def test_an_account_has_as_many_chronicles_as_it_may(
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
async def test_null_takes_the_chronicle_from_a_chat_or_makes_a_new_one_where_one_is_kept(
    writer: Chronicler, chat: str
) -> None:
    first = await enlist(writer, chat)
    second = (await writer.settle(chat, chronicle_id=None))["chronicle_id"]
    assert second not in (None, first)
    settings = await writer.settle(chat, chronicle_id=None, chronicle_enabled=False)
    assert settings.get("chronicle_id") is None


async def test_a_copy_of_a_chat_has_a_chronicle_of_its_own(
    writer: Chronicler, chat: str, server: Running
) -> None:
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
    originals = await events(writer, chronicle)
    await writer.change(originals["Of no message."], superseded_by=originals["Of the way."]["id"])
    await writer.change(originals["Of the way."], superseded_by=originals["Of what follows."]["id"])
    originals = await events(writer, chronicle)
    copy, own = await fork(writer, chat, reply)
    assert own != chronicle
    copies = await events(writer, own)
    assert copies.keys() == originals.keys() - {"Of what follows."}
    led = ("source_message_ids", "source_chat_ids", "superseded_by", "is_current")
    for summary, event in copies.items():
        assert bare(event, *led) == bare(originals[summary], *led)
        assert event["id"] != originals[summary]["id"]
    lines = [each["id"] for each in await writer.account.messages(copy)]
    assert copies["Of the way."]["source_message_ids"] == [lines[0], lines[2]]
    assert copies["Of the way."]["source_chat_ids"] == [copy]
    assert copies["Of elsewhere."]["source_message_ids"] == [elsewhere]
    assert set(copies["Of both."]["source_message_ids"]) == {lines[1], elsewhere}
    assert copies["Of no message."]["superseded_by"] == copies["Of the way."]["id"]
    assert copies["Of the way."]["superseded_by"] is None
    assert copies["Of the way."]["is_current"]
    assert await events(writer, chronicle) == originals
    async with server.parts.database.read() as session:
        fork_row = await session.get_one(Chat, UUID(copy))
        row = await session.get_one(Chat, UUID(chat))
    assert fork_row.chronicle_enabled
    assert fork_row.chronicle_since == row.chronicle_since is not None


async def test_what_is_swiped_away_in_a_copy_stays_in_the_original(
    writer: Chronicler, chat: str
) -> None:
    chronicle = await enlist(writer, chat)
    reply = (await writer.say(chat))[-1]["id"]
    await writer.new_event(chronicle, "The door fell.", source_message_ids=[reply])
    copy, own = await fork(writer, chat, reply)
    await swipe(writer, (await writer.account.messages(copy))[-1]["id"])
    assert not (await events(writer, own))["The door fell."]["is_current"]
    assert (await events(writer, chronicle))["The door fell."]["is_current"]


async def test_a_chat_without_a_chronicle_is_copied_without(writer: Chronicler, chat: str) -> None:
    reply = (await writer.say(chat))[-1]["id"]
    assert (await fork(writer, chat, reply))[1] == ""
    assert (await writer.get("/chronicles"))["items"] == []


@pytest.mark.every_database
async def test_a_copy_of_a_chat_has_a_copy_of_its_chronicle_s_book(
    writer: Chronicler, chat: str, server: Running
) -> None:
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
async def test_with_a_chat_goes_what_came_from_branches_that_it_left(
    writer: Chronicler, chat: str, server: Running
) -> None:
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
    left = await events(writer, chronicle)
    assert left.keys() == {"Kept.", "Kept, of both.", "Of elsewhere.", "Of no message."}
    assert all(event["is_current"] for event in left.values())
    assert left["Kept."]["source_message_ids"] == []
    assert left["Kept, of both."]["source_message_ids"] == [elsewhere]
    await swipe(writer, elsewhere)
    left = await events(writer, chronicle)
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


async def test_an_event_that_only_another_chat_left_stays(writer: Chronicler, chat: str) -> None:
    chronicle = await enlist(writer, chat)
    here = (await writer.say(chat))[-1]["id"]
    other = str((await writer.account.new_chat())["id"])
    elsewhere = (await writer.say(other))[-1]["id"]
    await writer.new_event(chronicle, "Of both.", source_message_ids=[here, elsewhere])
    await swipe(writer, elsewhere)
    await writer.delete(f"/chats/{chat}")
    assert not (await events(writer, chronicle))["Of both."]["is_current"]
    ok(await writer.ask("POST", f"/messages/{elsewhere}/activate"))
    assert (await events(writer, chronicle))["Of both."]["is_current"]
