"""Current events in the search, by words and by meaning."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest

from backend.chronicles.index_source import ChronicleSource
from tests.fakes.openai_server import OpenAIServer
from tests.integration.chronicles.chroniclers import Chronicler
from tests.integration.turns.seeding import identity_of
from tests.support.memory import (
    embedding,
    points_of,
    reconcile,
    remembering,
    search,
    settled,
    texts_found,
)
from tests.support.server import Running, ok

pytestmark = pytest.mark.anyio

BURIED = "The captain buried the astrolabe under the chapel bell."


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("data")
    async with (
        OpenAIServer() as vectors,
        remembering(shared_url, folder, **embedding(vectors)) as server,
    ):
        yield server


async def found(writer: Chronicler, words: str = "buried astrolabe", **query: Any) -> list[str]:
    return await texts_found(writer.account, words, sources="event", **query)


async def test_all_its_fields_are_found(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle = await writer.new_chronicle()
    reply = (await writer.say(chat))[-1]
    event = await writer.new_event(
        chronicle,
        BURIED,
        day=3,
        time="evening",
        where="Skerry",
        who=["Mara", "the captain"],
        keywords=["sextant"],
        source_message_ids=[reply["id"]],
    )
    await settled(server)
    [item] = await search(writer.account, "buried astrolabe", sources="event")
    assert item["text"] == f"Day 3, evening; Skerry; Mara, the captain: {BURIED}"
    assert (item["kind"], item["source_id"]) == ("event", event["id"])
    assert (item["container_id"], item["title"]) == (chronicle, "")
    assert item["said_at"] == event["happened_at"]
    assert item["position"] is None
    assert item["scores"].keys() == {"dense", "sparse"}
    for words in ("sextant", "what happened on Skerry", "day 3"):
        assert await found(writer, words) == [item["text"]]
    identity = await identity_of(server, writer.account)
    async with server.parts.database.read() as session:
        recalled = await ChronicleSource().recall(session, identity.sealer, [UUID(event["id"])])
    memory = recalled[UUID(event["id"])]
    assert (memory.position, memory.chat_id) == (reply["position"], UUID(chat))


async def test_an_event_has_at_most_one_chat(
    writer: Chronicler, chat: str, server: Running
) -> None:
    chronicle = await writer.new_chronicle()
    line, reply = (await writer.say(chat))[-2:]
    other = (await writer.post(f"/chats/{chat}/fork", message_id=reply["id"]))["id"]
    elsewhere = (await writer.account.messages(other))[-1]
    here = [line["id"], reply["id"]]
    one = await writer.new_event(chronicle, BURIED, source_message_ids=here)
    two = await writer.new_event(
        chronicle, BURIED, source_message_ids=[line["id"], elsewhere["id"]]
    )
    identity = await identity_of(server, writer.account)
    ids = [UUID(one["id"]), UUID(two["id"])]
    async with server.parts.database.read() as session:
        recalled = await ChronicleSource().recall(session, identity.sealer, ids)
    assert [recalled[each].chat_id for each in ids] == [UUID(chat), None]


async def test_changes_and_deletions_reach_the_index(writer: Chronicler, server: Running) -> None:
    chronicle = await writer.new_chronicle()
    event = await writer.new_event(chronicle, BURIED)
    other = await writer.new_event(chronicle, "The astrolabe was a fake.")
    await settled(server)
    assert set(await found(writer)) == {BURIED, "The astrolabe was a fake."}
    await writer.change(event, summary="The mate buried a lantern.")
    await settled(server)
    assert "The mate buried a lantern." in await found(writer, "mate lantern")
    await writer.delete(f"/chronicles/{chronicle}/events/{event['id']}")
    await settled(server)
    identity = await identity_of(server, writer.account)
    index = server.parts.memory.collections.current
    left = {point.source_id for point in await points_of(index, identity.user_id)}
    assert left == {UUID(other["id"])}
    await writer.delete(f"/chronicles/{chronicle}")
    await settled(server)
    assert await points_of(index, identity.user_id) == []


async def test_only_current_events_are_found(
    writer: Chronicler, chat: str, server: Running
) -> None:
    chronicle = await writer.new_chronicle()
    reply = (await writer.say(chat))[-1]["id"]
    await writer.new_event(chronicle, BURIED, source_message_ids=[reply])
    await settled(server)
    assert await found(writer) == [BURIED]
    await writer.account.turn(chat, regenerate_of=reply)
    assert await found(writer) == []
    ok(await writer.ask("POST", f"/messages/{reply}/activate"))
    assert await found(writer) == [BURIED]


async def test_a_found_event_brings_its_line(
    writer: Chronicler, chat: str, server: Running
) -> None:
    chronicle = await writer.new_chronicle()
    said = "He hid it where nobody rings."
    line = (await writer.say(chat, said))[-2]
    await writer.new_event(chronicle, BURIED, source_message_ids=[line["id"]])
    await settled(server)
    asked = {"sources": "event,message", "min_relevance": 0.5}
    event, *lines = await search(writer.account, BURIED, **asked)
    assert (event["text"], [each["text"] for each in lines]) == (BURIED, [said])
    assert lines[0]["signals"] == [{"kind": "event", "strength": 1.0}]
    assert await found(writer, BURIED, min_relevance=0.5) == [BURIED]


async def test_superseded_events_are_hidden(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle = await writer.new_chronicle()
    reply = (await writer.say(chat))[-1]["id"]
    old = await writer.new_event(chronicle, BURIED)
    dug = "Mara dug the buried astrolabe up."
    later = await writer.new_event(chronicle, dug, source_message_ids=[reply])
    await writer.change(old, superseded_by=later["id"])
    await settled(server)
    assert await found(writer) == [dug]
    await writer.account.turn(chat, regenerate_of=reply)
    assert await found(writer) == [BURIED]


async def test_a_chat_finds_only_its_own_chronicle(
    writer: Chronicler, stranger: Chronicler, chat: str, server: Running
) -> None:
    own, other = await writer.new_chronicle(), await writer.new_chronicle("Another")
    await writer.new_event(own, BURIED)
    await writer.new_event(other, "Nobody buried any astrolabe.")
    await stranger.new_event(await stranger.new_chronicle(), "Ben buried an astrolabe.")
    await settled(server)
    assert len(await found(writer)) == 2
    assert await found(stranger) == ["Ben buried an astrolabe."]
    assert await found(writer, chat_id=chat) == []
    await writer.settle(chat, chronicle_id=own)
    assert await found(writer, chat_id=chat) == [BURIED]
    everywhere = await search(writer.account, "buried astrolabe", chat_id=chat)
    assert BURIED in {item["text"] for item in everywhere}


async def test_reconciling_restores_points(writer: Chronicler, chat: str, server: Running) -> None:
    chronicle = await writer.new_chronicle()
    reply = (await writer.say(chat))[-1]["id"]
    await writer.new_event(chronicle, BURIED)
    left = await writer.new_event(chronicle, "Of a branch.", source_message_ids=[reply])
    await writer.account.turn(chat, regenerate_of=reply)
    await settled(server)
    identity = await identity_of(server, writer.account)
    index = server.parts.memory.collections.current
    before = await points_of(index, identity.user_id)
    assert UUID(left["id"]) in {point.source_id for point in before}
    await index.delete_container(identity.user_id, UUID(chronicle))
    assert await found(writer) == []
    await reconcile(server)
    await settled(server)
    assert await found(writer) == [BURIED]
    after = await points_of(index, identity.user_id)
    key = [(point.kind, point.source_id, point.version) for point in before]
    assert sorted(key) == sorted((point.kind, point.source_id, point.version) for point in after)
