"""Heartbeats of the processes that share a database. The leases of a lost process end early.

Exclusive work is a row with a lease: `lease_owner` is the process, and after `lease_until` another
process may take the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Interval,
    Table,
    TextClause,
    and_,
    bindparam,
    case,
    column,
    delete,
    exists,
    func,
    or_,
    select,
    table,
    text,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from backend.core.logs import get_logger
from backend.database.base import Base, PrimaryId, get_table, now
from backend.database.engine import Database, make_bare, name_client

log = get_logger(__name__)

BEAT_SECONDS = 0.5
MARGIN_SECONDS = 0.02
"""After this time more, a process that was about to be lost is lost."""
LOST_AFTER = timedelta(seconds=2)
"""A process is lost if its row is older than this, by the database's clock."""
DISCONNECTED_AFTER = timedelta(seconds=1)
"""A process with a closed heartbeat connection is lost if its row is older than this.

A shorter time needs more heartbeats than one each `BEAT_SECONDS`, and leaves a process whose
connection broke less time to connect again.
"""

CHANNEL = "talekeeper_jobs"
ANNOUNCE_SECONDS = 0.05
"""Minimum interval of announcements."""

LOCK_MS = 1_000
"""Maximum wait for a row of a lost process. Then the transaction is retried."""


class Process(Base):
    """A process that runs turns or jobs on PostgreSQL. `seen_at` is the database's time.

    `is_server` is false for a process that only runs jobs. `backend_pid` is PostgreSQL's process
    for its heartbeats, or None if there is a pooler in between.
    """

    __tablename__ = "processes"

    id: Mapped[PrimaryId]
    seen_at: Mapped[datetime]
    is_server: Mapped[bool] = mapped_column(server_default=true())
    backend_pid: Mapped[int | None]


@dataclass(frozen=True, slots=True)
class Leases:
    """A table with leases. `condition` selects its leased rows."""

    table: Table
    condition: ColumnElement[bool] | TextClause


_ROW = get_table(Process).c
_AGE = type_coerce(func.clock_timestamp() - _ROW.seen_at, Interval)
_SESSION = table("pg_stat_activity", column("pid", Integer)).c
_IS_LOST = or_(
    _AGE > LOST_AFTER,
    # In this order, so that the sessions are read only if a row is late.
    and_(
        _AGE > DISCONNECTED_AFTER,
        _ROW.backend_pid.is_not(None),
        ~exists().where(_SESSION.pid == _ROW.backend_pid),
    ),
)
_INSERT = insert(get_table(Process)).values(
    id=bindparam("id"),
    seen_at=func.clock_timestamp(),
    is_server=bindparam("is_server"),
    backend_pid=case((bindparam("is_direct", type_=Boolean), func.pg_backend_pid())),
)
_BEAT = _INSERT.on_conflict_do_update(
    index_elements=[_ROW.id],
    set_={"seen_at": _INSERT.excluded.seen_at, "backend_pid": _INSERT.excluded.backend_pid},
).returning(
    # No wait for the disk, because a lost row is written again.
    func.set_config("synchronous_commit", "off", True)  # noqa: FBT003  # PostgreSQL's own function
)
_BEAT_AND_LOOK = (
    select(_ROW.id, _IS_LOST.label("is_lost"), _AGE.label("age"), _ROW.is_server)
    .where(_ROW.id != bindparam("id"))
    .add_cte(_BEAT.cte("beat"))
)
"""One statement, which sees the table as it was before the heartbeat."""
_DISCONNECT = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = ANY(:names) AND state <> 'idle'"
)
"""Idle connections hold no locks. A pooler keeps them, and may just have lent them to another."""

_ANNOUNCE = select(
    func.set_config("synchronous_commit", "off", True),  # noqa: FBT003  # as above
    func.pg_notify(CHANNEL, bindparam("sender")),
)


class Processes:
    """Heartbeats of this process, detection of lost processes, and announcements to the others.

    On PostgreSQL each process renews its row twice a second on a separate connection, and reads the
    rows of the others. The first process that finds a lost one ends its leases. SQLite has one
    process at a time: at its start, all leases belong to ended processes.

    `leases` are all tables with leases. `on_loss` is called after this or another process has ended
    leases. `on_news` is called after another process has announced jobs, or may have. `on_count` is
    called with the number of live servers when it has changed. `clock` returns monotonic seconds.

    Announcements are heard on the connection of the heartbeats, unless a pooler is in between. They
    may be lost.
    """

    def __init__(
        self,
        database: Database,
        leases: Sequence[Leases],
        *,
        on_loss: Callable[[], Awaitable[None]],
        on_news: Callable[[], None] = lambda: None,
        on_count: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._leases = leases
        self._on_loss = on_loss
        self._on_news = on_news
        self._on_count = on_count
        self._servers = 1
        self._clock = clock
        self._others: set[UUID] = set()
        self._alone_since = math.inf
        self._lost: set[UUID] = set()
        self._news = asyncio.Event()
        self._has_announcement = asyncio.Event()
        self._listening: Any = None
        self._seen_at = self._steady_since = -math.inf
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *, is_server: bool = True) -> None:
        """Take over from earlier processes. On PostgreSQL, begin with heartbeats."""
        if self._database.is_sqlite:
            async with self._database.write() as session:
                await self._end_leases(session, owners=None)
        await self._on_loss()
        if not self._database.is_sqlite:
            engine = self._database.make_direct_engine()
            self._tasks = [
                asyncio.create_task(self._beat(engine, is_server=is_server), name="processes.beat"),
                asyncio.create_task(self._recover(), name="processes.recover"),
                asyncio.create_task(self._announce(), name="processes.announce"),
            ]

    def announce(self) -> None:
        """Notify the other processes soon that there are jobs, unless this one is alone.

        A process that the last heartbeat has not seen yet may miss a job until its next poll.
        """
        if self._clock() - self._alone_since < LOST_AFTER.total_seconds():
            self._has_announcement.set()

    async def aclose(self) -> None:
        """End all leases of this process, and delete its row."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=LOST_AFTER.total_seconds())
        try:
            async with self._database.write() as session:
                await session.execute(delete(Process).where(_ROW.id == self._database.process_id))
                await self._end_leases(session, owners=[self._database.process_id])
        except Exception as error:  # the others will notice the missing heartbeat
            log.warning("process.not_deleted", exc_info=error)

    async def _beat(self, engine: AsyncEngine, *, is_server: bool) -> None:
        is_seen = True
        try:
            while True:
                pause = BEAT_SECONDS
                try:
                    async with asyncio.timeout(LOST_AFTER.total_seconds()):
                        pause = await self._renew(engine, is_server=is_server)
                    is_seen = True
                except Exception as error:  # the next heartbeat tries again
                    if is_seen:
                        log.warning("process.heartbeat_failed", exc_info=error)
                        pause = MARGIN_SECONDS  # with a new connection
                    is_seen = False
                    self._alone_since = math.inf  # others may have joined
                await asyncio.sleep(pause)
        finally:
            with contextlib.suppress(Exception):
                await engine.dispose()

    async def _renew(self, engine: AsyncEngine, *, is_server: bool) -> float:
        """Send a heartbeat. Returns the seconds until the next one.

        It is earlier if another process would be lost before it.
        """
        single = make_bare(engine) if self._database.can_listen else engine
        async with single.begin() as connection:
            is_same = await self._listen(connection)
            is_direct = self._database.can_listen
            row = {"id": self._database.process_id, "is_server": is_server, "is_direct": is_direct}
            rows = (await connection.execute(_BEAT_AND_LOOK, row)).all()
        others = {row.id for row in rows}
        # A pooler keeps its connection when the database restarts and closes those of the others.
        lost = {row.id for row in rows if row.is_lost and (is_direct or row.age > LOST_AFTER)}
        self._lost = lost if self._is_steady(is_same=is_same) else set()
        if self._lost or self._others - others:
            self._news.set()
        self._others = others
        self._alone_since = math.inf if others else min(self._alone_since, self._clock())
        live = sum(row.is_server for row in rows if row.id not in self._lost)
        servers = max(1, live + is_server)
        if servers != self._servers:
            self._servers = servers
            self._on_count(servers)
        limits = (DISCONNECTED_AFTER, LOST_AFTER)
        waits = [limit - row.age for row in rows for limit in limits if row.age <= limit]
        until_loss = min(waits, default=LOST_AFTER).total_seconds() + MARGIN_SECONDS
        return min(BEAT_SECONDS, max(MARGIN_SECONDS, until_loss))

    async def _listen(self, connection: AsyncConnection) -> bool:
        """Listen on a new connection, before its transaction begins. False if it is new."""
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if driver is self._listening or not self._database.can_listen:
            return True
        await driver.add_listener(CHANNEL, self._hear)
        self._listening = driver
        self._on_news()  # announcements may have been lost before
        return False

    def _hear(self, _driver: Any, _pid: int, _channel: str, sender: str) -> None:
        if sender != str(self._database.process_id):
            self._on_news()

    async def _announce(self) -> None:
        sender = {"sender": str(self._database.process_id)}
        while True:
            await self._has_announcement.wait()
            self._has_announcement.clear()
            try:
                async with self._database.single_engine.begin() as connection:
                    await connection.execute(_ANNOUNCE, sender)
            except Exception as error:  # the others find the jobs when they poll
                log.warning("process.not_announced", exc_info=error)
            await asyncio.sleep(ANNOUNCE_SECONDS)

    def _is_steady(self, *, is_same: bool) -> bool:
        """Record a heartbeat. Return True if none was late during the last `LOST_AFTER`.

        After a pause of the database or of this machine, all rows are old, and the other processes
        need time to renew theirs. After a restart of the database all connections are new, so a
        heartbeat must be on the same one as the last (`is_same`).
        """
        at = self._clock()
        if not is_same or at - self._seen_at > 2 * BEAT_SECONDS:
            self._steady_since = at
        self._seen_at = at
        return at - self._steady_since >= LOST_AFTER.total_seconds()

    async def _recover(self) -> None:
        """Take over from lost processes. A separate task, so that it never delays heartbeats."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._end_lost(self._lost)
                await self._on_loss()
            except Exception as error:
                log.warning("process.not_taken_over", exc_info=error)
                await asyncio.sleep(BEAT_SECONDS)
                self._news.set()

    async def _end_lost(self, lost: Collection[UUID]) -> None:
        """Delete the rows of lost processes and end their leases in one transaction.

        First closes their connections, because a stopped process may hold locks on its rows.
        """
        if not lost:
            return
        async with self._database.write() as session:
            timeout = func.set_config("lock_timeout", str(LOCK_MS), True)  # noqa: FBT003  # as above
            await session.execute(select(timeout))
            # On a busy machine this is seconds later, and some may have been late only.
            still = list(await session.scalars(select(_ROW.id).where(_ROW.id.in_(lost), _IS_LOST)))
            if not still:
                return
            await session.execute(_DISCONNECT, {"names": [name_client(each) for each in still]})
            is_ended = delete(get_table(Process)).where(_ROW.id.in_(still), _IS_LOST)
            ended = list(await session.scalars(is_ended.returning(_ROW.id)))
            await self._end_leases(session, owners=ended)
        if ended:
            log.warning("process.lost", count=len(ended))

    async def _end_leases(self, session: AsyncSession, *, owners: Collection[UUID] | None) -> None:
        at = now()
        for leases in self._leases:
            row = leases.table.c
            query = update(leases.table).where(leases.condition, row.lease_until > at)
            if owners is not None:
                query = query.where(row.lease_owner.in_(owners))
            await session.execute(query.values(lease_until=at))
