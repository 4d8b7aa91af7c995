"""Fill PostgreSQL with accounts, each with a chat of sealed messages.

    python -m scripts.bench.scale.fill URL ROOT_KEY FIRST LAST MESSAGES [TRANSCRIPTS]

It makes the accounts FIRST to LAST - 1 and prints a line of JSON for each: its number, an API key
and the id of its chat. Several of these processes may run at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from backend.chats.models import Message
from backend.chats.token_counting import CountUnit
from backend.container import Services, build_services
from backend.core.logs import configure_logging
from backend.database.base import get_table
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.vault.root import parse_root_keys
from scripts.bench.application import CHEAP_KDF, make_chat_rows, make_settings
from scripts.bench.data import make_utterances, read_utterances
from scripts.bench.processes import PASSWORD

UNIT = CountUnit("o200k_base", names=False)
MIN_USERS = 50
"""Accounts for which a process is worth its start."""
MAX_TEXTS = 20_000
"""Texts that are used in turn. More take longer to count, and change nothing."""


@dataclass(frozen=True)
class Player:
    """An account with a chat. `number` is its place among all accounts."""

    number: int
    token: str
    chat_id: str


async def fill(
    url: str, root_key: str, users: range, messages: int, transcripts: Path | None
) -> list[Player]:
    """Make accounts in up to two processes, and analyse the tables."""
    size = max(MIN_USERS, -(-len(users) // 2))
    starts = range(users.start, users.stop, size)
    found = await asyncio.gather(
        *(
            _start(url, root_key, start, min(start + size, users.stop), messages, transcripts or "")
            for start in starts
        )
    )
    database = Database(url)
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        # Otherwise autovacuum would do it during the measurement.
        await connection.exec_driver_sql("VACUUM (ANALYZE)")
    await database.dispose()
    return [player for part in found for player in part]


async def _start(*arguments: object) -> list[Player]:
    command = (sys.executable, "-m", "scripts.bench.scale.fill", *map(str, arguments))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise SystemExit("The database could not be filled.")
    return [Player(**json.loads(line)) for line in output.splitlines()]


async def _make_accounts(
    services: Services, users: range, messages: int, transcripts: Path | None
) -> AsyncIterator[Player]:
    lines = (read_utterances(transcripts) if transcripts else make_utterances())[:MAX_TEXTS]
    counts = UNIT.count_many([("", text) for _, text in lines])
    counted = list(zip(lines, counts, strict=True))
    for number in users:
        name = f"player {number}"
        unlocked = await services.accounts.sign_up(name, PASSWORD, invitation=None, address="")
        session_token = await services.sessions.open_session(unlocked, label=name, is_new=True)
        identity = await services.sessions.authenticate(session_token, kind="session")
        if identity is None:
            raise SystemExit("The session does not open.")
        token, _ = await services.sessions.make_api_key(
            identity, label=name, scope="chat", expires_at=None
        )
        # Each chat begins at another line.
        start = number * messages % len(counted)
        own = list(islice(cycle(counted), start, start + messages))
        chat, rows = make_chat_rows(identity, own, UNIT)
        async with services.database.write() as session:
            session.add(chat)
            await session.flush()
            await _copy(await session.connection(), rows)
        yield Player(number, token, str(chat.id))


async def _copy(connection: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Store messages by COPY, in the transaction of the connection."""
    raw = await connection.get_raw_connection()
    names = list(rows[0])
    await raw.driver_connection.copy_records_to_table(
        get_table(Message).name, records=[tuple(row.values()) for row in rows], columns=names
    )


async def run(arguments: Sequence[str]) -> None:
    url, root_key, first, last, messages, transcripts = [*arguments, ""][:6]
    database = Database(url)
    with TemporaryDirectory(prefix="bench-") as folder:
        services = await build_services(
            make_settings(url, Path(folder), embedder="none"),
            parse_root_keys(root_key),
            database,
            kdf=CHEAP_KDF,
            registry=ModelRegistry(demo_tokens_per_second=0),
        )
        users = range(int(first), int(last))
        found = _make_accounts(
            services, users, int(messages), Path(transcripts) if transcripts else None
        )
        async for player in found:
            print(json.dumps(vars(player)))
        await services.memory.aclose()
    await database.dispose()


if __name__ == "__main__":
    configure_logging("error", "json")
    uvloop.run(run(sys.argv[1:]))
