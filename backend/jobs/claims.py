"""Who may work on which job: claims, leases, fences. Nothing here commits.

A claim gives a job to one worker until its lease runs out, and counts its fence up. All claims of
an installation come one after the other, so that each sees what the one before it took: on SQLite
there is one writer anyway, on PostgreSQL an advisory lock keeps the order. A claim takes
milliseconds, and takes many jobs at once.
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
"""How many times more jobs are read than can be taken: in all, so that every user gets a turn, and
of each user, because some jobs wait for earlier ones of their lanes."""
FIRST_PER_SHARE = 6
"""Most jobs of each share that are looked for at first: more only where few users have any. Each is
checked against the others of its lane."""
FIRST_LOSS_WAIT, TWICE_LOST = timedelta(seconds=15), timedelta(seconds=60)
"""Waits before a job that lost its process again is claimed; after the first loss there is none."""
UNLIMITED = {"shares": 2**31 - 1, "depth": 2**31 - 1}
LAST_SHARE = UUID(int=2**128 - 1)
"""No share comes after it: a search that starts here starts over with the first."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker can take.

    Args:
        owner: The worker.
        kinds: What it has handlers for.
        count: How many jobs it has room for.
        per_share: Most jobs of one share that may run in it at once.
        running: How many of each share do.
        queued: Whether it takes jobs that need no more than what lies in the database.
        open_to: Users whose keys it has in memory: of these it takes what waits for a key.
        thorough: Whether it also looks for jobs whose leases ran out, and reads all of a share.
        suspect: Whether it takes one that lost its lease twice in a row: one at a time, so that
            those that ran beside it when it brought a worker down do not die with it.
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
    """Ids of jobs that could be taken now, each share's in turn, as many as there is room for.

    It begins with the share after `start`.
    """
    each = min(wanted.count, wanted.per_share, FIRST_PER_SHARE)
    values: dict[str, Any] = {
        "at": at,
        "kinds": wanted.kinds,
        "limit": wanted.count * CANDIDATE_FACTOR,
        "count": wanted.count,
        "shares": wanted.count * CANDIDATE_FACTOR,
        **_of_each(each),
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
    due = _due(tuple(waiting), session.get_bind().dialect.name == "postgresql")
    found += await session.execute(due, values)
    taken = _in_turn(found, wanted)
    most = min(wanted.count, wanted.per_share)
    if len(taken) < wanted.count and each < most and _has_full_share(found, each):
        found += await session.execute(due, {**values, **_of_each(most)})
        taken = _in_turn(found, wanted)
    if len(taken) < wanted.count and wanted.thorough:
        found += await session.execute(due, {**values, **UNLIMITED})
        taken = _in_turn(found, wanted)
    return taken


def _of_each(count: int) -> dict[str, int]:
    """How many jobs of each share are taken, and how many are read for that."""
    return {"each": count, "depth": count * CANDIDATE_FACTOR}


def _has_full_share(rows: Iterable[Row[UUID, UUID]], each: int) -> bool:
    """Whether a share may have more jobs than were asked for."""
    return any(found >= each for found in Counter(row.share for row in rows).values())


def _in_turn(rows: Iterable[Row[UUID, UUID]], wanted: Capacity) -> list[UUID]:
    """One job of each share after the other, until there is no more room."""
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


def _queued_shares(name: str, begin: ColumnElement[bool], *end_job: ColumnElement[bool]) -> CTE:
    """The shares that have something queued, one step on the index each; they end with a null."""
    queued = select(_JOB.share).where(_JOB.state == "queued").order_by(_JOB.share).limit(1)
    first = queued.where(begin).scalar_subquery().label("share")
    shares = select(first, literal(1).label("number")).cte(name, recursive=True)
    # Not `begin` once more: SQLite would take that for where to begin on the index.
    following = queued.where(_JOB.share > shares.c.share, *end_job).scalar_subquery()
    step = select(following, shares.c.number + 1).where(
        shares.c.share.is_not(None), shares.c.number < bindparam("shares", type_=Integer())
    )
    return shares.union_all(step)


def _open_shares() -> CTE:
    """Those of the users who are here that have something waiting for their key."""
    here = _JOB.share.in_(bindparam("open_to", expanding=True, type_=Id()))
    query = select(_JOB.share).where(_JOB.state == "waiting_key", here)
    return query.distinct().cte("open_shares")


@cache
def _due(states: tuple[Waiting, ...], is_postgres: bool) -> Any:  # noqa: FBT001  # a cache's key
    """The jobs in these states that could run now: (id, share), those of the first state first.

    Built once: building it costs more than running it.
    """
    parts = [_due_in(state, is_postgres=is_postgres).subquery() for state in states]
    return union_all(*(select(part.c.id, part.c.share) for part in parts))


def _due_in(state: Waiting, *, is_postgres: bool) -> Any:
    """The jobs of each share that could run now: `each` of each, `limit` of all.

    Both databases go through shares and rows as they stand, and no further than to the limit.
    """
    limit = bindparam("limit", type_=Integer())
    if state == "waiting_key":
        return _due_of(_open_shares(), state, is_postgres=is_postgres).limit(limit)
    start = bindparam("start", type_=Id())
    later = _queued_shares("later", _JOB.share > start)
    before = _queued_shares("before", _JOB.share <= start, _JOB.share <= start)
    both = (_due_of(shares, state, is_postgres=is_postgres) for shares in (later, before))
    return union_all(*both).limit(limit)


def _due_of(shares: CTE, state: Waiting, *, is_postgres: bool) -> Select[UUID, UUID]:
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
        found = of_share.lateral()
        return select(found.c.id, shares.c.share).select_from(shares.join(found, true()))
    # SQLite has no LATERAL, and goes through a correlated IN share by share as it stands.
    outer = JOBS.alias()
    both = shares.join(outer, outer.c.id.in_(of_share))
    return select(outer.c.id, outer.c.share).select_from(both)


_LEFT_BEHIND = select(_JOB.id, _JOB.share).where(
    _JOB.state == "running",
    _JOB.lease_until <= bindparam("at", type_=UtcTime()),
    _JOB.kind.in_(bindparam("kinds", expanding=True)),
)
_ABANDONED = _LEFT_BEHIND.where(_JOB.leases_lost == 0).limit(bindparam("count", type_=Integer()))
"""Jobs whose worker has not been heard of."""

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
"""The one that has waited longest of those that lost a lease before, once its wait is over."""


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
"""PostgreSQL's advisory lock under which jobs are claimed."""
STUCK_MS = 15_000
"""A process that stops in the middle of a claim loses its connection after this."""
MAX_PUT_BACK_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ClaimedJob:
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
        """The parameters of `IS_OWNED`."""
        return {"job": self.id, "owner": self.lease_owner, "held_fence": self.fence, "at": at}


IS_OWNED = and_(
    _JOB.id == bindparam("job"),
    _JOB.state == "running",
    _JOB.lease_owner == bindparam("owner"),
    _JOB.fence == bindparam("held_fence"),
    _JOB.lease_until > bindparam("at"),
)
"""A job's row is still its worker's, and the lease has not run out."""

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
        # One that runs can be claimed only because its lease ran out: its attempt begins again.
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
    """Take jobs, at most `wanted.count`, each user's in turn.

    It begins after the share `start`, which was served last, so that the next has its turn.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(_IN_ORDER)
    ids = await find_candidates(session, wanted, at, start)
    return await take_jobs(session, ids, wanted.owner, at=at, lease=lease)


async def take_jobs(
    session: AsyncSession, ids: Sequence[UUID], owner: UUID, *, at: datetime, lease: timedelta
) -> list[ClaimedJob]:
    """Take those of some jobs that are free, in the order of `ids`."""
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
"""What a row loses with its job's end."""

_END = delete(JOBS).where(IS_OWNED).returning(_JOB.id)
_END_AND_KEEP = (
    update(JOBS)
    .where(IS_OWNED)
    .values(state="done", updated_at=bindparam("at"), **ENDED_VALUES)
    .returning(_JOB.id)
)


async def end_job(session: AsyncSession, job: ClaimedJob, *, at: datetime, keep: bool) -> bool:
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


async def end_jobs(session: AsyncSession, jobs: Sequence[ClaimedJob], *, at: datetime) -> set[UUID]:
    """End jobs of one worker, rows and all: gives back those that were still its own."""
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


async def find_owned(session: AsyncSession, jobs: Sequence[ClaimedJob]) -> set[tuple[UUID, int]]:
    """Find those jobs of one worker that are still its own: (id, fence)."""
    values = {"ids": [each.id for each in jobs], "owner": jobs[0].lease_owner}
    return {(row.id, row.fence) for row in await session.execute(_HELD_MANY, values)}


def make_due_time(job: ClaimedJob, later: datetime) -> ColumnElement[datetime]:
    """Return the time at which a postponed job is due: at once if it was called for while it ran.

    Its condition may be true by now. A call is a change of `run_after`.
    """
    return case((_JOB.run_after == job.run_after, literal(later, UtcTime())), else_=_JOB.run_after)


async def put_back(
    session: AsyncSession, job: ClaimedJob, *, at: datetime, changes: Mapping[str, Any]
) -> datetime | None:
    """Let a job wait again, or die, as `changes` say: from when on, if it was still this worker's.

    A job that came meanwhile with the same dedupe key is absorbed: the older one does its work.
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
                    await session.execute(twins, job.held(at))
                found: datetime | None = await session.scalar(query, job.held(at))
                return found
        except IntegrityError:  # one more came in between
            if not left:
                raise
    return None
