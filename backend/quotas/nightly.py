"""What is done at night: ledgers are compared with the tables, and old days are forgotten."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from sqlalchemy import delete, select

from backend.accounts.models import User
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.quotas.models import TokenLedger
from backend.quotas.storage import recount

RECOUNT = "quotas.recount"
NIGHT = time(hour=4)
DAYS_KEPT = timedelta(days=31)


class NightlyRecount:
    """The job that compares every user's ledger with what the tables hold."""

    def __init__(self, database: Database, queue: JobQueue) -> None:
        self._database = database
        self._queue = queue

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {RECOUNT: JobKind(self.run, needs_key=False)}

    async def schedule(self) -> None:
        """Put tonight's job into the queue, unless it is there."""
        async with self._database.write() as session:
            await self._queue.enqueue(session, _tonight())

    async def run(self, job: RunningJob) -> None:
        """Recount every user, and put the next night's job into the queue."""
        async with self._database.read() as session:
            users = list(await session.scalars(select(User.id).order_by(User.id)))
        for number, user_id in enumerate(users):
            await job.progress(number, len(users))
            await recount(self._database, user_id)
        async with job.finish() as session:
            oldest = now().date() - DAYS_KEPT
            await session.execute(delete(TokenLedger).where(TokenLedger.day < oldest))
            await self._queue.enqueue(session, _tonight())


def _tonight() -> NewJob:
    at = datetime.combine(now().date(), NIGHT, tzinfo=now().tzinfo)
    if at <= now():
        at += timedelta(days=1)
    return NewJob(kind=RECOUNT, dedupe_key=RECOUNT, run_after=at)
