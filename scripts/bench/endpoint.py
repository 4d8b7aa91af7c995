"""Measure the lookup of a client's conversation in the store, at 50, 1,000 and 5,000 messages.

Each turn sends the whole chat, or its last 20 messages, with a new line. `lookup` is the search of
the store with the alignment. Two other costs of a request are separate rows: parsing its JSON, and
normalising and hashing its texts. The floor reads the digests and flags of the active path by an
index, through the bare driver. It finds no chat and compares nothing.

`first` is a lookup after a start: nothing is cached. `edited` has a changed line in the middle, so
that the whole list is aligned.

`--only first-token` measures the time to the first token of a provider that answers at once: asked
directly, through a server that only passes requests on (the floor), and through the endpoint, as a
plain model and as a character with 1,000 stored messages, of which the client sends 50. Vectors
come from hashed words, so that embedding costs nothing.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import msgspec
import uvloop

from backend.chats import repository, tree
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.models import Message
from backend.chats.token_counting import CountUnit
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from backend.openai_api.contracts import Line
from backend.openai_api.conversations import ConversationFinder, ConversationScope
from backend.openai_api.path_match import ClientLines
from backend.openai_api.stored_paths import PathCache
from backend.settings import Settings
from scripts.bench.application import (
    Account,
    make_settings,
    open_account,
    serve,
    use_hashed_words,
)
from scripts.bench.data import CRD3, join_utterances, read_utterances
from scripts.bench.first_token import bench_first_tokens, make_played_chat
from scripts.bench.processes import create_database
from scripts.bench.stopwatch import OneModelRegistry, StopwatchModel
from scripts.bench.tables import (
    DatabaseName,
    Row,
    add_database_option,
    list_databases,
    make_row,
    new_parser,
    print_rows,
)

SIZES = (50, 1_000, 5_000)
MESSAGE_TOKENS = 150
WINDOW = 20
WARM_UP_TURNS = 3

Measure = Callable[[], Awaitable[object]]


class Lookups:
    """One chat, and a client that sends it again with each turn."""

    def __init__(self, account: Account, character_id: UUID, chat_id: UUID) -> None:
        self._account = account
        self._database = account.database
        self._identity = account.identity
        self._chat_id = chat_id
        self._scope = ConversationScope(kind="character", id=character_id)
        self.pool = CpuPool()
        self.finder = self.make_finder()
        self.lines: list[Line] = []

    def make_finder(self) -> ConversationFinder:
        return ConversationFinder(self._database, self.pool, PathCache())

    async def load(self, texts: Sequence[str], count: int) -> None:
        self.lines = [
            make_line("user" if place % 2 else "assistant", texts[place % len(texts)], place)
            for place in range(count)
        ]

    async def measure(
        self,
        turns: int,
        *,
        window: int | None = None,
        is_first: bool = False,
        is_edited: bool = False,
    ) -> dict[str, list[float]]:
        """Return milliseconds of each part of a request."""
        times: dict[str, list[float]] = {"lookup": [], "hash": [], "parse": []}
        for turn in range(turns + WARM_UP_TURNS):
            sent = [*self.lines, make_line("user", f"What now, then? ({turn})", 0)]
            if is_edited:
                place = len(sent) // 2
                sent[place] = make_line(sent[place].role, f"Something else. ({turn})", place)
            if window is not None:
                sent = sent[-window:]
            body = msgspec.json.encode(
                {"messages": [{"role": each.role, "content": each.text} for each in sent]}
            )
            began = time.perf_counter()
            msgspec.json.decode(body)
            parsed = time.perf_counter()
            client = await self.finder.digest_lines(self._identity, sent)
            hashed = time.perf_counter()
            finder = self.make_finder() if is_first else self.finder
            sought = time.perf_counter()
            await self._check(finder, client, is_edited=is_edited)
            found = time.perf_counter()
            if turn >= WARM_UP_TURNS:
                times["parse"].append((parsed - began) * 1000)
                times["hash"].append((hashed - parsed) * 1000)
                times["lookup"].append((found - sought) * 1000)
            if not is_edited:
                await self._take_turn(sent[-1].text, f"A reply to it. ({turn})")
        return times

    async def _check(
        self, finder: ConversationFinder, client: ClientLines, *, is_edited: bool
    ) -> None:
        placement = await finder.locate(self._identity, client, self._scope)
        if placement.chat_id != self._chat_id or len(placement.edits) != is_edited:
            raise SystemExit("The chat was not recognised: change this benchmark.")

    async def _take_turn(self, line: str, reply: str) -> None:
        """Store a line and its reply, here and in the client's list."""
        async with self._database.write() as session:
            chat = await repository.get_chat(
                session, self._chat_id, owner_id=self._identity.user_id, lock=True
            )
            parent = await session.get_one(Message, chat.leaf_id)
            unit = CountUnit.parse(chat.count_unit)
            for role, text in (("user", line), ("assistant", reply)):
                draft = MessageDraft(role=role, author="", text=text)  # type: ignore[arg-type]
                message = make_message(self._identity.sealer, draft, unit=unit)
                await tree.attach_message(session, chat, message, parent=parent)
                parent = message
        self.lines += [make_line("user", line, 0), make_line("assistant", reply, 0)]


def make_line(role: Any, text: str, place: int) -> Line:
    return Line(role=role, text=text, author="", place=place)


def measure_floor(file: str, chat_id: UUID, turns: int) -> list[float]:
    """Return milliseconds of reading the columns of the active path with the driver."""
    connection = sqlite3.connect(file)
    query = (
        "SELECT id, role, hidden, text_digest FROM messages "
        "WHERE chat_id = ? AND is_active = 1 AND position >= 0 ORDER BY position"
    )
    times: list[float] = []
    for _ in range(turns):
        began = time.perf_counter()
        connection.execute(query, (chat_id.bytes,)).fetchall()
        times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return times


async def bench_lookups(
    name: DatabaseName, database: Database, settings: Settings, texts: Sequence[str], options: Any
) -> list[Row]:
    rows: list[Row] = []
    account = await open_account(
        settings, database, "bench", registry=OneModelRegistry(StopwatchModel())
    )
    async with serve(account):
        for count in options.messages:
            character_id, chat_id = await make_played_chat(account, texts, count)
            lookups = Lookups(account, character_id, chat_id)
            await lookups.load(texts, count)
            whole = await lookups.measure(options.turns)
            windowed = await lookups.measure(options.turns, window=WINDOW)
            first = await lookups.measure(options.turns, is_first=True)
            edited = await lookups.measure(options.turns, is_edited=True)
            await lookups.pool.aclose()
            rows += [
                make_row(name, f"lookup: {count:,} messages, all sent", whole["lookup"]),
                make_row(name, f"  {WINDOW} sent", windowed["lookup"]),
                make_row(name, "  first, all sent", first["lookup"]),
                make_row(name, "  edited, all sent", edited["lookup"]),
                make_row(name, "  separate: parsing", whole["parse"]),
                make_row(name, "  separate: normalising and hashing", whole["hash"]),
            ]
            if name == "sqlite":
                file = database.url.database or ""
                rows.append(
                    make_row(name, "  floor: read", measure_floor(file, chat_id, options.turns))
                )
    return rows


async def run(options: argparse.Namespace) -> list[Row]:
    lines = read_utterances(options.data)
    texts = join_utterances(lines, get_tokenizer("o200k_base").count, MESSAGE_TOKENS)
    rows: list[Row] = []
    for name in list_databases(options):
        for part, bench in PARTS.items():
            if options.only not in {None, part}:
                continue
            with TemporaryDirectory() as folder, use_hashed_words():
                async with create_database(name) as url:
                    database, settings = Database(url), make_settings(url, Path(folder))
                    rows += await bench(name, database, settings, texts, options)
                    await database.dispose()
    return rows


PARTS = {"lookup": bench_lookups, "first-token": bench_first_tokens}


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("endpoint", __doc__)
    add_database_option(parser)
    parser.add_argument("--only", choices=list(PARTS), help="measure only this part")
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--messages", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs
