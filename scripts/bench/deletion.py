"""Measure the deletion of large chats, accounts and others on PostgreSQL: the longest transaction.

    scripts/bench.py deletion --messages 100000 --chats 20

The account's messages, records of prompts and turns are made by PostgreSQL, and the rows of a large
lorebook, chronicle and campaign. Each transaction of the deletion is timed by the client. At the
same time, a player takes turns: the longest wait of their transactions is measured as well, with
and without the deletion.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from tempfile import TemporaryDirectory
from uuid import UUID

import httpx
import uvloop
from sqlalchemy import Connection, event, select, text

from backend.accounts.models import User
from backend.chats.models import Chat
from backend.database.base import Base, get_table
from backend.database.engine import Database
from backend.jobs.deletions import Root
from backend.operations.deletions import CONTAINERS, DELETIONS
from scripts.bench.processes import (
    TALEKEEPER,
    check,
    create_database,
    make_environment,
    sign_up,
    start_process,
)
from scripts.bench.storage import find_postmaster, read_cpu
from scripts.bench.tables import Row, make_row, new_parser, print_rows

TEXT_BYTES = 400
"""Bytes of a sealed message."""

PAUSE_SECONDS = 0.05

_LENGTHEN = text("""
    INSERT INTO messages (
        id, user_id, chat_id, parent_id, position, role, status, hidden, is_active, is_selected,
        tokens, path_tokens, token_counts, scene_place, sealed_author, sealed_content, audience,
        created_at, updated_at
    )
    SELECT
        md5(:chat || number)::uuid, user_id, id,
        CASE WHEN number > 0 THEN md5(:chat || number - 1)::uuid END,
        number, CASE WHEN number % 2 = 0 THEN 'user' ELSE 'assistant' END, 'complete', false, true,
        true, 100, 100 * number, '{}', 0, '\\x00', decode(repeat('ab', :size), 'hex'), 'public',
        now(), now()
    FROM chats, generate_series(0, :count - 1) AS number WHERE id = CAST(:chat AS uuid)
""")
_RECORD = text("""
    INSERT INTO context_records (id, user_id, chat_id, sealed_record, created_at)
    SELECT id, user_id, chat_id, decode(repeat('ab', :size), 'hex'), now()
    FROM messages WHERE chat_id = CAST(:chat AS uuid) AND role = 'assistant'
""")
_TURNS = text("""
    INSERT INTO turns (
        id, user_id, chat_id, kind, state, model, request_digest, reply_id, prefix_length,
        thinking_prefix_length, segments, totals, stop_requested, created_at, finished_at
    )
    SELECT gen_random_uuid(), user_id, chat_id, 'reply', 'completed', 'demo', '\\x00', id, 0, 0,
        '[]', '{"total": 100}', false, now(), now()
    FROM messages WHERE chat_id = CAST(:chat AS uuid) AND role = 'assistant'
""")

_ENTRIES = """
    INSERT INTO lore_entries (
        id, user_id, lorebook_id, place, sealed_entry, revision, created_at, updated_at
    )
    SELECT gen_random_uuid(), user_id, id, number, decode(repeat('ab', :size), 'hex'), 1, now(),
        now()
    FROM lorebooks, generate_series(1, :count) AS number WHERE id = CAST(:id AS uuid)
"""
_EVENTS = """
    INSERT INTO chronicle_events (
        id, user_id, chronicle_id, source, significance, is_pinned, is_edited, happened_at, place,
        sealed_event, revision, audience, created_at, updated_at
    )
    SELECT gen_random_uuid(), user_id, id, 'agent', 3, false, false, now(), number,
        decode(repeat('ab', :size), 'hex'), 1, 'public', now(), now()
    FROM chronicles, generate_series(1, :count) AS number WHERE id = CAST(:id AS uuid)
"""
_EVENT_SOURCES = """
    INSERT INTO chronicle_event_sources (event_id, message_id, chat_id, position, telling)
    SELECT id, gen_random_uuid(), CAST(:chat AS uuid), place, 0
    FROM chronicle_events, generate_series(1, 2) WHERE chronicle_id = CAST(:id AS uuid)
"""
_FACTS = """
    INSERT INTO campaign_items (
        id, user_id, campaign_id, kind, version, subkind, audience, "exists", is_live, is_stale,
        seq, uses, sealed_state, created_at, updated_at
    )
    SELECT gen_random_uuid(), user_id, id, 'fact', 1, '', 'public', true, true, false, 1, 0,
        decode(repeat('ab', :size), 'hex'), now(), now()
    FROM campaigns, generate_series(1, :count) WHERE id = CAST(:id AS uuid)
"""
_CHANGES = """
    INSERT INTO campaign_changes (
        id, user_id, campaign_id, item_id, seq, version, actor, is_on_path, is_undone,
        sealed_operations, created_at
    )
    SELECT gen_random_uuid(), user_id, campaign_id, id, 1000 + row_number() OVER (), 1, 'compactor',
        true, false, decode(repeat('ab', :size), 'hex'), now()
    FROM campaign_items, generate_series(1, 2) WHERE campaign_id = CAST(:id AS uuid)
"""
_CHANGE_SOURCES = """
    INSERT INTO campaign_change_sources (change_id, message_id, chat_id, position)
    SELECT id, gen_random_uuid(), CAST(:chat AS uuid), seq
    FROM campaign_changes WHERE campaign_id = CAST(:id AS uuid)
"""


@dataclass(frozen=True, slots=True)
class LargeContainer:
    """A container with `count` rows, and the statements that insert them."""

    root: Root
    label: str
    count: int
    statements: Sequence[str]


LARGE = (
    LargeContainer("lorebook", "a lorebook of 10,000 entries", 10_000, [_ENTRIES]),
    LargeContainer("chronicle", "a chronicle of 50,000 events", 50_000, [_EVENTS, _EVENT_SOURCES]),
    LargeContainer(
        "campaign",
        "a campaign of 10,000 facts and 20,000 changes",
        10_000,
        [_FACTS, _CHANGES, _CHANGE_SOURCES],
    ),
)


class Transactions:
    """The durations of the writing transactions of a database, from BEGIN to COMMIT."""

    def __init__(self, database: Database) -> None:
        self.seconds: list[float] = []
        engine = database.engine.sync_engine
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "commit", self._end)

    def _begin(self, connection: Connection) -> None:
        connection.info["begun"] = time.perf_counter()

    def _end(self, connection: Connection) -> None:
        self.seconds.append(time.perf_counter() - connection.info.pop("begun"))


async def bench(*, messages: int, chats: int) -> list[Row]:
    import_module("backend.container")  # for all tables
    rows: list[Row] = []
    async with create_database("postgres") as url:
        database = Database(url)
        with TemporaryDirectory(prefix="bench-") as folder:
            environment = make_environment(
                database_url=url,
                data_dir=folder,
                embedder="none",
                demo_tokens_per_second=0,
                job_workers=0,
            )
            command = (str(TALEKEEPER), "serve", "--port", "0")
            async with (
                start_process(*command, **environment) as (_, port),
                sign_up(port, "player") as player,
                sign_up(port, "leaver") as leaver,
            ):
                chat = check(await player.post("/chats", json={}))["id"]
                made = [check(await leaver.post("/chats", json={}))["id"] for _ in range(chats)]
                for chat_id in made:
                    await lengthen(database, chat_id, messages // chats)
                async with database.engine.connect() as connection:
                    await connection.execute(text("ANALYZE"))
                    await connection.commit()
                whole = await find_owner(database, made[0])

                async def take_turn() -> None:
                    sent = await player.post(f"/chats/{chat}/turns", json={"text": "And then?"})
                    sent.raise_for_status()

                for each in LARGE:
                    rows += await measure_container(
                        database, url, leaver, take_turn, each, chat_id=made[0]
                    )
                await hide(database, made[0])
                rows += await measure(
                    database, url, take_turn, f"a chat of {messages // chats:,} messages", made[0]
                )
                await close(database, whole)
                label = f"an account with {messages - messages // chats:,} messages"
                rows += await measure(database, url, take_turn, label, str(whole), root="account")
        await database.dispose()
    return rows


async def measure_container(
    database: Database,
    url: str,
    owner: httpx.AsyncClient,
    take_turn: Callable[[], Awaitable[None]],
    what: LargeContainer,
    *,
    chat_id: str,
) -> list[Row]:
    """Delete a container. The request hides it, and no job follows, as there are no workers."""
    path = f"/{what.root}s"
    made = check(await owner.post(path, json={"name": what.label}))["id"]
    async with database.write() as session:
        values = {"id": made, "chat": chat_id, "size": TEXT_BYTES, "count": what.count}
        for statement in what.statements:
            await session.execute(text(statement), values)
    begun_at = time.perf_counter()
    (await owner.delete(f"{path}/{made}")).raise_for_status()
    request = 1000 * (time.perf_counter() - begun_at)
    rows = await measure(database, url, take_turn, what.label, made, root=what.root)
    return [make_row("postgres", f"{what.label}: request", [request]), *rows]


async def measure(
    database: Database,
    url: str,
    take_turn: Callable[[], Awaitable[None]],
    label: str,
    row_id: str,
    *,
    root: Root = "chat",
) -> list[Row]:
    """Delete something, while a player takes turns."""
    alone = [await time_one(take_turn) for _ in range(20)]
    own = Database(url)
    timed, beside = Transactions(own), list[float]()
    postmaster = await find_postmaster(database)
    models: dict[Root, type[Base]] = {"account": User, "chat": Chat, **CONTAINERS}
    spent = -read_cpu(postmaster)
    async with playing(take_turn, beside):
        begun_at = time.perf_counter()
        await DELETIONS[root](own, UUID(row_id))
        seconds = time.perf_counter() - begun_at
    spent += read_cpu(postmaster)
    await own.dispose()
    async with database.read() as session:
        if await session.get(models[root], UUID(row_id)) is not None:
            raise SystemExit("The rows are still there.")
    durations = [1000 * each for each in timed.seconds]
    return [
        make_row("postgres", f"{label}: transactions", durations, note=f"{len(durations):,}"),
        Row("postgres", f"{label}: longest", round(max(durations), 1), unit="ms"),
        Row("postgres", f"{label}: all", round(seconds, 1), unit="s"),
        Row(
            "postgres", f"{label}: CPU of PostgreSQL", round(spent, 1), unit="s", note="with turns"
        ),
        make_row("postgres", "a turn before it", alone),
        make_row("postgres", "a turn beside it", beside),
    ]


@asynccontextmanager
async def playing(
    take_turn: Callable[[], Awaitable[None]], durations: list[float]
) -> AsyncGenerator[None]:
    async def play() -> None:
        while True:
            durations.append(await time_one(take_turn))
            await asyncio.sleep(PAUSE_SECONDS)

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def time_one(work: Callable[[], Awaitable[None]]) -> float:
    """Return the milliseconds that it takes."""
    begun_at = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - begun_at)


async def lengthen(database: Database, chat_id: str, count: int) -> None:
    async with database.write() as session:
        await session.execute(_LENGTHEN, {"chat": chat_id, "count": count, "size": TEXT_BYTES})
        await session.execute(_RECORD, {"chat": chat_id, "size": TEXT_BYTES})
        await session.execute(_TURNS, {"chat": chat_id})


async def find_owner(database: Database, chat_id: str) -> UUID:
    async with database.read() as session:
        query = select(Chat.user_id).where(Chat.id == UUID(chat_id))
        return (await session.scalars(query)).one()


async def hide(database: Database, chat_id: str) -> None:
    """Hide a chat as the request that deletes it does."""
    async with database.write() as session:
        hidden = get_table(Chat).update().where(Chat.id == UUID(chat_id))
        await session.execute(hidden.values(is_ready=False))


async def close(database: Database, user_id: UUID) -> None:
    async with database.write() as session:
        closed = get_table(User).update().where(User.id == user_id)
        await session.execute(closed.values(deleted_at=text("now()")))


async def run(options: argparse.Namespace) -> list[Row]:
    return await bench(messages=options.messages, chats=options.chats)


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("deletion", __doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--chats", type=int, default=10)
    options = parser.parse_args(arguments)
    print_rows(uvloop.run(run(options)), as_json=options.json)
