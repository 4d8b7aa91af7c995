"""Measure turns, swipes and restores of a large campaign.

The campaign has 2,000 entities, 10,000 facts and 20,000 changes, in a chat of 5,000 messages. Turns
are timed from the request to the call of the model, alternately with those of a plain chat with the
same messages. Then come choosing a swipe that toggles 50 changes (floor: a plain chat's), restoring
a version (floor: reading the same states), the memory of turns that wait for their player (floor:
turns that are over), and finding 5,000 names in a line (peer: a regular expression).
"""

from __future__ import annotations

import argparse
import gc
import re
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import httpx
import uvloop
from sqlalchemy import func, select
from sqlalchemy import text as statement

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.changes import Change, Operations
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignItem
from backend.campaigns.names.roster import NameIndex
from backend.campaigns.play.table import Table
from backend.campaigns.state.situations import SituationService
from backend.chats import tree
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.models import Chat, Message
from backend.chats.token_counting import CountUnit
from backend.core.logs import configure_logging
from backend.database.base import new_id
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from backend.turns.models import Turn
from backend.turns.run.turn_run import TurnRun
from scripts.bench.application import (
    Account,
    index_container,
    make_settings,
    open_account,
    open_client,
    serve,
    use_hashed_words,
    wait_until_idle,
)
from scripts.bench.campaign_world import (
    CampaignSizes,
    CampaignWorld,
    make_names,
    make_world,
    write_changes,
)
from scripts.bench.data import CRD3, Lines, join_utterances, make_utterances, read_utterances
from scripts.bench.processes import check, create_database
from scripts.bench.stopwatch import (
    WARM_UP_TURNS,
    OneModelRegistry,
    StopwatchModel,
    Watch,
    time_turns,
)
from scripts.bench.tables import (
    DatabaseName,
    Row,
    add_database_option,
    list_databases,
    make_row,
    new_parser,
    print_rows,
)

STATE_STAGE = (SituationService, "load_layers")
"""The function that is timed."""

SMALL_SIZES = CampaignSizes(entities=150, facts=200, changes=1_200, messages=200)
SWIPE_CHANGES = 50
RESTORE_CHANGES = 500
NAME_COUNT = 5_000

MESSAGE_TOKENS = 60
"""About as long as a message of a played session. 5,000 of them exceed a window, so that both chats
search for old ones."""

WAITING_TURNS, WAITING_WARM_UP = 100, 10
WAITING_LINE, ENDING_LINE = "I pick the lock of the counting house.", "I look around."
"""Lines that the demo model answers with a choice of dice, and with a reply."""


async def bench_campaign(
    name: DatabaseName, folder: Path, lines: Lines, sizes: CampaignSizes, turns: int
) -> list[Row]:
    """Return the rows of turns, swipes and restores on one database."""
    async with create_database(name) as url:
        model = StopwatchModel()
        account = await _open_account(url, folder, model, is_new=True)
        database = account.database
        count = get_tokenizer("o200k_base").count
        messages = [("Mara", text) for text in join_utterances(lines, count, MESSAGE_TOKENS)]
        began = time.perf_counter()
        world = await make_world(database, account.identity, messages, sizes)
        seconds = round(time.perf_counter() - began, 1)
        async with serve(account):
            for chat_id in (world.chat_id, world.plain_id):
                await index_container(account, "message", chat_id)
            await wait_until_idle(account)
            # PostgreSQL's autovacuum does this within a minute.
            async with database.write() as session:
                await session.execute(statement("ANALYZE"))
        # A second server, because a start optimises the index and SQLite.
        account = await _open_account(url, folder, model, is_new=False)
        async with serve(account) as port, open_client(account, port) as api:
            return [
                Row(name, "campaign written", seconds, unit="s"),
                *await _time_turns(name, account, port, api, model, world, turns),
                *await _time_swipes(name, account, api, world, turns),
                *await _time_restores(name, account, api, world, min(turns, 20)),
            ]


async def _open_account(url: str, folder: Path, model: StopwatchModel, *, is_new: bool) -> Account:
    with use_hashed_words():
        settings = make_settings(url, folder)
        registry = OneModelRegistry(model)
        return await open_account(
            settings, Database(url), "bench", is_new=is_new, registry=registry
        )


async def _time_turns(
    name: str,
    account: Account,
    port: int,
    api: httpx.AsyncClient,
    model: StopwatchModel,
    world: CampaignWorld,
    turns: int,
) -> list[Row]:
    settle = partial(wait_until_idle, account)
    names = world.names[100 : 100 + WARM_UP_TURNS + turns]
    lines = [f"What does {each} say of it?" for each in names]
    rows: list[Row] = []
    with Watch(STATE_STAGE) as watch:
        for label, tools in (("without tools", False), ("with tools", True)):
            settings = {"settings": {"tools": tools}}
            check(await api.patch(f"/campaigns/{world.campaign_id}", json=settings))
            times: dict[UUID, list[float]] = {world.plain_id: [], world.chat_id: []}
            for number, text in enumerate(lines):
                # Pairs of turns, because the speed of a machine changes from minute to minute.
                for chat_id, found in list(times.items())[:: -1 if number % 2 else 1]:
                    timed = await time_turns(
                        port, account.token, chat_id, model, 1, [text], settle, warm_up=0
                    )
                    found.extend(timed.milliseconds)
            plain, campaign = (found[WARM_UP_TURNS:] for found in times.values())
            difference = [later - earlier for earlier, later in zip(plain, campaign, strict=True)]
            rows += [
                make_row(name, f"turn: campaign, {label}", campaign),
                make_row(name, "  turn: plain chat", plain),
                make_row(name, "  difference of each pair", difference, note="aim: 5"),
            ]
    own = [1000 * call.seconds for call in watch.calls[STATE_STAGE]]
    return [*rows, make_row(name, "  of it: state of the campaign", own)]


async def _time_swipes(
    name: str, account: Account, api: httpx.AsyncClient, world: CampaignWorld, count: int
) -> list[Row]:
    identity, database = account.identity, account.database
    rows: list[Row] = []
    for label, chat_id in [
        ("  floor: swipe in a plain chat", world.plain_id),
        (f"swipe: {SWIPE_CHANGES} changes", world.chat_id),
    ]:
        replies = await _add_two_replies(database, identity, chat_id)
        if chat_id == world.chat_id:
            changes = [
                Change("entity", each, Operations(set={"status": f"seen {number}"}))
                for number, each in enumerate(world.people[:SWIPE_CHANGES])
            ]
            await write_changes(database, identity, world.campaign_id, changes, message=replies[1])

        async def choose(number: int, replies: Sequence[Message] = replies) -> None:
            check(await api.post(f"/messages/{replies[number % 2].id}/activate", json={}))

        times = await _time_steps(count, choose, partial(wait_until_idle, account))
        note = "aim: 20" if chat_id == world.chat_id else ""
        rows.append(make_row(name, label, times, note=note))
    return rows[::-1]


async def _time_restores(
    name: str, account: Account, api: httpx.AsyncClient, world: CampaignWorld, count: int
) -> list[Row]:
    """Restore two versions alternately."""
    identity, database = account.identity, account.database
    path = f"/campaigns/{world.campaign_id}"
    people = world.people[:RESTORE_CHANGES]
    versions: list[int] = []
    for mark in ("before", "after"):
        changes = [
            Change("entity", each, Operations(set={"wants": f"{mark}: {number}"}))
            for number, each in enumerate(people)
        ]
        versions.append(await write_changes(database, identity, world.campaign_id, changes))

    async def restore(number: int) -> None:
        check(await api.post(f"{path}/restore", json={"version": versions[number % 2]}))

    async def read(_: int) -> None:
        query = select(CampaignItem.id, CampaignItem.sealed_state).where(
            CampaignItem.id.in_(people)
        )
        async with database.read() as session:
            for row in await session.execute(query):
                read_state(identity.sealer, row.id, row.sealed_state)

    settle = partial(wait_until_idle, account)
    times, floor = [await _time_steps(count, step, settle) for step in (restore, read)]
    return [
        make_row(name, f"restore: {len(people)} items", times, note="aim: 200"),
        make_row(name, "  floor: reading their states", floor),
    ]


def bench_names(lines: Lines, count: int = NAME_COUNT) -> list[Row]:
    """Return the rows of finding names in lines. The peer is one regular expression of all."""
    names = make_names(count)
    index = NameIndex((new_id(), each) for each in names)
    pattern = re.compile(
        r"\b(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")\b",
        re.IGNORECASE,
    )
    texts = [
        f"{text} {names[place % count]}'s boat." for place, (_, text) in enumerate(lines[:200])
    ]

    def time_search(find: Callable[[str], Any]) -> list[float]:
        times: list[float] = []
        for text in texts:
            began = time.perf_counter()
            if not find(text):
                raise SystemExit(f"No name is found in: {text}")
            times.append(1e6 * (time.perf_counter() - began))
        return times

    times, peer = time_search(index.find), time_search(pattern.findall)
    return [
        make_row("", f"names: {count:,} in a line", times, unit="µs", note="aim: 2,000"),
        make_row("", "  peer: a regular expression", peer, unit="µs"),
    ]


async def _add_two_replies(
    database: Database, identity: Identity, chat_id: UUID
) -> tuple[Message, Message]:
    """Add two swipes at the end of a chat. The second one is active."""
    async with database.write() as session:
        chat = await session.get_one(Chat, chat_id)
        leaf = await session.get_one(Message, chat.leaf_id)
        unit, made = CountUnit.parse(chat.count_unit), list[Message]()
        for text in ("One.", "Another."):
            draft = MessageDraft(role="assistant", author="Mara", text=text)
            made.append(make_message(identity.sealer, draft, unit=unit))
            await tree.attach_message(session, chat, made[-1], parent=leaf)
        return made[0], made[1]


async def _time_steps(
    count: int, step: Callable[[int], Awaitable[None]], settle: Callable[[], Awaitable[None]]
) -> list[float]:
    """Return the milliseconds of `count` steps after two that warm up, each after `settle`.

    While people read, the changes of the step before are indexed.
    """
    times: list[float] = []
    for number in range(count + 2):
        await settle()
        began = time.perf_counter()
        await step(number)
        times.append(1000 * (time.perf_counter() - began))
    return times[2:]


async def bench_waiting(name: DatabaseName, folder: Path) -> list[Row]:
    """Return the rows of turns that wait for their player, each in a different chat."""
    async with create_database(name) as url:
        database = Database(url)
        with use_hashed_words():
            account = await open_account(make_settings(url, folder), database, "bench")
        async with serve(account) as port, open_client(account, port) as api:
            body = {"name": "Doskvol", "rules": "blades"}
            campaign_id = check(await api.post("/campaigns", json=body))["id"]
            tracemalloc.start()
            ended, waiting = [
                await _measure_growth(account, api, campaign_id, line)
                for line in (ENDING_LINE, WAITING_LINE)
            ]
            tracemalloc.stop()
        alive = sum(isinstance(each, TurnRun | Table) for each in gc.get_objects())
        async with database.read() as session:
            size = func.length(Turn.sealed_play) + func.length(Turn.sealed_events)
            query = select(func.count(), func.avg(size)).where(Turn.state == "waiting")
            count, stored = (await session.execute(query)).one()
    note = f"{count} wait; runs and tables in memory: {alive}"
    return [
        Row(name, "waiting turn: in memory", waiting, unit="KiB", note=note),
        Row(name, "  floor: a turn that is over", ended, unit="KiB"),
        Row(name, "  in its row", round(float(stored) / 1024, 1), unit="KiB"),
    ]


async def _measure_growth(
    account: Account, api: httpx.AsyncClient, campaign_id: str, line: str
) -> float:
    """Return the KiB of Python's memory that a turn leaves."""
    before = 0
    for number in range(WAITING_WARM_UP + WAITING_TURNS):
        if number == WAITING_WARM_UP:
            await wait_until_idle(account)
            before = _read_traced_bytes()
        chat_id = check(await api.post("/chats", json={"campaign_id": campaign_id}))["id"]
        headers = {"Accept": "application/json"}
        check(await api.post(f"/chats/{chat_id}/turns", json={"text": line}, headers=headers))
    await wait_until_idle(account)
    return round((_read_traced_bytes() - before) / WAITING_TURNS / 1024, 1)


def _read_traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def run(options: argparse.Namespace) -> list[Row]:
    lines = make_utterances() if options.small else read_utterances(options.data)
    sizes = SMALL_SIZES if options.small else CampaignSizes()
    rows: list[Row] = []
    for name in list_databases(options):
        with TemporaryDirectory(prefix="bench-") as folder:
            base = Path(folder)
            rows += await bench_campaign(name, base / "c", lines, sizes, options.turns)
            rows += await bench_waiting(name, base / "w")
    return [*rows, *bench_names(lines)]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("campaign", __doc__)
    add_database_option(parser)
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--small", action="store_true", help="use small sizes, for development")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs
