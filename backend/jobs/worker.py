"""The worker: claims jobs and runs their handlers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import prometheus_client

from backend.core.logs import get_logger
from backend.database.base import now
from backend.jobs import claims
from backend.jobs.claims import Capacity, ClaimedJob
from backend.jobs.errors import (
    MAX_LEASES_LOST,
    LostLeaseError,
    RolledBackError,
    WorkerLostError,
)
from backend.jobs.keys import JobKeys, KeyHolders
from backend.jobs.queue import WAKE_DELAY_SECONDS, JobQueue, WakeUp
from backend.jobs.running import (
    Clock,
    JobKind,
    RunningJob,
    SharedEnds,
    handle_failure,
    make_queued_values,
)
from backend.settings import Settings

AHEAD_SECONDS = 0.1
MAX_AHEAD = 64
MAX_WAIT_SECONDS = 1.0
"""Time after which a claimed job that could not start is returned for another worker."""
SMOOTHING = 0.1
"""Weight of one job in the moving average of durations."""
INITIAL_MEAN_SECONDS = 1.0
"""Initial average duration of a job. With it, no jobs are claimed ahead."""


class Slots:
    """The running jobs of a worker, and claimed jobs that wait for a slot.

    Args:
        count: Maximum number of running jobs.
        begin: Starts a job.
    """

    def __init__(self, count: int, begin: Callable[[RunningJob], None]) -> None:
        self._count = count
        self._begin = begin
        self._seconds = INITIAL_MEAN_SECONDS
        self._waiting: deque[tuple[RunningJob, float]] = deque()
        self._working: dict[UUID, float] = {}

    @property
    def ahead(self) -> int:
        """The number of jobs that may be claimed in addition to the running ones."""
        return min(MAX_AHEAD, int(self._count * AHEAD_SECONDS / max(self._seconds, 1e-6)))

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def room(self, held: int, *, ahead: int) -> int:
        """Return the number of jobs to claim if `held` are claimed; 0 if few slots are free."""
        if len(self._waiting) > ahead // 2:
            return 0
        free = self._count + ahead - len(self._working) - len(self._waiting)
        return max(0, min(free, self._count + 2 * MAX_AHEAD - held))

    def add(self, job: RunningJob) -> None:
        """Start a job, or let it wait for a slot."""
        self._waiting.append((job, time.monotonic()))
        self._fill()

    def leave(self, job: RunningJob) -> None:
        began = self._working.pop(job.id, None)
        if began is not None:
            self._seconds += SMOOTHING * (time.monotonic() - began - self._seconds)
            self._fill()

    def take_back(self, *, after: float = MAX_WAIT_SECONDS) -> list[RunningJob]:
        """Remove and return the jobs that have waited longer than `after` seconds."""
        found: list[RunningJob] = []
        until = time.monotonic() - after
        while self._waiting and self._waiting[0][1] <= until:
            found.append(self._waiting.popleft()[0])
        if found:  # otherwise they would be claimed again at once
            self._seconds = max(self._seconds, INITIAL_MEAN_SECONDS)
        return found

    def _fill(self) -> None:
        while self._waiting and len(self._working) < self._count:
            job, _ = self._waiting.popleft()
            self._working[job.id] = time.monotonic()
            self._begin(job)


log = get_logger(__name__)

ATTEMPTS = prometheus_client.Counter(
    "talekeeper_job_attempts", "Attempts at jobs that are over", ["kind", "outcome"]
)

HEARTBEAT_INTERVAL = timedelta(seconds=15)
STOP_POLL_SECONDS = 1.0
POLL_SECONDS = 3.0
"""Interval of polls. They find delayed jobs, expired leases, and jobs that another
process could not announce."""
PAUSE_SECONDS = 1.0
CLOSE_TIMEOUT_SECONDS = 10.0
FINISH_SECONDS = 5.0
"""Time for running jobs to finish before another job runs alone. Then they are put back."""


class Worker:
    """Runs jobs of the given kinds concurrently.

    Args:
        queue: Wakes the worker; its database is used.
        kinds: Handlers by kind. Jobs of other kinds are left to other workers.
        keys: Source of users' keys.
        concurrency: Maximum number of running jobs. One user may use three quarters of them, so
            that no user can block the others.
        takes_queued: False for a worker that only takes jobs which wait for a key in its memory.
        poll: Seconds between two checks for jobs.
        draw: Returns numbers in [0, 1), for the waits between attempts.
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
        lease: timedelta = claims.LEASE_DURATION,
        clock: Clock = now,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.id: UUID = queue.database.process_id
        self._queue = queue
        self._database = queue.database
        self._kinds = kinds
        self._keys = keys
        self._concurrency = concurrency
        self._slots = Slots(concurrency, self._start)
        self._takes_queued = takes_queued
        self._poll = poll
        self._lease = lease
        self._clock = clock
        self._draw = draw
        self._ends = SharedEnds(self._database, clock)
        self._jobs: dict[UUID, RunningJob] = {}
        self._returned: list[RunningJob] = []
        self._wake = WakeUp()
        self._last_share: UUID | None = None
        self._thorough_at = 0.0
        self._seen_losses = 0
        self._has_more = False
        self._is_draining = False
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._work(), name="jobs.work"),
            asyncio.create_task(self._beat(), name="jobs.beat"),
        ]

    @property
    def job_count(self) -> int:
        """The number of claimed jobs that are neither stored nor put back."""
        return len(self._jobs)

    @property
    def is_busy(self) -> bool:
        """True until every job of this worker is stored or put back."""
        return bool(self._jobs)

    def drain(self) -> None:
        """Claim no more jobs. Running jobs continue, waiting ones are put back."""
        self._is_draining = True
        self._wake.set()

    async def aclose(self) -> None:
        """Stop. Running jobs are interrupted and put back without losing an attempt."""
        self._is_closing = True
        self.drain()
        # Wait for a running claim, because its jobs would be blocked until their leases expire.
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=CLOSE_TIMEOUT_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_SECONDS)
        self._tasks = []
        try:
            await self._put_all_back(after=0.0)
        except Exception as error:  # their leases will expire
            log.warning("job.release_failed", exc_info=error)

    async def kill(self) -> None:
        """Cancel all tasks and put nothing back, as if the process had ended."""
        tasks = [*self._tasks, *(job.task for job in self._jobs.values() if job.task)]
        self._tasks, self._jobs = [], {}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _work(self) -> None:
        with self._queue.listen(self._wake):
            while not self._is_closing:
                self._wake.clear()
                try:
                    is_more = await self.run_once()
                except Exception as error:  # the next round tries again
                    log.warning("job.claim_failed", exc_info=error)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                if not is_more and not self._is_closing:
                    await self._wait()

    async def _wait(self) -> None:
        """Wait until this worker has to act, or until there may be work when it looks.

        Claims of all processes run one at a time, so it looks first unless it is sure.
        """
        has_work = False
        while not has_work and not self._must_act():
            has_waiting = self._slots.has_waiting
            try:
                async with asyncio.timeout(MAX_WAIT_SECONDS if has_waiting else self._poll):
                    await self._wake.wait()
            except TimeoutError:
                has_work = has_waiting or await self._has_work()
            else:
                if not self._must_act():
                    self._wake.clear()
                    has_work = has_waiting or await self._has_work()

    def _must_act(self) -> bool:
        """True if there is something to store, or this worker was woken for a job of its kind.

        A worker that takes no queued jobs is also woken by those that its process adds.
        """
        if self._returned or self._is_draining:
            return self._wake.is_set()
        return self._wake.is_sure and self._takes_queued

    async def _has_work(self) -> bool:
        wanted = self._measure_capacity([])
        if not wanted.count:
            return False
        try:
            async with self._database.read_once() as session:
                has_work = await claims.has_work(session, wanted, at=self._clock())
        except Exception:  # noqa: BLE001  # the claim reports the error
            return True
        if not has_work:  # no expired leases either
            self._thorough_at = time.monotonic() + self._poll
        return has_work

    async def run_once(self) -> bool:
        """End jobs without effects and claim new ones together. True if there may be more."""
        after = 0.0 if self._is_draining else MAX_WAIT_SECONDS
        if stuck := self._slots.take_back(after=after):
            await self._release(stuck)
        ended, self._returned = self._returned, []
        losses, wanted = self._queue.loss_count, self._measure_capacity(ended)
        room = wanted.count if wanted.queued or wanted.open_to else 0
        if not room and not ended:
            return False
        at, claimed, holders = self._clock(), list[ClaimedJob](), None
        if wanted.thorough and room:
            self._thorough_at = time.monotonic() + self._poll
            self._seen_losses = losses
        try:
            async with self._database.write() as session:
                if ended:
                    await claims.end_jobs(session, [job.claimed for job in ended], at=at)
                if room:
                    claimed = await claims.claim_jobs(
                        session, wanted, at=at, lease=self._lease, start=self._last_share
                    )
                    holders = await self._keys.load(
                        session, self._select_needing_key(claimed), at=at
                    )
        except BaseException:
            self._returned = [*ended, *self._returned]
            raise
        for job in ended:
            self._forget(job)
        if room:
            await self._take(claimed, holders, at, is_full=len(claimed) == room)
        return bool(room) and self._has_more

    async def _take(
        self, claimed: list[ClaimedJob], holders: KeyHolders | None, at: datetime, *, is_full: bool
    ) -> None:
        """Start the claimed jobs. `is_full` if they use the whole capacity."""
        self._has_more = is_full
        if is_full and any(each.leases_lost for each in claimed):
            self._thorough_at = 0.0  # there may be more expired leases
        if claimed:
            self._last_share = claimed[-1].share
            await self._begin(claimed, holders, at)

    def _measure_capacity(self, ended: list[RunningJob]) -> Capacity:
        running = Counter(job.claimed.share for job in self._jobs.values() if not job.is_ending)
        running.subtract(job.claimed.share for job in ended)
        # A new job does not require a check for expired leases, so that happens at intervals.
        has_losses = self._queue.loss_count != self._seen_losses
        is_thorough = has_losses or time.monotonic() >= self._thorough_at
        # An abandoned job may crash this worker as well, so few other jobs should be claimed.
        ahead = 0 if is_thorough else self._slots.ahead
        is_alone = any(job.runs_alone for job in self._jobs.values() if job not in ended)
        is_free = not (is_alone or self._is_draining)
        return Capacity(
            owner=self.id,
            kinds=tuple(self._kinds),
            count=self._slots.room(len(self._jobs) - len(ended), ahead=ahead) if is_free else 0,
            per_share=max(1, (self._concurrency + ahead) * 3 // 4),
            running=running,
            queued=self._takes_queued,
            open_to=self._keys.users(),
            thorough=is_thorough,
            suspect=not any(job.claimed.leases_lost > 1 for job in self._jobs.values()),
        )

    def _select_needing_key(self, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
        return [each for each in claimed if self._kinds[each.kind].needs_key]

    async def _begin(
        self, claimed: list[ClaimedJob], holders: KeyHolders | None, at: datetime
    ) -> None:
        jobs = [self._running(each) for each in claimed]
        self._jobs |= {job.id: job for job in jobs}
        try:
            sealers = self._keys.sealers(self._select_needing_key(claimed), holders, at=at)
        except BaseException:
            await self._release(jobs)
            raise
        alone: list[RunningJob] = []
        for job in jobs:
            job.sealer = sealers.get(job.id)
            if job.sealer is None and job.user_id is not None and self._kinds[job.kind].needs_key:
                await self._wait_for_key(job)
            elif job.claimed.leases_lost > MAX_LEASES_LOST:
                await self._fail(job, WorkerLostError())
            elif job.runs_alone:
                alone.append(job)
            else:
                self._slots.add(job)
        if alone:
            await self._run_alone(*alone)

    async def _run_alone(self, job: RunningJob, *later: RunningJob) -> None:
        """Start a job when no other one runs in this process. Put the `later` ones back.

        Until then the job waits in the queue, so that an earlier crash does not count for it.
        """
        if later:
            await self._release(list(later))
        if len(self._jobs) == 1:
            self._slots.add(job)
            return
        await self._release([job])
        if not self._is_draining:
            await self._put_all_back(after=FINISH_SECONDS)
        if self._is_draining:
            return
        at = self._clock()
        async with self._database.write() as session:
            claimed = await claims.take_jobs(session, [job.id], self.id, at=at, lease=self._lease)
            holders = await self._keys.load(session, self._select_needing_key(claimed), at=at)
        await self._begin(claimed, holders, at)

    async def _put_all_back(self, *, after: float) -> None:
        """Put all jobs back. Running jobs have `after` seconds to finish."""
        self._slots.take_back(after=0.0)
        running = [job.task for job in self._jobs.values() if job.task is not None]
        if running:
            await asyncio.wait(running, timeout=after)
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CLOSE_TIMEOUT_SECONDS)
        await self._release(list(self._jobs.values()))

    def _start(self, job: RunningJob) -> None:
        job.task = asyncio.create_task(self._run(job))

    def _running(self, claimed: ClaimedJob) -> RunningJob:
        kind = self._kinds[claimed.kind]
        job = RunningJob(
            self._database, claimed, keep=kind.keep, lasts=self._lease, clock=self._clock
        )
        if kind.ends_together:
            job.ends = self._ends
            job.leave = self._leave
        return job

    async def _run(self, job: RunningJob) -> None:
        kind = self._kinds[job.kind]
        try:
            try:
                await kind.handler(job)
            except RolledBackError:
                job.ends, job.is_ending = None, False
                await kind.handler(job)
            if not job.is_over and kind.keep:
                async with job.finish():
                    pass
        except LostLeaseError:
            self._lose(job)
        except Exception as error:  # noqa: BLE001  # an error ends only this attempt
            await self._fail(job, error)
        except asyncio.CancelledError:
            if not job.is_lost:
                raise
            self._lose(job)
        else:
            ATTEMPTS.labels(kind=job.kind, outcome="done").inc()
            log.debug("job.done", job_id=job.id, job_kind=job.kind, attempt=job.attempt)
            if job.is_over:
                self._forget(job)
            else:
                self._returned.append(job)
                self._wake.set()
        finally:
            self._leave(job)

    def _leave(self, job: RunningJob) -> None:
        """Release the slot of a job, and wake the worker if there are more jobs."""
        self._slots.leave(job)
        if self._has_more:
            self._wake.set()

    async def _fail(self, job: RunningJob, error: Exception) -> None:
        changes = handle_failure(job, error, at=self._clock(), draw=self._draw)
        outcome = "dead" if changes["state"] == "dead" else "put_back"
        ATTEMPTS.labels(kind=job.kind, outcome=outcome).inc()
        due = await self._change(job, changes)
        if due is not None and changes["state"] == "queued":
            wait = (due - self._clock()).total_seconds() + WAKE_DELAY_SECONDS
            if wait < self._poll:  # else the next poll finds it
                asyncio.get_running_loop().call_later(max(0.0, wait), self._wake.set)

    async def _wait_for_key(self, job: RunningJob) -> None:
        ATTEMPTS.labels(kind=job.kind, outcome="waits_for_key").inc()
        log.info("job.waits_for_key", job_id=job.id, job_kind=job.kind)
        changes = {**claims.ENDED_VALUES, "state": "waiting_key", "attempts": job.attempt - 1}
        await self._change(job, changes)

    async def _change(self, job: RunningJob, changes: Mapping[str, Any]) -> datetime | None:
        """Put a job back, and return the time from which it waits.

        If that fails, the job is claimed again after its lease has expired.
        """
        try:
            async with self._database.write() as session:
                at = self._clock()
                return await claims.put_back(session, job.claimed, at=at, changes=changes)
        except Exception as error:
            log.warning("job.put_back_failed", job_id=job.id, exc_info=error)
            return None
        finally:
            self._forget(job)

    def _lose(self, job: RunningJob) -> None:
        ATTEMPTS.labels(kind=job.kind, outcome="lost").inc()
        log.warning("job.lost", job_id=job.id, job_kind=job.kind, attempt=job.attempt)
        self._forget(job)

    def _forget(self, job: RunningJob) -> None:
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]
        self._wake.hint()  # the job may have held up others of its lane

    async def _release(self, jobs: list[RunningJob]) -> None:
        """Put jobs back without losing an attempt. If that fails, their leases will expire."""
        try:
            async with self._database.write() as session:
                at = self._clock()
                for job in jobs:
                    if job in self._returned:
                        await claims.end_jobs(session, [job.claimed], at=at)
                    elif not job.is_over:
                        changes = {**make_queued_values(at), "attempts": job.attempt - 1}
                        await claims.put_back(session, job.claimed, at=at, changes=changes)
            self._returned = [job for job in self._returned if job not in jobs]
        finally:
            for job in jobs:
                self._forget(job)
            if self._is_draining and jobs and self._queue.announce is not None:
                self._queue.announce()

    async def _beat(self) -> None:
        renewed_at = time.monotonic()
        while True:
            await asyncio.sleep(STOP_POLL_SECONDS)
            try:
                if time.monotonic() < renewed_at + HEARTBEAT_INTERVAL.total_seconds():
                    await self._interrupt_stopped()
                    continue
                renewed_at = time.monotonic()
                if self._jobs:
                    await self.renew()
            except Exception as error:  # three more heartbeats follow before the leases expire
                log.warning("job.heartbeat_failed", exc_info=error)

    async def _interrupt_stopped(self) -> None:
        running = [
            job
            for job in self._jobs.values()
            if self._kinds[job.kind].stoppable and not job.is_writing
        ]
        if running:
            async with self._database.read_once() as session:
                held = await claims.find_owned(session, [job.claimed for job in running])
            self._interrupt_lost(running, held)

    async def renew(self) -> None:
        """Renew the leases of all jobs, and interrupt those that another worker has."""
        jobs = list(self._jobs.values())
        before = [job for job in jobs if not job.is_writing]
        async with self._database.write() as session:
            renewed = await claims.renew_leases(
                session, [job.claimed for job in jobs], at=self._clock(), lease=self._lease
            )
        self._interrupt_lost(before, renewed)

    def _interrupt_lost(self, jobs: list[RunningJob], held: set[tuple[UUID, int]]) -> None:
        for job in jobs:
            if (job.id, job.claimed.fence) in held or self._jobs.get(job.id) is not job:
                continue
            if job.is_writing or job.is_over or job.task is None or job in self._returned:
                continue
            job.is_lost = True
            job.task.cancel()


def build_worker(
    settings: Settings,
    queue: JobQueue,
    keys: JobKeys,
    kinds: Mapping[str, JobKind],
    *,
    takes_queued: bool,
) -> Worker:
    """Make the worker of this process.

    On SQLite it runs all jobs. On PostgreSQL, `talekeeper work` runs most of them, and a server
    only those that wait for the key of a user who is signed in there.
    """
    return Worker(
        queue,
        kinds,
        keys,
        concurrency=settings.job_workers,
        takes_queued=takes_queued,
    )
