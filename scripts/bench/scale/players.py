"""Players who take turns with pauses, and go on at another server if theirs is lost."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx

from scripts.bench.processes import check
from scripts.bench.scale.fill import Player
from scripts.bench.stopwatch import format_turn

LINES = (
    "What do we do now? I open the old door.",
    "I wait in the rain until the lamp goes out.",
    "Who was here before us? I look at the floor.",
)
RETRY_SECONDS = 0.05
PATIENCE_SECONDS = 30.0
"""Time after which a turn is given up that neither exists nor can be followed."""


@dataclass
class Heard:
    """A turn as its player heard it. It is acknowledged once it has a `line_id`."""

    line: str
    turn_id: str
    status: int = 0
    line_id: str = ""
    reply_id: str = ""
    end: str = ""
    problem: str = ""
    text: str = ""
    first_at: float = 0.0

    def hear(self, event: str, data: Any) -> None:
        if event == "turn.started":
            self.line_id, self.reply_id = data.get("user_message_id", ""), data.get("reply_id", "")
        elif event == "text.delta":
            self.first_at = self.first_at or time.perf_counter()
            self.text += data["text"]
        elif event in {"turn.completed", "turn.failed"}:
            self.end = event
            self.problem = str(data.get("type", "")).rpartition(":")[2]


@dataclass
class Crowd:
    """Players at the servers with these ports, and the times that they measured, in seconds.

    `seconds` is the length of the play. `resumed` and `ended` count from the loss of a server:
    until another one sent the first piece of a running reply, and until it sent the end. `heard`
    has all turns of each player. `failures` has the reasons of turns that did not end as they
    should.
    """

    ports: list[int]
    think_seconds: float
    seconds: float = 0.0
    first_tokens: list[float] = field(default_factory=list[float])
    resumed: list[float] = field(default_factory=list[float])
    ended: list[float] = field(default_factory=list[float])
    failures: Counter[str] = field(default_factory=Counter[str])
    heard: dict[Player, list[Heard]] = field(default_factory=dict[Player, list[Heard]])
    _lost_at: float = 0.0

    def lose(self, port: int) -> None:
        """Record that the server at this port is about to be killed."""
        self.ports.remove(port)
        self._lost_at = time.perf_counter()

    async def play(self, players: Sequence[Player], seconds: float) -> None:
        """Take turns until the time is over, and wait for the end of those that run."""
        began = time.perf_counter()
        await asyncio.gather(*(self._play(each, began + seconds) for each in players))
        self.seconds = time.perf_counter() - began

    async def greet(self, players: Sequence[Player]) -> None:
        """Take one turn of each player, which is not counted."""
        await asyncio.gather(*(self._take_turn(each, random.Random()) for each in players))
        self.first_tokens.clear()
        self.failures.clear()

    async def _play(self, player: Player, end: float) -> None:
        draw = random.Random(player.number)
        pause = draw.uniform(0, self.think_seconds)  # not all at once
        while time.perf_counter() + pause < end:
            await asyncio.sleep(pause)
            await self._take_turn(player, draw)
            pause = self.think_seconds * draw.uniform(0.5, 1.5)

    async def _take_turn(self, player: Player, draw: random.Random) -> None:
        heard = Heard(f"{draw.choice(LINES)} ({uuid4().hex[:6]})", str(uuid4()))
        self.heard.setdefault(player, []).append(heard)
        port = self.ports[player.number % len(self.ports)]
        began = time.perf_counter()
        request = format_turn(
            port,
            f"Bearer {player.token}",
            player.chat_id,
            header="Connection: close\r\n",
            text=heard.line,
            turn_id=heard.turn_id,
        )
        try:
            await _exchange(port, request, heard)
        except (OSError, asyncio.IncompleteReadError):
            await self._follow(player, heard)
            return
        if heard.end != "turn.completed":
            self.failures[heard.problem or f"status {heard.status}"] += 1
            return
        self.first_tokens.append(heard.first_at - began)

    async def _follow(self, player: Player, heard: Heard) -> None:
        """Hear the rest of a turn from another server, after theirs was lost."""
        heard.first_at = 0.0
        while time.perf_counter() - self._lost_at < PATIENCE_SECONDS:
            port, heard.text = self.ports[0], ""
            request = (
                f"GET /api/v1/turns/{heard.turn_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                f"Authorization: Bearer {player.token}\r\nConnection: close\r\n\r\n"
            )
            try:
                await _exchange(port, request.encode(), heard)
            except (OSError, asyncio.IncompleteReadError):
                heard.status = 0
            if heard.end:
                break
            if heard.status == HTTPStatus.NOT_FOUND and not heard.line_id:
                self.failures["not begun when its server was lost"] += 1
                return
            await asyncio.sleep(RETRY_SECONDS)
        now = time.perf_counter()
        if not heard.end:
            self.failures["lost"] += 1
            return
        self.resumed.append((heard.first_at or now) - self._lost_at)
        self.ended.append(now - self._lost_at)


async def _exchange(port: int, request: bytes, heard: Heard) -> None:
    """Send a request, and read the events of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        heard.status = int(head.split(b" ", 2)[1])
        if heard.status != HTTPStatus.OK:
            answer = await reader.read()
            heard.problem = json.loads(answer)["type"].rpartition(":")[2] if answer else ""
            return
        event = ""
        while line := await reader.readline():
            if line.startswith(b"event: "):
                event = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                heard.hear(event, json.loads(line[6:]))
            elif line == b"0\r\n":
                return
        raise asyncio.IncompleteReadError(b"", None)
    finally:
        writer.close()


async def find_lost(crowd: Crowd) -> list[str]:
    """Return acknowledged lines and completed replies that the first server does not have."""
    lost: list[str] = []
    url = f"http://127.0.0.1:{crowd.ports[0]}/api/v1"
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        for player, turns in crowd.heard.items():
            headers = {"Authorization": f"Bearer {player.token}"}
            path = f"/chats/{player.chat_id}/messages"
            page = check(await client.get(path, headers=headers, params={"limit": 500}))
            stored = {message["id"]: message["text"].strip() for message in page["items"]}
            for turn in turns:
                if turn.line_id and stored.get(turn.line_id) != turn.line:
                    lost.append(f"line of turn {turn.turn_id}")
                if turn.end == "turn.completed" and stored.get(turn.reply_id) != turn.text.strip():
                    lost.append(f"reply of turn {turn.turn_id}")
    return lost
