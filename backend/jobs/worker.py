"""The worker: takes jobs, runs their handlers, and lets go of what it can't finish."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from backend.database.base import new_id, now
from backend.jobs import claims
from backend.jobs.backoff import MAX_ATTEMPTS, MAX_LEASES_LOST
from backend.jobs.candidates import Wanted
from backend.jobs.claims import Claimed
from backend.jobs.errors import LostLeaseError, WorkerLostError
from backend.jobs.failures import after_failure, queued_at
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.running import Clock, JobKind, JobRun, RunningJob
from backend.logs import get_logger
from backend.vault.sealing import Sealer

log = get_logger(__name__)

HEARTBEAT = timedelta(seconds=15)
POLL_SECONDS = 3.0
PAUSE_SECONDS = 1.0
"""After the database did not answer."""
CLOSE_SECONDS = 10.0
"""Longest that a handler is waited for when it is told to stop."""


class Worker:
    """Runs jobs of some kinds, several at once.

    Args:
        queue: Wakes the worker, and knows the database.
        kinds: What to do for each kind; jobs of other kinds are left to other workers.
        keys: Where users' keys come from.
        concurrency: Jobs at once. One user's take three quarters of them at most, so that somebody
            with very many never keeps all others waiting.
        takes_queued: False for a worker that only does what waits for a key that it has in memory.
        poll: Seconds between two looks while nothing wakes it.
        draw: Gives numbers from [0, 1), for the waits between attempts.
    """

    def __init__(  # noqa: PLR0913  # the last four are for tests
        self,
        queue: JobQueue,
        kinds: Mapping[str, JobKind],
        keys: JobKeys,
        *,
        concurrency: int = 8,
        takes_queued: bool = True,
        poll: float = POLL_SECONDS,
        lease: timedelta = claims.LEASE,
        clock: Clock = now,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.id: UUID = new_id()
        self._queue = queue
        self._database = queue.database
        self._kinds = kinds
        self._keys = keys
        self._concurrency = concurrency
        self._per_share = max(1, concurrency * 3 // 4)
        self._takes_queued = takes_queued
        self._poll = poll
        self._lease = lease
        self._clock = clock
        self._draw = draw
        self._runs: dict[UUID, JobRun] = {}
        self._returned: list[JobRun] = []
        self._wake = asyncio.Event()
        self._last_share: UUID | None = None
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        """How many jobs it holds just now."""
        return len(self._runs)

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [
            asyncio.create_task(self._work(), name="jobs.work"),
            asyncio.create_task(self._beat(), name="jobs.beat"),
        ]

    async def aclose(self) -> None:
        """Stop: what runs is interrupted and given back at once, with no attempt used up."""
        self._is_closing = True
        self._wake.set()
        # Not in the middle of a claim: what it took would wait until its lease has run out.
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        self._tasks = []
        running = [run.task for run in self._runs.values() if run.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLOSE_SECONDS)
        left, self._runs = list(self._runs.values()), {}
        try:
            await self._let_go(left)
        except Exception as error:  # their leases run out by themselves
            log.warning("job.release_failed", count=len(left), exc_info=error)

    async def _work(self) -> None:
        with self._queue.listening(self._wake):
            while not self._is_closing:
                self._wake.clear()
                try:
                    is_more = await self._turn_over()
                except Exception as error:  # the next round tries again
                    log.warning("job.claim_failed", exc_info=error)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                if not is_more and not self._is_closing:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._poll):
                            await self._wake.wait()

    async def _turn_over(self) -> bool:
        """End what came back without effects and take new jobs: one transaction for both.

        Returns whether there may be more to take at once.
        """
        ended, self._returned = self._returned, []
        room = self._concurrency - len(self._runs) + len(ended)
        wanted = self._wanted(room, ended)
        if not room or not (wanted.queued or wanted.open_to):
            room = 0
        if not room and not ended:
            return False
        at, claimed = self._clock(), list[Claimed]()
        try:
            async with self._database.write() as session:
                if ended:
                    await claims.end_many(session, [run.job.lease for run in ended], at=at)
                if room:
                    claimed = await claims.claim(
                        session, wanted, at=at, lease=self._lease, start=self._last_share
                    )
        except BaseException:
            self._returned = [*ended, *self._returned]
            raise
        for run in ended:
            self._forget(run)
        if claimed:
            self._last_share = claimed[-1].share
            await self._begin(claimed, at)
        return bool(room) and len(claimed) == room

    def _wanted(self, room: int, ended: list[JobRun]) -> Wanted:
        running = Counter(run.claimed.share for run in self._runs.values())
        running.subtract(run.claimed.share for run in ended)
        return Wanted(
            owner=self.id,
            kinds=tuple(self._kinds),
            count=room,
            per_share=self._per_share,
            running=running,
            queued=self._takes_queued,
            open_to=self._keys.users(),
            suspect=not any(run.claimed.leases_lost > 1 for run in self._runs.values()),
        )

    async def _begin(self, claimed: list[Claimed], at: datetime) -> None:
        needing = [job for job in claimed if self._kinds[job.kind].needs_key]
        runs = {job.id: self._run_of(job, None) for job in claimed}
        self._runs |= runs
        try:
            sealers = await self._keys.sealers(needing, at=at)
        except BaseException:
            await self._let_go(list(runs.values()))
            raise
        without = [job for job in needing if job.user_id is not None and job.id not in sealers]
        for job in claimed:
            self._runs[job.id] = run = self._run_of(job, sealers.get(job.id))
            if job in without:
                await self._wait_for_key(run)
            elif job.leases_lost >= MAX_LEASES_LOST or job.attempts > MAX_ATTEMPTS:
                await self._fail(run, WorkerLostError())
            else:
                run.task = asyncio.create_task(self._run(run))

    def _run_of(self, claimed: Claimed, sealer: Sealer | None) -> JobRun:
        job = RunningJob(
            self._database,
            claimed,
            owner=self.id,
            sealer=sealer,
            keep=self._kinds[claimed.kind].keep,
            lease=self._lease,
            clock=self._clock,
        )
        return JobRun(job, claimed)

    async def _run(self, run: JobRun) -> None:
        job, kind = run.job, self._kinds[run.job.kind]
        try:
            await kind.handler(job)
            if not job.is_over and kind.keep:
                async with job.finish():
                    pass
        except LostLeaseError:
            self._lose(run)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises ends its attempt alone
            await self._fail(run, error)
        except asyncio.CancelledError:
            if not run.is_lost:
                raise
            self._lose(run)
        else:
            log.debug("job.done", job_id=job.id, job_kind=job.kind, attempt=job.attempt)
            if job.is_over:
                self._forget(run)
            else:
                self._returned.append(run)
                self._wake.set()

    async def _fail(self, run: JobRun, error: Exception) -> None:
        await self._change(run, after_failure(run.job, error, at=self._clock(), draw=self._draw))

    async def _wait_for_key(self, run: JobRun) -> None:
        log.info("job.waits_for_key", job_id=run.job.id, job_kind=run.job.kind)
        await self._change(
            run, {**claims.ENDED, "state": "waiting_key", "attempts": run.job.attempt - 1}
        )

    async def _change(self, run: JobRun, changes: Mapping[str, Any]) -> None:
        """Put a job back. Should that fail, its lease runs out, and it is claimed again then."""
        try:
            async with self._database.write() as session:
                await claims.put_back(session, run.job.lease, at=self._clock(), changes=changes)
        except Exception as error:
            log.warning("job.put_back_failed", job_id=run.job.id, exc_info=error)
        finally:
            self._forget(run)

    def _lose(self, run: JobRun) -> None:
        job = run.job
        log.warning("job.lost", job_id=job.id, job_kind=job.kind, attempt=job.attempt)
        self._forget(run)

    def _forget(self, run: JobRun) -> None:
        if self._runs.get(run.job.id) is run:
            del self._runs[run.job.id]
        self._wake.set()

    async def _let_go(self, runs: list[JobRun]) -> None:
        """Give jobs back as they were before they were claimed."""
        returned = {run.job.id for run in self._returned}
        async with self._database.write() as session:
            at = self._clock()
            for run in runs:
                if run.job.id in returned:
                    await claims.end_many(session, [run.job.lease], at=at)
                elif not run.job.is_over:
                    changes = {**queued_at(at), "attempts": run.job.attempt - 1}
                    await claims.put_back(session, run.job.lease, at=at, changes=changes)
        for run in runs:
            self._forget(run)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT.total_seconds())
            if self._runs:
                try:
                    await self.renew()
                except Exception as error:  # there are three more before the leases run out
                    log.warning("job.heartbeat_failed", exc_info=error)

    async def renew(self) -> None:
        """Renew the leases of all that runs here, and stop what is no longer this worker's."""
        before = [run for run in self._runs.values() if not run.job.is_writing]
        async with self._database.write() as session:
            renewed = await claims.renew(session, self.id, at=self._clock(), lease=self._lease)
        for run in before:
            lease = run.job.lease
            if (lease.job_id, lease.fence) in renewed or self._runs.get(lease.job_id) is not run:
                continue
            if run.job.is_writing or run.job.is_over or run.task is None or run in self._returned:
                continue
            run.is_lost = True
            run.task.cancel()
