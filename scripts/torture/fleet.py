"""Three servers and a worker with PgBouncer that are killed and ended while many players talk.

Each round kills one server, and ends another one by SIGTERM. Every second round the worker gets the
same signals. All are started again. Players send a line, listen to the reply and think. They go to
the next address if one refuses them, as a proxy does. The index is a simulated Qdrant cluster
that speaks gRPC; its nodes are cut off for seconds, one or all of them.

After a kill each chat has to accept its next line within 3 s. SIGTERM cuts no reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

from scripts.bench.pooler import find_pooler, run_pooler
from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.client import PATIENCE, HeardTurn
from scripts.torture.database_server import new_server
from scripts.torture.ending import check_everything
from scripts.torture.installation import BrokenPromiseError, Process, free_port
from scripts.torture.ledger import Line
from scripts.torture.model import REPLY_MARK, TaggedModel
from scripts.torture.replicas import DRAIN_SECONDS, FREE_WITHIN, LOOK_SECONDS
from scripts.torture.report import Row
from scripts.torture.worker import Worker

ROOT = Path(__file__).parents[2]
SERVERS = 3
SERVER_CONNECTIONS = 10
"""Connections of PgBouncer to PostgreSQL. The servers have up to 80 to PgBouncer."""
NODES = 3
THOUGHT_SECONDS = 2.0
"""Mean time between a reply and the next line."""
PACE = 0.8
"""Longest pause in seconds between two pieces of a reply, which has some 3 to 20."""
ROUND_SECONDS = 60.0
"""Duration of a round if the campaign lasts some minutes. Otherwise rounds have no pauses."""
DOWN_SECONDS = 3.0
"""Time until a process is started again."""
INDEX_CUT_EVERY, INDEX_CUT_FOR = 15.0, 4.0
"""Mean pause between two cuts of the index, and the mean duration of one, in seconds."""
CHRONICLE_EVERY = 5
"""Every fifth player lets the agent write a chronicle."""
ACCEPTED_WITHIN = 60.0
"""Seconds after which a player gives up a line that no server accepts."""
PATIENCE_MARGIN = 0.5


async def run(options: Options) -> list[Row]:
    """A campaign of some minutes, or of as many signals as `--kills` says."""
    program = find_pooler()
    if options.database != "postgres":
        return [Row("fleet", options.kind, skipped="it needs --database postgres")]
    if program is None:
        return [Row("fleet", options.kind, skipped="pgbouncer is not installed")]
    async with AsyncExitStack() as stack:
        place = stack.enter_context(new_server(options.database))
        pooled = stack.enter_context(run_pooler(program, place.url, size=SERVER_CONNECTIONS))
        index = await stack.enter_async_context(run_index())
        # The players of the campaign itself do nothing.
        alone = dataclasses.replace(
            options,
            users=options.players,
            workers=1,
            visitors=0,
            servers=SERVERS,
            qdrant=index.url,
        )
        settings = {
            "database_direct_url": place.url,
            "drain_seconds": DRAIN_SECONDS,
            "qdrant_grpc_port": index.grpc_port,
        }
        made = await stack.enter_async_context(
            campaign(alone, url=place.url, servers_url=pooled, **settings)
        )
        made.model.pace = PACE
        fleet = Fleet(made, index)
        await fleet.play(options)
        figures = await check_everything(made)
        return [Row("fleet", options.kind, {**fleet.figures, **figures}, list(made.history.broken))]


@dataclass
class IndexNodes:
    """The simulated Qdrant cluster, in another process."""

    process: asyncio.subprocess.Process
    url: str
    grpc_port: int

    async def tell(self, command: str, node: int) -> None:
        """Cut off a node, or restore it."""
        line = f"{command} {node}\n".encode()
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("The process has no pipes.")
        self.process.stdin.write(line)
        while (answer := await self.process.stdout.readline()) != line:
            if not answer:
                raise BrokenPromiseError("the Qdrant cluster ended by itself")


@asynccontextmanager
async def run_index() -> AsyncGenerator[IndexNodes]:
    """Run the simulated Qdrant cluster until the block ends."""
    grpc_port = free_port()
    options = {"--nodes": NODES, "--port": free_port(), "--grpc-port": grpc_port}
    arguments = itertools.chain.from_iterable((name, str(each)) for name, each in options.items())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.qdrant_cluster", *arguments),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        url = (await process.stdout.readline()).decode().strip() if process.stdout else ""
        if not url:
            raise BrokenPromiseError("the Qdrant cluster does not start")
        yield IndexNodes(process, url, grpc_port)
    finally:
        if process.stdin is not None:
            process.stdin.close()  # it ends, and deletes its folders
        await process.wait()


@dataclass
class Attempt:
    """One request for a turn: its server, and the events so far.

    If `is_repeated`, the turn may run elsewhere. Then its server only follows it, and SIGTERM may
    cut the stream.
    """

    url: str
    turn_id: str
    is_repeated: bool
    heard: HeardTurn = field(default_factory=HeardTurn)
    began: float = field(default_factory=time.monotonic)
    end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_lost(self) -> bool:
        """True if the connection broke during the reply."""
        return self.heard.started is not None and not self.heard.is_over and not self.is_given_up

    @property
    def concerns_chat(self) -> bool:
        """True if a failed attempt says something about the chat, and not about the server."""
        is_refused = self.heard.is_unreachable or self.heard.slug == "server-stopping"
        return not (is_refused or self.is_given_up)

    @property
    def is_given_up(self) -> bool:
        """True if the client lost patience, and not the server its connection."""
        return time.monotonic() - self.began > PATIENCE - PATIENCE_MARGIN


@dataclass
class Times:
    """Seconds until lines were accepted, and the numbers of other events."""

    accepted: list[float] = field(default_factory=list[float])
    locked: list[float] = field(default_factory=list[float])
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def figures(self) -> dict[str, Any]:
        """The numbers, and the median and the longest of the times."""
        times = {
            name: f"{median(each):.2f} s, at most {max(each):.2f} s"
            for name, each in (("accepted after", self.accepted), ("locked", self.locked))
            if each
        }
        return {**self.counts, **times, "times locked": len(self.locked)}


@dataclass
class FleetPlayer(Worker):
    """A player with one chat, who goes to the next server if one is lost or refuses a line."""

    urls: Sequence[str] = ()
    times: Times = field(default_factory=Times)
    slow: float = 1.0
    chat: str = ""
    current: Attempt | None = None

    async def open_chat(self, *, has_chronicle: bool) -> None:
        """Create the chat. Raises `BrokenPromiseError` if that fails."""
        title = self.unique("chat")
        thing = await self.make("chat", title, "/chats", json={"title": title})
        if thing.id is None:
            raise BrokenPromiseError(f"{self.name} cannot open a chat")
        self.chat = thing.id
        if has_chronicle:
            body = {"chronicle_enabled": True}
            await self.ask("settings", "PATCH", f"/chats/{self.chat}/settings", json=body)

    async def play(self, is_over: asyncio.Event) -> None:
        """Send one line after the other. After a loss the next one follows at once."""
        await asyncio.sleep(self.draw.uniform(0, 2 * THOUGHT_SECONDS))
        while not is_over.is_set():
            lost_at = await self.say()
            while lost_at is not None:
                lost_at = await self.say(lost_at)
            await asyncio.sleep(self.draw.uniform(0.5, 1.5) * THOUGHT_SECONDS)

    async def say(self, since: float | None = None) -> float | None:
        """Take a turn; return the time at which its server was lost, or None.

        `since` is the time at which the last turn's server was lost.
        """
        turn_id = str(UUID(int=self.draw.getrandbits(128), version=4))
        body = {"text": self.text(), "turn_id": turn_id}
        self.ledger.answered[self.chat] += 1
        self.ledger.touched.add(self.chat)
        wanted = time.monotonic() if since is None else since
        is_free, is_sent, is_accepted, lost_at = since is None, False, False, None
        for url in self._alternate():
            attempt = self.current = Attempt(url, turn_id, is_repeated=is_sent)
            heard = await self._request(attempt, body)
            if heard.started is not None and not is_accepted:
                is_accepted = True
                self._accept(heard, body["text"], heard.started_at - wanted, is_free=is_free)
            if heard.is_saved and heard.started is not None:
                self._save_reply(heard, heard.started["reply_id"])
            if heard.is_over:
                return self._end(attempt, lost_at)
            if attempt.is_lost:
                lost_at = lost_at or time.monotonic()
                if not is_sent and self.draw.random() < 1 / 2:
                    return lost_at
            is_free = is_free and not attempt.concerns_chat
            is_sent = is_sent or not (heard.is_unreachable or heard.slug)
            if heard.slug not in {"", "turn-in-progress", "server-stopping"}:
                self.client.history.breach(f"a line was answered {heard.status} {heard.slug}")
            if not is_accepted and time.monotonic() - wanted > ACCEPTED_WITHIN * self.slow:
                self.client.history.breach(f"no server accepts a line of {self.name}")
                return None
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError

    def _alternate(self) -> Iterator[str]:
        """All servers, again and again, from one of them."""
        urls = list(self.urls)
        self.draw.shuffle(urls)
        return itertools.cycle(urls)

    async def _request(self, attempt: Attempt, body: dict[str, Any]) -> HeardTurn:
        client = dataclasses.replace(self.client, urls=lambda: [attempt.url])
        try:
            return await client.turn(self.name, self.chat, body, heard=attempt.heard)
        finally:
            attempt.end.set()
            self.current = None

    def _accept(self, heard: HeardTurn, text: str, seconds: float, *, is_free: bool) -> None:
        """Record an acknowledged line, and the time until it was accepted."""
        line_id = (heard.started or {})["user_message_id"]
        since = self.client.history.clock
        self.ledger.lines.setdefault(line_id, Line(line_id, self.chat, text, since=since))
        (self.times.accepted if is_free else self.times.locked).append(seconds)
        self.times.counts["lines"] += 1
        if not is_free and seconds > FREE_WITHIN * self.slow:
            self.client.history.breach(f"a chat was locked for {seconds:.1f} s")

    def _save_reply(self, heard: HeardTurn, reply_id: str) -> None:
        """Record an acknowledged reply: the whole one, or the part before the loss of a server."""
        line = Line(reply_id, self.chat, None, since=self.client.history.clock)
        if not heard.problem:
            self.times.counts["replies"] += 1
            line.marks += find_whole(self.model, heard.text)
            if not line.marks:
                self.client.history.breach(f"a saved reply is not whole: {heard.text!r}")
        self.ledger.lines.setdefault(reply_id, line)

    def _end(self, attempt: Attempt, lost_at: float | None) -> float | None:
        problem = attempt.heard.problem
        if problem == "turn-interrupted" and attempt.is_repeated:
            self.times.counts["interrupted"] += 1
            return lost_at
        if problem:
            self.client.history.breach(f"a turn ended with {problem}")
        return None


def find_whole(model: TaggedModel, text: str) -> list[str]:
    """Return the mark of the reply that is exactly `text`, or an empty list."""
    return [each for each in REPLY_MARK.findall(text) if model.outputs.get(each) == text]


@dataclass
class Fleet:
    """The players of a campaign, and the signals that its processes get."""

    made: Campaign
    index: IndexNodes
    times: Times = field(default_factory=Times)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = 0.0

    @property
    def figures(self) -> dict[str, Any]:
        """The numbers and times of the campaign."""
        slowest = max(self.made.made.started, default=0.0)
        return {
            "players": len(self.made.accounts),
            "acknowledged": self.made.history.count_acknowledged(),
            **self.times.figures,
            "slowest start": f"{slowest:.1f} s",
        }

    async def play(self, options: Options) -> None:
        """Play until all rounds are over, and every player has heard the end of the last turn."""
        players = [self._make_player(number) for number in range(len(self.made.accounts))]
        for number, each in enumerate(players):
            await each.open_chat(has_chronicle=number % CHRONICLE_EVERY == 0)
        self.began = time.monotonic()
        playing = [asyncio.create_task(each.play(self.is_over)) for each in players]
        cuts = asyncio.create_task(self._cut_index())
        try:
            await self._go_through_rounds(options, players)
        finally:
            self.is_over.set()
            await asyncio.gather(*playing)
            cuts.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cuts
        for node in range(NODES):
            await self.index.tell("restore", node)

    def _make_player(self, number: int) -> FleetPlayer:
        account = self.made.accounts[number]
        return FleetPlayer(
            f"player{number}",
            account.client,
            account.ledger,
            self.made.model,
            random.Random(f"{self.made.draw.random()}/{number}"),
            urls=[each.url for each in self.made.made.servers],
            times=self.times,
            slow=self.made.slow,
        )

    async def _go_through_rounds(self, options: Options, players: Sequence[FleetPlayer]) -> None:
        servers = self.made.made.servers
        pause = 0.0 if options.minutes is None else ROUND_SECONDS / 2
        count = options.kills if options.minutes is None else round(2 * options.minutes)
        for number in range(count):
            at = self.began + number * pause + self.made.draw.uniform(5.0, 10.0)
            await asyncio.sleep(max(DOWN_SECONDS, at - time.monotonic()))
            kind = (signal.SIGKILL, signal.SIGTERM)[number % 2]
            victims = [servers[number % len(servers)]]
            if number // 2 % 2 == 0:
                victims += self.made.made.workers
            await self._hit(kind, victims, players)
            self.made.progress.tell(self._describe(), always=options.minutes is not None)
        end = self.began + count * pause
        await asyncio.sleep(max(DOWN_SECONDS, end - time.monotonic()))

    async def _hit(
        self, kind: signal.Signals, victims: Sequence[Process], players: Sequence[FleetPlayer]
    ) -> None:
        """Send a signal, look at its consequences, and start the processes again."""
        urls = {each.url for each in victims}
        under_way = [
            each.current
            for each in players
            if each.current is not None
            and not each.current.is_repeated
            and each.current.url in urls
        ]
        for each in victims:
            each.send(kind)
            self.times.counts[kind.name] += 1
        replies = sum(each.heard.started is not None for each in under_way)
        self.times.counts[f"replies at {kind.name}"] += replies
        within = self.made.made.stop_within + (DRAIN_SECONDS if kind == signal.SIGTERM else 0)
        for each in victims:
            try:
                await each.gone(within)
            except BrokenPromiseError as broken:
                self.made.history.breach(f"{broken} after {kind.name}")
        if kind == signal.SIGTERM:
            await asyncio.gather(*(self._see_whole(each) for each in under_way))
        await asyncio.sleep(DOWN_SECONDS)
        try:
            await self.made.made.open()
        except BrokenPromiseError as broken:
            self.made.history.breach(str(broken))
            await self.made.made.open(within=60 * self.made.slow)

    async def _see_whole(self, attempt: Attempt) -> None:
        """Check that a reply was heard to its end if its line was accepted."""
        await attempt.end.wait()
        heard = attempt.heard
        if heard.started is None:
            return
        is_whole = bool(find_whole(self.made.model, heard.text))
        if not (heard.is_saved and heard.is_over and is_whole) or heard.problem:
            how = "the client gave up" if attempt.is_given_up else f"{heard.problem!r}"
            self.made.history.breach(f"SIGTERM cut a reply ({heard.status}, {how})")

    async def _cut_index(self) -> None:
        """Cut off one node of the index now and then, every fourth time all of them."""
        draw = random.Random(self.made.draw.random())
        for number in itertools.count():
            await asyncio.sleep(draw.uniform(0.5, 1.5) * INDEX_CUT_EVERY)
            nodes = [number % NODES] if number % 4 else list(range(NODES))
            for each in nodes:
                await self.index.tell("cut", each)
            self.times.counts["cuts of the index"] += 1
            await asyncio.sleep(draw.uniform(0.5, 1.5) * INDEX_CUT_FOR)
            for each in nodes:
                await self.index.tell("restore", each)

    def _describe(self) -> str:
        locked = max(self.times.locked, default=0.0)
        return (
            f"{time.monotonic() - self.began:.0f} s, {self.times.counts['lines']} lines, "
            f"{self.times.counts['replies']} replies, a chat locked for at most {locked:.1f} s, "
            f"{len(self.made.history.broken)} promises broken"
        )
