"""The job queue: jobs are added in the transaction that causes the work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import KeyMode
from backend.database.base import UNSYNCHRONIZED, get_table, new_id, now
from backend.database.engine import Database, after_commit
from backend.jobs.claims import ENDED_VALUES
from backend.jobs.models import IS_WAITING, SYSTEM_SHARE, Job
from backend.vault.root import RootKeys
from backend.vault.sealing import Sealer
from backend.vault.slots import wrap_lent

WAKE_DELAY_SECONDS = 0.01
"""Delay before workers wake, so that the request that added the job is answered first."""

NEWS_SECONDS = 0.05
"""Longest delay after an announcement of another process. Processes look at different moments, so
that most of them find that the job is taken."""

GRANT_DURATION = timedelta(hours=24)
"""Lifetime of a job's copy of its user's key."""


NO_GRANT_VALUES: dict[str, Any] = {
    "state": "queued",
    "wrapped_key": None,
    "root_version": None,
    "key_until": None,
}


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to add.

    At most one job with the same `dedupe_key` waits. A new one is dropped while another waits, so
    their payloads must be equivalent. Jobs of the same `lane` run one at a time. `payload` contains
    ids and numbers, but no text, because it is not sealed.
    """

    kind: str
    user_id: UUID | None = None
    lane: UUID | None = None
    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    dedupe_key: str | None = None
    run_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobKey:
    """The source of a job's user key, by the user's key mode.

    `per_job`: the job's row contains the key, wrapped for this job. `managed`: the standing slot
    contains the key. `sealed`: the job waits for a process where the user is signed in.
    """

    sealer: Sealer = field(repr=False)
    key_mode: KeyMode
    root: RootKeys = field(repr=False)

    def columns(self, job_id: UUID, user_id: UUID | None, at: datetime) -> dict[str, Any]:
        """Return a row's key columns and `state`. Raises `ValueError` for another user's job."""
        if user_id is None or user_id != self.sealer.user_id:
            raise ValueError("The key belongs to another user.")
        found = dict(NO_GRANT_VALUES)
        if self.key_mode == "sealed":
            found["state"] = "waiting_key"
        if self.key_mode == "per_job":
            found["root_version"], found["wrapped_key"] = wrap_lent(
                "job", job_id, user_id, user_key=self.sealer.user_key, root=self.root
            )
            found["key_until"] = at + GRANT_DURATION
        return found


async def _renew_key(session: AsyncSession, job: NewJob, key: JobKey, at: datetime) -> None:
    """Give the key of the dropped `job` to the waiting one, if its own key expires soon."""
    if key.key_mode == "sealed":
        return
    is_it = (
        Job.dedupe_key == job.dedupe_key,
        Job.user_id == job.user_id,
        Job.state.in_(("queued", "waiting_key")),
    )
    found = await session.execute(select(Job.id, Job.state, Job.key_until).where(*is_it))
    if (waiting := found.one_or_none()) is None:
        return
    holds = waiting.key_until is not None and waiting.key_until >= at + GRANT_DURATION / 2
    if waiting.state == "queued" and (holds or key.key_mode == "managed"):
        return
    values = {"updated_at": at, **key.columns(waiting.id, job.user_id, at)}
    query = update(Job).where(Job.id == waiting.id, *is_it).values(values)
    await session.execute(query, execution_options=UNSYNCHRONIZED)


@cache
def _insert(dialect: str) -> Any:
    """Return the statement that inserts a job unless one with its dedupe key waits.

    It returns the id of the waiting job on PostgreSQL, and only that of a new one on SQLite. A
    worker must not take the waiting job before this transaction has committed, otherwise it would
    not see the new work. PostgreSQL therefore locks its row, which workers skip. SQLite has one
    writer at a time.
    """
    table = get_table(Job)
    waits: dict[str, Any] = {"index_elements": ["dedupe_key"], "index_where": IS_WAITING}
    if dialect == "postgresql":
        statement = postgresql.insert(table).on_conflict_do_update(
            **waits, set_={"updated_at": table.c.updated_at}
        )
        return statement.returning(table.c.id)
    return sqlite.insert(table).on_conflict_do_nothing(**waits).returning(table.c.id)


async def insert_job(
    session: AsyncSession, job: NewJob, *, key: JobKey | None = None
) -> UUID | None:
    """Add a job as `JobQueue.enqueue` does, without waking the workers."""
    job_id, at = new_id(), now()
    row: dict[str, Any] = {
        "id": job_id,
        "user_id": job.user_id,
        "share": job.user_id or SYSTEM_SHARE,
        "kind": job.kind,
        "lane": job.lane,
        "payload": msgspec.json.encode(job.payload).decode(),
        "dedupe_key": job.dedupe_key,
        **(NO_GRANT_VALUES if key is None else key.columns(job_id, job.user_id, at)),
        "attempts": 0,
        "leases_lost": 0,
        "fence": 0,
        "progress_done": 0,
        "progress_total": 0,
        "run_after": job.run_after or at,
        "created_at": at,
        "updated_at": at,
    }
    found: UUID | None = await session.scalar(_insert(session.get_bind().dialect.name), row)
    if found == job_id:
        return found
    if key is not None and job.dedupe_key is not None:
        await _renew_key(session, job, key, at)
    return None


class WakeUp(asyncio.Event):
    """An event that a worker waits for.

    `is_sure` is false if there may be no work: another process announced a job, which a third one
    may have taken, or a job ended, which may have held up others.
    """

    is_sure = False

    def set(self) -> None:
        self.is_sure = True
        super().set()

    def hint(self) -> None:
        """Let the worker look whether there is work."""
        super().set()

    def clear(self) -> None:
        self.is_sure = False
        super().clear()


class JobQueue:
    """Adds jobs, and wakes the workers.

    `announce` wakes those of other processes. `loss_count` is increased when the leases of a lost
    process have ended.
    """

    def __init__(self, database: Database, root: RootKeys) -> None:
        self.database = database
        self.announce: Callable[[], None] | None = None
        self.loss_count = 0
        self._root = root
        self._listeners: set[WakeUp] = set()
        self._news: asyncio.TimerHandle | None = None

    def grant(self, sealer: Sealer, key_mode: KeyMode) -> JobKey:
        return JobKey(sealer, key_mode, self._root)

    async def enqueue(
        self, session: AsyncSession, job: NewJob, *, key: JobKey | None = None
    ) -> UUID | None:
        """Add a job in the caller's transaction, and wake the workers after the commit.

        A job with `run_after` wakes none of them. They find it when they look after that time.

        Returns its id, or None if a job with its dedupe key already waits. That one gets the key if
        it has none. A job without a key that needs one waits until its user signs in.
        """
        if job.run_after is None:
            after_commit(session, self._wake_soon)
        return await insert_job(session, job, key=key)

    async def stop_running(
        self,
        session: AsyncSession,
        user_id: UUID,
        *,
        lanes: Sequence[UUID],
        kinds: Sequence[str],
        payload: Mapping[str, Any],
        error: str,
    ) -> None:
        """End running jobs of a user in the caller's transaction. Their workers lose them.

        A job that is writing is skipped: it locks its row, and may wait for rows that the caller
        has locked. `payload` are members that the job's payload must contain.
        """
        query = select(Job.id, Job.payload).where(
            Job.user_id == user_id,
            Job.lane.in_(lanes),
            Job.state == "running",
            Job.kind.in_(kinds),
        )
        rows = await session.execute(query.with_for_update(skip_locked=True))
        found = [
            row.id for row in rows if payload.items() <= msgspec.json.decode(row.payload).items()
        ]
        ended = {**ENDED_VALUES, "state": "done", "error": error, "updated_at": now()}
        await session.execute(
            update(Job).where(Job.id.in_(found)).values(ended),
            execution_options=UNSYNCHRONIZED,
        )
        after_commit(session, self.wake)

    def wake(self) -> None:
        self.wake_here()
        if self.announce is not None:
            self.announce()

    def wake_here(self) -> None:
        for listener in self._listeners:
            listener.set()

    def note_news(self) -> None:
        """Let the workers of this process look soon for jobs that another process has announced."""
        if self._news is None:
            delay = random.random() * NEWS_SECONDS  # noqa: S311  # no secret
            self._news = asyncio.get_running_loop().call_later(delay, self._hint)

    def _hint(self) -> None:
        self._news = None
        for listener in self._listeners:
            listener.hint()

    def note_loss(self) -> None:
        """Let the workers of this process look for jobs with expired leases."""
        self.loss_count += 1
        self.wake_here()

    def _wake_soon(self) -> None:
        asyncio.get_running_loop().call_later(WAKE_DELAY_SECONDS, self.wake)

    @contextmanager
    def listen(self, listener: WakeUp) -> Generator[None]:
        """Let `wake`, `wake_here` and `note_news` set an event until the end of the block."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)
