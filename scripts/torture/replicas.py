"""Two servers on PostgreSQL, of which one is lost or ended while replies stream from it.

Each round starts replies at one server, with followers at the other, and then kills the first one,
stops it for seconds, or ends it by SIGTERM. After a loss each chat has to accept its next line at
the other server, and each follower has to hear the end, within 3 s; a process that comes back
writes to nothing that was taken over. SIGTERM cuts no reply that ends in the time for draining.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from uuid import uuid4

import httpx

from scripts.torture import store_checks
from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.client import PATIENCE, Client, HeardTurn
from scripts.torture.installation import BrokenPromiseError, Process
from scripts.torture.model import REPLY_MARK
from scripts.torture.report import Row

KINDS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
CHATS = 3
FREE_WITHIN = 3.0
"""Seconds after the loss of a process in which its chats are free: a promise."""
DRAIN_SECONDS = 25
"""The value of compose.yaml. Replies take less time here."""
PACE = 1.0
"""Longest pause in seconds between two pieces of a reply, which has some 3 to 20."""
STOPPED_FOR = 6.0
LOOK_SECONDS = 0.05
ROUND_WITHIN = 120.0
"""Seconds after which a round is given up."""

Stored = tuple[str, str]
"""Status and text of a reply."""


@dataclass
class Reply:
    """A reply that streams from one server, and the end that its follower hears at the other."""

    chat: str
    turn_id: str
    heard: asyncio.Task[HeardTurn]
    end: asyncio.Task[tuple[str, float]]


async def run(options: Options) -> list[Row]:
    """A campaign of as many rounds as `--kills` says; on SQLite there is one server, and no row."""
    if options.kind == "sqlite":
        return [Row("replicas", "sqlite", skipped="one process serves there")]
    alone = dataclasses.replace(options, users=1, workers=0, visitors=0)
    async with campaign(alone, drain_seconds=DRAIN_SECONDS) as made:
        made.model.pace = PACE
        rounds = Rounds(made, made.accounts[0].client)
        for number in range(options.kills):
            async with asyncio.timeout(ROUND_WITHIN * options.slow):
                await rounds.play(number)
            made.progress.tell(f"{number + 1} rounds, {len(made.history.broken)} promises broken")
        return [Row("replicas", options.kind, rounds.figures, list(made.history.broken))]


@dataclass
class Rounds:
    """The rounds of a campaign, and the times that they measured, by name."""

    made: Campaign
    client: Client
    replies: int = 0
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def figures(self) -> dict[str, Any]:
        """The median and the longest of the times."""
        told = {
            name: f"{median(each):.1f} s, at most {max(each):.1f} s"
            for name, each in sorted(self.seconds.items())
        }
        return {"replies": self.replies, **told}

    async def play(self, number: int) -> None:
        """Start replies, lose their server, look at them from the other one, and start it again."""
        kind = KINDS[number % len(KINDS)]
        victim, other = self.made.made.servers[:: -1 if number % 2 else 1]
        replies = await asyncio.gather(*(self._begin(victim, other) for _ in range(CHATS)))
        await asyncio.sleep(self.made.draw.uniform(0.2, 2.0))
        at = time.monotonic()
        victim.send(kind)
        if kind == signal.SIGTERM:
            await self._see_drained(victim, other, replies)
        else:
            await self._see_taken_over(kind.name, at, other, replies)
        if kind == signal.SIGSTOP:
            await self._see_come_back(at, victim, other, replies)
        for each in replies:
            await each.heard
        if kind != signal.SIGSTOP:
            await victim.gone(self.made.made.stop_within)
            victim.start()
            self.made.made.started.append(await victim.ready(self.made.made.ready_within))
        for left in await store_checks.settle(self.made.database, self.made.users):
            self._breach(left)

    async def _begin(self, victim: Process, other: Process) -> Reply:
        made = await self._get_client(other).ask("replicas", "chat", "POST", "/chats", json={})
        chat, turn_id = str(made.body["id"]), str(uuid4())
        body = {"text": "What of the harbour?", "turn_id": turn_id}
        heard = asyncio.create_task(self._get_client(victim).turn("replicas", chat, body))
        has_begun = asyncio.Event()
        end = asyncio.create_task(self._follow(other, turn_id, has_begun))
        await has_begun.wait()
        self.replies += 1
        return Reply(chat, turn_id, heard, end)

    async def _see_taken_over(
        self, kind: str, at: float, other: Process, replies: Sequence[Reply]
    ) -> None:
        """Measure the take-over of replies that were not over, as their user sees it."""
        lost = [each for each in replies if not each.end.done()]
        freed = await asyncio.gather(*(self._next_line(other, each.chat) for each in lost))
        for each, free in zip(lost, freed, strict=True):
            problem, ended = await each.end
            status, text = await self._read(other, each)
            said = self._said(text)
            # A reply of which nothing was stored is taken back.
            if problem == "turn-interrupted" and status not in {"interrupted", "missing"}:
                self._breach(f"{kind}: a follower heard the end of a reply that is {status}")
            if problem not in {"turn-interrupted", ""}:
                self._breach(f"{kind}: a follower heard {problem}")
            if not said.startswith(text):
                self._breach(f"{kind}: a reply says what was never said: {text!r}")
            for name, seconds in (("locked", free - at), ("silent", ended - at)):
                self.seconds[f"{kind} {name}"].append(seconds)
                if seconds > FREE_WITHIN * self.made.slow:
                    self._breach(f"{kind}: a chat was {name} for {seconds:.1f} s")

    async def _see_come_back(
        self, at: float, victim: Process, other: Process, replies: Sequence[Reply]
    ) -> None:
        before = [await self._read(other, each) for each in replies]
        await asyncio.sleep(max(0.0, at + STOPPED_FOR - time.monotonic()))
        victim.send(signal.SIGCONT)
        for each in replies:
            await each.heard
        if before != [await self._read(other, each) for each in replies]:
            self._breach("a stopped server wrote to a reply that was taken over")

    async def _see_drained(self, victim: Process, other: Process, replies: Sequence[Reply]) -> None:
        try:
            await victim.gone(DRAIN_SECONDS + self.made.made.stop_within)
        except BrokenPromiseError as broken:
            self._breach(f"{broken} after SIGTERM")
        for each in replies:
            heard = await each.heard
            if heard.problem or not heard.is_saved or heard.text != self._said(heard.text):
                self._breach(f"SIGTERM cut a reply ({heard.status}, {heard.problem!r})")
            if await self._read(other, each) != ("complete", heard.text):
                self._breach("SIGTERM: a reply is not stored as it was heard")

    async def _read(self, server: Process, reply: Reply) -> Stored:
        path = f"/turns/{reply.turn_id}"
        turn = await self._get_client(server).ask("replicas", "look", "GET", path)
        message = turn.body["reply"] if turn.outcome == "ok" else None
        return (message["status"], message["text"]) if message else ("missing", "")

    async def _next_line(self, server: Process, chat: str) -> float:
        """Send a chat's next line until it is accepted; returns when that was."""
        path, slug = f"/chats/{chat}/turns", "turn-in-progress"
        while slug == "turn-in-progress":
            async with self._asking(server, "POST", path, json={"text": "And?"}) as answer:
                if answer.is_success:
                    return time.monotonic()
                slug = json.loads(await answer.aread())["type"].rpartition(":")[2]
            await asyncio.sleep(LOOK_SECONDS)
        self._breach(f"the next line was answered {slug}")
        return time.monotonic()

    async def _follow(
        self, server: Process, turn_id: str, has_begun: asyncio.Event
    ) -> tuple[str, float]:
        """Follow a turn to its end; returns the slug of its problem, if any, and when that was."""
        event, path = "", f"/turns/{turn_id}/events"
        while True:
            async with self._asking(server, "GET", path) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("event: "):
                        event = line[7:]
                        has_begun.set()
                    elif line.startswith("data: ") and event in {"turn.failed", "turn.completed"}:
                        slug = str(json.loads(line[6:]).get("type", "")).rpartition(":")[2]
                        return slug, time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)  # the turn has not begun

    @contextlib.asynccontextmanager
    async def _asking(
        self, server: Process, method: str, path: str, **more: Any
    ) -> AsyncGenerator[httpx.Response]:
        headers = {"authorization": f"Bearer {self.client.token}"}
        url = f"{server.url}/api/v1{path}"
        async with (
            httpx.AsyncClient(timeout=2 * PATIENCE, trust_env=False) as http,
            http.stream(method, url, headers=headers, **more) as answer,
        ):
            yield answer

    def _get_client(self, server: Process) -> Client:
        return dataclasses.replace(self.client, urls=lambda: [server.url])

    def _said(self, text: str) -> str:
        """Return the whole reply of the model, by the beginning of its text."""
        mark = REPLY_MARK.match(text)
        return self.made.model.outputs[mark[0]] if mark else ""

    def _breach(self, what: str) -> None:
        self.made.history.breach(what)
