"""Ledgers of stored bytes and used tokens: reading, folding, and a nightly recount.

The triggers of `database.stored_bytes` write the ledger of stored bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, time, timedelta
from uuid import UUID

from sqlalchemy import (
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys.sealed_tables import SealedTable, find_model_tables
from backend.accounts.models import User
from backend.core.logs import get_logger
from backend.database.base import get_table, new_id, now
from backend.database.engine import Database
from backend.database.stored_bytes import ROW_BYTES
from backend.database.writes import Upsert, upsert_all
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.quotas.models import StorageLedger, TokenLedger

log = get_logger(__name__)

UNCOUNTED_TABLES = frozenset({"users", "key_slots", "second_factors", "account_activity"})
"""Tables with sealed columns but without content: settings, keys, second factors, activity."""

MIN_ROWS_TO_FOLD = 64
"""Number of ledger rows of one user from which they are folded into one."""

_FOLD_AT_ONCE = 5000

RECOUNT_KIND = "quotas.recount"
RECOUNT_TIME = time(hour=4, tzinfo=UTC)
TOKEN_RETENTION = timedelta(days=31)

_SPENT = insert(get_table(TokenLedger))
_TODAY = select(func.coalesce(func.sum(TokenLedger.tokens), 0)).where(
    TokenLedger.user_id == bindparam("owner"), TokenLedger.day == bindparam("today")
)
_STORED = select(func.coalesce(func.sum(StorageLedger.bytes), 0)).where(
    StorageLedger.user_id == bindparam("owner")
)


async def add_tokens(session: AsyncSession, user_id: UUID, tokens: int) -> None:
    """Add tokens to today's usage."""
    await upsert_all(session, [note_tokens(user_id, tokens)])


def note_tokens(user_id: UUID, tokens: int) -> Upsert:
    """Return the write that adds tokens to today's usage."""
    row = {"id": new_id(), "user_id": user_id, "day": now().date(), "tokens": tokens}
    return Upsert(TokenLedger, [row] if tokens > 0 else [])


async def add_tokens_if_account(session: AsyncSession, user_id: UUID, tokens: int) -> None:
    """Add tokens of work whose chat was deleted, unless the account was deleted as well."""
    if await session.scalar(select(exists().where(User.id == user_id))):
        await add_tokens(session, user_id, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedUsage:
    """Turns and runs of one model that no chat lists, and their tokens."""

    model: str
    turns: int = 0
    runs: int = 0
    unreported: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    thinking_tokens: int = 0


async def add_unlisted(
    session: AsyncSession, user_id: UUID, usages: Iterable[UnlistedUsage], *, tokens: int = 0
) -> None:
    """Keep usage that no chat lists, and add `tokens` to today's usage.

    Does nothing if the account was deleted.
    """
    day = now().date()
    rows = [{"user_id": user_id, "day": day, "tokens": 0, **asdict(each)} for each in usages]
    if rows and await session.scalar(select(exists().where(User.id == user_id))):
        rows[0]["tokens"] = tokens
        await session.execute(_SPENT, rows)


async def count_tokens_today(session: AsyncSession, user_id: UUID) -> int:
    """Return the tokens used today (UTC)."""
    return await session.scalar(_TODAY, {"owner": user_id, "today": now().date()}) or 0


def find_counted_tables() -> Sequence[SealedTable]:
    """Return the imported tables that count as storage."""
    return [each for each in find_model_tables() if each.table.name not in UNCOUNTED_TABLES]


async def count_stored_bytes(session: AsyncSession, user_id: UUID) -> int:
    return int(await session.scalar(_STORED, {"owner": user_id}) or 0)


async def fold_ledger(database: Database) -> int:
    """Fold the rows of each user with many rows into one. Return the number of these users."""
    many = (
        select(StorageLedger.user_id)
        .group_by(StorageLedger.user_id)
        .having(func.count() >= MIN_ROWS_TO_FOLD)
    )
    async with database.read() as session:
        users = list(await session.scalars(many))
    for user_id in users:
        while await _fold(database, user_id) == _FOLD_AT_ONCE:
            pass
    return len(users)


async def _fold(database: Database, user_id: UUID) -> int:
    oldest = (
        select(StorageLedger.id)
        .where(StorageLedger.user_id == user_id)
        .order_by(StorageLedger.id)
        .limit(_FOLD_AT_ONCE)
    )
    async with database.write() as session:
        # Only the deleted rows are summed, so new rows are kept, and a concurrent fold finds none.
        gone = list(
            await session.scalars(
                delete(StorageLedger)
                .where(StorageLedger.id.in_(oldest))
                .returning(StorageLedger.bytes)
                .execution_options(synchronize_session=False)
            )
        )
        if gone:
            await _add_line(session, user_id, sum(gone))
    return len(gone)


async def _add_line(session: AsyncSession, user_id: UUID, size: int) -> None:
    """Add a row, unless the account was deleted."""
    if await session.scalar(select(exists().where(User.id == user_id))):
        await session.execute(insert(StorageLedger).values(user_id=user_id, bytes=size))


async def recount(database: Database, user_id: UUID) -> int:
    """Compare a user's ledger with the tables, and return the difference in bytes.

    Both are read in one snapshot, and the difference is added as a row. So concurrent changes are
    counted once, and no request has to wait.
    """
    sizes = [
        select(func.coalesce(func.sum(each.size + literal(ROW_BYTES)), 0))
        .where(each.owner == user_id)
        .scalar_subquery()
        for each in find_counted_tables()
    ]
    async with database.read() as session:
        counted = int(await session.scalar(select(sum(sizes, start=literal(0)))) or 0)
        drift = counted - await count_stored_bytes(session, user_id)
    if drift:
        log.warning("storage.ledger_mended", user_id=user_id, bytes=drift)
        async with database.write() as session:
            await _add_line(session, user_id, drift)
    return drift


class NightlyRecount:
    """The job that compares every user's ledger with the tables, and deletes old token usage."""

    def __init__(self, database: Database, queue: JobQueue) -> None:
        self._database = database
        self._queue = queue

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {RECOUNT_KIND: JobKind(self.run, needs_key=False)}

    async def schedule(self) -> None:
        """Queue tonight's job, unless it is already queued."""
        async with self._database.write() as session:
            await self._queue.enqueue(session, _make_next_job())

    async def run(self, job: RunningJob) -> None:
        """Recount every user, and queue the job of the next night."""
        async with self._database.read() as session:
            users = list(await session.scalars(select(User.id).order_by(User.id)))
        for number, user_id in enumerate(users):
            await job.progress(number, len(users))
            await recount(self._database, user_id)
        async with job.finish() as session:
            oldest = now().date() - TOKEN_RETENTION
            await session.execute(delete(TokenLedger).where(TokenLedger.day < oldest))
            await self._queue.enqueue(session, _make_next_job())


def _make_next_job() -> NewJob:
    at = datetime.combine(now().date(), RECOUNT_TIME)
    if at <= now():
        at += timedelta(days=1)
    return NewJob(kind=RECOUNT_KIND, dedupe_key=RECOUNT_KIND, run_after=at)
