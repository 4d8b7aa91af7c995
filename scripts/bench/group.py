"""Measure turns of groups against those of a chat with one character.

All chats have the same messages, in groups with presence changes and whispers. Turns are timed in
pairs: one of each chat after the other, because the speed of a machine changes from minute to
minute. The speakers of a group are chosen in the usual way: by mention, or else by a draw. Then
comes the size of a message's row. The floor would be a list of those who were there at each one.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import httpx
import uvloop
from sqlalchemy import LargeBinary, Text, cast, func, select
from sqlalchemy import text as statement

from backend.chats.models import ChatCharacter, Message
from backend.core.audience import encode_audience
from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from scripts.bench.application import (
    Account,
    index_container,
    make_chat,
    make_settings,
    open_account,
    open_client,
    serve,
    use_hashed_words,
    wait_until_idle,
)
from scripts.bench.data import CRD3, Lines, join_utterances, make_utterances, read_utterances
from scripts.bench.processes import check, create_database
from scripts.bench.stopwatch import (
    WARM_UP_TURNS,
    OneModelRegistry,
    StopwatchModel,
    format_turn,
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

SIZES = (1, 2, 5, 12)
"""Members of the chats. The first one is the solo chat."""

MESSAGES = 1_000
MESSAGE_TOKENS = 60
HISTORY_TOKENS = 30_000
"""The budget of the history, so that a turn searches for older messages."""

CHANGE_INTERVAL, WHISPER_INTERVAL = 40, 15
"""Messages from one change of presence to the next, and from one whisper to the next."""

AIM = 1.15
"""The time of a turn in a group, as a factor of the time of a solo chat."""

NAMES = (
    "Alda", "Bor", "Cara", "Dov", "Esk", "Fenn", "Gild", "Hale", "Ivo", "Jorn", "Kest", "Lune",
)  # fmt: skip
CARD = "{name} is a smuggler of the delta. Hair: red. Eyes: grey. Wears a long coat. " + (
    "{name} grew up on the ferries, owes money to the toll keepers and trusts no clerk. " * 12
)

_END = b"0\r\n\r\n"
_FIRST_TOKEN = b"event: text.delta"


@dataclass
class GroupTimes:
    """Milliseconds of turns until the model is called, the first token comes, and the end."""

    called: list[float] = field(default_factory=list[float])
    first: list[float] = field(default_factory=list[float])
    whole: list[float] = field(default_factory=list[float])


async def bench_groups(name: DatabaseName, folder: Path, lines: Lines, turns: int) -> list[Row]:
    """Return the rows of one database."""
    async with create_database(name) as url:
        model = StopwatchModel()
        account = await _open_account(url, folder, model, is_new=True)
        count = get_tokenizer("o200k_base").count
        texts = join_utterances(lines, count, MESSAGE_TOKENS)
        async with serve(account) as port, open_client(account, port) as api:
            characters = [await _make_character(api, each) for each in NAMES]
            chats = {size: await _make_group(account, texts, characters[:size]) for size in SIZES}
            for chat_id in chats.values():
                await index_container(account, "message", chat_id)
                body = {"budgets": {"history": HISTORY_TOKENS}}
                check(await api.patch(f"/chats/{chat_id}/settings", json=body))
            await wait_until_idle(account)
            async with account.database.write() as session:
                await session.execute(statement("ANALYZE"))
        # A second server, because a start optimises the index and SQLite.
        account = await _open_account(url, folder, model, is_new=False)
        async with serve(account) as port:
            times = await _time_pairs(account, port, model, chats, turns)
        return [*_list_times(name, times), *await _measure_rows(name, account.database, chats)]


async def _open_account(url: str, folder: Path, model: StopwatchModel, *, is_new: bool) -> Account:
    with use_hashed_words():
        settings = make_settings(url, folder)
        registry = OneModelRegistry(model)
        return await open_account(
            settings, Database(url), "bench", is_new=is_new, registry=registry
        )


async def _make_character(api: httpx.AsyncClient, name: str) -> UUID:
    card = {"name": name, "description": CARD.format(name=name)}
    return UUID(check(await api.post("/characters", json=card))["id"])


async def _make_group(account: Account, texts: Sequence[str], members: Sequence[UUID]) -> UUID:
    """Store a chat. In a group, members leave and return, and whisper to each other."""
    authored = [(NAMES[place % len(members)], text) for place, text in enumerate(texts)]

    def change(position: int) -> Mapping[str, Any]:
        number = position // CHANGE_INTERVAL
        if len(members) > 1 and position and position % CHANGE_INTERVAL == 0:
            return {
                "role": "system",
                "hidden": True,
                # Each one leaves, and returns before the next one leaves.
                "character_id": members[(number - 1) // 2 % len(members)],
                "presence": "present" if number % 2 == 0 else "absent",
            }
        if len(members) > 1 and position % WHISPER_INTERVAL == 0:
            pair = [members[(number + place) % len(members)] for place in (0, 1)]
            return {"audience": encode_audience(pair)}
        return {}

    chat_id = await make_chat(account.database, account.identity, authored, MESSAGES, change)
    async with account.database.write() as session:
        session.add_all(
            ChatCharacter(chat_id=chat_id, character_id=each, place=place)
            for place, each in enumerate(members)
        )
    return chat_id


async def _time_pairs(
    account: Account, port: int, model: StopwatchModel, chats: Mapping[int, UUID], turns: int
) -> dict[int, GroupTimes]:
    times = {size: GroupTimes() for size in chats}
    settle = partial(wait_until_idle, account)
    for number in range(WARM_UP_TURNS + turns):
        order = list(chats.items())[:: -1 if number % 2 else 1]
        for size, chat_id in order:
            own = times[size] if number >= WARM_UP_TURNS else GroupTimes()
            await _time_turn(port, account.token, chat_id, model, number, own)
            await asyncio.sleep(0.02)
            await settle()
    return times


async def _time_turn(
    port: int, token: str, chat_id: UUID, model: StopwatchModel, number: int, times: GroupTimes
) -> None:
    """Measure a turn on a plain socket, because a client would add work of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = format_turn(port, f"Bearer {token}", str(chat_id), text=f"What now? ({number})")
    began = time.perf_counter()
    writer.write(request)
    answer, first = b"", 0.0
    while not answer.endswith(_END):
        part = await reader.read(65_536)
        answer += part
        if not part:
            break
        if not first and _FIRST_TOKEN in answer:
            first = time.perf_counter()
    ended = time.perf_counter()
    writer.close()
    if b"turn.completed" not in answer or not first:
        raise SystemExit(answer.decode())
    for found, at in ((times.called, model.called_at), (times.first, first), (times.whole, ended)):
        found.append(1000 * (at - began))


def _list_times(name: DatabaseName, times: Mapping[int, GroupTimes]) -> list[Row]:
    rows: list[Row] = []
    for label, attribute in (
        ("until the model is called", "called"),
        ("first token", "first"),
        ("whole turn", "whole"),
    ):
        solo: list[float] = getattr(times[SIZES[0]], attribute)
        rows.append(make_row(name, f"{label}: one character", solo))
        for size in SIZES[1:]:
            group: list[float] = getattr(times[size], attribute)
            ratios = [later / earlier for earlier, later in zip(solo, group, strict=True)]
            rows += [
                make_row(name, f"{label}: {size} members", group),
                make_row(name, "  factor of each pair", ratios, unit="", note=f"aim: {AIM} (p50)"),
            ]
    return rows


async def _measure_rows(
    name: DatabaseName, database: Database, chats: Mapping[int, UUID]
) -> list[Row]:
    """Return the mean bytes of the columns of a message."""
    kind = LargeBinary if name == "sqlite" else Text
    columns = [
        func.coalesce(func.length(cast(column, kind)), 0)
        for column in Message.__table__.columns
        # The texts differ from chat to chat, and are not what presence adds.
        if not column.name.startswith("sealed_")
    ]
    rows: list[Row] = []
    async with database.read() as session:
        for size, chat_id in chats.items():
            query = select(func.avg(sum(columns[1:], columns[0]))).where(
                Message.chat_id == chat_id, Message.position < MESSAGES
            )
            label = "one character" if size == SIZES[0] else f"{size} members"
            mean = round(float(await session.scalar(query) or 0), 1)
            rows.append(Row(name, f"row of a message without texts: {label}", mean, unit="bytes"))
    list_size = len(encode_audience([UUID(int=each) for each in range(SIZES[-1])]))
    return [*rows, Row(name, f"  floor: a list of {SIZES[-1]} ids", list_size, unit="bytes")]


async def run(options: argparse.Namespace) -> list[Row]:
    lines = make_utterances() if options.small else read_utterances(options.data)
    rows: list[Row] = []
    for name in list_databases(options):
        with TemporaryDirectory(prefix="bench-") as folder:
            rows += await bench_groups(name, Path(folder), lines, options.turns)
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("group", __doc__)
    add_database_option(parser)
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--small", action="store_true", help="use invented lines, for development")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs
