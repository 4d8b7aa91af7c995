"""The jobs that need no key: the nightly comparison with SQL, and deleting users' points."""

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
from backend.memory.embedding.cache import delete_unused
from backend.memory.index.protocol import IndexUnavailableError, Kind, VectorIndex
from backend.memory.indexing.collections import Collections, is_own
from backend.memory.indexing.documents import Blinders
from backend.memory.indexing.outbox import FORGET, RECONCILE, IndexOutbox
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexState

log = get_logger(__name__)

VECTOR_RETENTION = timedelta(days=90)
"""Cached vectors are deleted if they were not used for this time."""

NIGHTLY_TIME = time(hour=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Rows without current points, those of them with `stale` points, and deleted rows."""

    missing: list[UUID]
    stale: set[UUID]
    gone: list[UUID]


async def compare_container(
    index: VectorIndex, owner_id: UUID, container_id: UUID, kind: Kind, stored: Mapping[UUID, int]
) -> Differences:
    """Compare the points of a container with its rows. It reads no texts and no vectors."""
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
        return {
            FORGET: JobKind(self.forget, needs_key=False),
            RECONCILE: JobKind(self.reconcile, needs_key=False),
        }

    async def schedule(self) -> None:
        async with self._database.write() as session:
            await self._queue.enqueue(session, _build_nightly_job())

    async def forget(self, job: RunningJob) -> None:
        owner_id = UUID(job.payload["owner_id"])
        self._blinders.forget(owner_id)
        named = job.payload.get("collections", ())
        for index in await self._collections.all_indexes(named):
            await index.delete_owner(owner_id)

    async def reconcile(self, job: RunningJob) -> None:
        """Compare the index with SQL: delete orphaned points and record rows to be indexed.

        A collection for users' own models that does not respond is skipped until the next night.
        """
        current, failed = self._collections.current, set[str]()
        async with self._database.read() as session:
            users = set(await session.scalars(select(User.id)))
        remaining = users - await self._collections.load_moved_users()
        for name in await self._collections.all_names():
            here = remaining if name == current.name else await self._collections.load_users(name)
            with _skip_unavailable(name, failed):
                index = await self._collections.open(name)
                for stranger in await index.owners() - here:
                    await index.delete_owner(stranger)
        for number, user_id in enumerate(sorted(users)):
            await job.progress(number, len(users))
            async with self._database.read() as session:
                place = await self._collections.placement(session, user_id)
            if place.target not in failed:
                with _skip_unavailable(place.target, failed):
                    await self._compare(user_id, await self._collections.open(place.target))
        async with job.finish() as session:
            compared = update(IndexState).where(
                (IndexState.collection == current.name) | IndexState.is_chosen.is_(True),
                IndexState.collection.not_in(failed),
            )
            await session.execute(compared.values(compared_at=now()))
            await delete_unused(session, now() - VECTOR_RETENTION)
            await self._queue.enqueue(session, _build_nightly_job())

    async def _compare(self, user_id: UUID, index: VectorIndex) -> None:
        """Record a user's rows with missing or stale points, and delete orphaned points."""
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
                found = await compare_container(index, user_id, container_id, source.kind, stored)
                if found.gone:
                    await index.delete_sources(user_id, found.gone)
                if found.missing:
                    async with self._database.write() as session:
                        await self._outbox.record_unkeyed(
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
def _skip_unavailable(name: str, failed: set[str]) -> Generator[None]:
    """Skip a collection for users' own models that fails. Other collections must respond."""
    try:
        yield
    except IndexUnavailableError as error:
        if not is_own(name):
            raise
        log.warning("memory.not_compared", collection=name, problem=error.slug)
        failed.add(name)


def _build_nightly_job() -> NewJob:
    at = datetime.combine(now().date(), NIGHTLY_TIME, tzinfo=now().tzinfo)
    if at <= now():
        at += timedelta(days=1)
    return NewJob(kind=RECONCILE, dedupe_key=RECONCILE, run_after=at)
