"""Ledgers of stored bytes and used tokens: reading, folding, and a nightly recount.

The triggers of `database.stored_bytes` write the ledger of stored bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import (
    bindparam,
    delete,
    distinct,
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
from backend.database.batches import Batches
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

_FIRST_ROWS = 100_000
"""Newest rows that the first fold of a process looks at. Other users are folded after a new row."""

FOLDED_DAYS = 3
"""Number of days before today that are folded. The job looks at each of them many times."""

_USERS_PER_PAGE = 500

RECOUNT_KIND = "quotas.recount"
_NEWEST = "newest"
RECOUNT_TIME = time(hour=4, tzinfo=UTC)
TOKEN_RETENTION = timedelta(days=31)
"""The current month is shown, and the current day is limited. No one reads earlier usage."""

_LEDGER = get_table(TokenLedger)
_SPENT = insert(_LEDGER)
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


_SUMMED = ("tokens", *(each.name for each in fields(UnlistedUsage) if each.name != "model"))


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


async def fold_tokens(batches: Batches, *, today: date) -> None:
    """Fold the token ledger of the days before today into a row for each user, day and model."""
    ledger = TokenLedger
    models = func.count(distinct(func.coalesce(ledger.model, "")))
    for day in (today - timedelta(days=ago) for ago in range(1, FOLDED_DAYS + 1)):
        last = UUID(int=0)
        while True:
            several = (
                select(ledger.user_id)
                .where(ledger.day == day, ledger.user_id > last)
                .group_by(ledger.user_id)
                .having(func.count() > models)
                .order_by(ledger.user_id)
                .limit(_USERS_PER_PAGE)
            )
            async with batches.database.read() as session:
                users = list(await session.scalars(several))
            for user_id in users:
                await batches.run(partial(_fold_tokens, user_id=user_id, day=day))
            if len(users) < _USERS_PER_PAGE:
                break
            last = users[-1]


async def _fold_tokens(session: AsyncSession, *, user_id: UUID, day: date) -> int:
    """Fold one day of a user. Rows that are added at the same time stay as they are."""
    gone = delete(_LEDGER).where(_LEDGER.c.user_id == user_id, _LEDGER.c.day == day)
    rows = (await session.execute(gone.returning(*_LEDGER.c))).mappings().all()
    sums: dict[str | None, Counter[str]] = {}
    for row in rows:
        sums.setdefault(row["model"], Counter()).update({name: row[name] for name in _SUMMED})
    if sums and await session.scalar(select(exists().where(User.id == user_id))):
        own = {"user_id": user_id, "day": day}
        await session.execute(
            _SPENT,
            [
                {**own, "model": model, **{name: counts[name] for name in _SUMMED}}
                for model, counts in sums.items()
            ],
        )
    return len(rows)


async def count_stored_bytes(session: AsyncSession, user_id: UUID) -> int:
    return int(await session.scalar(_STORED, {"owner": user_id}) or 0)


class LedgerFolder:
    """Folds the ledger of stored bytes. Each call reads the users of rows since the last one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: int | None = None

    async def fold(self) -> None:
        """Fold the rows of each user with many rows and a new one into one row."""
        async with self._database.read() as session:
            newest = await _find_newest(session)
            last = newest - _FIRST_ROWS if self._newest is None else min(self._newest, newest)
            recent = select(StorageLedger.user_id).where(StorageLedger.id > last)
            many = (
                select(StorageLedger.user_id)
                .where(StorageLedger.user_id.in_(recent))
                .group_by(StorageLedger.user_id)
                .having(func.count() >= MIN_ROWS_TO_FOLD)
            )
            users = list(await session.scalars(many))
        for user_id in users:
            while await _fold(self._database, user_id) == _FOLD_AT_ONCE:
                pass
        # A row with a lower id may be committed later. Its user's next row has a higher one.
        async with self._database.read() as session:
            # SQLite gives the ids of deleted rows again if they were the newest.
            self._newest = min(newest, await _find_newest(session))


async def _find_newest(session: AsyncSession) -> int:
    return await session.scalar(select(func.max(StorageLedger.id))) or 0


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
    counted once, and no request has to wait. Accounts that are being deleted are skipped.
    """
    sizes = [
        select(func.coalesce(func.sum(each.size + literal(ROW_BYTES)), 0))
        .where(each.owner == user_id)
        .scalar_subquery()
        for each in find_counted_tables()
    ]
    is_open = exists().where(User.id == user_id, User.deleted_at.is_(None))
    async with database.read() as session:
        if not await session.scalar(select(is_open)):
            return 0
        counted = int(await session.scalar(select(sum(sizes, start=literal(0)))) or 0)
        drift = counted - await count_stored_bytes(session, user_id)
    if drift:
        log.warning("storage.ledger_mended", user_id=user_id, bytes=drift)
        async with database.write() as session:
            await _add_line(session, user_id, drift)
    return drift


class NightlyRecount:
    """The job that compares the ledgers with the tables.

    Each night it counts the accounts with new rows since the last one, and in the first night all
    accounts. Its payload has the newest row of the ledger at that time.
    """

    def __init__(self, database: Database, queue: JobQueue) -> None:
        self._database = database
        self._queue = queue

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {RECOUNT_KIND: JobKind(self.run, needs_key=False)}

    async def schedule(self) -> None:
        """Queue tonight's job, unless it is already queued."""
        async with self._database.write() as session:
            await self._queue.enqueue(session, _make_next_job({}))

    async def run(self, job: RunningJob) -> None:
        """Recount users, and queue the job of the next night."""
        # SQLite gives the ids of deleted rows again if they were the newest.
        last = 0 if self._database.is_sqlite else job.payload.get(_NEWEST, 0)
        async with self._database.read() as session:
            newest = await _find_newest(session)
            changed = select(StorageLedger.user_id).where(StorageLedger.id > last).distinct()
            users = list(await session.scalars(changed))
        for number, user_id in enumerate(users):
            await job.progress(number, len(users))
            await recount(self._database, user_id)
        async with job.finish() as session:
            await self._queue.enqueue(session, _make_next_job({_NEWEST: newest}))


def _make_next_job(payload: dict[str, int]) -> NewJob:
    at = datetime.combine(now().date(), RECOUNT_TIME)
    if at <= now():
        at += timedelta(days=1)
    return NewJob(kind=RECOUNT_KIND, payload=payload, dedupe_key=RECOUNT_KIND, run_after=at)
