"""What the index is kept in order by without anybody's key: comparing, and forgetting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from uuid import UUID

from sqlalchemy import select, update

from backend.accounts.models import User
from backend.core.logs import get_logger
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.memory.embedding.cached import forget_unused
from backend.memory.index.protocol import IndexUnavailableError, Kind, VectorIndex
from backend.memory.indexing.collections import Collections, is_own
from backend.memory.indexing.outbox import FORGET, RECONCILE, IndexOutbox
from backend.memory.indexing.points import Blinders
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexState

log = get_logger(__name__)

VECTORS_KEPT = timedelta(days=90)
"""Vectors of texts that were not embedded again for so long go: a reindex would make them anew."""

NIGHT = time(hour=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Rows without points, or with `stale` ones; rows that have points and are `gone`."""

    missing: list[UUID]
    stale: set[UUID]
    gone: list[UUID]


async def differences(
    index: VectorIndex, owner_id: UUID, container_id: UUID, kind: Kind, stored: Mapping[UUID, int]
) -> Differences:
    """Hold a container's points against its rows. Opens no text; asks for no vectors."""
    found: defaultdict[UUID, set[int]] = defaultdict(set)
    async for page in index.scan(owner_id, container_id=container_id):
        for _, payload in page:
            if payload.kind == kind:
                found[payload.source_id].add(payload.version)
    missing = [row_id for row_id, version in stored.items() if found.get(row_id) != {version}]
    return Differences(
        missing=missing,
        stale={source_id for source_id in missing if source_id in found},
        gone=[source_id for source_id in found if source_id not in stored],
    )


class Reconciler:
    """Compares the index with the database at night, and deletes what belongs to nobody."""

    def __init__(
        self,
        database: Database,
        queue: JobQueue,
        outbox: IndexOutbox,
        collections: Collections,
        sources: Sequence[Source],
        *,
        blinders: Blinders,
    ) -> None:
        self._database = database
        self._queue = queue
        self._outbox = outbox
        self._collections = collections
        self._sources = sources
        self._blinders = blinders

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {
            FORGET: JobKind(self.forget, needs_key=False),
            RECONCILE: JobKind(self.reconcile, needs_key=False),
        }

    async def schedule(self) -> None:
        """See to it that both sides are compared tonight."""
        async with self._database.write() as session:
            await self._queue.enqueue(session, _tonight())

    async def forget(self, job: RunningJob) -> None:
        """Delete every point of somebody who is gone."""
        owner_id = UUID(job.payload["owner_id"])
        self._blinders.forget(owner_id)
        named = job.payload.get("collections", ())
        for index in await self._collections.all_indexes(named):
            await index.delete_owner(owner_id)

    async def reconcile(self, job: RunningJob) -> None:
        """Compare both sides, without opening any text: mend what can be, note the rest.

        A collection of users' own models that does not answer is left out till the next night.
        """
        current, failed = self._collections.current, set[str]()
        async with self._database.read() as session:
            users = set(await session.scalars(select(User.id)))
        left = users - await self._collections.moved_away()
        for name in await self._collections.all_names():
            here = left if name == current.name else await self._collections.users_of(name)
            with _left_out(name, failed):
                index = await self._collections.open(name)
                for stranger in await index.owners() - here:
                    await index.delete_owner(stranger)
        for number, user_id in enumerate(sorted(users)):
            await job.progress(number, len(users))
            async with self._database.read() as session:
                place = await self._collections.placement(session, user_id)
            if place.target not in failed:
                with _left_out(place.target, failed):
                    await self._compare(user_id, await self._collections.open(place.target))
        async with job.finish() as session:
            compared = update(IndexState).where(
                (IndexState.collection == current.name) | IndexState.is_chosen.is_(True),
                IndexState.collection.not_in(failed),
            )
            await session.execute(compared.values(compared_at=now()))
            await forget_unused(session, now() - VECTORS_KEPT)
            await self._queue.enqueue(session, _tonight())

    async def _compare(self, user_id: UUID, index: VectorIndex) -> None:
        """Note what of one user's is missing or stale; delete what nobody has any more."""
        kept: set[UUID] = set()
        for source in self._sources:
            async with self._database.read() as session:
                containers = await source.containers(session, owner_id=user_id)
            kept.update(containers)
            for container_id in containers:
                async with self._database.read() as session:
                    stored = await source.inventory(session, container_id, owner_id=user_id)
                if stored is None:
                    continue
                found = await differences(index, user_id, container_id, source.kind, stored)
                if found.gone:
                    await index.delete_sources(user_id, found.gone)
                if found.missing:
                    async with self._database.write() as session:
                        await self._outbox.left(
                            session,
                            user_id,
                            kind=source.kind,
                            container_id=container_id,
                            source_ids=found.missing,
                        )
        strays: set[UUID] = set()
        async for page in index.scan(user_id):
            strays |= {payload.container_id for _, payload in page} - kept
        for container_id in strays:
            await index.delete_container(user_id, container_id)


@contextmanager
def _left_out(name: str, failed: set[str]) -> Generator[None]:
    """Note that a collection of users' own models failed; that of any other is an error."""
    try:
        yield
    except IndexUnavailableError as error:
        if not is_own(name):
            raise
        log.warning("memory.not_compared", collection=name, problem=error.slug)
        failed.add(name)


def _tonight() -> NewJob:
    at = datetime.combine(now().date(), NIGHT, tzinfo=now().tzinfo)
    if at <= now():
        at += timedelta(days=1)
    return NewJob(kind=RECONCILE, dedupe_key=RECONCILE, run_after=at)
