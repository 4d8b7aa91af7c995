"""Lore that was written down behind replies: it counts as long as what it comes from does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest

from backend.database.base import new_id
from backend.lorebooks.authoring import EntryOrigin, add_entry, chronicle_book
from backend.lorebooks.entries import LoreEntry
from tests.fakes.openai_server import OpenAIServer
from tests.integration.turns.seeding import identity_of
from tests.support.memory import (
    embedding,
    link,
    preview,
    reasons,
    remembering,
    set_chat,
    settled,
    take_turn,
    texts_found,
)
from tests.support.server import Account, Running

pytestmark = pytest.mark.anyio

BELL = "The drowned bell rings before a storm."
LEFT = "not on the active path"


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


async def write_down(
    server: Running, ada: Account, chat: str, message: str, entry: LoreEntry
) -> str:
    """What the agent does behind a reply; the id of the book that it writes into."""
    identity = await identity_of(server, ada)
    await set_chat(ada, chat, chronicle_enabled=True)
    settings = await ada.get(f"/chats/{chat}/settings")
    async with server.parts.database.write() as session:
        book = await chronicle_book(
            session, identity.sealer, UUID(settings["chronicle_id"]), name="Of the coast"
        )
        origin = EntryOrigin(new_id(), UUID(chat), UUID(message))
        row = await add_entry(session, identity.sealer, book, entry, origin)
        await server.parts.index.changed(
            session, identity, kind="lore", container_id=book.id, source_ids=[row.id]
        )
        book_id = str(book.id)
    await settled(server)
    return book_id


async def swipe(ada: Account, message: str) -> None:
    await ada.post(f"/messages/{message}/activate")


def left_out(context: dict[str, Any]) -> dict[str, str]:
    return {item["title"]: item["reason"] for item in context["left_out"] if item["kind"] == "lore"}


async def test_a_key_stops_firing_when_its_message_is_swiped_away_and_comes_back_with_it(
    ada: Account, chat: str, server: Running
) -> None:
    first = await take_turn(ada, chat, text="Is there a bell?")
    entry = LoreEntry(title="Bell", keys=["clapper"], content=BELL)
    book = await write_down(server, ada, chat, first, entry)
    await ada.patch(f"/lorebooks/{book}", {"mode": "keys"})
    said = await preview(ada, chat, "I grip the clapper.")
    assert reasons(said) == {"Bell": 'key "clapper" in the line'}
    second = await take_turn(ada, chat, regenerate_of=first)
    assert second != first
    said = await preview(ada, chat, "I grip the clapper.")
    assert "Bell" not in reasons(said)
    assert left_out(said) == {"Bell": LEFT}
    await swipe(ada, first)
    said = await preview(ada, chat, "I grip the clapper.")
    assert "Bell" in reasons(said)
    assert left_out(said) == {}


async def test_what_is_constant_stops_and_comes_back_likewise(
    ada: Account, chat: str, server: Running
) -> None:
    first = await take_turn(ada, chat, text="Is there a bell?")
    await write_down(server, ada, chat, first, LoreEntry(title="Bell", constant=True, content=BELL))
    assert "Bell" in reasons(await preview(ada, chat, "We go on."))
    await take_turn(ada, chat, regenerate_of=first)
    said = await preview(ada, chat, "We go on.")
    assert "Bell" not in reasons(said)
    assert left_out(said) == {"Bell": LEFT}
    await swipe(ada, first)
    assert "Bell" in reasons(await preview(ada, chat, "We go on."))


async def test_what_is_found_by_meaning_stops_and_comes_back_likewise(
    ada: Account, chat: str, server: Running
) -> None:
    first = await take_turn(ada, chat, text="Is there a bell?")
    await write_down(server, ada, chat, first, LoreEntry(title="Bell", content=BELL))
    asked = "What rings before a storm, the drowned bell?"
    assert BELL in await texts_found(ada, asked, sources="lore")
    assert reasons(await preview(ada, chat, asked))["Bell"].startswith("semantic")
    await take_turn(ada, chat, regenerate_of=first)
    await settled(server)
    assert await texts_found(ada, asked, sources="lore") == []
    assert "Bell" not in reasons(await preview(ada, chat, asked))
    await swipe(ada, first)
    assert BELL in await texts_found(ada, asked, sources="lore", chat_id=chat)
    assert "Bell" in reasons(await preview(ada, chat, asked))


async def test_each_chat_on_the_chronicle_has_its_book_and_may_switch_it_off(
    ada: Account, chat: str, server: Running
) -> None:
    reply = await take_turn(ada, chat, text="Is there a bell?")
    entry = LoreEntry(title="Bell", keys=["clapper"], content=BELL)
    book = await write_down(server, ada, chat, reply, entry)
    other = str((await ada.new_chat())["id"])
    assert "Bell" not in reasons(await preview(ada, other, "The clapper?"))
    settings = await ada.get(f"/chats/{chat}/settings")
    await set_chat(ada, other, chronicle_id=settings["chronicle_id"])
    page = await ada.get(f"/chats/{other}/lorebooks")
    [item] = page["items"]
    assert (item["lorebook"]["id"], item["source"], item["is_off"]) == (book, "chronicle", False)
    assert item["lorebook"]["chronicle_id"] == settings["chronicle_id"]
    assert "Bell" in reasons(await preview(ada, other, "The clapper?"))
    await link(ada, other, book, "off")
    assert reasons(await preview(ada, other, "The clapper?")) == {}
    assert "Bell" in reasons(await preview(ada, chat, "The clapper?"))
    await ada.delete(f"/messages/{reply}", 200)
    await link(ada, other, book, "linked")
    said = await preview(ada, other, "The clapper?")
    assert (reasons(said), left_out(said)) == ({}, {"Bell": LEFT})
