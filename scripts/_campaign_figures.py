"""How much a big campaign costs: beside turns of a plain chat, at a swipe, at a restore."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import select
from sqlalchemy import text as statement

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.store import Change, read_state
from backend.campaigns.models import CampaignItem
from backend.campaigns.names.mentions import NameIndex
from backend.campaigns.state.situations import SituationService
from backend.chats import tree
from backend.chats.drafts import MessageDraft, draft_message
from backend.chats.models import Chat, Message
from backend.chats.token_counting import CountUnit
from backend.database.base import new_id
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from scripts._bench import (
    Account,
    Watch,
    client,
    index_container,
    joined,
    open_account,
    serving,
    until_idle,
)
from scripts._bench_table import DatabaseName, Row, new_database, spread
from scripts._campaign_world import Sizes, World, made_up_names, make_world, write_changes
from scripts._stopwatch import (
    WARM_UP,
    StopwatchModel,
    StopwatchRegistry,
    hashed_words,
    prompt_settings,
    time_turns,
)

TOGGLED = 50
"""Changes that a swipe takes back."""

RESTORED = 500
"""Changes that a restore takes back."""

NAMES = 5_000
MESSAGE_TOKENS = 60
"""What a message of a played session takes, about. 5,000 of them are more than a window holds, so
that both chats leave old ones to the search."""


async def bench_figures(
    name: DatabaseName, folder: Path, lines: Sequence[tuple[str, str]], sizes: Sizes, turns: int
) -> list[Row]:
    """The figures on one database."""
    async with new_database(name) as url:
        model = StopwatchModel()
        account, database = await _opened(url, folder, model, is_new=True)
        count = get_tokenizer("o200k_base").count
        messages = [("Mara", text) for text in joined(lines, count, MESSAGE_TOKENS)]
        began = time.perf_counter()
        world = await make_world(database, account.identity, messages, sizes)
        made = Row(name, "campaign made", round(time.perf_counter() - began, 1), unit="s")
        async with serving(account.parts):
            for chat_id in (world.chat_id, world.plain_id):
                await index_container(account, "message", chat_id)
            await until_idle(account)
            # As on a day after: what PostgreSQL's autovacuum does within a minute, and what a start
            # does for the index and for SQLite.
            async with database.write() as session:
                await session.execute(statement("ANALYZE"))
        account, _ = await _opened(url, folder, model, is_new=False)
        async with serving(account.parts) as port, client(account, port) as api:
            return [
                made,
                *await _turns(name, account, port, api, model, world, turns),
                *await _swipes(name, account, api, world, turns),
                *await _restores(name, account, api, world, min(turns, 20)),
            ]


async def _opened(
    url: str, folder: Path, model: StopwatchModel, *, is_new: bool
) -> tuple[Account, Database]:
    """A server on a database and a data folder, which ends with `serving`."""
    database = Database(url)
    with hashed_words():
        settings = prompt_settings(url, folder)
        registry = StopwatchRegistry(model)
        account = await open_account(settings, database, "bench", is_new=is_new, registry=registry)
    return account, database


async def _turns(
    name: str,
    account: Account,
    port: int,
    api: httpx.AsyncClient,
    model: StopwatchModel,
    world: World,
    turns: int,
) -> list[Row]:
    settle = partial(until_idle, account)
    said = [f"What does {each} say of it?" for each in world.names[100 : 100 + WARM_UP + turns]]
    rows: list[Row] = []
    watched = (SituationService, "_layers")
    with Watch(watched) as watch:
        for what, tools in (("told, not played", False), ("played, with tools", True)):
            settings = {"settings": {"tools": tools}}
            changed = await api.patch(f"/campaigns/{world.campaign_id}", json=settings)
            changed.raise_for_status()
            times: dict[UUID, list[float]] = {world.plain_id: [], world.chat_id: []}
            for number, text in enumerate(said):
                # The machine changes from minute to minute: each turn has one to compare with.
                for chat_id, found in list(times.items())[:: -1 if number % 2 else 1]:
                    timed = await time_turns(
                        port, account.token, chat_id, model, 1, [text], settle, warm_up=0
                    )
                    found.extend(timed.times)
            plain, campaign = (found[WARM_UP:] for found in times.values())
            more = [later - earlier for earlier, later in zip(plain, campaign, strict=True)]
            rows += [
                spread(name, f"turn: campaign, {what}", campaign, unit="ms"),
                spread(name, "  turn: plain chat, by turns", plain, unit="ms"),
                spread(name, "  more, of each pair", more, unit="ms", note="aim: 5"),
            ]
    own = [1000 * call.seconds for call in watch.calls[watched]]
    return [*rows, spread(name, "  of it: what the campaign says", own, unit="ms")]


async def _swipes(
    name: str, account: Account, api: httpx.AsyncClient, world: World, count: int
) -> list[Row]:
    identity, database = account.identity, account.parts.database
    rows: list[Row] = []
    for what, chat_id in [
        ("  floor: swipe in a plain chat", world.plain_id),
        (f"swipe: {TOGGLED} changes", world.chat_id),
    ]:
        replies = await _two_replies(database, identity, chat_id)
        if chat_id == world.chat_id:
            changes = [
                Change("entity", each, Operations(set={"status": f"told {number}"}))
                for number, each in enumerate(world.people[:TOGGLED])
            ]
            await write_changes(database, identity, world.campaign_id, changes, message=replies[1])

        async def choose(number: int, replies: Sequence[Message] = replies) -> None:
            answer = await api.post(f"/messages/{replies[number % 2].id}/activate", json={})
            answer.raise_for_status()

        timed = await _timed(count, choose, partial(until_idle, account))
        note = "aim: 20" if chat_id == world.chat_id else ""
        rows.append(spread(name, what, timed, unit="ms", note=note))
    return rows[::-1]


async def _restores(
    name: str, account: Account, api: httpx.AsyncClient, world: World, count: int
) -> list[Row]:
    """Back by many changes and forth again, by turns."""
    identity, database = account.identity, account.parts.database
    path = f"/campaigns/{world.campaign_id}"
    people = world.people[:RESTORED]
    versions: list[int] = []
    for mark in ("before", "after"):
        changes = [
            Change("entity", each, Operations(set={"wants": f"{mark}: {number}"}))
            for number, each in enumerate(people)
        ]
        versions.append(await write_changes(database, identity, world.campaign_id, changes))

    async def restore(number: int) -> None:
        body = {"version": versions[number % 2]}
        (await api.post(f"{path}/restore", json=body)).raise_for_status()

    async def read(_: int) -> None:
        query = select(CampaignItem.id, CampaignItem.sealed_state).where(
            CampaignItem.id.in_(people)
        )
        async with database.read() as session:
            for row in await session.execute(query):
                read_state(identity.sealer, row.id, row.sealed_state)

    what, settle = f"restore: {len(people)} items", partial(until_idle, account)
    return [
        spread(name, what, await _timed(count, restore, settle), unit="ms", note="aim: 200"),
        spread(name, "  floor: their states read", await _timed(count, read, settle), unit="ms"),
    ]


def bench_names(lines: Sequence[tuple[str, str]], count: int = NAMES) -> list[Row]:
    """Finding names in lines; the peer is one regular expression of them all."""
    names = made_up_names(count)
    index = NameIndex((new_id(), each) for each in names)
    pattern = re.compile(
        r"\b(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")\b",
        re.IGNORECASE,
    )
    texts = [
        f"{text} {names[place % count]}'s boat." for place, (_, text) in enumerate(lines[:200])
    ]

    def timed(find: Callable[[str], Any]) -> list[float]:
        found: list[float] = []
        for text in texts:
            began = time.perf_counter()
            if not find(text):
                raise SystemExit(f"Nobody is found in: {text}")
            found.append(1e6 * (time.perf_counter() - began))
        return found

    return [
        spread("", f"names: {count:,} in a line", timed(index.find), unit="µs", note="aim: 2,000"),
        spread("", "  peer: a regular expression", timed(pattern.findall), unit="µs"),
    ]


async def _two_replies(
    database: Database, identity: Identity, chat_id: UUID
) -> tuple[Message, Message]:
    """Two swipes at the end of a chat, the second chosen."""
    async with database.write() as session:
        chat = await session.get_one(Chat, chat_id)
        leaf = await session.get_one(Message, chat.leaf_id)
        unit, made = CountUnit.parse(chat.count_unit), list[Message]()
        for text in ("One.", "Another."):
            draft = MessageDraft(role="assistant", author="Mara", text=text)
            made.append(draft_message(identity.sealer, draft, unit=unit))
            await tree.attach_message(session, chat, made[-1], parent=leaf)
        return made[0], made[1]


async def _timed(
    count: int, step: Callable[[int], Awaitable[None]], settle: Callable[[], Awaitable[None]]
) -> list[float]:
    """Milliseconds of each of `count` steps, behind two that warm up; `settle` comes before each.

    People read what they chose: what follows from it is indexed by then.
    """
    found: list[float] = []
    for number in range(count + 2):
        await settle()
        began = time.perf_counter()
        await step(number)
        found.append(1000 * (time.perf_counter() - began))
    return found[2:]
