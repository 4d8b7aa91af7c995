"""What every campaign has: an installation, accounts that play, and the checks of all of it."""

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
from scripts._bench_table import DatabaseName
from scripts.torture import store_checks
from scripts.torture.checks import all_items, check_chats, check_things
from scripts.torture.client import PROVIDER_KEY, Client, sign_up
from scripts.torture.database_server import kept_folder, new_server
from scripts.torture.history import History
from scripts.torture.installation import (
    READY_WITHIN,
    BrokenPromiseError,
    Installation,
    installation,
)
from scripts.torture.ledger import Ledger
from scripts.torture.model import TaggedModel, server_of
from scripts.torture.model_checks import (
    check_choices,
    check_memory,
    check_placements,
    check_prompts,
    check_servers,
    chosen_model,
    end_with,
)
from scripts.torture.players import Player
from scripts.torture.playing import RULES, check_campaigns
from scripts.torture.report import Progress, Row
from scripts.torture.visitors import Visitor, check_gone, check_private

CANARY = "zanzibarquagga"
PLAYS = 1
"""The account whose chats belong to a campaign that is played."""
ENDS_WITH = {0: True, 1: False}
"""Which accounts end with an embedding model of their own, and which with the installation's."""
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
        """Who acts while it may."""
        return [*self.players, *self.visitors]

    @property
    def users(self) -> set[UUID]:
        """The accounts that stay."""
        return {each.client.user_id for each in self.accounts}

    async def pause(self) -> None:
        """Let nobody act, and wait until everybody has noticed."""
        self.may_act.clear()
        async with asyncio.timeout(IDLE_WITHIN):
            while any(each.is_busy for each in self.everybody):
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
        found = await self._end_choices()
        gone = await self._send_visitors_away()
        figures: dict[str, Any] = {"jobs tried again": await self._retry_dead_jobs()}
        found += await store_checks.settle(self.database, self.users)
        chosen = {
            account.sealer: await chosen_model(self.database, account.sealer)
            for account in self.accounts
        }
        for account in self.accounts:
            client, ledger = account.client, account.ledger
            found += await check_things(client, self.made.url, ledger)
            found += await check_choices(client, ledger)
            found += await check_prompts(client, ledger)
            found += await check_memory(client, chosen[account.sealer])
            events, count = await store_checks.check_events(self.database, account.sealer)
            found += events
            figures["events"] = figures.get("events", 0) + count
            states, count = await check_campaigns(self.database, account.sealer)
            found += states
            figures["items"] = figures.get("items", 0) + count
        await self.check_touched(everything=True)
        found += await store_checks.check_rows(self.database)
        found += await check_placements(self.database, self.users)
        found += await check_gone(self.database, gone)
        found += self._check_servers()
        found += [f"gone: {each.last_words()}" for each in self.made.processes if not each.is_alive]
        await self.made.stop()
        missing, counted = await store_checks.check_index(self.database, self.made, chosen)
        found += missing
        figures |= {**counted, "accounts deleted": len(gone)}
        folders = {"data": self.made.data, "logs": self.made.root / "logs"}
        for word in (CANARY, PROVIDER_KEY):
            found += await asyncio.to_thread(store_checks.check_plaintext, word, folders)
        for each in found:
            self.history.breach(each)
        return figures

    async def _end_choices(self) -> list[str]:
        """Hold settings against what was chosen, then have accounts end with what they may."""
        found: list[str] = []
        for number, account in enumerate(self.accounts):
            found += await check_choices(account.client, account.ledger)
            worker = next(each for each in self.players if each.ledger is account.ledger)
            found += await end_with(worker, embedding=ENDS_WITH.get(number))
        return found

    async def _send_visitors_away(self) -> set[UUID]:
        """Have the accounts deleted that are on a visit; gives back all that were."""
        until = self.history.clock + ANSWERED_WITHIN * self.slow
        for visitor in self.visitors:
            while not await visitor.leave() and self.history.clock < until:
                await asyncio.sleep(0.2)
            if visitor.client is not None:
                self.history.breach(f"unanswered: the deletion of {visitor.client.username}")
        return {user_id for each in self.visitors for user_id in each.gone}

    def _check_servers(self) -> list[str]:
        """Lines that were sent to servers of others, or to the installation's."""
        ledgers = {server_of(url): each.ledger for each in self.accounts for url in each.servers}
        private = {mark for each in self.visitors for mark in each.private}
        return [*check_servers(self.model, ledgers), *check_private(self.model, private)]

    async def _retry_dead_jobs(self) -> int:
        """Have jobs that gave up tried again, as their users would: their processes died a lot."""
        for account in self.accounts:
            # Jobs whose keys are gone wait until their user is seen.
            await account.client.ask("seen", "look", "GET", "/me")
        await store_checks.settle(self.database, self.users)
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
        run.visitors.append(_visitor(run, options))
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
        sealer = await store_checks.sealer_of(run.database, run.made, client)
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


def _visitor(run: Campaign, options: Options) -> Visitor:
    numbers = run.accounts[0].ledger.numbers
    return Visitor(
        "visitor",
        run.made,
        run.history,
        run.model,
        _servers(run, "visitor"),
        _draw(options, options.users),
        numbers,
    )


def _servers(run: Campaign, *names: str) -> list[str]:
    """Addresses of model servers of an account's own."""
    return [f"{run.made.model_url}/own/{name}/v1" for name in names]


def _draw(options: Options, *numbers: int) -> random.Random:
    return random.Random(f"{options.seed}/{numbers}")
