"""Killed at any instant: what was acknowledged is there, once, and everything else makes sense."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncGenerator
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
from tests.integration.turns.following import check_tree, follow, others
from tests.integration.turns.seeding import COOKIE
from tests.support.process import Served, run_command, serving
from tests.support.server import PASSWORD, Account, ok, read_events, text_of
from tests.support.thorough import rounds

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = rounds(1, 5)
CHATS = 3


@contextlib.asynccontextmanager
async def browser(served: Served, cookies: httpx.Cookies | None = None) -> AsyncGenerator[Account]:
    """Somebody's browser at a server: with the cookies of before, or newly signed up."""

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
    """What a client was told, and what it may ask for again.

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
    assert "FAIL" not in doctor.stdout
    assert (migrate.returncode, migrate.stdout) == (0, f"The database is at revision {HEAD}.\n")
