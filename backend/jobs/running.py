"""A job while it is worked on: what its handler is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.engine import Database
from backend.jobs import claims
from backend.jobs.claims import Claimed, Lease
from backend.jobs.errors import LostLeaseError
from backend.jobs.models import Job
from backend.vault.sealing import Sealer

PROGRESS_EVERY = timedelta(seconds=1)
"""How often progress is stored, at most."""

Clock = Callable[[], datetime]


class RunningJob:
    """One attempt at a job.

    What a handler changes, it changes in `finish` or `step`: both make sure, in the transaction
    itself, that the job is still this worker's. `payload` is what was enqueued, or what the last
    `checkpoint` left. `sealer` is None where the kind needs no key. `attempt` counts from 1.
    """

    def __init__(
        self,
        database: Database,
        claimed: Claimed,
        *,
        owner: UUID,
        sealer: Sealer | None,
        keep: bool,
        lease: timedelta,
        clock: Clock,
    ) -> None:
        self.id = claimed.id
        self.user_id = claimed.user_id
        self.kind = claimed.kind
        self.lane = claimed.lane
        self.attempt = claimed.attempts
        self.payload: dict[str, Any] = msgspec.json.decode(claimed.payload, type=dict[str, Any])
        self.lease = Lease(claimed.id, owner, claimed.fence)
        self.is_over = False
        self.is_writing = False
        self._sealer = sealer
        self._database = database
        self._keep = keep
        self._lasts = lease
        self._clock = clock
        self._changes: dict[str, Any] = {}
        self._stored_at: datetime | None = None

    @property
    def sealer(self) -> Sealer | None:
        """The user's sealer; None where the kind needs none."""
        return self._sealer

    @property
    def keys(self) -> Sealer:
        """The user's sealer, of a kind that needs it: the worker gives such jobs no other way."""
        if self._sealer is None:
            raise LostLeaseError("The job has no key at hand.")
        return self._sealer

    @asynccontextmanager
    async def finish(self) -> AsyncGenerator[AsyncSession]:
        """The transaction that makes the job's effects and ends it, both or neither.

        Raises `LostLeaseError` before anything is done when the job is another worker's by now.
        """
        async with self._writing() as session:
            if not await claims.end(session, self.lease, at=self._clock(), keep=self._keep):
                raise LostLeaseError
            yield session
        self.is_over = True

    @asynccontextmanager
    async def step(self) -> AsyncGenerator[AsyncSession]:
        """A transaction on the way: its effects, progress and checkpoint, all or nothing.

        Raises `LostLeaseError` as `finish` does.
        """
        async with self._writing() as session:
            held = select(Job.id).where(self.lease.holds(self._clock())).with_for_update()
            if await session.scalar(held) is None:
                raise LostLeaseError
            yield session
            await self._store(session)

    def checkpoint(self, payload: dict[str, Any]) -> None:
        """Replace the payload: what the next attempt begins with, should this one fail.

        Stored with the `step` that it is called in, or with the next one.
        """
        self.payload = payload
        self._changes["payload"] = msgspec.json.encode(payload).decode()

    async def progress(self, done: int, total: int) -> None:
        """Say how far it is. Stored at once inside `step`, else once a second at most."""
        self._changes |= {"progress_done": done, "progress_total": total}
        at = self._clock()
        if self.is_writing or self.is_over:
            return
        if done < total and self._stored_at and at - self._stored_at < PROGRESS_EVERY:
            return
        async with self.step():
            pass

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[AsyncSession]:
        if self.is_over or self.is_writing:
            raise LostLeaseError("The job has ended, or another transaction of its own is open.")
        self.is_writing = True
        changes, payload = dict(self._changes), self.payload
        try:
            async with self._database.write() as session:
                yield session
        except BaseException:
            # A checkpoint that was set in here speaks of effects that there are not.
            self._changes, self.payload = changes, payload
            raise
        finally:
            self.is_writing = False

    async def _store(self, session: AsyncSession) -> None:
        at = self._clock()
        changes, self._changes = self._changes, {}
        values = {"lease_until": at + self._lasts, "updated_at": at, **changes}
        if "payload" in changes:  # the next attempt goes on from there
            values["leases_lost"] = 0
        await session.execute(
            update(Job)
            .where(Job.id == self.id)
            .values(values)
            .execution_options(synchronize_session=False)
        )
        self._stored_at = at


@dataclass(slots=True)
class JobRun:
    """A job in a worker, and the task that does it."""

    job: RunningJob
    claimed: Claimed
    task: asyncio.Task[None] | None = None
    is_lost: bool = False


Handler = Callable[[RunningJob], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class JobKind:
    """How a kind of job is done.

    A handler that returns without `finish` is finished, with no effects. Raising `RetryLaterError`
    puts the job off; anything else counts as a failed attempt.

    Args:
        needs_key: Whether it waits until its user's key is at hand.
        keep: Whether the row stays for a day when it is done, for people to see.
        stoppable: Whether its owner may end it half-way. What its steps did until then stays.
    """

    handler: Handler
    needs_key: bool = True
    keep: bool = False
    stoppable: bool = False


def stoppable_kinds(kinds: Mapping[str, JobKind]) -> frozenset[str]:
    """Which of these kinds may be ended half-way."""
    return frozenset(name for name, kind in kinds.items() if kind.stoppable)
