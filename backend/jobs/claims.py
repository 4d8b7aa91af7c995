"""Who may work on which job: claims, leases, fences. Nothing here commits.

A claim gives a job to one worker until its lease runs out, and counts its fence up. All claims of
an installation come one after the other, so that each sees what the one before it took: on SQLite
there is one writer anyway, on PostgreSQL an advisory lock keeps the order. A claim takes
milliseconds, and takes many jobs at once.

Lanes: a job is free when no other one of its lane runs, and none that came before it waits. One
that waits for its key or for its next attempt holds its lane up, for later ones may build on it. A
dead one does not: it would hold it up for good.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.database.types import Id, UtcTime
from backend.jobs.models import Job

LEASE = timedelta(seconds=60)
LOCK = 7_241_905_114
"""PostgreSQL's advisory lock under which jobs are claimed."""
STUCK_MS = 15_000
"""A process that stops in the middle of a claim loses its connection after this."""
LOOK_AT = 4
"""How many times more jobs are looked at than can be taken, so that everybody gets a share."""
TWIN_TRIES = 5


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that was claimed, as its row stood then."""

    id: UUID
    user_id: UUID | None
    share: UUID
    kind: str
    lane: UUID | None
    payload: str
    attempts: int
    fence: int
    wrapped_key: bytes | None
    root_version: int | None
    key_until: datetime | None


_COLUMNS = tuple(getattr(Job, name) for name in Claimed.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker can take.

    Args:
        owner: The worker.
        kinds: What it has handlers for.
        count: How many jobs it has room for.
        per_share: Most jobs of one share that may run in it at once.
        running: How many of each share do.
        queued: Whether it takes jobs that need no more than what lies in the database.
        open_to: Users whose keys it has in memory: of these it takes what waits for a key.
    """

    owner: UUID
    kinds: Sequence[str]
    count: int
    per_share: int
    running: Mapping[UUID, int]
    queued: bool = True
    open_to: Sequence[UUID] = ()


async def claim(
    session: AsyncSession,
    wanted: Wanted,
    *,
    at: datetime,
    lease: timedelta = LEASE,
    start: UUID | None,
) -> list[Claimed]:
    """Take jobs, at most `wanted.count`, each user's in turn.

    It begins behind the share `start`: the last one that was served, so that the next has its turn.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(
            select(
                func.set_config("idle_in_transaction_session_timeout", str(STUCK_MS), True),  # noqa: FBT003  # PostgreSQL's own function
                func.pg_advisory_xact_lock(LOCK),
            )
        )
    ids = await _candidates(session, wanted, at, start)
    if not ids:
        return []
    free = (
        select(Job.id)
        .where(Job.id.in_(ids), _is_free_to_take(at))
        .with_for_update(skip_locked=True)
    )
    query = (
        update(Job)
        .where(Job.id.in_(free))
        .values(
            state="running",
            lease_owner=wanted.owner,
            lease_until=at + lease,
            fence=Job.fence + 1,
            attempts=Job.attempts + 1,
            updated_at=at,
        )
        .returning(*_COLUMNS)
        .execution_options(synchronize_session=False)
    )
    rows = (await session.execute(query)).all()
    return sorted((Claimed(*row) for row in rows), key=lambda each: ids.index(each.id))


async def _candidates(
    session: AsyncSession, wanted: Wanted, at: datetime, start: UUID | None
) -> list[UUID]:
    limit = wanted.count * LOOK_AT
    values: dict[str, Any] = {
        "at": at,
        "kinds": wanted.kinds,
        "each": min(wanted.count, wanted.per_share),
        "limit": limit,
    }
    is_postgres = session.get_bind().dialect.name == "postgresql"
    found: list[Row[UUID, UUID]] = []
    if wanted.open_to:
        query = _due(Shares.OPEN, is_postgres)
        found += await session.execute(query, {**values, "open_to": wanted.open_to})
    if wanted.queued:
        found += await session.execute(_abandoned(wanted, at).limit(wanted.count))
        rows: list[Row[UUID, UUID]] = []
        if start is not None:
            query = _due(Shares.BEHIND, is_postgres)
            rows += await session.execute(query, {**values, "start": start})
        if len(rows) < limit:
            seen = {row.share for row in rows}
            more = await session.execute(_due(Shares.ALL, is_postgres), values)
            rows += [row for row in more if row.share not in seen]
        found += rows
    return _in_turn(found, wanted)


def _in_turn(rows: Iterable[Row[UUID, UUID]], wanted: Wanted) -> list[UUID]:
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


class Shares(Enum):
    """Whose jobs are looked at: of all that are queued, of those behind one, or of who is here."""

    ALL = auto()
    BEHIND = auto()
    OPEN = auto()


def _queued_shares(which: Shares) -> CTE:
    """The shares that have something queued, one step on the index each; they end with a null."""
    first = select(Job.share).where(Job.state == "queued")
    if which is Shares.BEHIND:
        first = first.where(Job.share > bindparam("start", type_=Id()))
    first = first.order_by(Job.share).limit(1)
    shares = select(first.scalar_subquery().label("share")).cte("shares", recursive=True)
    following = (
        select(Job.share)
        .where(Job.state == "queued", Job.share > shares.c.share)
        .order_by(Job.share)
        .limit(1)
        .scalar_subquery()
    )
    return shares.union_all(select(following).where(shares.c.share.is_not(None)))


def _open_shares() -> CTE:
    """Those of the users who are here that have something waiting for their key."""
    here = Job.share.in_(bindparam("open_to", expanding=True, type_=Id()))
    query = select(Job.share).where(Job.state == "waiting_key", here)
    return query.distinct().cte("open_shares")


@cache
def _due(which: Shares, is_postgres: bool) -> Select[UUID, UUID]:  # noqa: FBT001  # a cache's key
    """The jobs of each share that could run now: (id, share), `each` of each, `limit` of all.

    Built once: building it costs more than running it.
    """
    job = aliased(Job)
    shares = _open_shares() if which is Shares.OPEN else _queued_shares(which)
    of_share = (
        select(job.id)
        .where(
            job.state == ("waiting_key" if which is Shares.OPEN else "queued"),
            job.share == shares.c.share,
            job.run_after <= bindparam("at", type_=UtcTime()),
            job.kind.in_(bindparam("kinds", expanding=True)),
            _lane_is_free(job),
        )
        .order_by(job.run_after)
        .limit(bindparam("each", type_=Integer()))
        .correlate(shares)
    )
    limit = bindparam("limit", type_=Integer())
    if is_postgres:
        found = of_share.lateral()
        both = shares.join(found, true())
        return select(found.c.id, shares.c.share).select_from(both).limit(limit)
    # SQLite has no LATERAL, and goes through a correlated IN share by share as it stands.
    outer = aliased(Job)
    both = shares.join(outer, outer.id.in_(of_share))
    return select(outer.id, outer.share).select_from(both).limit(limit)


def _abandoned(wanted: Wanted, at: datetime) -> Select[UUID, UUID]:
    """Jobs whose worker has not been heard of."""
    return select(Job.id, Job.share).where(
        Job.state == "running", Job.lease_until <= at, Job.kind.in_(wanted.kinds)
    )


def _is_free_to_take(at: datetime) -> ColumnElement[bool]:
    return or_(
        Job.state.in_(("queued", "waiting_key")),
        and_(Job.state == "running", Job.lease_until <= at),
    )


def _lane_is_free(job: Any) -> ColumnElement[bool]:
    other = aliased(Job)
    same = and_(other.lane == job.lane, other.id != job.id)
    return and_(
        ~exists().where(same, other.state == "running"),
        ~exists().where(same, other.state == "queued", other.id < job.id),
        ~exists().where(same, other.state == "waiting_key", other.id < job.id),
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """What a worker shows to prove that a job is its own."""

    job_id: UUID
    owner: UUID
    fence: int

    def holds(self, at: datetime) -> ColumnElement[bool]:
        """Whether the row is still this worker's, and the lease has not run out."""
        return and_(
            Job.id == self.job_id,
            Job.state == "running",
            Job.lease_owner == self.owner,
            Job.fence == self.fence,
            Job.lease_until > at,
        )


ENDED: dict[str, Any] = {
    "lease_owner": None,
    "lease_until": None,
    "wrapped_key": None,
    "root_version": None,
    "key_until": None,
}
"""What a row loses with its job's end."""


async def end(session: AsyncSession, lease: Lease, *, at: datetime, keep: bool) -> bool:
    """End a job: its row goes, or stays as `done`. Whether it was still this worker's."""
    if keep:
        query = update(Job).where(lease.holds(at)).values(state="done", updated_at=at, **ENDED)
        query = query.execution_options(synchronize_session=False)
        return await session.scalar(query.returning(Job.id)) is not None
    gone = delete(Job).where(lease.holds(at)).execution_options(synchronize_session=False)
    return await session.scalar(gone.returning(Job.id)) is not None


async def end_many(session: AsyncSession, leases: Sequence[Lease], *, at: datetime) -> set[UUID]:
    """End jobs of one worker that have no effects, rows and all; those that were still its own."""
    query = (
        delete(Job)
        .where(
            tuple_(Job.id, Job.fence).in_([(each.job_id, each.fence) for each in leases]),
            Job.lease_owner == leases[0].owner,
            Job.state == "running",
            Job.lease_until > at,
        )
        .execution_options(synchronize_session=False)
    )
    return set(await session.scalars(query.returning(Job.id)))


async def renew(
    session: AsyncSession, owner: UUID, *, at: datetime, lease: timedelta = LEASE
) -> set[tuple[UUID, int]]:
    """Renew a worker's leases, but those that a transaction of its own holds just now.

    Returns (id, fence) of those that were renewed. A lease that has run out stays lost.
    """
    mine = (
        select(Job.id)
        .where(Job.state == "running", Job.lease_owner == owner, Job.lease_until > at)
        .with_for_update(skip_locked=True)
    )
    query = (
        update(Job)
        .where(Job.id.in_(mine))
        .values(lease_until=at + lease)
        .execution_options(synchronize_session=False)
    )
    rows = await session.execute(query.returning(Job.id, Job.fence))
    return {(row.id, row.fence) for row in rows}


async def put_back(
    session: AsyncSession, lease: Lease, *, at: datetime, changes: Mapping[str, Any]
) -> bool:
    """Let a job wait again, or die, as `changes` say; whether it was still this worker's.

    A job that came meanwhile with the same dedupe key is absorbed: the older one does its work.
    """
    values = {"lease_owner": None, "lease_until": None, "updated_at": at, **changes}
    query = (
        update(Job)
        .where(lease.holds(at))
        .values(values)
        .execution_options(synchronize_session=False)
    )
    held = select(Job.dedupe_key).where(lease.holds(at)).with_for_update().scalar_subquery()
    twins = (
        delete(Job)
        .where(
            Job.dedupe_key == held,
            Job.id != lease.job_id,
            Job.state.in_(("queued", "waiting_key")),
        )
        .execution_options(synchronize_session=False)
    )
    waits = changes.get("state") in {"queued", "waiting_key"}
    for left in reversed(range(TWIN_TRIES)):
        try:
            async with session.begin_nested():
                if waits:
                    await session.execute(twins)
                return await session.scalar(query.returning(Job.id)) is not None
        except IntegrityError:  # one more came in between
            if not left:
                raise
    return False
