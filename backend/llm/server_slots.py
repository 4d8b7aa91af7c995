"""Servers with limited concurrency, shared by users, jobs and processes.

Work that uses such a server holds a place there (`ModelSlots.hold`). `slot_rules` decides who gets
one. Claims are rows, so that processes see each other's. A process reads the claims of others a few
times a second while it waits, or while its work may have to yield. Providers without a limit do not
use this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.names import InstanceKeys
from backend.core.logs import get_logger
from backend.database.base import get_table, new_id, now
from backend.database.engine import EFFECT_NOTE, Database
from backend.errors import UnavailableError
from backend.generation.servers.abilities import ServerLimit
from backend.llm.models import SlotClaim
from backend.llm.slot_rules import (
    Claim,
    Occupation,
    Rank,
    SlotWork,
    find_occupation,
    may_start,
    must_yield,
)

log = get_logger(__name__)

LEASE_DURATION = timedelta(seconds=15)
"""The process of a claim that is not renewed for this long has ended."""

RENEW_SECONDS = 4.0
POLL_SECONDS = 0.2
"""Interval at which a process reads the claims of others. Background work in one process yields to
a turn in another within two intervals, plus the time that hanging up takes."""

_CLAIMS = get_table(SlotClaim)
_ROW = _CLAIMS.c

OnWait = Callable[[Occupation | None], None]
"""Called when the work that a claim waits for changes. None means that it has a place."""


class ModelBusyError(UnavailableError):
    """The model's server is in use, and the work did not get a slot in time."""

    slug, title = "model-busy", "The model is busy"


class SlotTakenError(UnavailableError):
    """The work was interrupted because a turn needs the model."""

    slug, title = "interrupted-by-turn", "Interrupted by a turn"


@dataclass(slots=True, eq=False)
class _LocalClaim:
    """A claim of this process. `limit` cuts its work off once it is rescheduled."""

    id: UUID
    server_id: UUID
    work: SlotWork
    concurrency: int
    on_wait: OnWait | None
    is_granted: bool = False
    is_cut: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)
    limit: asyncio.Timeout | None = None
    occupation: Occupation | None = None

    @property
    def claim(self) -> Claim:
        return Claim(self.id, self.work, self.is_granted)

    @property
    def may_be_cut(self) -> bool:
        """True if it uses the server and a turn could still need its place."""
        return self.is_granted and not self.is_cut and self.work.rank != Rank.TURN

    def start(self) -> None:
        self.is_granted = True
        self.report(None)
        self.started.set()

    def report(self, occupation: Occupation | None) -> None:
        if self.on_wait is not None and occupation != self.occupation:
            self.on_wait(occupation)
        self.occupation = occupation

    def cut(self) -> None:
        self.is_cut = True
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())


class ModelSlots:
    def __init__(self, database: Database, instance: InstanceKeys) -> None:
        self._database = database
        self._instance = instance
        self._held: dict[UUID, _LocalClaim] = {}
        self._news = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._renew_at = 0.0

    @contextlib.asynccontextmanager
    async def hold(
        self,
        limits: Iterable[ServerLimit | None],
        work: SlotWork,
        *,
        on_wait: OnWait | None = None,
        patience: float | None = None,
    ) -> AsyncGenerator[None]:
        """Wait for a place at each of these servers, and keep it until the block ends.

        Args:
            limits: The limits of the models that the block uses. None is a server without a limit.
            work: The work that uses the models.
            on_wait: See `OnWait`.
            patience: Seconds to wait for each server. None waits without a limit.

        Raises:
            ModelBusyError: The wait took longer than `patience`. The block did not begin.
            SlotTakenError: A turn needed the place, so the block was cancelled. Never for work of
                `Rank.TURN`.
        """
        found = {self._instance.make_server_id(*each.server): each for each in limits if each}
        async with contextlib.AsyncExitStack() as places:
            # All work takes its places in the same order, so that no deadlock is possible.
            for server_id, limit in sorted(found.items()):
                held = _LocalClaim(new_id(), server_id, work, limit.concurrency, on_wait)
                await places.enter_async_context(self._place(held, patience))
                if limit.refresh is not None:
                    self._start_task(limit.refresh())
            yield

    async def aclose(self) -> None:
        self._held.clear()
        self._news.set()
        if left := [*self._tasks, *([self._keeper] if self._keeper else [])]:
            await asyncio.wait(left)

    @contextlib.asynccontextmanager
    async def _place(self, held: _LocalClaim, patience: float | None) -> AsyncGenerator[None]:
        try:
            await self._enter(held)
            self._held[held.id] = held
            if self._keeper is None or self._keeper.done():
                self._renew_at = time.monotonic() + RENEW_SECONDS
                self._keeper = asyncio.create_task(self._keep(), name="slots.keep")
            self._news.set()
            try:
                async with asyncio.timeout(patience):
                    await held.started.wait()
            except TimeoutError:
                raise ModelBusyError("Try again when it is free.") from None
            try:
                async with asyncio.timeout(None) as limit:
                    held.limit = limit
                    if held.is_cut:
                        held.cut()
                    yield
            except TimeoutError:
                if held.limit is None or not held.limit.expired():
                    raise
                raise SlotTakenError(
                    "A turn needs the model. Try again when the turn is over."
                ) from None
        finally:
            held.report(None)
            self._held.pop(held.id, None)
            self._start_task(self._leave(held))

    async def _enter(self, held: _LocalClaim) -> None:
        """Store a claim. It is granted immediately if there is a place."""
        async with self._writing() as session:
            others = await _lock(session, held.server_id)
            held.is_granted = may_start(held.claim, others, concurrency=held.concurrency)
            values = {
                "id": held.id,
                "server_id": held.server_id,
                "user_id": held.work.user_id,
                "chat_id": held.work.chat_id,
                "use": held.work.use,
                "rank": held.work.rank,
                "is_granted": held.is_granted,
                "lease_owner": self._database.process_id,
                "lease_until": now() + LEASE_DURATION,
            }
            await session.execute(insert(_CLAIMS), values)
        if held.is_granted:
            held.start()
        else:
            held.report(find_occupation(held.claim, others))

    async def _grant(self, held: _LocalClaim) -> None:
        async with self._writing() as session:
            others = await _lock(session, held.server_id, but=held.id)
            if not may_start(held.claim, others, concurrency=held.concurrency):
                return
            query = update(_CLAIMS).where(_ROW.id == held.id)
            granted = {"is_granted": True, "lease_until": now() + LEASE_DURATION}
            await session.execute(query.values(granted))
        held.start()

    async def _leave(self, held: _LocalClaim) -> None:
        """Delete a claim. If that fails, its lease expires."""
        try:
            async with self._writing() as session:
                await session.execute(delete(_CLAIMS).where(_ROW.id == held.id))
        except Exception as error:  # no one awaits this task
            log.warning("slot.not_left", exc_info=error)
        self._news.set()

    async def _keep(self) -> None:
        """Renew this process's claims, start those that may, and cancel those that must yield."""
        while self._held:
            self._news.clear()
            try:
                await self._renew()
                await self._look()
            except Exception as error:  # the next round tries again
                log.warning("slot.not_kept", exc_info=error)
            is_watching = any(
                not held.is_granted or held.may_be_cut for held in self._held.values()
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if is_watching else RENEW_SECONDS):
                    await self._news.wait()

    async def _renew(self) -> None:
        if time.monotonic() < self._renew_at:
            return
        query = update(_CLAIMS).where(_ROW.id.in_(list(self._held)))
        async with self._writing() as session:
            await session.execute(query.values(lease_until=now() + LEASE_DURATION))
        self._renew_at = time.monotonic() + RENEW_SECONDS

    async def _look(self) -> None:
        watched = [held for held in self._held.values() if not held.is_granted or held.may_be_cut]
        if not watched:
            return
        async with self._database.read() as session:
            claims = await _read(session, {held.server_id for held in watched})
        for held in watched:
            try:
                await self._follow(held, claims[held.server_id])
            except Exception as error:  # it must not keep the others from their places
                log.warning("slot.not_kept", exc_info=error)

    async def _follow(self, held: _LocalClaim, claims: Sequence[Claim]) -> None:
        """Start a claim that may start, or cancel its work if it must yield."""
        others = [claim for claim in claims if claim.id != held.id]
        is_lost = len(others) == len(claims)  # it was not renewed in time
        if held.is_granted:
            if is_lost or must_yield(held.claim, others, concurrency=held.concurrency):
                held.cut()
        elif held.id not in self._held:
            return  # it was given up in between
        elif is_lost:
            await self._enter(held)
            if held.id not in self._held:
                await self._leave(held)
        elif may_start(held.claim, others, concurrency=held.concurrency):
            await self._grant(held)
        else:
            held.report(find_occupation(held.claim, others))

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncGenerator[AsyncSession]:
        """Open a transaction that does not count as an effect of the current request."""
        noting = EFFECT_NOTE.set(None)
        try:
            async with self._database.write() as session:
                yield session
        finally:
            EFFECT_NOTE.reset(noting)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _lock(session: AsyncSession, server_id: UUID, *, but: UUID | None = None) -> list[Claim]:
    """Serialise grants at a server until the transaction ends. Return its other claims.

    Deletes claims with expired leases. SQLite needs no lock, because it has one writer.
    """
    if session.get_bind().dialect.name == "postgresql":
        key = int.from_bytes(server_id.bytes[:8], "big", signed=True)
        await session.execute(select(func.pg_advisory_xact_lock(key)))
    at_server = _ROW.server_id == server_id
    await session.execute(delete(_CLAIMS).where(at_server, _ROW.lease_until <= now()))
    claims = await _read(session, {server_id})
    return [claim for claim in claims[server_id] if claim.id != but]


async def _read(
    session: AsyncSession, server_ids: Collection[UUID]
) -> defaultdict[UUID, list[Claim]]:
    rows = await session.execute(
        select(_CLAIMS)
        .where(_ROW.server_id.in_(server_ids), _ROW.lease_until > now())
        .order_by(_ROW.id)
    )
    found: defaultdict[UUID, list[Claim]] = defaultdict(list)
    for row in rows:
        work = SlotWork(use=row.use, rank=Rank(row.rank), user_id=row.user_id, chat_id=row.chat_id)
        found[row.server_id].append(Claim(row.id, work, row.is_granted))
    return found
