"""Current events: all their messages are on the active paths of their chats."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from backend.chronicles.repository import current_events, get_events
from tests.integration.chronicles.chroniclers import Chronicler
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, ok

pytestmark = pytest.mark.anyio


@pytest.fixture
async def chronicle(writer: Chronicler) -> str:
    return await writer.new_chronicle()


async def test_an_event_follows_its_swipe(writer: Chronicler, chat: str, chronicle: str) -> None:
    line, reply = (await writer.say(chat))[1:]
    await _remember(writer, chronicle, "Of the line.", line)
    await _remember(writer, chronicle, "Of the reply.", reply)
    await writer.account.turn(chat, regenerate_of=reply["id"])
    assert await writer.summaries(chronicle) == ["Of the line."]
    shown = (await writer.page(chronicle, current=False))["items"]
    assert {each["summary"]: each["is_current"] for each in shown} == {
        "Of the line.": True,
        "Of the reply.": False,
    }
    assert (await writer.get(f"/chronicles/{chronicle}"))["current_count"] == 1
    await _activate(writer, reply)
    assert await writer.summaries(chronicle) == ["Of the line.", "Of the reply."]


async def test_all_its_messages_must_count(writer: Chronicler, chat: str, chronicle: str) -> None:
    line, reply = (await writer.say(chat))[1:]
    await _remember(writer, chronicle, "Of both.", line, reply)
    await writer.account.turn(chat, regenerate_of=reply["id"])
    assert await writer.summaries(chronicle) == []
    await _activate(writer, reply)
    assert await writer.summaries(chronicle) == ["Of both."]


async def test_an_event_follows_an_edit(writer: Chronicler, chat: str, chronicle: str) -> None:
    line, reply = (await writer.say(chat))[1:]
    await _remember(writer, chronicle, "Of the reply.", reply)
    await writer.patch(f"/messages/{line['id']}", text="I go down.")
    assert await writer.summaries(chronicle) == []
    await _activate(writer, line)
    assert await writer.summaries(chronicle) == ["Of the reply."]


async def test_deleted_messages_end_events(writer: Chronicler, chat: str, chronicle: str) -> None:
    greeting, line, _ = await writer.say(chat)
    made = await _remember(writer, chronicle, "Of the line.", greeting, line)
    ok(await writer.ask("DELETE", f"/messages/{line['id']}"))
    assert await writer.summaries(chronicle) == []
    shown = await writer.event(chronicle, made["id"])
    assert shown["is_current"] is False
    assert line["id"] in shown["source_message_ids"]
    kept = [greeting["id"]]
    assert (await writer.change(made, source_message_ids=kept))["is_current"] is True


async def test_an_ended_event_can_be_changed(writer: Chronicler, chat: str, chronicle: str) -> None:
    line = (await writer.say(chat))[1]
    made = await _remember(writer, chronicle, "Of the line.", line)
    ok(await writer.ask("DELETE", f"/messages/{line['id']}"))
    changed = await writer.change(
        made, summary="Said anew.", source_message_ids=made["source_message_ids"]
    )
    assert (changed["summary"], changed["source_message_ids"]) == ("Said anew.", [line["id"]])


async def test_a_hidden_message_counts(writer: Chronicler, chat: str, chronicle: str) -> None:
    line = (await writer.say(chat))[1]
    await _remember(writer, chronicle, "Of the line.", line)
    await writer.patch(f"/messages/{line['id']}", hidden=True)
    assert await writer.summaries(chronicle) == ["Of the line."]


async def test_events_outlive_a_deleted_chat(writer: Chronicler, chat: str, chronicle: str) -> None:
    line, reply = (await writer.say(chat))[1:]
    made = await _remember(writer, chronicle, "Of the line.", line)
    await _remember(writer, chronicle, "Of the reply.", reply)
    await writer.account.turn(chat, regenerate_of=reply["id"])
    ok(await writer.ask("DELETE", f"/chats/{chat}"), 204)
    assert await writer.summaries(chronicle) == ["Of the line."]
    shown = await writer.event(chronicle, made["id"])
    assert (shown["source_message_ids"], shown["source_chat_ids"]) == ([], [])


async def test_each_chat_has_its_own_path(writer: Chronicler, chat: str, chronicle: str) -> None:
    other = str((await writer.account.new_chat())["id"])
    here, there = (await writer.say(chat))[-1], (await writer.say(other))[-1]
    await _remember(writer, chronicle, "Here.", here)
    await _remember(writer, chronicle, "There.", there)
    both = await _remember(writer, chronicle, "Both.", here, there)
    assert set(both["source_chat_ids"]) == {chat, other}
    await writer.account.turn(other, regenerate_of=there["id"])
    assert await writer.summaries(chronicle) == ["Here."]


async def test_a_swipe_restores_old_events(writer: Chronicler, chat: str, chronicle: str) -> None:
    reply = (await writer.say(chat))[-1]
    old = await writer.new_event(chronicle, "The lamp is lit.")
    new = await _remember(writer, chronicle, "The lamp is out.", reply)
    await writer.change(old, superseded_by=new["id"])
    assert await writer.summaries(chronicle) == ["The lamp is out."]
    await writer.account.turn(chat, regenerate_of=reply["id"])
    assert await writer.summaries(chronicle) == ["The lamp is lit."]
    assert (await writer.event(chronicle, old["id"]))["superseded_by"] == new["id"]
    await _activate(writer, reply)
    assert await writer.summaries(chronicle) == ["The lamp is out."]


async def test_a_turn_reads_the_latest_current_events_in_story_order(
    writer: Chronicler, stranger: Chronicler, chat: str, chronicle: str, server: Running
) -> None:
    reply = (await writer.say(chat))[-1]
    away = await _remember(writer, chronicle, "Away.", reply, happened_at="2026-03-09T00:00:00Z")
    await writer.account.turn(chat, regenerate_of=reply["id"])
    made = [
        await writer.new_event(
            chronicle, day, happened_at=f"2026-03-0{day}T00:00:00Z", pinned=day in "13"
        )
        for day in "3142"
    ]
    await writer.change(made[3], superseded_by=made[2]["id"])
    identity = await identity_of(server, writer.account)
    other = await identity_of(server, stranger.account)
    container = UUID(chronicle)
    async with server.parts.database.read() as session:
        latest = await current_events(session, identity.sealer, container, limit=2)
        everything = await current_events(session, identity.sealer, container, limit=9)
        pinned = await current_events(session, identity.sealer, container, limit=9, pinned=True)
        foreign = await current_events(session, other.sealer, container, limit=9)
        ids = [UUID(each["id"]) for each in (away, *made)]
        found = await get_events(session, identity.sealer, [*ids, UUID(int=0)])
        unknown = await get_events(session, other.sealer, ids)
    assert [each.fields.summary for each in latest] == ["3", "4"]
    assert [each.fields.summary for each in everything] == ["1", "3", "4"]
    assert [each.fields.summary for each in pinned] == ["1", "3"]
    assert (foreign, unknown) == ([], {})
    assert found.keys() == set(ids)
    assert {each.fields.summary: (each.counts, each.is_current) for each in found.values()} == {
        "Away.": (False, False),
        "1": (True, True),
        "2": (True, False),
        "3": (True, True),
        "4": (True, True),
    }
    [source] = found[UUID(away["id"])].sources
    assert (source.id, source.chat_id, source.position) == (UUID(reply["id"]), UUID(chat), 2)


async def _remember(
    writer: Chronicler, chronicle_id: str, summary: str, *messages: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """Create an event with these messages as its sources."""
    ids = [each["id"] for each in messages]
    return await writer.new_event(chronicle_id, summary, source_message_ids=ids, **fields)


async def _activate(writer: Chronicler, message: dict[str, Any]) -> None:
    ok(await writer.ask("POST", f"/messages/{message['id']}/activate"))
