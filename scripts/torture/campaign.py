"""A torture campaign: an installation, accounts that play, and their checks."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy.exc import SQLAlchemyError

from backend.database.engine import Database
from backend.errors import AppError
from backend.vault.sealing import Sealer
from scripts.bench.tables import DatabaseName
from scripts.torture import store_checks
from scripts.torture.checks import check_chats
from scripts.torture.client import Client, sign_up
from scripts.torture.database_server import kept_folder, new_server
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
from scripts.torture.playing import RULES
from scripts.torture.report import Progress, Row
from scripts.torture.visitors import Visitor

CANARY = "zanzibarquagga"
PLAYS = 1
"""The account with chats that belong to a role-play campaign."""
IDLE_WITHIN = 30.0


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    database: str = "sqlite"
    qdrant: str = ""
    kills: int = 20
    minutes: float | None = None
    requests: int = 2000
    seed: int = 1
    users: int = 3
    workers: int = 3
    visitors: int = 1
    players: int = 50
    servers: int = 2
    """The number of servers on PostgreSQL."""
    keep: Path | None = None
    name: str = ""
    slow: float = 1.0
    """Factor on promised times: 1, or more on a busy machine."""

    @property
    def kind(self) -> DatabaseName:
        return "sqlite" if self.database == "sqlite" else "postgres"


@dataclass
class Account:
    """An account, its ledger, and the sealer of its texts."""

    client: Client
    ledger: Ledger
    sealer: Sealer
    servers: Sequence[str]


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
    visitors: list[Visitor] = field(default_factory=list[Visitor])
    may_act: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def everybody(self) -> list[Player | Visitor]:
        """Everyone who acts while `may_act` is set."""
        return [*self.players, *self.visitors]

    @property
    def users(self) -> set[UUID]:
        """The accounts that stay."""
        return {each.client.user_id for each in self.accounts}

    async def pause(self) -> None:
        """Pause all workers, and wait until each has noticed."""
        self.may_act.clear()
        async with asyncio.timeout(IDLE_WITHIN):
            while any(each.is_busy for each in self.everybody):
                await asyncio.sleep(0.01)

    async def play(self, answers: int, *, at_most: float = 10.0) -> None:
        """Let everybody act until so many more requests were acknowledged, and a moment longer."""
        wanted, began = self.history.count_acknowledged() + answers, self.history.clock
        self.may_act.set()
        while self.history.count_acknowledged() < wanted and self.history.clock - began < at_most:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.draw.uniform(0, 0.1))

    async def check_touched(self, *, everything: bool = False) -> None:
        """Compare the changed chats, or all chats, with the ledger."""
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


BREAKS = (BrokenPromiseError, AppError, httpx.HTTPError, SQLAlchemyError, OSError)
"""Errors that a fault can cause in the harness, such as time-outs."""


async def run_guarded(group: str, name: str, work: Awaitable[list[Row]]) -> list[Row]:
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
    """Yield a running installation with accounts and workers that wait for `may_act`.

    Args:
        options: The command line's.
        url: The database; without it a new one, as the options say.
        servers_url: The same as the servers get there, if not the same way.
        settings: Further ones of the servers, by the names of the fields of `Settings`.
    """
    async with AsyncExitStack() as stack:
        base = stack.enter_context(kept_folder(options.keep))
        if url is None:
            url = stack.enter_context(new_server(options.database)).url
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
                servers=options.servers,
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
        run.visitors += [_visitor(run, options, each) for each in range(options.visitors)]
        tasks = [asyncio.create_task(each.play(run.may_act, run.is_over)) for each in run.everybody]
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
    ledgers = [Ledger(numbers=numbers) for _ in range(options.users)]
    others = [[each for each in ledgers if each is not ledger] for ledger in ledgers]
    for number in range(options.users):
        client = await sign_up(
            run.made.url, f"user{number}", run.history, run.made.urls, _draw(options, number)
        )
        stack.push_async_callback(client.aclose)
        ledger = ledgers[number]
        sealer = await store_checks.open_client_sealer(run.database, run.made, client)
        played = ""
        if number == PLAYS:
            # The model of these campaigns writes no summaries.
            settings = {"summaries": False}
            body = {"name": f"campaign {CANARY}", "rules": RULES, "settings": settings}
            made = await client.ask("setup", "make campaign", "POST", "/campaigns", json=body)
            played = made.body["id"]
        servers = _servers(run, f"{number}.a", f"{number}.b")
        run.accounts.append(Account(client, ledger, sealer, servers))
        run.players += [
            Player(
                f"worker{number}.{each}",
                client,
                ledger,
                run.model,
                _draw(options, number, each),
                servers,
                others[number],
                keeps_chronicle=number == 0,
                campaign_id=played,
            )
            for each in range(options.workers)
        ]


def _visitor(run: Campaign, options: Options, number: int) -> Visitor:
    numbers = run.accounts[0].ledger.numbers
    return Visitor(
        f"visitor{number}",
        run.made,
        run.history,
        run.model,
        _servers(run, f"visitor{number}"),
        _draw(options, options.users + number),
        numbers,
    )


def _servers(run: Campaign, *names: str) -> list[str]:
    """Addresses of model servers of an account's own."""
    return [f"{run.made.model_url}/own/{name}/v1" for name in names]


def _draw(options: Options, *numbers: int) -> random.Random:
    return random.Random(f"{options.seed}/{numbers}")
