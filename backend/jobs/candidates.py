"""Which jobs could run now, and whose turn it is.

Lanes: a job is free when no other one of its lane runs, and none that came before it waits. One
that waits for its key or for its next attempt holds its lane up, for later ones may build on it. A
dead one does not: it would hold it up for good.

Turns: users are gone through in the order of their ids, by steps on the index, so that a user with
very many jobs costs no more to look at than one with a few.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    exists,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.types import Id, UtcTime
from backend.jobs.models import JOBS

_JOB = JOBS.c

Shares = Literal["all", "behind", "open"]
"""Whose jobs are looked at: of all that are queued, of those behind one, or of who is here."""

LOOK_AT = 4
"""How many times more jobs are looked at than can be taken, so that everybody gets a share."""


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
        abandoned: Whether it takes jobs whose leases ran out.
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
    abandoned: bool = True
    suspect: bool = True


async def candidates(
    session: AsyncSession, wanted: Wanted, at: datetime, start: UUID | None
) -> list[UUID]:
    """Ids of jobs that could be taken now, each share's in turn, as many as there is room for.

    It begins behind the share `start`.
    """
    limit = wanted.count * LOOK_AT
    values: dict[str, Any] = {
        "at": at,
        "kinds": wanted.kinds,
        "each": min(wanted.count, wanted.per_share),
        "limit": limit,
        "count": wanted.count,
    }
    is_postgres = session.get_bind().dialect.name == "postgresql"
    found: list[Row[UUID, UUID]] = []
    if wanted.open_to:
        query = _due("open", is_postgres)
        found += await session.execute(query, {**values, "open_to": wanted.open_to})
    if wanted.queued:
        if wanted.abandoned:
            found += await session.execute(_ABANDONED, values)
            if wanted.suspect:
                found += await session.execute(_SUSPECT, values)
        rows = list(await session.execute(_due("all", is_postgres), values))
        if start is not None and len(rows) < limit:
            rows.sort(key=lambda row: row.share <= start)
        elif start is not None:
            # There are more than these: those behind `start` may not be among them.
            query = _due("behind", is_postgres)
            behind = list(await session.execute(query, {**values, "start": start}))
            seen = {row.share for row in behind}
            rows = [*behind, *(row for row in rows if row.share not in seen)]
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


def _queued_shares(which: Shares) -> CTE:
    """The shares that have something queued, one step on the index each; they end with a null."""
    first = select(_JOB.share).where(_JOB.state == "queued")
    if which == "behind":
        first = first.where(_JOB.share > bindparam("start", type_=Id()))
    first = first.order_by(_JOB.share).limit(1)
    shares = select(first.scalar_subquery().label("share")).cte("shares", recursive=True)
    following = (
        select(_JOB.share)
        .where(_JOB.state == "queued", _JOB.share > shares.c.share)
        .order_by(_JOB.share)
        .limit(1)
        .scalar_subquery()
    )
    return shares.union_all(select(following).where(shares.c.share.is_not(None)))


def _open_shares() -> CTE:
    """Those of the users who are here that have something waiting for their key."""
    here = _JOB.share.in_(bindparam("open_to", expanding=True, type_=Id()))
    query = select(_JOB.share).where(_JOB.state == "waiting_key", here)
    return query.distinct().cte("open_shares")


@cache
def _due(which: Shares, is_postgres: bool) -> Select[UUID, UUID]:  # noqa: FBT001  # a cache's key
    """The jobs of each share that could run now: (id, share), `each` of each, `limit` of all.

    Built once: building it costs more than running it.
    """
    job = JOBS.alias()
    shares = _open_shares() if which == "open" else _queued_shares(which)
    of_share = (
        select(job.c.id)
        .where(
            job.c.state == ("waiting_key" if which == "open" else "queued"),
            job.c.share == shares.c.share,
            job.c.run_after <= bindparam("at", type_=UtcTime()),
            job.c.kind.in_(bindparam("kinds", expanding=True)),
            _lane_is_free(job),
        )
        .order_by(job.c.run_after)
        .limit(bindparam("each", type_=Integer()))
        .correlate(shares)
    )
    limit = bindparam("limit", type_=Integer())
    if is_postgres:
        found = of_share.lateral()
        both = shares.join(found, true())
        return select(found.c.id, shares.c.share).select_from(both).limit(limit)
    # SQLite has no LATERAL, and goes through a correlated IN share by share as it stands.
    outer = JOBS.alias()
    both = shares.join(outer, outer.c.id.in_(of_share))
    return select(outer.c.id, outer.c.share).select_from(both).limit(limit)


_LEFT_BEHIND = select(_JOB.id, _JOB.share).where(
    _JOB.state == "running",
    _JOB.lease_until <= bindparam("at", type_=UtcTime()),
    _JOB.kind.in_(bindparam("kinds", expanding=True)),
)
_ABANDONED = _LEFT_BEHIND.where(_JOB.leases_lost == 0).limit(bindparam("count", type_=Integer()))
"""Jobs whose worker has not been heard of."""

_SUSPECT = _LEFT_BEHIND.where(_JOB.leases_lost > 0).order_by(_JOB.lease_until).limit(1)
"""The one of them that has waited longest of those that lost a lease before."""


def _lane_is_free(job: Any) -> ColumnElement[bool]:
    other = JOBS.alias()
    same = and_(other.c.lane == job.c.lane, other.c.id != job.c.id)
    return and_(
        ~exists().where(same, other.c.state == "running"),
        ~exists().where(same, other.c.state == "queued", other.c.id < job.c.id),
        ~exists().where(same, other.c.state == "waiting_key", other.c.id < job.c.id),
    )
