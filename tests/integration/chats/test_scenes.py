"""Tests of the beginnings of scenes in chats."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.chats.drafts import MAX_SCENE_MESSAGES, MAX_SCENE_PAUSE, opens_scene
from backend.chats.index_source import MessageSource
from backend.chats.models import Message
from tests.fakes.openai_server import OpenAIServer, reply
from tests.integration.turns.seeding import identity_of, stored_lines
from tests.support.memory import API, points_of, remembering, settled, take_turn, tell, texts_found
from tests.support.models import asking
from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    folder = tmp_path_factory.mktemp("data")
    async with remembering(shared_url, folder, embedder="none", **asking(model)) as server:
        yield server


def find_scenes(rows: list[Message]) -> list[int]:
    """Return the position of the first line of each line's scene."""
    places = {row.id: place for place, row in enumerate(rows)}
    assert all(row.scene_id is not None for row in rows)
    return [places[row.scene_id] for row in rows if row.scene_id is not None]


@pytest.mark.parametrize(
    "text",
    [
        "***",
        "* * *\nLater.",
        "---\nDawn.",
        "Chapter 3",
        "## Chapter Two: Salt",
        "**Scene 4**\nA bar.",
    ],
)
def test_a_mark_at_the_head_of_a_text_opens_a_scene(text: str) -> None:
    assert opens_scene(text)


@pytest.mark.parametrize(
    "text",
    [
        "*smiles*",
        "**Bold** words",
        "- a list",
        "Well... ***",
        "The chapter ends.",
        "",
        "Partly so.",
    ],
)
def test_similar_lines_open_no_scene(text: str) -> None:
    assert not opens_scene(text)


@pytest.mark.every_database
async def test_a_scene_ends_with_its_length_with_a_mark_and_with_a_pause(
    ada: Account, chat: str, server: Running
) -> None:
    lines = [f"Line {n}." for n in range(MAX_SCENE_MESSAGES + 3)]
    await tell(server, ada, chat, [*lines, "Chapter 2\nThe ferry leaves.", "At last."])
    rows = await stored_lines(server, chat)
    marked = len(lines) + 1
    assert find_scenes(rows) == [
        *[0] * MAX_SCENE_MESSAGES,
        *[MAX_SCENE_MESSAGES] * 4,
        marked,
        marked,
    ]
    assert [row.scene_place for row in rows[MAX_SCENE_MESSAGES - 1 : MAX_SCENE_MESSAGES + 2]] == [
        MAX_SCENE_MESSAGES - 1,
        0,
        1,
    ]

    for pause, is_new in ((MAX_SCENE_PAUSE, True), (MAX_SCENE_PAUSE - timedelta(minutes=5), False)):
        # Make the last line older.
        last = (await stored_lines(server, chat))[-1]
        before = last.created_at - pause - timedelta(minutes=1)
        async with server.parts.database.write() as session:
            await session.execute(
                update(Message).where(Message.id == last.id).values(created_at=before)
            )
        await tell(server, ada, chat, ["I am back."])
        rows = await stored_lines(server, chat)
        assert (rows[-1].scene_id == rows[-1].id) is is_new


@pytest.mark.every_database
async def test_a_reply_that_opens_with_a_mark_opens_a_scene_and_what_follows_is_in_it(
    ada: Account, chat: str, server: Running, model: OpenAIServer
) -> None:
    model.script(reply("***\n\n", "The next morning a cormorant waits."), reply("It flies off."))
    await take_turn(ada, chat, text="I sleep.")
    await take_turn(ada, chat, text="I wake.")
    assert find_scenes(await stored_lines(server, chat)) == [0, 0, 2, 2, 2]
    await settled(server)
    points = await points_of(server.parts.memory.collections.current, UUID(ada.user["id"]))
    assert {point.source_id: point.scene_id for point in points} == {
        row.id: row.scene_id for row in await list_lines(server, chat)
    }


async def test_a_fork_keeps_its_scenes_and_an_edit_begins_none(
    ada: Account, chat: str, server: Running
) -> None:
    await tell(server, ada, chat, ["One.", "* * *\nTwo.", "Three.", "Four.", "# Chapter 9", "Six."])
    rows = await stored_lines(server, chat)
    assert find_scenes(rows) == [0, 0, 2, 2, 2, 5, 5]
    body = {"message_id": str(rows[5].id)}
    fork = ok(await ada.client.post(f"{API}/chats/{chat}/fork", json=body), 201)["id"]
    copies = await stored_lines(server, fork)
    assert find_scenes(copies) == find_scenes(rows)[:6]
    assert not {row.id for row in copies} & {row.id for row in rows}

    path = f"{API}/messages/{rows[3].id}"
    ok(await ada.client.patch(path, json={"text": "Three, then."}))
    assert find_scenes(await stored_lines(server, chat)) == [0, 0, 2, 2]
    ok(await ada.client.patch(path, json={"text": "---\nThree, elsewhere."}))
    assert find_scenes(await stored_lines(server, chat)) == [0, 0, 2, 3]
    await settled(server)
    assert "---\nThree, elsewhere." in await texts_found(ada, "elsewhere", chat_id=chat)


async def read_documents(server: Running, ada: Account, chat: str) -> dict[str, set[str]]:
    """Return the markers in the documents of the index of each line, on all branches."""
    identity = await identity_of(server, ada)
    async with server.parts.database.read() as session:
        query = select(Message.id).where(Message.chat_id == UUID(chat))
        ids = list(await session.scalars(query))
        source = MessageSource()
        rows = await source.rows(session, identity.sealer, UUID(chat), ids, neighbours=False)
    found: dict[str, set[str]] = {}
    for document in (each for row in rows for each in row.documents()):
        texts = (document.text, document.dense_window or "", document.sparse_window or "")
        words = set(re.findall(r"[a-z]+q[0-9]", " ".join(texts)))
        name = re.findall(r"[a-z]+q[0-9]", document.text)[0]
        found[name] = found.get(name, set()) | words
        assert "leaves" not in " ".join(texts)
    return found


async def test_windows_end_where_someone_leaves_or_returns(ada: Account, server: Running) -> None:
    alda, bor = [
        (await ada.new_character(name=name, first_mes=""))["id"] for name in ("Alda", "Bor")
    ]
    chat = str((await ada.new_chat(character_ids=[alda, bor]))["id"])

    async def set_presence(presence: str) -> None:
        ok(await ada.client.patch(f"{API}/chats/{chat}/members/{bor}", json={"presence": presence}))

    await tell(server, ada, chat, ["allq0", "allq1"])
    before = await read_documents(server, ada, chat)
    await set_presence("absent")
    away = await tell(server, ada, chat, ["awayq0", "whisperq0", "awayq1"])
    await set_presence("present")
    # In an imported chat, someone may know a line and not have heard those around it.
    async with server.parts.database.write() as session:
        told = update(Message).where(Message.id == away[1].id).values(audience=f" {bor} ")
        await session.execute(told)
    await tell(server, ada, chat, ["laterq0", "laterq1"])
    await settled(server)
    found = await read_documents(server, ada, chat)
    assert {name: found[name] for name in ("allq0", "allq1")} == {
        name: before[name] for name in ("allq0", "allq1")
    }
    assert before["allq0"] == {"allq0", "allq1"}
    assert found["awayq0"] == found["awayq1"] == {"awayq0", "awayq1"}
    assert found["whisperq0"] == {"whisperq0"}
    assert found["laterq0"] == {"laterq0", "laterq1"}
    rows = await stored_lines(server, chat)
    assert find_scenes(rows) == [0, 0, 2, 3, 3, 3, 6, 7, 7]
    points = await points_of(server.parts.memory.collections.current, UUID(ada.user["id"]))
    assert {row.id for row in rows if row.presence}.isdisjoint(each.source_id for each in points)
    # On a branch without his leaving, it is the same for the lines of the other branch.
    ok(await ada.client.patch(f"{API}/messages/{rows[1].id}", json={"text": "allq2"}))
    await tell(server, ada, chat, ["branchq0"])
    branched = await read_documents(server, ada, chat)
    assert branched["whisperq0"] == {"whisperq0"}
    assert branched["laterq0"] == {"laterq0", "laterq1"}
    assert branched["branchq0"] == {"allq0", "allq2", "branchq0"}


async def list_lines(server: Running, chat_id: str) -> list[Message]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(Message).where(Message.chat_id == UUID(chat_id))))
