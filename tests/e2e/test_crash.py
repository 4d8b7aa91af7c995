"""A server that is killed at any time keeps acknowledged work exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import select

from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.container import build_services
from backend.database.engine import Database
from backend.database.migrate import HEAD
from backend.settings import Settings
from backend.turns.models import Turn
from backend.vault.root import load_root_keys
from tests.fakes.openai_server import API_KEY, MODEL, MODEL_ID, reply
from tests.fakes.scripted_server import Answer, Silence
from tests.integration.enrichment.storytelling import (
    Storyteller,
    list_numbers,
    list_summaries,
    read_previous,
)
from tests.integration.turns.following import TURN, check_tree, follow, others
from tests.integration.turns.playing import Game, named, new_game
from tests.integration.turns.seeding import COOKIE
from tests.support.memory import API, preview, set_chat
from tests.support.process import Served, run_command, serving
from tests.support.server import PASSWORD, Account, Event, ok, read_events, text_of
from tests.support.thorough import rounds
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = rounds(1, 5)
CHATS = 3


@contextlib.asynccontextmanager
async def browser(served: Served, cookies: httpx.Cookies | None = None) -> AsyncGenerator[Account]:
    """A browser at a server, with earlier cookies or a new account."""

    async def send_token(request: httpx.Request) -> None:
        if token := client.cookies.get("csrftoken"):
            request.headers["x-csrftoken"] = token

    async with httpx.AsyncClient(
        base_url=served.url,
        cookies=cookies,
        event_hooks={"request": [send_token]},
        timeout=30,
        trust_env=False,
    ) as client:
        if cookies is None:
            body = {"username": "ada", "password": PASSWORD}
            ok(await client.post("/api/v1/accounts", json=body), 201)
        yield Account(client, "ada", "", ok(await client.get("/api/v1/me")))


def database_of(folder: Path) -> Database:
    return Database(f"sqlite+aiosqlite:///{folder / 'talekeeper.sqlite3'}")


async def test_a_reply_that_a_crash_cuts_off_is_there_as_far_as_it_was_stored(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, demo_tokens_per_second="20") as served:
        async with browser(served) as ada:
            chat = (await ada.new_chat())["id"]
            body = {"text": "/demo long 200"}
            async with ada.client.stream(
                "POST", f"/api/v1/chats/{chat}/turns", json=body
            ) as response:
                events = read_events(response)
                heard = [await anext(events)]
                stored = ""
                while not stored:
                    heard.append(await anext(events))
                    stored = (await ada.messages(chat))[-1]["text"]
                heard += [await anext(events) for _ in range(5)]
                served.process.kill()
                await events.aclose()
            cookies = ada.client.cookies
    turn_id = heard[0].data["turn_id"]

    with serving(tmp_path, demo_tokens_per_second="0") as served:
        async with browser(served, cookies) as ada:
            line, reply = await ada.messages(chat)
            assert (line["text"], line["id"]) == (
                "/demo long 200",
                heard[0].data["user_message_id"],
            )
            assert (reply["id"], reply["status"]) == (heard[0].data["reply_id"], "interrupted")
            assert reply["text"].startswith(stored)
            shorter, longer = sorted((text_of(heard), reply["text"]), key=len)
            assert longer.startswith(shorter)
            words = len(reply["text"].split())
            assert words + 4 <= reply["tokens"] <= words + 8

            everything = await follow(ada.client, turn_id)
            assert text_of(everything) == reply["text"]
            names = [name for name, _ in others(everything)]
            assert names == ["turn.started", "context.ready", "message.saved", "turn.failed"]
            problem = everything[-1].data["type"]
            assert problem == "urn:talekeeper:problem:turn-interrupted"
            rest = await follow(ada.client, turn_id, last_id=heard[-1].id)
            assert [name for name, _ in others(rest)] == ["message.saved", "turn.failed"]

            context = ok(await ada.client.get(f"/api/v1/messages/{reply['id']}/context"))
            assert context["prompt"][-1]["text"] == "/demo long 200"
            more = text_of(await ada.turn(chat, **{"continue": True}))
            after = (await ada.messages(chat))[-1]
            assert (after["id"], after["status"]) == (reply["id"], "complete")
            assert after["text"] == reply["text"] + more
            await ada.turn(chat, text="And on it goes.")
    database = database_of(tmp_path)
    await check_tree(database, chat)
    await database.dispose()


@dataclass
class Ledger:
    """The acknowledged requests of a client, and those that it may repeat.

    `lines` and `replies`: text by message id, acknowledged. `checked` are those that outlived a
    crash already. `sent` are all texts that were ever sent. `open_turns` are turns whose end was
    not heard: chat and text by turn id.
    """

    lines: dict[str, str] = field(default_factory=dict[str, str])
    replies: dict[str, str] = field(default_factory=dict[str, str])
    checked: set[str] = field(default_factory=set[str])
    sent: set[str] = field(default_factory=set[str])
    open_turns: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def new_text(self) -> str:
        text = f"Line {uuid4()}."
        self.sent.add(text)
        return text


async def take_turn(ada: Account, ledger: Ledger, chat: str, turn_id: str, text: str) -> None:
    """One turn, each acknowledgement written down as it comes."""
    ledger.open_turns[turn_id] = chat, text
    body = {"text": text, "turn_id": turn_id}
    said = ""
    async with ada.client.stream("POST", f"/api/v1/chats/{chat}/turns", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for event in read_events(response):
            match event.name:
                case "turn.started":
                    ledger.lines[event.data["user_message_id"]] = text
                case "text.delta":
                    said += event.data["text"]
                case "message.saved":
                    ledger.replies[event.data["message_id"]] = said
                case "turn.completed" | "turn.failed":
                    del ledger.open_turns[turn_id]
                case _:
                    pass


async def play(ada: Account, ledger: Ledger, chat: str) -> None:
    """Write, edit and delete until the server is gone."""
    with contextlib.suppress(httpx.TransportError):
        while True:
            await take_turn(ada, ledger, chat, str(uuid4()), ledger.new_text())
            *_, line, reply = await ada.messages(chat)
            draw = random.random()
            if draw < 0.2:
                # From here on it may be gone, whether the answer comes or not.
                ledger.replies.pop(reply["id"], None)
                ok(await ada.client.delete(f"/api/v1/messages/{reply['id']}"))
            elif draw < 0.4:
                url, text = f"/api/v1/messages/{line['id']}", ledger.new_text()
                edited = ok(await ada.client.patch(url, json={"text": text}))
                ledger.lines[edited["id"]] = text


async def check(ada: Account, ledger: Ledger, database: Database, chats: list[str]) -> None:
    """Look at everything after a restart, before anything new happens."""
    for message_id, text in {**ledger.lines, **ledger.replies}.items():
        if message_id in ledger.checked:
            continue
        ledger.checked.add(message_id)
        line = ok(await ada.client.get(f"/api/v1/messages/{message_id}"))
        assert line["text"] == text
        assert line["status"] == "complete" or message_id not in ledger.replies
    for chat in chats:
        rows = await check_tree(database, chat)
        assert "streaming" not in {row.status for row in rows}
    async with database.read() as session:
        running = await session.scalars(select(Turn).where(Turn.state == "running"))
        assert not list(running)


async def texts_of_all_lines(folder: Path, cookie: str) -> Counter[str]:
    """Every line of the user's on every branch, unsealed as the server does it."""
    values: dict[str, Any] = {"_env_file": None, "data_dir": folder}
    settings = Settings(**values)
    database = Database(settings.resolved_database_url)
    root = load_root_keys(settings.resolved_root_key_file, value=None, create=False)
    parts = await build_services(settings, root, database)
    identity = await parts.sessions.authenticate(cookie, "session")
    assert identity is not None
    async with database.read() as session:
        rows = list(await session.scalars(select(Message).where(Message.role == "user")))
        chats = list(await session.scalars(select(Chat.id)))
    await database.dispose()
    assert len(chats) == CHATS
    return Counter(
        identity.sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content) for row in rows
    )


async def test_killed_at_any_moment_nothing_acknowledged_is_lost_and_nothing_is_doubled(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    chats: list[str] = []
    cookies: httpx.Cookies | None = None
    database = database_of(tmp_path)
    for _ in range(ROUNDS + 1):
        with serving(tmp_path, demo_tokens_per_second="400") as served:
            async with browser(served, cookies) as ada:
                if not chats:
                    brief = {"sampling": {"max_output_tokens": 20}}
                    ok(await ada.client.patch("/api/v1/me/settings", json=brief))
                    chats = [(await ada.new_chat())["id"] for _ in range(CHATS)]
                await check(ada, ledger, database, chats)
                for turn_id, (chat, text) in list(ledger.open_turns.items()):
                    await take_turn(ada, ledger, chat, turn_id, text)
                players = [asyncio.create_task(play(ada, ledger, chat)) for chat in chats]
                # The first kill waits until there is something to lose.
                while not (ledger.checked or ledger.replies) and not any(
                    player.done() for player in players
                ):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(random.uniform(0.0, 0.5))
                served.process.kill()
                await asyncio.gather(*players)
                cookies = ada.client.cookies
    await database.dispose()

    stored = await texts_of_all_lines(tmp_path, cookies[COOKIE] if cookies else "")
    assert set(stored.values()) == {1}
    assert set(ledger.lines.values()) <= stored.keys() <= ledger.sent
    assert ledger.checked


def test_a_folder_and_a_port_are_one_server_s_and_the_second_says_so(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    with serving(ours) as served:
        port = served.url.rpartition(":")[2]
        same_folder = run_command(ours, "serve", "--port", "0")
        same_port = run_command(theirs, "serve", "--port", port)
        assert served.process.poll() is None
    assert (same_folder.returncode, same_port.returncode) == (1, 1)
    assert f"Another process uses {ours}" in same_folder.stderr
    assert f"Cannot listen on 127.0.0.1:{port}" in same_port.stderr
    assert "Traceback" not in same_folder.stderr + same_port.stderr


def test_after_a_crash_the_doctor_and_the_migration_find_nothing_wrong(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.process.kill()
        served.process.wait()
    doctor, migrate = run_command(tmp_path, "doctor"), run_command(tmp_path, "migrate")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert not re.search(r"^FAIL", doctor.stdout, re.MULTILINE)
    assert (migrate.returncode, migrate.stdout) == (0, f"The database is at revision {HEAD}.\n")


LINE = "I pick the lock of the counting house."


async def counting(game: Game) -> list[dict[str, Any]]:
    return [each for each in await game.changes() if each["counts"] and each["actor"] == "tool"]


async def test_a_turn_that_waits_outlives_its_process_and_a_choice_outlives_it_too(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, demo_tokens_per_second="0") as served:
        async with browser(served) as ada:
            game = await new_game(ada, rules="blades")
            heard = await game.say(LINE)
            assert heard[-1].name == "turn.awaiting_choice"
            served.process.kill()
            cookies = ada.client.cookies
    turn_id = heard[0].data["turn_id"]
    option = heard[-1].data["options"][0]["id"]

    # Slow enough to be killed in the middle of a reply.
    with serving(tmp_path, demo_tokens_per_second="10") as served:
        async with browser(served, cookies) as ada:
            again = game.at(ada)
            assert (await again.turn(turn_id))["waiting"] == heard[-1].data
            assert await counting(again) == []
            rest = await again.choose(turn_id, option)
            assert rest[-1].name == "turn.completed"
            [changed] = named(rest, "state.changed")
            assert len(await counting(again)) == len(changed["changes"]) > 0
            replies = await ada.messages(game.chat)
            assert text_of(await follow(ada.client, turn_id)) == replies[-1]["text"]
            await ada.client.delete(f"/api/v1/messages/{replies[-1]['id']}")
            assert await counting(again) == []

            turn_id, option = await waiting(again)
            path, events = f"{TURN}/{turn_id}/choice", list[Event]()
            async with ada.client.stream("POST", path, json={"option": option}) as response:
                async for event in read_events(response):
                    events.append(event)
                    if text_of(events):
                        break
                served.process.kill()

    with serving(tmp_path, demo_tokens_per_second="0") as served:
        async with browser(served, cookies) as ada:
            again = game.at(ada)
            assert (await again.turn(turn_id))["state"] == "interrupted"
            stored = await counting(again)
            state = await again.state()
            play = state["attributes"]["play"]
            assert (play["mood"], bool(play["tier"])) == ("action", True)
            await again.refused(turn_id, "1.99", 422, "validation-failed")
            assert (await again.choose(turn_id, option))[-1].name == "turn.failed"
            assert (await again.state(), await counting(again)) == (state, stored)

            rest = await ada.turn(game.chat, **{"continue": True})
            assert rest[-1].name == "turn.completed"
            after = await again.state()
            assert after["attributes"]["play"]["mood"] == "aftermath"
            assert after["attributes"]["dice"] == state["attributes"]["dice"]
            database = database_of(tmp_path)
            await check_tree(database, game.chat)
            await database.dispose()


async def waiting(game: Game) -> tuple[str, str]:
    """A turn that waits: its id, and an option."""
    heard = await game.say(LINE)
    assert heard[-1].name == "turn.awaiting_choice"
    return heard[0].data["turn_id"], heard[-1].data["options"][0]["id"]


LONG = "The clock in the hall went on and on, and nobody minded it any more, for it rained. " * 60
"""Some thousand tokens."""


async def summaries(ada: Account, chat: str) -> list[str]:
    items = ok(await ada.client.get(f"{API}/chats/{chat}/summaries"))["items"]
    return [each["text"] for each in items[::-1]]


@pytest.mark.thorough
async def test_a_backlog_goes_on_behind_the_last_summary_that_was_stored(tmp_path: Path) -> None:
    async with Storyteller() as teller:
        settings = {
            "openai_base_url": teller.url,
            "openai_api_key": API_KEY,
            "openai_models": MODEL,
            "default_model": MODEL_ID,
        }
        with serving(tmp_path, **settings) as served:
            async with browser(served) as ada:
                chat = str((await ada.new_chat())["id"])
                for number in range(40):
                    events = await ada.turn(chat, text=f"{number}: {LONG}")
                    assert events[-1].name == "turn.completed", events[-1]
                teller.summing_up += (reply("One."), reply("Two."), Answer(events=[Silence()]))
                budgets = {"history": 1_000, "retrieval": 0}
                await set_chat(ada, chat, budgets=budgets, summary={"enabled": True})
                await ada.turn(chat, text="Well?")

                async def is_held() -> bool:
                    return len(teller.summed_up) == 3

                await until(is_held)
                served.process.kill()
                await asyncio.to_thread(served.process.wait)
                cookies = ada.client.cookies
        teller.requests.clear()
        with serving(tmp_path, **settings) as served:
            async with browser(served, cookies) as ada:

                async def is_done() -> bool:
                    context = await preview(ada, chat, "Well?")
                    return bool(list_summaries(context))

                await until(is_done)
                texts = await summaries(ada, chat)
                assert texts[:2] == ["One.", "Two."]
                assert len(texts) > 2
                assert read_previous(teller.summed_up[0]) == "Two."
                numbers = [each for request in teller.summed_up for each in list_numbers(request)]
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert texts[-1] == f"Told up to {numbers[-1]}."


IMPORT_ROUNDS = rounds(1, 4)
ENTRIES = 3_000


@dataclass(frozen=True)
class Kind:
    """A file to import. `made` is the member of the answer with the created item."""

    path: str
    made: str
    file: Callable[[str], dict[str, Any]]


def world(name: str) -> dict[str, Any]:
    """A book whose entries name it."""
    return {
        "name": name,
        "entries": {
            str(n): {"uid": n, "key": [f"{name} {n}"], "content": f"{name} says {n}. " * 10}
            for n in range(ENTRIES)
        },
    }


def card(name: str) -> dict[str, Any]:
    """A card with such a book in it."""
    entries = [
        {"keys": [f"{name} {n}"], "content": f"{name} says {n}.", "enabled": True}
        for n in range(ENTRIES)
    ]
    data = {"name": name, "first_mes": "Hm?", "character_book": {"entries": entries}}
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}


LOREBOOKS = Kind("/api/v1/lorebooks", "lorebook", world)
CHARACTERS = Kind("/api/v1/characters", "character", card)


async def import_file(ada: Account, kind: Kind, name: str) -> httpx.Response:
    files = {"file": ("file.json", json.dumps(kind.file(name)).encode())}
    headers = {"Idempotency-Key": name}
    return await ada.client.post(f"{kind.path}/import", files=files, headers=headers)


async def things(ada: Account, kind: Kind) -> dict[str, str]:
    """Ids by name; no name is there twice, and each lorebook is whole."""
    items = ok(await ada.client.get(kind.path))["items"]
    assert len({item["name"] for item in items}) == len(items)
    books = ok(await ada.client.get("/api/v1/lorebooks"))["items"]
    assert {book["entry_count"] for book in books} <= {ENTRIES}
    return {item["name"]: item["id"] for item in items}


def forget_claims(folder: Path) -> None:
    """Let five minutes pass, so that unanswered requests may be sent again."""
    with contextlib.closing(sqlite3.connect(folder / "talekeeper.sqlite3")) as connection:
        connection.execute(
            "UPDATE idempotent_requests SET created_at = '2020-01-01 00:00:00' WHERE status IS NULL"
        )
        connection.commit()


@pytest.mark.parametrize(
    "kind",
    [LOREBOOKS, pytest.param(CHARACTERS, marks=pytest.mark.thorough)],
    ids=lambda kind: kind.made,
)
async def test_an_import_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, kind: Kind
) -> None:
    acknowledged: dict[str, str] = {}
    sent: list[str] = []
    cookies: httpx.Cookies | None = None
    for turn in range(IMPORT_ROUNDS + 1):
        with serving(tmp_path) as served:
            async with browser(served, cookies) as ada:
                found = await things(ada, kind)
                assert acknowledged.items() <= found.items()
                assert found.keys() <= set(sent)
                for name in [name for name in sent if name not in acknowledged]:
                    again = ok(await import_file(ada, kind, name), 201)[kind.made]
                    assert again["id"] == found.get(name, again["id"])
                    acknowledged[name] = again["id"]
                assert await things(ada, kind) == acknowledged
                if turn < IMPORT_ROUNDS:
                    sent.append(f"Tale {turn}")
                    task = asyncio.create_task(import_file(ada, kind, sent[-1]))
                    await asyncio.sleep(random.uniform(0.0, 0.6))
                    served.process.kill()
                    with contextlib.suppress(httpx.TransportError):
                        acknowledged[sent[-1]] = ok(await task, 201)[kind.made]["id"]
                cookies = ada.client.cookies
        forget_claims(tmp_path)
    assert len(acknowledged) == IMPORT_ROUNDS
