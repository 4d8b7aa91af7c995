"""Putting work into the queue, in the transaction that causes it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
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
"""New work waits so long for what caused it to be answered: both want the same processor."""

GRANT_DURATION = timedelta(hours=24)
"""A job's own copy of its user's key is gone after this, whether it ran or not."""


NO_GRANT_VALUES: dict[str, Any] = {
    "state": "queued",
    "wrapped_key": None,
    "root_version": None,
    "key_until": None,
}
"""What of a new row has to do with keys, where it carries none."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """Work to be done.

    Of jobs with one `dedupe_key` at most one waits; one that comes while another waits is absorbed
    by it, so their payloads have to mean the same. Jobs of one `lane` run one after the other. The
    `payload` holds ids and numbers, never text: it is not sealed.
    """

    kind: str
    user_id: UUID | None = None
    lane: UUID | None = None
    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    dedupe_key: str | None = None
    run_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobKey:
    """How a job will come by its user's key: as the user's mode says.

    `per_job`: the job carries the key, wrapped for it alone. `managed`: it carries none, for the
    standing slot opens. `sealed`: it waits for a process that has the key while its user is there.
    """

    sealer: Sealer = field(repr=False)
    key_mode: KeyMode
    root: RootKeys = field(repr=False)

    def columns(self, job_id: UUID, user_id: UUID | None, at: datetime) -> dict[str, Any]:
        """What of a job's row has to do with its key, `state` included.

        Raises `ValueError` for another user's job.
        """
        if user_id is None or user_id != self.sealer.user_id:
            raise ValueError("A job carries the key of its own user.")
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
    """Give the waiting job that absorbed `job` its key, where it has none that holds for long."""
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
    """A job, unless one with its dedupe key waits: gives back the id of what waits afterwards.

    A transaction that relies on a job which waits already must commit before a worker takes it, or
    the worker does not see what it is to do. PostgreSQL therefore locks the row: workers pass over
    it until the transaction is over. On SQLite nobody else writes meanwhile, and nothing is given
    back.
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
    """What `JobQueue.enqueue` does, but for waking workers: they find the job when they look."""
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


class JobQueue:
    """The way into the queue, and what tells the workers of this process that there is work."""

    def __init__(self, database: Database, root: RootKeys) -> None:
        self.database = database
        self._root = root
        self._listeners: set[asyncio.Event] = set()

    def grant(self, sealer: Sealer, key_mode: KeyMode) -> JobKey:
        """The key for jobs of a user who is here."""
        return JobKey(sealer, key_mode, self._root)

    async def enqueue(
        self, session: AsyncSession, job: NewJob, *, key: JobKey | None = None
    ) -> UUID | None:
        """Put a job into the queue, in the caller's transaction: one statement.

        Returns its id, or None when another one with its dedupe key waits already: that one gets
        the key where it lacks one. A kind that needs its user's key and was enqueued without waits
        until the user is seen. Once the transaction is committed, the workers of this process wake.
        """
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
        """End jobs of a user that run, in the caller's transaction: their workers lose them.

        One that writes at this very moment is left alone: it holds its row, and may wait for rows
        that the caller holds.

        Args:
            session: The caller's.
            user_id: The jobs' owner.
            lanes: Lanes in which to look.
            kinds: Kinds of the jobs.
            payload: Members that a job's payload has to have.
            error: The slug of the reason.
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
        """Tell the workers of this process that there may be work."""
        for listener in self._listeners:
            listener.set()

    def _wake_soon(self) -> None:
        asyncio.get_running_loop().call_later(WAKE_DELAY_SECONDS, self.wake)

    @contextmanager
    def listening(self, listener: asyncio.Event) -> Generator[None]:
        """Have `wake` set an event, for the length of the block."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)
