"""The statements and transactions of a turn on PostgreSQL, where each is a round trip or more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select

from backend.app import SWEEP_SECONDS
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.models import Job
from tests.support.server import running
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

PATIENCE = 30.0
"""Seconds in which turns are taken. The one with the fewest statements counts, because others may
contain periodic work, and announcements until the process knows that it is alone."""
MAX_STATEMENTS = 25
MAX_COMMITS = 4
MAX_TRANSACTIONS = 8
"""Two of them are single statements, for which nothing is sent but the statement."""

SWEEP_BEGINS = "SELECT max(storage_ledger.id)"
"""The first words of a statement that each sweep sends once."""


@dataclass
class Traffic:
    """The statements and transactions of an engine."""

    statements: list[str] = field(default_factory=list[str])
    transactions: int = 0
    commits: int = 0

    @property
    def is_small(self) -> bool:
        return (
            len(self.statements) <= MAX_STATEMENTS
            and self.commits <= MAX_COMMITS
            and self.transactions <= MAX_TRANSACTIONS
        )


@contextmanager
def count_traffic(engine: Engine) -> Generator[Traffic]:
    traffic = Traffic()

    def note_statement(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        traffic.statements.append(text)

    def note_begin(*_: Any) -> None:
        traffic.transactions += 1

    def note_commit(*_: Any) -> None:
        traffic.commits += 1

    listeners = {
        "before_cursor_execute": note_statement,
        "begin": note_begin,
        "commit": note_commit,
    }
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    try:
        yield traffic
    finally:
        for name, listener in listeners.items():
            event.remove(engine, name, listener)


@pytest.fixture
async def observer(postgres_url: str) -> AsyncGenerator[Database]:
    """Connections that are not counted."""
    observer = Database(postgres_url)
    yield observer
    await observer.dispose()


async def test_a_plain_turn_with_its_jobs_takes_few_statements(
    postgres_url: str, observer: Database, tmp_path: Path
) -> None:
    async def are_jobs_over() -> bool:
        async with observer.read() as session:
            is_due = Job.state.in_(("queued", "running")), Job.run_after <= now()
            return not await session.scalar(select(func.count()).where(*is_due))

    taken: list[Traffic] = []
    async with running(postgres_url, tmp_path, embedder="none") as server:
        engine = server.parts.database.engine.sync_engine
        async with server.account("ada") as ada:
            chat = (await ada.new_chat(title="The Drowned Coast"))["id"]
            await ada.turn(chat, text="I wait for Marlena.")
            await until(are_jobs_over)

            async def is_turn_cheap() -> bool:
                with count_traffic(engine) as traffic:
                    await ada.turn(chat, text="I wait for Marlena.")
                    await until(are_jobs_over)
                taken.append(traffic)
                return traffic.is_small

            with suppress(TimeoutError):
                await until(is_turn_cheap, seconds=PATIENCE)
    best = min(taken, key=lambda each: len(each.statements))
    assert taken[-1].is_small, best


@pytest.mark.thorough
async def test_an_idle_process_takes_at_most_one_statement_a_second(
    postgres_url: str, tmp_path: Path
) -> None:
    async with running(postgres_url, tmp_path, embedder="none") as server:
        engine = server.parts.database.engine.sync_engine
        with count_traffic(engine) as traffic:

            def count_sweeps() -> int:
                return sum(each.startswith(SWEEP_BEGINS) for each in traffic.statements)

            await until_true(lambda: count_sweeps() == 1)
            before = len(traffic.statements)
            await until_true(lambda: count_sweeps() > 1)
    # At least this time is between two sweeps. Heartbeats use another engine.
    assert len(traffic.statements) - before <= SWEEP_SECONDS, traffic.statements
