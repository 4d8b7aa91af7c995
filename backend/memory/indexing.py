"""Bringing the index up to what stands in SQL: the jobs that do it.

SQL is the truth. A job reads what changed, makes points, stores them under ids that follow from the
rows, and ends together with the notes of what changed. Doing any of it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import time, timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import JobKind, RunningJob
from backend.memory.collections import Collections
from backend.memory.comparing import differences
from backend.memory.documents import Document
from backend.memory.embedding.protocol import EmbedderError
from backend.memory.index.protocol import Kind, VectorIndex
from backend.memory.models import IndexChange
from backend.memory.outbox import INDEX, REINDEX
from backend.memory.points import Blinders, PointMaker
from backend.memory.sources import Source, SourceRow, slices
from backend.vault.sealing import Sealer

BATCH = 200
"""Rows that are read together."""

SLICE_BYTES = 64_000
"""Bytes of rows that are opened, cut, counted, embedded and stored together: between two slices
others get their turn. One row may be more by itself."""

CHANGES = 5000
"""Notes of changes that one job takes; what is left over is the next one's."""

PARAMETERS = 5000
VECTORS_KEPT = timedelta(days=90)
"""Vectors of texts that were not embedded again for so long go: a reindex would make them anew."""

NIGHT = time(hour=3)

Report = Callable[[int, int], Awaitable[None]]
"""Is told how much is done, of how much."""


class Indexer:
    """Does the jobs of the index.

    Args:
        maker: Makes points for the current collection.
        terms_only: Makes points for collections of models that are no longer configured.
    """

    def __init__(
        self,
        database: Database,
        collections: Collections,
        sources: Sequence[Source],
        *,
        maker: PointMaker,
        terms_only: PointMaker,
        blinders: Blinders,
        pool: CpuPool,
    ) -> None:
        self._database = database
        self._collections = collections
        self._sources: Mapping[Kind, Source] = {source.kind: source for source in sources}
        self._maker = maker
        self._terms_only = terms_only
        self._blinders = blinders
        self._pool = pool

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {
            INDEX: JobKind(self.index),
            REINDEX: JobKind(self.reindex, keep=True),
        }

    async def index(self, job: RunningJob) -> None:
        """Follow the changes of one chat, lorebook or chronicle up."""
        container_id = UUID(job.payload["container_id"])
        source = self._sources[job.payload["kind"]]
        while True:
            notes, indexes = await self._changes(job, container_id)
            changed = [note.source_id for note in notes if note.source_id is not None]
            failure: EmbedderError | None = None
            for index in indexes if len(changed) < len(notes) else ():
                failed = await self._whole(
                    job.keys, source, container_id, index, failure=failure, report=job.progress
                )
                failure = failure or failed
            # After all of it as well: the rows next to one that went held its words.
            failed = await self._some(job, source, container_id, changed, indexes, failure=failure)
            failure = failure or failed
            if failure is not None:
                raise _put_off(failure)
            if len(notes) < CHANGES:
                break
            async with job.step() as session:
                await _delete_notes(session, notes)
        async with job.finish() as session:
            await _delete_notes(session, notes)
            await self._collections.begun(session, job.keys.user_id)

    async def _changes(
        self, job: RunningJob, container_id: UUID
    ) -> tuple[list[IndexChange], list[VectorIndex]]:
        """What is noted of a container, oldest first, and where it has to be mended."""
        owner_id = job.keys.user_id
        query = (
            select(IndexChange)
            .where(IndexChange.container_id == container_id, IndexChange.user_id == owner_id)
            .order_by(IndexChange.id)
            .limit(CHANGES)
        )
        async with self._database.read() as session:
            notes = list(await session.scalars(query))
            return notes, await self._collections.written(session, owner_id)

    async def reindex(self, job: RunningJob) -> None:
        """Index everything of a user's in the current collection, then search there."""
        current = self._collections.current
        if job.payload["collection"] == current.name:
            await self._everything(job.keys, job.progress)
        async with job.finish() as session:
            if job.payload["collection"] == current.name:
                await self._collections.arrived(session, job.keys.user_id)

    async def rebuild(self, sealer: Sealer, report: Callable[[int, int], None]) -> None:
        """Index everything of a user's in the current collection, outside of any job."""

        async def tell(done: int, total: int) -> None:
            report(done, total)

        await self._everything(sealer, tell)
        async with self._database.write() as session:
            await self._collections.arrived(session, sealer.user_id)

    async def _everything(self, sealer: Sealer, report: Report) -> None:
        """Index all containers of a user's in the current collection.

        Raises once all are done, as far as words go, where the embedder failed on the way.
        """
        containers = await self._containers(sealer.user_id)
        failure: EmbedderError | None = None
        for number, (source, container_id) in enumerate(containers):
            await report(number, len(containers))
            failed = await self._whole(
                sealer, source, container_id, self._collections.current, failure=failure
            )
            failure = failure or failed
        if failure is not None:
            raise _put_off(failure)
        await report(len(containers), len(containers))

    async def _containers(self, owner_id: UUID) -> list[tuple[Source, UUID]]:
        """Every chat, lorebook or chronicle of a user's."""
        async with self._database.read() as session:
            return [
                (source, container_id)
                for source in self._sources.values()
                for container_id in await source.containers(session, owner_id=owner_id)
            ]

    async def _some(
        self,
        job: RunningJob,
        source: Source,
        container_id: UUID,
        source_ids: Sequence[UUID],
        indexes: Sequence[VectorIndex],
        *,
        failure: EmbedderError | None,
    ) -> EmbedderError | None:
        """Index some rows anew; those that are gone lose their points."""
        for start in range(0, len(source_ids), BATCH):
            part = source_ids[start : start + BATCH]
            async with self._database.read() as session:
                rows = await source.rows(session, job.keys, container_id, part, neighbours=True)
            failed = await self._store_rows(job.keys, rows, indexes, anew=part, failure=failure)
            failure = failure or failed
        return failure

    async def _whole(
        self,
        sealer: Sealer,
        source: Source,
        container_id: UUID,
        index: VectorIndex,
        *,
        failure: EmbedderError | None = None,
        report: Report | None = None,
    ) -> EmbedderError | None:
        """Bring one collection up to date with a container: only what differs is made anew."""
        owner_id = sealer.user_id
        async with self._database.read() as session:
            stored = await source.inventory(session, container_id, owner_id=owner_id)
        if stored is None:
            await index.delete_container(owner_id, container_id)
            return None
        found = await differences(index, owner_id, container_id, source.kind, stored)
        if found.gone:
            await index.delete_sources(owner_id, found.gone)
        for start in range(0, len(found.missing), BATCH):
            if report is not None:
                await report(start, len(found.missing))
            part = found.missing[start : start + BATCH]
            async with self._database.read() as session:
                rows = await source.rows(session, sealer, container_id, part, neighbours=False)
            stale = [each for each in part if each in found.stale]
            failed = await self._store_rows(sealer, rows, [index], anew=stale, failure=failure)
            failure = failure or failed
        return failure

    async def _store_rows(
        self,
        sealer: Sealer,
        rows: Sequence[SourceRow],
        indexes: Sequence[VectorIndex],
        *,
        anew: Sequence[UUID],
        failure: EmbedderError | None,
    ) -> EmbedderError | None:
        """Store what rows make, in place of all points of the rows `anew`, slice by slice."""
        left = set(anew)
        gone = left.difference(row.source_id for row in rows)
        for index in indexes if gone else ():
            await index.delete_sources(sealer.user_id, list(gone))
        left -= gone
        for some in slices(rows, SLICE_BYTES):
            documents = await self._pool.run(sealer.user_id, partial(_documents, some), is_job=True)
            here = [row.source_id for row in some if row.source_id in left]
            left.difference_update(here)
            for index in indexes:
                failed = await self._store(sealer, documents, index, anew=here, failure=failure)
                failure = failure or failed
        return failure

    async def _store(
        self,
        sealer: Sealer,
        documents: Sequence[Document],
        index: VectorIndex,
        *,
        anew: Sequence[UUID],
        failure: EmbedderError | None,
    ) -> EmbedderError | None:
        """Store what documents make, in place of all points of the rows `anew`.

        Gives back why dense vectors are missing, where they are; with a `failure` of a moment ago
        they are not asked for. The rest goes in without them: words find it until then.
        """
        is_current = index is self._collections.current
        maker = self._maker if is_current else self._terms_only
        made = await maker.make(sealer, self._blinders.get(sealer), documents, failure=failure)
        # Only now, with the new points at hand: in between nothing of these rows is found.
        if anew:
            await index.delete_sources(sealer.user_id, anew)
        if made.points:
            await index.upsert(made.points)
        return made.failure


def _documents(rows: Sequence[SourceRow]) -> list[Document]:
    return [document for row in rows for document in row.documents()]


async def _delete_notes(session: AsyncSession, notes: Sequence[IndexChange]) -> None:
    ids = [note.id for note in notes]
    for start in range(0, len(ids), PARAMETERS):
        part = ids[start : start + PARAMETERS]
        await session.execute(delete(IndexChange).where(IndexChange.id.in_(part)))


def _put_off(failure: EmbedderError) -> Exception:
    """What a job does about an embedder that failed: later, as late as the provider says."""
    if failure.retry_after is not None:
        return RetryLaterError(failure.detail, after=failure.retry_after)
    return failure
