"""Tests that the heaviest work of one user does not block the event loop.

The server runs in the loop of the test, so a heartbeat measures the delay of other requests.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import string
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, build_creation
from backend.campaigns.ledger.items import Entity
from backend.campaigns.ledger.records import get_campaign
from backend.chats.models import Chat
from backend.database.base import new_id
from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID, OpenAIServer, chunk, stream
from tests.integration.turns.seeding import identity_of, seed
from tests.support.heartbeat import PROMISED, Heartbeat, heartbeat
from tests.support.memory import settled, take_turn
from tests.support.server import Account, Running, ok, running
from tests.support.waiting import until
from tests.support.zips import zipped

API = "/api/v1"
KB = 1_000

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def server(sqlite_template: Path, tmp_path: Path) -> AsyncGenerator[Running]:
    file = shutil.copy(sqlite_template, tmp_path / "talekeeper.sqlite3")
    async with running(f"sqlite+aiosqlite:///{file}", tmp_path / "data") as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account("ada") as account:
        # The vocabularies are loaded during the first requests.
        ok(await account.client.post(f"{API}/tokens", json={"texts": ["warm"]}))
        await take_turn(account, await open_chat(account), text="Hello, who is there?")
        await settled(server)
        yield account


def make_prose(characters: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    words: list[str] = []
    length = 0
    while length < characters:
        word = "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 10)))
        word += ". " if draw.random() < 0.1 else " "
        words.append(word)
        length += len(word)
    return "".join(words)[:characters]


async def open_chat(ada: Account, **card: Any) -> str:
    character = await ada.new_character(**card)
    return str((await ada.new_chat(character_ids=[character["id"]]))["id"])


async def post(ada: Account, path: str, body: Any, status: int = 201) -> Any:
    """Send a body, which is encoded before the measurement."""
    return ok(
        await ada.client.post(
            f"{API}{path}", content=body, headers={"content-type": "application/json"}
        ),
        status,
    )


def check_unnoticed(heart: Heartbeat) -> None:
    print(f"longest gap: {heart.longest * 1000:.0f} ms")  # noqa: T201
    assert heart.longest < PROMISED


async def test_a_message_of_fifty_thousand_short_lines(server: Running, ada: Account) -> None:
    chat_id = await open_chat(ada)
    async with heartbeat() as heart:
        await take_turn(ada, chat_id, text="a\n" * 50_000)
        await settled(server)
    check_unnoticed(heart)


async def test_a_reply_of_many_megabytes_below_a_message_of_two(
    sqlite_template: Path, tmp_path: Path
) -> None:
    file = shutil.copy(sqlite_template, tmp_path / "talekeeper.sqlite3")
    async with OpenAIServer() as vendor:
        registry = ModelRegistry(openai=vendor.config(), default=MODEL_ID)
        async with (
            running(f"sqlite+aiosqlite:///{file}", tmp_path / "data", registry=registry) as server,
            server.account("ada") as ada,
        ):
            chat_id = await open_chat(ada)
            await take_turn(ada, chat_id, text="Hello, who is there?")
            await settled(server)
            await seed(server, ada, chat_id, ["Ada: a\n" * 300_000])
            vendor.script(stream(*[chunk(content="a\n" * 250_000)] * 16))
            async with heartbeat() as heart:
                await take_turn(ada, chat_id, text="Go on.")
                await settled(server)
    check_unnoticed(heart)


async def test_a_message_of_stacked_accents(server: Running, ada: Account) -> None:
    chat_id = await open_chat(ada)
    book = ok(await ada.client.post(f"{API}/lorebooks", json={"name": "Marks"}), 201)
    ok(await ada.client.patch(f"{API}/lorebooks/{book['id']}", json={"is_global": True}))
    await ada.client.post(
        f"{API}/lorebooks/{book['id']}/entries", json={"keys": ["door"], "content": "It is locked."}
    )
    async with heartbeat() as heart:
        await take_turn(ada, chat_id, text="a" + "\u0301\u0316" * 49_000)
        await settled(server)
    check_unnoticed(heart)


async def test_a_message_of_many_rare_words(server: Running, ada: Account) -> None:
    chat_id = await open_chat(ada)
    async with heartbeat() as heart:
        await take_turn(ada, chat_id, text=make_prose(100 * KB))
        await settled(server)
        await take_turn(ada, chat_id, text=make_prose(100 * KB, 2))
        await settled(server)
    check_unnoticed(heart)


async def test_a_card_with_as_many_long_greetings_as_a_chat_opens_with(
    server: Running, ada: Account
) -> None:
    # Runs of letters: the slowest texts to count.
    greetings = [f"{number}{'ab' * 49_500}" for number in range(10)]
    character = await ada.new_character(alternate_greetings=greetings)
    async with heartbeat() as heart:
        chat = await ada.new_chat(character_ids=[character["id"]])
        await settled(server)
    check_unnoticed(heart)
    found = ok(await ada.client.get(f"{API}/chats/{chat['id']}/messages"))
    assert found["items"][0]["sibling_count"] == 11


async def test_a_card_with_two_thousand_greetings(server: Running, ada: Account) -> None:
    lists = ("alternate_greetings", "group_only_greetings")
    one = await ada.new_character(**{name: ["Hello, {{user}}."] * 1000 for name in lists})
    two = await ada.new_character()
    async with heartbeat() as heart:
        chat = await ada.new_chat(character_ids=[one["id"], two["id"]])
        (greeting,) = await ada.messages(chat["id"])
        answer = ok(await ada.client.get(f"{API}/messages/{greeting['id']}/siblings"))
    check_unnoticed(heart)
    found = answer["items"]
    while answer["next"]:
        query = {"after": answer["next"]}
        path = f"{API}/messages/{greeting['id']}/siblings"
        answer = ok(await ada.client.get(path, params=query))
        found += answer["items"]
    assert [each["sibling"] for each in found] == list(range(1, 2002))
    assert {each["sibling_count"] for each in found} == {2001}


async def test_indexing_two_hundred_long_rows(server: Running, ada: Account) -> None:
    greetings = ["a\n" * 1_000 for _ in range(200)]
    character = await ada.new_character(alternate_greetings=greetings)
    await ada.new_chat(character_ids=[character["id"]])
    async with heartbeat() as heart:
        await settled(server)
    check_unnoticed(heart)


async def test_importing_a_big_lorebook(server: Running, ada: Account) -> None:
    text = make_prose(700)
    entries = {
        str(number): {
            "uid": number,
            "key": [f"key{number}", f"other{number}"],
            "content": text,
            "comment": f"Entry {number}",
        }
        for number in range(15_000)
    }
    data = msgspec.json.encode({"entries": entries})
    assert len(data) < 20 * 1024 * 1024
    chat_id = await open_chat(ada)
    async with heartbeat() as heart:
        made = ok(
            await ada.client.post(f"{API}/lorebooks/import", files={"file": ("book.json", data)}),
            201,
        )
        book_id = made["lorebook"]["id"]
        ok(await ada.client.patch(f"{API}/lorebooks/{book_id}", json={"is_global": True}))
        await take_turn(ada, chat_id, text="What of key77 and other19?")
        await ada.client.get(f"{API}/lorebooks/{book_id}/export")
        await until(lambda: _has_indexed_some(server, 1000))
    check_unnoticed(heart)


async def _has_indexed_some(server: Running, count: int) -> bool:
    return await server.parts.memory.collections.current.count() >= count


async def test_a_card_of_a_million_values(server: Running, ada: Account) -> None:
    extensions = msgspec.json.encode([[]] * 450_000)
    body = b'{"spec":"chara_card_v2","spec_version":"2.0","data":{"name":"Mara","extensions":{"x":'
    async with heartbeat() as heart:
        response = await ada.client.post(
            f"{API}/characters/import", files={"file": ("card.json", body + extensions + b"}}}")}
        )
    assert response.status_code == 201, response.text
    check_unnoticed(heart)


async def test_a_vault_of_many_links(server: Running, ada: Account) -> None:
    links = " ".join(f"[[{word}]]" for word in make_prose(1_000 * KB).split())
    data = zipped({"npcs/mara.md": links, "canon/facts.md": f"- {links}"})
    async with heartbeat() as heart:
        made = ok(
            await ada.client.post(f"{API}/campaigns/import", files={"file": ("vault.zip", data)}),
            201,
        )
    assert any("make no relations" in warning for warning in made["warnings"])
    check_unnoticed(heart)


async def test_a_search_for_two_thousand_characters(server: Running, ada: Account) -> None:
    greetings = [make_prose(18 * KB, number) for number in range(20)]
    await open_chat(ada, alternate_greetings=greetings)
    await settled(server)
    async with heartbeat() as heart:
        for number in range(3):
            ok(
                await ada.client.get(
                    f"{API}/search", params={"q": make_prose(2000, number), "limit": 100}
                )
            )
    check_unnoticed(heart)


async def test_counting_a_long_chat_again(server: Running, ada: Account) -> None:
    chat_id = await open_chat(ada)
    await seed(server, ada, chat_id, (make_prose(1 * KB, number) for number in range(2_000)))
    path = f"{API}/chats/{chat_id}/settings"
    ok(await ada.client.patch(path, json={"names": True}))

    async def is_counted() -> bool:
        async with server.parts.database.read() as session:
            unit = await session.scalar(select(Chat.count_unit).where(Chat.id == UUID(chat_id)))
        return str(unit).endswith("+names")

    async with heartbeat() as heart:
        await take_turn(ada, chat_id, text="Where were we?")
        await until(is_counted)
    check_unnoticed(heart)


async def test_copying_a_long_chat(server: Running, ada: Account) -> None:
    chat_id = await open_chat(ada)
    lines = await seed(
        server, ada, chat_id, (make_prose(1 * KB, number) for number in range(2_000))
    )
    async with heartbeat() as heart:
        body = {"message_id": str(lines[-1].id)}
        ok(await ada.client.post(f"{API}/chats/{chat_id}/fork", json=body), 201)
    check_unnoticed(heart)


async def test_a_big_preview(server: Running, ada: Account) -> None:
    fields = ("description", "personality", "scenario", "mes_example", "system_prompt")
    card = {name: make_prose(199 * KB, number) for number, name in enumerate(fields)}
    chat_id = await open_chat(ada, **card)
    async with heartbeat() as heart:
        answer = await ada.client.get(f"{API}/chats/{chat_id}/context", params={"prompt": "true"})
    assert answer.status_code in {200, 422}
    check_unnoticed(heart)


async def test_editing_a_message_into_a_long_one(server: Running, ada: Account) -> None:
    chat_id = await open_chat(ada)
    await take_turn(ada, chat_id, text="Hello.")
    message = (await ada.messages(chat_id))[-1]
    body = msgspec.json.encode({"text": "字" * 100_000})
    async with heartbeat() as heart:
        ok(
            await ada.client.patch(
                f"{API}/messages/{message['id']}",
                content=body,
                headers={"content-type": "application/json"},
            )
        )
        await settled(server)
    check_unnoticed(heart)


async def test_a_campaign_of_many_people_and_one_with_a_long_story(
    server: Running, ada: Account
) -> None:
    campaign = ok(await ada.client.post(f"{API}/campaigns", json={"name": "Seagate"}), 201)
    identity, hero = await identity_of(server, ada), new_id()
    made = [
        Change("entity", each, build_creation(Entity(kind="npc", name=f"Person {place}")))
        for place, each in enumerate([hero, *(new_id() for _ in range(8_000))])
    ]
    told = [
        Change("entity", hero, Operations(set={"status": f"after {day} days"}))
        for day in range(8_000)
    ]
    path = f"{API}/campaigns/{campaign['id']}"
    async with heartbeat() as heart:
        for changes in (made, told):
            async with server.parts.database.write() as session:
                row = await get_campaign(session, identity, UUID(campaign["id"]), lock=True)
                await ledger_store.append_changes(
                    session, identity.sealer, row, changes, actor="user"
                )
        query = {"q": "person 8000"}
        found = ok(await ada.client.get(f"{path}/entities", params=query))
        state = ok(await ada.client.get(f"{path}/state"))
        ok(await ada.client.get(f"{path}/context", params={"text": "Where is Person 77?"}))
        compared = ok(await ada.client.get(f"{path}/comparison", params={"version": 1}))
        newest = ok(await ada.client.get(f"{path}/changes", params={"limit": 1}))["items"][0]
        ok(await ada.client.post(f"{path}/changes/{newest['id']}/undo"))
        undone = ok(await ada.client.get(f"{path}/entities/{hero}"))
        ok(await ada.client.post(f"{path}/restore", json={"version": 1}))
    check_unnoticed(heart)
    # Without pauses each of these steps would be noticeable.
    assert heart.longest < PROMISED / 2
    assert [each["name"] for each in found["items"]] == ["Person 8000"]
    assert (len(state["entities"]), state["more"]["entities"]) == (500, 7_501)
    assert (len(compared["differences"]), compared["more"]) == (500, 7_501)
    assert undone["status"] == "after 7998 days"
    assert ok(await ada.client.get(f"{path}/entities"))["items"] == []


async def test_many_at_once_from_one_user(server: Running, ada: Account) -> None:
    """Measure a small request of another user during heavy work."""
    body = msgspec.json.encode({"texts": [make_prose(100 * KB, number) for number in range(20)]})
    async with server.account("ben") as ben, heartbeat() as heart:
        flood = [
            asyncio.create_task(
                ada.client.post(
                    f"{API}/tokens", content=body, headers={"content-type": "application/json"}
                )
            )
            for _ in range(12)
        ]
        waited = 0.0
        while not all(task.done() for task in flood):
            at = time.process_time()
            ok(await ben.client.get("/health"))
            waited = max(waited, time.process_time() - at)
            await asyncio.sleep(0.02)
        for task in flood:
            assert (await task).status_code in {200, 429}
    print(f"health: {waited * 1000:.0f} ms")  # noqa: T201
    assert waited < PROMISED
    # The tokenizer releases the GIL, so its work does not block the loop.
    assert heart.longest_own < PROMISED
