"""Who may work on which job: claims, leases, fences. Nothing here commits.

A claim gives a job to one worker until its lease runs out, and counts its fence up. All claims of
an installation come one after the other, so that each sees what the one before it took: on SQLite
there is one writer anyway, on PostgreSQL an advisory lock keeps the order. A claim takes
milliseconds, and takes many jobs at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.types import UtcTime
from backend.jobs.candidates import Wanted, candidates
from backend.jobs.models import JOBS

LEASE = timedelta(seconds=60)
LOCK = 7_241_905_114
"""PostgreSQL's advisory lock under which jobs are claimed."""
STUCK_MS = 15_000
"""A process that stops in the middle of a claim loses its connection after this."""
TWIN_TRIES = 5


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that was claimed, as its row stood then.

    `lease_owner` and `fence` are what its worker shows to prove that it is its own.
    """

    id: UUID
    user_id: UUID | None
    share: UUID
    kind: str
    lane: UUID | None
    lane_until: datetime | None
    payload: str
    attempts: int
    leases_lost: int
    run_after: datetime
    lease_owner: UUID
    fence: int
    wrapped_key: bytes | None
    root_version: int | None
    key_until: datetime | None
    created_at: datetime

    def held(self, at: datetime) -> dict[str, Any]:
        """The parameters of `IS_HELD`."""
        return {"job": self.id, "owner": self.lease_owner, "held_fence": self.fence, "at": at}


_JOB = JOBS.c

IS_HELD = and_(
    _JOB.id == bindparam("job"),
    _JOB.state == "running",
    _JOB.lease_owner == bindparam("owner"),
    _JOB.fence == bindparam("held_fence"),
    _JOB.lease_until > bindparam("at"),
)
"""A job's row is still its worker's, and the lease has not run out."""

_COLUMNS: tuple[Any, ...] = tuple(_JOB[name] for name in Claimed.__dataclass_fields__)
_FREE = or_(
    _JOB.state.in_(("queued", "waiting_key")),
    and_(_JOB.state == "running", _JOB.lease_until <= bindparam("at")),
)
_TAKE = cast(
    "Any",
    update(JOBS)
    .where(
        _JOB.id.in_(
            select(_JOB.id)
            .where(_JOB.id.in_(bindparam("ids", expanding=True)), _FREE)
            .with_for_update(skip_locked=True)
        )
    )
    .values(
        state="running",
        lease_owner=bindparam("owner"),
        lease_until=bindparam("until"),
        fence=_JOB.fence + 1,
        # One that runs can be claimed only because its lease ran out: its attempt begins again.
        attempts=_JOB.attempts + case((_JOB.state == "running", 0), else_=1),
        leases_lost=_JOB.leases_lost + case((_JOB.state == "running", 1), else_=0),
        updated_at=bindparam("at"),
    )
    .returning(*_COLUMNS),
)


_IN_ORDER = select(
    func.set_config("idle_in_transaction_session_timeout", str(STUCK_MS), True),  # noqa: FBT003  # PostgreSQL's own function
    func.pg_advisory_xact_lock(LOCK),
)


async def claim(
    session: AsyncSession,
    wanted: Wanted,
    *,
    at: datetime,
    lease: timedelta = LEASE,
    start: UUID | None,
) -> list[Claimed]:
    """Take jobs, at most `wanted.count`, each user's in turn.

    It begins after the share `start`, which was served last, so that the next has its turn.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(_IN_ORDER)
    ids = await candidates(session, wanted, at, start)
    return await take(session, ids, wanted.owner, at=at, lease=lease)


async def take(
    session: AsyncSession, ids: Sequence[UUID], owner: UUID, *, at: datetime, lease: timedelta
) -> list[Claimed]:
    """Take those of some jobs that are free, in the order of `ids`."""
    if not ids:
        return []
    values = {"ids": ids, "at": at, "until": at + lease, "owner": owner}
    rows = await session.execute(_TAKE, values)
    order = {job_id: place for place, job_id in enumerate(ids)}
    return sorted((Claimed(*row) for row in rows), key=lambda each: order[each.id])


ENDED: dict[str, Any] = {
    "lease_owner": None,
    "lease_until": None,
    "wrapped_key": None,
    "root_version": None,
    "key_until": None,
}
"""What a row loses with its job's end."""

_END = delete(JOBS).where(IS_HELD).returning(_JOB.id)
_END_AND_KEEP = (
    update(JOBS)
    .where(IS_HELD)
    .values(state="done", updated_at=bindparam("at"), **ENDED)
    .returning(_JOB.id)
)


async def end(session: AsyncSession, job: Claimed, *, at: datetime, keep: bool) -> bool:
    """End a job: its row goes, or stays as `done`. Whether it was still this worker's."""
    query = _END_AND_KEEP if keep else _END
    ended = await session.execute(query, job.held(at))
    return ended.scalar() is not None


_END_MANY = (
    delete(JOBS)
    .where(
        # By the ids alone first: neither database finds pairs by an index.
        _JOB.id.in_(bindparam("ids", expanding=True)),
        tuple_(_JOB.id, _JOB.fence).in_(bindparam("claims", expanding=True)),
        _JOB.lease_owner == bindparam("owner"),
        _JOB.state == "running",
        _JOB.lease_until > bindparam("at"),
    )
    .returning(_JOB.id)
)


async def end_many(session: AsyncSession, jobs: Sequence[Claimed], *, at: datetime) -> set[UUID]:
    """End jobs of one worker, rows and all: gives back those that were still its own."""
    values = {
        "ids": [each.id for each in jobs],
        "claims": [(each.id, each.fence) for each in jobs],
        "owner": jobs[0].lease_owner,
        "at": at,
    }
    return set(await session.scalars(_END_MANY, values))


async def renew(
    session: AsyncSession, jobs: Sequence[Claimed], *, at: datetime, lease: timedelta = LEASE
) -> set[tuple[UUID, int]]:
    """Renew the leases of one worker's jobs, except those that a transaction locks.

    Returns (id, fence) of those that were renewed. A lease that has run out stays lost.
    """
    mine = (
        select(_JOB.id)
        .where(
            _JOB.id.in_([each.id for each in jobs]),
            _JOB.state == "running",
            _JOB.lease_owner == jobs[0].lease_owner,
            _JOB.lease_until > at,
        )
        .with_for_update(skip_locked=True)
    )
    query = (
        update(JOBS)
        .where(_JOB.id.in_(mine))
        .values(lease_until=at + lease)
        .returning(_JOB.id, _JOB.fence)
    )
    rows = await session.execute(query)
    return {(row.id, row.fence) for row in rows}


_HELD_MANY = select(_JOB.id, _JOB.fence).where(
    _JOB.id.in_(bindparam("ids", expanding=True)),
    _JOB.state == "running",
    _JOB.lease_owner == bindparam("owner"),
)


async def find_held(session: AsyncSession, jobs: Sequence[Claimed]) -> set[tuple[UUID, int]]:
    """Find those jobs of one worker that are still its own: (id, fence)."""
    values = {"ids": [each.id for each in jobs], "owner": jobs[0].lease_owner}
    return {(row.id, row.fence) for row in await session.execute(_HELD_MANY, values)}


def unless_called(job: Claimed, later: datetime) -> ColumnElement[datetime]:
    """Return the time at which a postponed job is due: at once if it was called for while it ran.

    Its condition may be true by now. A call is a change of `run_after`.
    """
    return case((_JOB.run_after == job.run_after, literal(later, UtcTime())), else_=_JOB.run_after)


async def put_back(
    session: AsyncSession, job: Claimed, *, at: datetime, changes: Mapping[str, Any]
) -> datetime | None:
    """Let a job wait again, or die, as `changes` say: from when on, if it was still this worker's.

    A job that came meanwhile with the same dedupe key is absorbed: the older one does its work.
    """
    values = {"lease_owner": None, "lease_until": None, "updated_at": at, **changes}
    query = update(JOBS).where(IS_HELD).values(values).returning(_JOB.run_after)
    held = select(_JOB.dedupe_key).where(IS_HELD).with_for_update().scalar_subquery()
    twins = delete(JOBS).where(
        _JOB.dedupe_key == held,
        _JOB.id != job.id,
        _JOB.state.in_(("queued", "waiting_key")),
    )
    waits = changes.get("state") in {"queued", "waiting_key"}
    for left in reversed(range(TWIN_TRIES)):
        try:
            async with session.begin_nested():
                if waits:
                    await session.execute(twins, job.held(at))
                found: datetime | None = await session.scalar(query, job.held(at))
                return found
        except IntegrityError:  # one more came in between
            if not left:
                raise
    return None
