"""A message is deleted alone: its text is nowhere any more, and the messages below it stay."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.chats.drafts import SEALED_COLUMNS
from backend.chats.models import MESSAGE_THINKING, MESSAGE_TYPED, Message, StoredFile
from backend.turns.models import StoredContextRecord
from tests.fakes.openai_server import OpenAIServer
from tests.integration.turns.seeding import identity_of
from tests.support.importing import bring, card_json
from tests.support.memory import (
    API,
    context_of,
    preview,
    remembering_server,
    search,
    settled,
    take_turn,
    tell,
    whole,
)
from tests.support.server import Account, Running, ok, problem
from tests.support.shared import ada
from tests.support.stored_chats import make_header, make_line, write_lines

__all__ = ["ada", "remembering_server"]

pytestmark = pytest.mark.anyio

SECRET = "zanzibar"
STORY = (
    "I knock at the gate of the mill.",
    f"The password is {SECRET}, the miller whispers.",
    "I walk through the gate and thank the miller.",
    "The miller pours two cups of cider.",
)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
def server(remembering_server: Running) -> Running:
    return remembering_server


@pytest.fixture
async def chat(ada: Account) -> str:
    character = await ada.new_character(alternate_greetings=["A knock at the window."])
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


@pytest.fixture
async def lines(server: Running, ada: Account, chat: str) -> list[dict[str, Any]]:
    """A greeting and the story, in the index. The third message has the secret."""
    await tell(server, ada, chat, STORY)
    return await ada.messages(chat)


async def remove(ada: Account, message_id: str) -> dict[str, Any]:
    return await ada.delete(f"/messages/{message_id}", 200, alone="true")


async def find_sealed_texts(server: Running, ada: Account, chat: str) -> str:
    """Everything that is stored with a chat's messages, in clear."""
    sealer = (await identity_of(server, ada)).sealer
    columns = [getattr(Message, column.name) for column in SEALED_COLUMNS]
    query = select(Message.id, *columns).where(Message.chat_id == UUID(chat))
    async with server.parts.database.read() as session:
        rows = (await session.execute(query)).all()
    texts = [
        sealer.open_bytes(column, row.id, blob).decode()
        for row in rows
        for column in SEALED_COLUMNS
        if (blob := getattr(row, column.name)) is not None
    ]
    return "\n".join(texts)


async def test_only_its_text_goes_and_the_tree_stays(
    server: Running, ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    sealer = (await identity_of(server, ada)).sealer
    secret = UUID(lines[2]["id"])
    async with server.parts.database.write() as session:
        await session.execute(
            update(Message)
            .where(Message.id == secret)
            .values(
                sealed_thinking=sealer.seal(MESSAGE_THINKING, secret, SECRET),
                sealed_typed=sealer.seal(MESSAGE_TYPED, secret, SECRET),
            )
        )
    address = f"{API}/chats/{chat}/messages"
    tag = (await ada.client.get(address)).headers["etag"]
    before = await preview(ada, chat, "Hello?")
    assert SECRET in whole(before)
    assert await remove(ada, lines[2]["id"]) == {"deleted": 1, "leaf_id": lines[4]["id"]}
    found = await ada.messages(chat)
    assert [each["id"] for each in found] == [each["id"] for each in lines]
    assert [each["text"] for each in found] == [lines[0]["text"], STORY[0], "", *STORY[2:]]
    assert [each["removed"] for each in found] == [False, False, True, False, False]
    gone = found[2]
    assert (gone["hidden"], gone["thinking"], gone["typed"]) == (True, None, None)
    assert gone["author"] == lines[2]["author"]
    assert SECRET not in await find_sealed_texts(server, ada, chat)
    answer = await ada.client.get(address, headers={"If-None-Match": tag})
    assert answer.status_code == 200
    after = await preview(ada, chat, "Hello?")
    assert SECRET not in str(after)
    assert after["totals"]["messages"] == before["totals"]["messages"] - 1
    # Once more changes nothing, and it cannot be shown again.
    assert (await remove(ada, lines[2]["id"]))["deleted"] == 0
    shown = await ada.client.patch(f"{API}/messages/{lines[2]['id']}", json={"hidden": False})
    problem(shown, 422, "message-empty")


async def test_search_finds_neither_it_nor_its_neighbours_by_its_words(
    server: Running, ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    found = [item["source_id"] for item in await search(ada, SECRET)]
    assert lines[2]["id"] in found
    await remove(ada, lines[2]["id"])
    await settled(server)
    hits = [item for item in await search(ada, SECRET) if "sparse" in str(item["scores"])]
    assert hits == []
    cider = [item["source_id"] for item in await search(ada, "cider cups")]
    assert cider[0] == lines[4]["id"]
    await remove(ada, lines[0]["id"])
    await settled(server)
    assert next(item["source_id"] for item in await search(ada, "cider cups")) == lines[4]["id"]


async def test_no_file_of_the_chat_contains_it(
    ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    await remove(ada, lines[2]["id"])
    for form in ("jsonl", "markdown", "text"):
        file = await ada.client.get(f"{API}/chats/{chat}/export", params={"format": form})
        assert file.status_code == 200
        assert SECRET not in file.text
        assert STORY[2] in file.text
    archive = await ada.client.get(f"{API}/chats/{chat}/export", params={"format": "archive"})
    with zipfile.ZipFile(io.BytesIO(archive.content)) as zipped:
        texts = [zipped.read(name) for name in zipped.namelist()]
    assert not any(SECRET.encode() in each for each in texts)
    view, _ = await bring(ada, archive.content, "mill.zip", copy=True)
    copies = await ada.messages(view["chat_id"])
    assert [each["removed"] for each in copies] == [False, False, True, False, False]


async def test_its_pictures_are_deleted(server: Running, ada: Account) -> None:
    picture = "data:image/png;base64,iVBORw0KGgo="
    file = write_lines(
        [
            make_header(),
            make_line("Look.", is_user=True, extra={"image": picture}),
            make_line("A mill."),
        ]
    )
    await bring(ada, card_json(), "Mara.json")
    view, _ = await bring(ada, file, "night.jsonl", path="/chats/import")
    user_id = (await identity_of(server, ada)).user_id
    query = select(StoredFile.id).where(StoredFile.user_id == user_id)
    async with server.parts.database.read() as session:
        assert len((await session.scalars(query)).all()) == 1
    [line, _] = await ada.messages(view["chat_id"])
    await remove(ada, line["id"])
    async with server.parts.database.read() as session:
        assert (await session.scalars(query)).all() == []


async def test_a_fork_has_an_empty_place_too(
    server: Running, ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    await remove(ada, lines[2]["id"])
    fork = await ada.post(f"/chats/{chat}/fork", {"message_id": lines[4]["id"]}, 201)
    copies = await ada.messages(fork["id"])
    assert [each["removed"] for each in copies] == [False, False, True, False, False]
    assert SECRET not in await find_sealed_texts(server, ada, fork["id"])
    assert SECRET not in str(await preview(ada, fork["id"], "Hello?"))


async def test_swipes_stay_and_count_without_it(
    ada: Account, chat: str, lines: list[dict[str, Any]], model: OpenAIServer
) -> None:
    other = await take_turn(ada, chat, regenerate_of=lines[4]["id"])
    await remove(ada, other)
    found = (await ada.messages(chat))[4]
    assert (found["id"], found["removed"]) == (other, True)
    siblings = await ada.get(f"/messages/{lines[4]['id']}/siblings")
    assert [each["id"] for each in siblings["items"]] == [lines[4]["id"]]
    ok(await ada.client.post(f"{API}/messages/{lines[4]['id']}/activate"))
    found = (await ada.messages(chat))[4]
    assert (found["text"], found["sibling"], found["sibling_count"]) == (STORY[3], 1, 1)
    # A path never continues with a removed message.
    ok(await ada.client.delete(f"{API}/messages/{lines[4]['id']}"))
    assert [each["id"] for each in await ada.messages(chat)] == [each["id"] for each in lines[:4]]


async def test_the_story_goes_on_from_the_last_message_that_is_left(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    first = await take_turn(ada, chat, text="Who is there?")
    second = await take_turn(ada, chat, text="What do you want?")
    line = (await ada.messages(chat))[3]["id"]
    await remove(ada, second)
    # The last line is the user's again, so that it can be answered without another one.
    third = await take_turn(ada, chat)
    found = await ada.messages(chat)
    assert [each["id"] for each in found][3:] == [line, second, third]
    # The second reply is in its prompt no more, and its own prompt is not kept.
    async with server.parts.database.read() as session:
        assert await session.get(StoredContextRecord, UUID(second)) is None
    assert (await context_of(ada, third))["totals"]["messages"] == 5
    await remove(ada, third)
    await remove(ada, line)
    # Without the line, the reply before it is the last one, and can be continued.
    await ada.turn(chat, **{"continue": True})
    assert (await ada.messages(chat))[2]["id"] == first
    answer = await ada.client.get(f"{API}/messages/{first}/context")
    assert answer.status_code == 200


async def test_a_later_prompt_that_contained_it_is_not_shown(
    ada: Account, chat: str, model: OpenAIServer
) -> None:
    first = await take_turn(ada, chat, text="Who is there?")
    second = await take_turn(ada, chat, text="What do you want?")
    await remove(ada, first)
    problem(await ada.client.get(f"{API}/messages/{second}/context"), 409, "context-not-rebuilt")


async def test_what_is_written_or_says_who_is_there_is_refused(
    server: Running, ada: Account, chat: str, lines: list[dict[str, Any]]
) -> None:
    secret = UUID(lines[4]["id"])
    for values, slug in (
        ({"status": "streaming"}, "message-busy"),
        ({"status": "complete", "presence": "absent"}, "presence-message"),
    ):
        async with server.parts.database.write() as session:
            await session.execute(update(Message).where(Message.id == secret).values(**values))
        answer = await ada.client.delete(f"{API}/messages/{secret}", params={"alone": "true"})
        problem(answer, 409, slug)
    async with server.parts.database.write() as session:
        await session.execute(update(Message).where(Message.id == secret).values(presence=None))
    assert (await ada.messages(chat))[4]["text"] == STORY[3]
