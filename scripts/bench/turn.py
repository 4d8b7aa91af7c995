"""Measure turns of a long chat from the request to the call of the model.

`--only history`: a chat of 10,000 messages made of CRD3's transcripts, with history that fills a
budget of 150,000 tokens. The peer is `trim_messages` of langchain-core over the same messages. The
floor reads and unseals the rows of a turn and does nothing else.

`--only lore`: such a chat with five lorebooks of 1,000 entries and with memory. Its messages are
among 100,000 points in the index. Vectors come from hashed words, so that embedding costs nothing.
The rows `of it` overlap in part, because memory is searched while history is read.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import httpx
import uvloop
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    trim_messages,  # pyright: ignore[reportUnknownVariableType]  # its decorator has no types
)

from backend.chats import repository as chats
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.context.budget import find_eviction_point
from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from backend.memory.index.edge import EdgeIndex
from backend.memory.search.search import MemorySearch
from backend.turns.prompt.assemble import PromptAssembler
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.history import HistoryCache
from backend.turns.prompt.load import ChatLoader
from backend.turns.prompt.lore import LoreReader
from backend.turns.run.start import TurnStarter
from backend.vault.sealing import Sealer
from scripts.bench.application import (
    Account,
    import_book,
    index_container,
    make_chat,
    make_settings,
    open_account,
    open_client,
    serve,
    use_hashed_words,
    wait_until_indexed,
)
from scripts.bench.data import (
    CRD3,
    Lines,
    choose_questions,
    join_utterances,
    make_book,
    read_utterances,
)
from scripts.bench.processes import check, create_database
from scripts.bench.stopwatch import (
    WARM_UP_TURNS,
    OneModelRegistry,
    StopwatchModel,
    TurnTimes,
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
from scripts.bench.vectors import write_strangers

HISTORY_TOKENS = 150_000
MESSAGE_TOKENS = 150
BOOKS = 5

STAGES: tuple[tuple[tuple[Any, str], str], ...] = (
    ((PromptBuilder, "build"), "building of the prompt"),
    ((ChatLoader, "load"), "  chat, cast and books"),
    ((MemorySearch, "find"), "  search, beside history"),
    ((EdgeIndex, "search"), "    in the engine"),
    ((HistoryCache, "read"), "  history, read"),
    ((Sealer, "open_many"), "  history, unsealed"),
    ((MemorySearch, "recall"), "  texts of search results"),
    ((PromptAssembler, "assemble"), "  assembling"),
    ((LoreReader, "scan"), "    scan of the lorebooks"),
    ((TurnStarter, "start"), "storing of the line"),
)
"""Functions that a turn calls, with their labels."""


async def bench_history(name: DatabaseName, folder: Path, lines: Lines, turns: int) -> list[Row]:
    """Return the rows of long and short histories on one database."""
    async with create_database(name) as url:
        database, model = Database(url), StopwatchModel()
        settings = make_settings(url, folder)
        account = await open_account(settings, database, "bench", registry=OneModelRegistry(model))
        long = join_utterances(lines, get_tokenizer("o200k_base").count, MESSAGE_TOKENS)
        short = [text for _, text in lines]
        rows: list[Row] = []
        medians: list[float] = []
        async with serve(account) as port:
            for label, texts, count in (
                (f"10,000 messages of {MESSAGE_TOKENS} tokens", long, 10_000),
                (f"2,000 messages of {MESSAGE_TOKENS} tokens", long, 2_000),
                ("10,000 bare utterances", short, 10_000),
            ):
                authored = [("Someone", text) for text in texts]
                chat_id = await make_chat(database, account.identity, authored, count)
                # The previous turn is indexed first, as it is while people read.
                settle = partial(wait_until_indexed, account)
                times = await time_turns(port, account.token, chat_id, model, turns, settle=settle)
                note = f"{len(model.prompt.messages):,} messages sent"
                rows.append(make_row(name, f"turn: {label}", times.milliseconds, note=note))
                medians.append(rows[-1].value)
                rows.append(await measure_floor(name, account, chat_id, turns))
                if name == "sqlite":
                    peer = time_trim_messages(texts, count, 3)
                    rows.append(make_row(name, "  peer: trim_messages", peer, note="counting only"))
        ratio = round(medians[0] / medians[1], 2)
        return [*rows, Row(name, "ratio of 10,000 to 2,000 messages", ratio)]


async def measure_floor(name: DatabaseName, account: Account, chat_id: UUID, turns: int) -> Row:
    """Return the row of reading and unsealing the rows that a turn sends."""
    times: list[float] = []
    for _ in range(turns):
        began = time.perf_counter()
        async with account.database.read() as session:
            chat = await session.get_one(Chat, chat_id)
            leaf = await session.get_one(Message, chat.leaf_id)
            lines = await chats.load_active_messages(
                session,
                chat_id,
                from_sum=find_eviction_point(leaf.path_tokens, HISTORY_TOKENS),
                to_position=leaf.position,
                authors=False,
            )
        account.identity.sealer.open_many(
            MESSAGE_CONTENT, zip(lines.ids, lines.sealed_contents, strict=True)
        )
        times.append((time.perf_counter() - began) * 1000)
    return make_row(name, "  floor: read and unseal", times)


def time_trim_messages(texts: Sequence[str], messages: int, turns: int) -> list[float]:
    """Return milliseconds of langchain-core's `trim_messages` over the same messages.

    It counts the tokens at each call, as its documentation shows. Reading is not included.
    """
    tokenizer = get_tokenizer("o200k_base")
    kinds: Iterator[type[BaseMessage]] = cycle((AIMessage, HumanMessage))
    history = [
        kind(content=text)
        for kind, text in zip(kinds, islice(cycle(texts), messages), strict=False)
    ]

    def count(some: list[BaseMessage]) -> int:
        return sum(tokenizer.count(str(message.content)) + 4 for message in some)

    times: list[float] = []
    for _ in range(turns):
        began = time.perf_counter()
        trim_messages(history, max_tokens=HISTORY_TOKENS, strategy="last", token_counter=count)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def bench_lore(
    name: DatabaseName, folder: Path, lines: Lines, options: argparse.Namespace
) -> list[Row]:
    """Return the rows of turns with lorebooks and a full index on one database."""
    texts = join_utterances(lines, get_tokenizer("o200k_base").count, MESSAGE_TOKENS)
    authored = [("Someone", text) for text in texts]
    model = StopwatchModel()
    async with create_database(name) as url:
        account = await _open_account(url, folder, model, is_new=True)
        async with serve(account) as port, open_client(account, port) as api:
            chat_id = await make_chat(
                account.database, account.identity, authored, options.messages
            )
            await index_container(account, "message", chat_id)
            for number in range(BOOKS):
                book_id = await import_book(api, make_book(number, options.entries // BOOKS, lines))
                path = f"/chats/{chat_id}/lorebooks/{book_id}"
                check(await api.put(path, json={"state": "linked"}))
            await wait_until_indexed(account)
            index = account.services.memory.collections.current
            owned = await index.count()
            await write_strangers(index, max(0, options.points - owned))
        # A second server, because the index is optimised when it is opened.
        account = await _open_account(url, folder, model, is_new=False)
        spoken = choose_questions(lines, 2 * (options.turns + WARM_UP_TURNS))
        settle = partial(wait_until_indexed, account)
        async with serve(account) as port:
            measure = partial(time_turns, port, account.token, chat_id, model, options.turns)
            with Watch(*(watched for watched, _ in STAGES)) as watch:
                times = await measure(spoken, settle)
            hurried = await measure(spoken[options.turns + WARM_UP_TURNS :])
            async with open_client(account, port) as api:
                sample = times.replies[:: max(1, len(times.replies) // 10)]
                counts = await count_items(api, sample)
            floor = await measure_floor(name, account, chat_id, options.turns)
    label = f"turn: {options.entries:,} entries, {options.points:,} points"
    note = ", ".join(f"{count:.1f} {kind}" for kind, count in counts.items())
    note += f"; {owned:,} points are the user's"
    return [
        make_row(name, label, times.milliseconds, note=note),
        *make_stage_rows(name, watch, times),
        make_row(name, "  the same without pauses", hurried.milliseconds),
        floor,
    ]


async def _open_account(url: str, folder: Path, model: StopwatchModel, *, is_new: bool) -> Account:
    with use_hashed_words():
        settings = make_settings(url, folder, embedder="none")
        registry = OneModelRegistry(model)
        return await open_account(
            settings, Database(url), "bench", is_new=is_new, registry=registry
        )


def make_stage_rows(database: str, watch: Watch, times: TurnTimes) -> list[Row]:
    """Return the milliseconds of each stage before the model is called."""
    rows: list[Row] = []
    for watched, label in STAGES:
        calls = watch.calls[watched]
        spent = [
            1000 * sum(call.seconds for call in calls if began <= call.began < began + took / 1000)
            for began, took in zip(times.starts, times.milliseconds, strict=True)
        ]
        rows.append(make_row(database, f"  of it: {label}", spent))
    return rows


async def count_items(api: httpx.AsyncClient, replies: Sequence[str]) -> dict[str, float]:
    """Return the mean numbers of messages, lore entries and memories in a prompt."""
    total: Counter[str] = Counter()
    for reply in replies:
        context = check(await api.get(f"/messages/{reply}/context"))
        total["messages sent"] += context["totals"]["messages"]
        for item in context["retrieved"]:
            if item["kind"] != "lore":
                total["memories"] += 1
            elif all(reason["kind"] == "semantic" for reason in item["reasons"]):
                total["lore by meaning"] += 1
            else:
                total["lore by key"] += 1
    return {kind: count / len(replies) for kind, count in sorted(total.items())}


async def run(options: argparse.Namespace) -> list[Row]:
    lines = read_utterances(options.data)
    rows: list[Row] = []
    for name in list_databases(options):
        with TemporaryDirectory(prefix="bench-") as folder:
            if options.only in {None, "history"}:
                rows += await bench_history(name, Path(folder) / "h", lines, options.turns)
            if options.only in {None, "lore"}:
                rows += await bench_lore(name, Path(folder) / "l", lines, options)
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("turn", __doc__)
    add_database_option(parser)
    parser.add_argument("--only", choices=("history", "lore"))
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--messages", type=int, default=10_000, help="of the chat with lorebooks")
    parser.add_argument("--entries", type=int, default=5_000, help="of all lorebooks together")
    parser.add_argument("--points", type=int, default=100_000, help="of all users in the index")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs
