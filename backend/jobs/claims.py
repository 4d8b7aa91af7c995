"""Claims, leases and fences of jobs. Nothing here commits.

A claim gives a job to one worker until its lease expires, and increments its fence. Claims run one
at a time, so that each sees the jobs that earlier ones took: SQLite has one writer, and PostgreSQL
an advisory lock. A claim takes milliseconds for many jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal, cast
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.types import Id, UtcTime
from backend.jobs.models import JOBS

_JOB = JOBS.c

Waiting = Literal["queued", "waiting_key"]

CANDIDATE_FACTOR = 4
"""Factor by which more jobs are read than can be taken: in total, so that every user gets a turn,
and for each user, because some jobs wait for earlier jobs of their lanes."""
FIRST_PER_SHARE = 6
"""Jobs of each share that are read at first. More are read only if few users have jobs, because
each job is compared with the others of its lane."""
FIRST_LOSS_WAIT, SECOND_LOSS_WAIT = timedelta(seconds=15), timedelta(seconds=60)
"""Waits before a job is claimed that lost its process repeatedly. After the first loss there is no
wait."""
UNLIMITED = {"shares": 2**31 - 1, "depth": 2**31 - 1}
LAST_SHARE = UUID(int=2**128 - 1)
"""The last possible share. A search that starts after it begins with the first share."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The jobs that a worker can take.

    Args:
        per_share: Maximum number of jobs of one share that may run in it at once.
        running: Number of running jobs of each share.
        queued: True to take jobs in the state `queued`.
        open_to: Users whose keys are in memory. The worker takes their jobs that wait for a key.
        thorough: True to look for expired leases as well, and to read all jobs of a share.
        suspect: True to take a job that lost its lease repeatedly. Only one at a time, because it
            may crash the worker together with all other jobs.
    """

    owner: UUID
    kinds: Sequence[str]
    count: int
    per_share: int
    running: Mapping[UUID, int]
    queued: bool = True
    open_to: Sequence[UUID] = ()
    thorough: bool = True
    suspect: bool = True


async def find_candidates(
    session: AsyncSession, wanted: Capacity, at: datetime, start: UUID | None
) -> list[UUID]:
    """Return ids of jobs that can be taken, of all shares in turn, from the one after `start`."""
    each = min(wanted.count, wanted.per_share, FIRST_PER_SHARE)
    values: dict[str, Any] = {
        "at": at,
        "kinds": wanted.kinds,
        "limit": wanted.count * CANDIDATE_FACTOR,
        "count": wanted.count,
        "shares": wanted.count * CANDIDATE_FACTOR,
        **_make_limits(each),
        "start": start or LAST_SHARE,
        "open_to": wanted.open_to,
        "once_lost": at - FIRST_LOSS_WAIT,
        "twice_lost": at - SECOND_LOSS_WAIT,
    }
    waiting: list[Waiting] = ["waiting_key"] if wanted.open_to else []
    found: list[Row[UUID, UUID]] = []
    if wanted.queued:
        waiting.append("queued")
        if wanted.thorough:
            found += await session.execute(_ABANDONED, values)
            if wanted.suspect:
                found += await session.execute(_SUSPECT, values)
    if not waiting:
        return []
    due = _make_due_query(tuple(waiting), session.get_bind().dialect.name == "postgresql")
    found += await session.execute(due, values)
    taken = _alternate(found, wanted)
    most = min(wanted.count, wanted.per_share)
    if len(taken) < wanted.count and each < most and _has_full_share(found, each):
        found += await session.execute(due, {**values, **_make_limits(most)})
        taken = _alternate(found, wanted)
    if len(taken) < wanted.count and wanted.thorough:
        found += await session.execute(due, {**values, **UNLIMITED})
        taken = _alternate(found, wanted)
    return taken


def _make_limits(count: int) -> dict[str, int]:
    return {"each": count, "depth": count * CANDIDATE_FACTOR}


def _has_full_share(rows: Iterable[Row[UUID, UUID]], each: int) -> bool:
    return any(found >= each for found in Counter(row.share for row in rows).values())


def _alternate(rows: Iterable[Row[UUID, UUID]], wanted: Capacity) -> list[UUID]:
    waiting: dict[UUID, deque[UUID]] = defaultdict(deque)
    for row in rows:
        if row.id not in waiting[row.share]:
            waiting[row.share].append(row.id)
    taken, counts = list[UUID](), Counter(wanted.running)
    while waiting and len(taken) < wanted.count:
        for share in list(waiting):
            if len(taken) == wanted.count:
                break
            if not waiting[share] or counts[share] >= wanted.per_share:
                del waiting[share]
                continue
            taken.append(waiting[share].popleft())
            counts[share] += 1
    return taken


def _make_queued_shares(
    name: str, begin: ColumnElement[bool], *end_job: ColumnElement[bool]
) -> CTE:
    """Return a CTE of the shares with queued jobs: one index step each, and a final null."""
    queued = select(_JOB.share).where(_JOB.state == "queued").order_by(_JOB.share).limit(1)
    first = queued.where(begin).scalar_subquery().label("share")
    shares = select(first, literal(1).label("number")).cte(name, recursive=True)
    # Without `begin`, because SQLite would start each index step there.
    following = queued.where(_JOB.share > shares.c.share, *end_job).scalar_subquery()
    step = select(following, shares.c.number + 1).where(
        shares.c.share.is_not(None), shares.c.number < bindparam("shares", type_=Integer())
    )
    return shares.union_all(step)


def _make_open_shares() -> CTE:
    """Return a CTE of the users with a key in memory whose jobs wait for a key."""
    here = _JOB.share.in_(bindparam("open_to", expanding=True, type_=Id()))
    query = select(_JOB.share).where(_JOB.state == "waiting_key", here)
    return query.distinct().cte("open_shares")


@cache
def _make_due_query(states: tuple[Waiting, ...], is_postgres: bool) -> Any:  # noqa: FBT001  # a cache's key
    """Return the query for (id, share) of jobs that can run now, in the order of `states`.

    Cached, because building the query takes longer than running it.
    """
    parts = [_query_state(state, is_postgres=is_postgres).subquery() for state in states]
    return union_all(*(select(part.c.id, part.c.share) for part in parts))


def _query_state(state: Waiting, *, is_postgres: bool) -> Any:
    """Return the query for jobs that can run now: up to `each` per share and `limit` in total."""
    limit = bindparam("limit", type_=Integer())
    if state == "waiting_key":
        return _query_shares(_make_open_shares(), state, is_postgres=is_postgres).limit(limit)
    start = bindparam("start", type_=Id())
    later = _make_queued_shares("later", _JOB.share > start)
    before = _make_queued_shares("before", _JOB.share <= start, _JOB.share <= start)
    both = (_query_shares(shares, state, is_postgres=is_postgres) for shares in (later, before))
    return union_all(*both).limit(limit)


def _query_shares(shares: CTE, state: Waiting, *, is_postgres: bool) -> Select[UUID, UUID]:
    job = JOBS.alias()
    first = (
        select(job.c.id, job.c.lane, job.c.kind, job.c.run_after)
        .where(
            job.c.state == state,
            job.c.share == shares.c.share,
            job.c.run_after <= bindparam("at", type_=UtcTime()),
        )
        .order_by(job.c.run_after)
        .limit(bindparam("depth", type_=Integer()))
        .correlate(shares)
        .subquery()
    )
    of_share = (
        select(first.c.id)
        .where(first.c.kind.in_(bindparam("kinds", expanding=True)), _lane_is_free(first))
        .limit(bindparam("each", type_=Integer()))
        .correlate(shares)
    )
    if is_postgres:
        # It may join the lanes in another order.
        found = of_share.order_by(first.c.run_after).lateral()
        return select(found.c.id, shares.c.share).select_from(shares.join(found, true()))
    # SQLite has no LATERAL. It evaluates a correlated IN for one share after the other.
    outer = JOBS.alias()
    both = shares.join(outer, outer.c.id.in_(of_share))
    return select(outer.c.id, outer.c.share).select_from(both)


_LEFT_BEHIND = select(_JOB.id, _JOB.share).where(
    _JOB.state == "running",
    _JOB.lease_until <= bindparam("at", type_=UtcTime()),
    _JOB.kind.in_(bindparam("kinds", expanding=True)),
)
_ABANDONED = _LEFT_BEHIND.where(_JOB.leases_lost == 0).limit(bindparam("count", type_=Integer()))

_SUSPECT = (
    _LEFT_BEHIND.where(
        _JOB.leases_lost > 0,
        _JOB.lease_until
        <= case(
            (_JOB.leases_lost == 1, bindparam("once_lost", type_=UtcTime())),
            (_JOB.leases_lost == 2, bindparam("twice_lost", type_=UtcTime())),  # noqa: PLR2004
            else_=bindparam("at", type_=UtcTime()),
        ),
    )
    .order_by(_JOB.lease_until)
    .limit(1)
)
"""The longest waiting job that lost a lease before, if its wait is over."""


def _lane_is_free(job: Any) -> ColumnElement[bool]:
    other = JOBS.alias()
    same = and_(other.c.lane == job.c.lane, other.c.id != job.c.id)
    is_before = and_(
        other.c.id < job.c.id,
        or_(
            other.c.lane_until.is_(None),
            other.c.lane_until > bindparam("at", type_=UtcTime()),
        ),
    )
    return and_(
        ~exists().where(same, other.c.state == "running"),
        ~exists().where(same, other.c.state == "queued", is_before),
        ~exists().where(same, other.c.state == "waiting_key", is_before),
    )


LEASE_DURATION = timedelta(seconds=60)
CLAIM_LOCK = 7_241_905_114
STUCK_MS = 15_000
"""Time after which PostgreSQL closes the connection of a process that hangs in a claim."""
MAX_PUT_BACK_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """The row of a claimed job. `lease_owner` and `fence` prove that it belongs to this worker."""

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

    def make_owner_values(self, at: datetime) -> dict[str, Any]:
        return {"job": self.id, "owner": self.lease_owner, "held_fence": self.fence, "at": at}


IS_OWNED = and_(
    _JOB.id == bindparam("job"),
    _JOB.state == "running",
    _JOB.lease_owner == bindparam("owner"),
    _JOB.fence == bindparam("held_fence"),
    _JOB.lease_until > bindparam("at"),
)
"""True if the job still belongs to its worker, and its lease has not expired."""

_COLUMNS: tuple[Any, ...] = tuple(_JOB[name] for name in ClaimedJob.__dataclass_fields__)
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
        # A running job can be claimed only after its lease has expired: its attempt begins again.
        attempts=_JOB.attempts + case((_JOB.state == "running", 0), else_=1),
        leases_lost=_JOB.leases_lost + case((_JOB.state == "running", 1), else_=0),
        updated_at=bindparam("at"),
    )
    .returning(*_COLUMNS),
)


_IN_ORDER = select(
    func.set_config("idle_in_transaction_session_timeout", str(STUCK_MS), True),  # noqa: FBT003  # PostgreSQL's own function
    func.pg_advisory_xact_lock(CLAIM_LOCK),
)


async def claim_jobs(
    session: AsyncSession,
    wanted: Capacity,
    *,
    at: datetime,
    lease: timedelta = LEASE_DURATION,
    start: UUID | None,
) -> list[ClaimedJob]:
    """Claim jobs of all users in turn, beginning after the share `start`, which was served last."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(_IN_ORDER)
    ids = await find_candidates(session, wanted, at, start)
    return await take_jobs(session, ids, wanted.owner, at=at, lease=lease)


_IS_DUE = _JOB.run_after <= bindparam("at", type_=UtcTime())
_HAS_QUEUED = exists().where(_JOB.state == "queued", _IS_DUE)
_HAS_EXPIRED = exists().where(
    _JOB.state == "running", _JOB.lease_until <= bindparam("at", type_=UtcTime())
)
_HAS_UNLOCKED = exists().where(
    _JOB.state == "waiting_key",
    _IS_DUE,
    _JOB.share.in_(bindparam("open_to", expanding=True, type_=Id())),
)
_HAS_WORK = {
    (True, True): select(or_(_HAS_QUEUED, _HAS_EXPIRED, _HAS_UNLOCKED)),
    (True, False): select(or_(_HAS_QUEUED, _HAS_EXPIRED)),
    (False, True): select(_HAS_UNLOCKED),
}
"""By `Capacity.queued`, and whether there are users in `Capacity.open_to`."""


async def has_work(session: AsyncSession, wanted: Capacity, *, at: datetime) -> bool:
    """True if there may be jobs to claim. One statement, which finds no free lanes or kinds."""
    query = _HAS_WORK.get((wanted.queued, bool(wanted.open_to)))
    values = {"at": at, "open_to": wanted.open_to}
    return query is not None and bool(await session.scalar(query, values))


async def take_jobs(
    session: AsyncSession, ids: Sequence[UUID], owner: UUID, *, at: datetime, lease: timedelta
) -> list[ClaimedJob]:
    """Claim those of the jobs `ids` that are free, in this order."""
    if not ids:
        return []
    values = {"ids": ids, "at": at, "until": at + lease, "owner": owner}
    rows = await session.execute(_TAKE, values)
    order = {job_id: place for place, job_id in enumerate(ids)}
    return sorted((ClaimedJob(*row) for row in rows), key=lambda each: order[each.id])


ENDED_VALUES: dict[str, Any] = {
    "lease_owner": None,
    "lease_until": None,
    "wrapped_key": None,
    "root_version": None,
    "key_until": None,
}

_END = delete(JOBS).where(IS_OWNED).returning(_JOB.id)
_END_AND_KEEP = (
    update(JOBS)
    .where(IS_OWNED)
    .values(state="done", updated_at=bindparam("at"), **ENDED_VALUES)
    .returning(_JOB.id)
)


async def end_job(session: AsyncSession, job: ClaimedJob, *, at: datetime, keep: bool) -> bool:
    """End a job: delete its row, or keep it as `done`. False if another worker has the job."""
    query = _END_AND_KEEP if keep else _END
    ended = await session.execute(query, job.make_owner_values(at))
    return ended.scalar() is not None


_END_MANY = (
    delete(JOBS)
    .where(
        # Also by the ids, because no database uses an index for pairs.
        _JOB.id.in_(bindparam("ids", expanding=True)),
        tuple_(_JOB.id, _JOB.fence).in_(bindparam("claims", expanding=True)),
        _JOB.lease_owner == bindparam("owner"),
        _JOB.state == "running",
        _JOB.lease_until > bindparam("at"),
    )
    .returning(_JOB.id)
)


async def end_jobs(session: AsyncSession, jobs: Sequence[ClaimedJob], *, at: datetime) -> set[UUID]:
    """Delete jobs of one worker. Return the ids of those that still belonged to it."""
    values = {
        "ids": [each.id for each in jobs],
        "claims": [(each.id, each.fence) for each in jobs],
        "owner": jobs[0].lease_owner,
        "at": at,
    }
    return set(await session.scalars(_END_MANY, values))


async def renew_leases(
    session: AsyncSession,
    jobs: Sequence[ClaimedJob],
    *,
    at: datetime,
    lease: timedelta = LEASE_DURATION,
) -> set[tuple[UUID, int]]:
    """Renew the leases of one worker's jobs, except those locked by a transaction.

    Returns (id, fence) of the renewed jobs. An expired lease is not renewed.
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


_OWNED_JOBS = select(_JOB.id, _JOB.fence).where(
    _JOB.id.in_(bindparam("ids", expanding=True)),
    _JOB.state == "running",
    _JOB.lease_owner == bindparam("owner"),
)


async def find_owned(session: AsyncSession, jobs: Sequence[ClaimedJob]) -> set[tuple[UUID, int]]:
    """Return (id, fence) of those jobs that still belong to the worker."""
    values = {"ids": [each.id for each in jobs], "owner": jobs[0].lease_owner}
    return {(row.id, row.fence) for row in await session.execute(_OWNED_JOBS, values)}


def make_due_time(job: ClaimedJob, later: datetime) -> ColumnElement[datetime]:
    """Return the due time of a postponed job: `later`, or at once if it was requested meanwhile.

    A request is a change of `run_after`.
    """
    return case((_JOB.run_after == job.run_after, literal(later, UtcTime())), else_=_JOB.run_after)


async def put_back(
    session: AsyncSession, job: ClaimedJob, *, at: datetime, changes: Mapping[str, Any]
) -> datetime | None:
    """Change a claimed job, so that it waits again or is dead.

    Deletes a newer job with the same dedupe key, because this one does its work. Returns the time
    from which the job waits, or None if it belongs to another worker.
    """
    values = {"lease_owner": None, "lease_until": None, "updated_at": at, **changes}
    query = update(JOBS).where(IS_OWNED).values(values).returning(_JOB.run_after)
    held = select(_JOB.dedupe_key).where(IS_OWNED).with_for_update().scalar_subquery()
    twins = delete(JOBS).where(
        _JOB.dedupe_key == held,
        _JOB.id != job.id,
        _JOB.state.in_(("queued", "waiting_key")),
    )
    waits = changes.get("state") in {"queued", "waiting_key"}
    for left in reversed(range(MAX_PUT_BACK_ATTEMPTS)):
        try:
            async with session.begin_nested():
                if waits:
                    await session.execute(twins, job.make_owner_values(at))
                found: datetime | None = await session.scalar(query, job.make_owner_values(at))
                return found
        except IntegrityError:  # another one was added in between
            if not left:
                raise
    return None
