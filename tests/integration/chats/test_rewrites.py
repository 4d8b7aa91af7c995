"""Messages that are changed in place, and the digests of all texts."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from backend.accounts.auth.identity import Identity
from backend.chats.errors import (
    ChatNotFoundError,
    EmptyMessageError,
    MessageBusyError,
    MessageNotFoundError,
)
from backend.chats.models import MESSAGE_CONTENT, Message
from backend.chats.repository import get_chat
from backend.chats.rewrites import MessageChanges
from backend.chats.text_digests import TextDigester
from tests.integration.enrichment.storytelling import put_summary, read_summary
from tests.integration.turns.following import check_tree
from tests.integration.turns.seeding import identity_of, seed
from tests.support.importing import bring
from tests.support.memory import preview, set_chat
from tests.support.server import Account, Running
from tests.support.stored_chats import make_header, make_line, make_swiped, write_lines

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

SONG = ["Who sings?", "A lark sings.", "Where?", "Over the mill.", "And then?", "It falls silent."]


async def open_song(server: Running, ada: Account, chat: str) -> tuple[Identity, list[UUID]]:
    """Add lines to a chat. Return its messages after the greeting."""
    await seed(server, ada, chat, SONG)
    identity = await identity_of(server, ada)
    return identity, [UUID(each["id"]) for each in (await ada.messages(chat))[1:]]


async def rewrite(
    server: Running, identity: Identity, chat_id: UUID, changes: MessageChanges
) -> None:
    """Change messages as the writer of clients' conversations does."""
    messages, database = server.parts.messages, server.parts.database
    for text in changes.texts.values():
        messages.check_text(text)
    sealed = await messages.rewriter.seal(identity, chat_id, changes)
    async with database.write() as session:
        chat = await get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
        assert await messages.rewriter.apply(session, identity, chat, sealed)


async def read_texts(ada: Account, chat: str) -> list[str]:
    return [each["text"] for each in (await ada.messages(chat))[1:] if not each["hidden"]]


async def test_texts_and_visibility_change_in_one_step(
    ada: Account, chat: str, server: Running
) -> None:
    identity, ids = await open_song(server, ada, chat)
    messages = server.parts.messages
    await messages.hide(identity, ids[5], hidden=True)
    changes = MessageChanges(
        texts={ids[1]: "A thrush sings in the pear tree.", ids[5]: "It sings on and on."},
        hides=[ids[2], ids[3]],
        shows=[ids[5]],
    )
    await rewrite(server, identity, UUID(chat), changes)
    assert await read_texts(ada, chat) == [
        SONG[0],
        "A thrush sings in the pear tree.",
        SONG[4],
        "It sings on and on.",
    ]
    assert [UUID(each["id"]) for each in (await ada.messages(chat))[1:]] == ids
    await check_tree(server.parts.database, chat)
    await rewrite(server, identity, UUID(chat), MessageChanges(shows=ids[2:4]))
    assert len(await read_texts(ada, chat)) == 6
    await check_tree(server.parts.database, chat)


async def test_the_next_prompt_has_the_new_texts(ada: Account, chat: str, server: Running) -> None:
    identity, ids = await open_song(server, ada, chat)
    await ada.turn(chat, text="Sing again.")  # the history is cached now
    changes = MessageChanges(texts={ids[3]: "Over the sea."}, hides=[ids[0]])
    await rewrite(server, identity, UUID(chat), changes)
    sent = json.dumps((await preview(ada, chat, "Once more."))["prompt"])
    assert "Over the sea." in sent
    assert "Over the mill." not in sent
    assert "Who sings?" not in sent


async def test_summaries_of_a_changed_message_remain(
    ada: Account, chat: str, server: Running
) -> None:
    identity, ids = await open_song(server, ada, chat)
    await set_chat(ada, chat, summary={"enabled": True})
    await put_summary(ada, chat, "A lark sang.", through_message_id=str(ids[3]))
    changes = MessageChanges(texts={ids[1]: "A thrush sings.", ids[3]: "Over the sea."})
    await rewrite(server, identity, UUID(chat), changes)
    assert (await read_summary(ada, chat))["text"] == "A lark sang."


async def test_a_change_that_is_refused_changes_nothing(
    ada: Account, chat: str, server: Running
) -> None:
    identity, ids = await open_song(server, ada, chat)
    fine = {ids[0]: "Who whistles?"}
    for changes, error in (
        (MessageChanges(texts={**fine, ids[1]: " "}), EmptyMessageError),
        (MessageChanges(texts={**fine, uuid4(): "Nobody."}), MessageNotFoundError),
        (MessageChanges(texts=fine, hides=[uuid4()]), MessageNotFoundError),
    ):
        with pytest.raises(error):
            await rewrite(server, identity, UUID(chat), changes)
    with pytest.raises(ChatNotFoundError):
        await rewrite(server, identity, uuid4(), MessageChanges(texts=fine))
    await _set_status(server, ids[1], "streaming")
    with pytest.raises(MessageBusyError):
        await rewrite(server, identity, UUID(chat), MessageChanges(texts=fine, hides=ids[1:2]))
    await _set_status(server, ids[1], "complete")
    async with server.account("Ben") as ben:
        stranger = await identity_of(server, ben)
        with pytest.raises(ChatNotFoundError):
            await rewrite(server, stranger, UUID(chat), MessageChanges(texts=fine))
    assert await read_texts(ada, chat) == SONG


async def _set_status(server: Running, message_id: UUID, status: str) -> None:
    async with server.parts.database.write() as session:
        await session.execute(update(Message).where(Message.id == message_id).values(status=status))


async def test_every_way_to_store_a_text_keeps_its_digest(
    ada: Account, chat: str, server: Running
) -> None:
    identity = await identity_of(server, ada)
    await ada.turn(chat, text="Is anyone  here?")
    line, reply = (await ada.messages(chat))[1:]
    await ada.patch(f"/messages/{reply['id']}", {"text": "Nobody is."})
    await ada.patch(f"/messages/{line['id']}", {"text": "Is someone here?"})
    await ada.turn(chat)
    await ada.turn(chat, **{"continue": True})
    last = (await ada.messages(chat))[-1]
    changes = MessageChanges(texts={UUID(last["id"]): "Someone is."})
    await rewrite(server, identity, UUID(chat), changes)
    await ada.post(f"/chats/{chat}/fork", {"message_id": last["id"]}, status=201)
    file = write_lines([make_header(), make_swiped(["Rain.", "Snow."], 1), make_line("Look.")])
    await bring(ada, file, "night.jsonl", path="/chats/import")
    answer = await ada.ask("GET", f"/chats/{chat}/export", params={"format": "archive"})
    await bring(ada, answer.content, "chat.zip", copy=True)
    digester = TextDigester(identity.sealer)
    async with server.parts.database.read() as session:
        rows = list(
            await session.scalars(select(Message).where(Message.user_id == identity.user_id))
        )
    assert len(rows) >= 17
    for row in rows:
        text = identity.sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
        assert row.text_digest == digester.compute(row.role, text)
