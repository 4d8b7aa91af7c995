"""The jobs that update the index from SQL, and the nightly comparison between them.

SQL is the source of truth. A job reads the changed rows, builds their points and stores them under
deterministic ids. It deletes the notes of the changes in the transaction that ends it. All steps
are idempotent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import partial
from typing import cast
from uuid import UUID

from sqlalchemy import Row, bindparam, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.database.base import get_table, now, split_chunks
from backend.database.engine import Database
from backend.jobs.errors import RetryLaterError
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.memory.index.protocol import (
    INDEX_SECONDS,
    IndexUnavailableError,
    Kind,
    VectorIndex,
)
from backend.memory.indexing.collections import (
    Collections,
    ModelMoves,
    Move,
    Placement,
    UserEmbedders,
    is_own,
    parse_dimension,
)
from backend.memory.indexing.documents import (
    Blinders,
    IndexDocument,
    IndexRun,
    PointMaker,
    VectorSource,
)
from backend.memory.indexing.outbox import (
    FORGET,
    INDEX,
    INDEX_IMPORTED,
    RECONCILE,
    REINDEX,
    IndexOutbox,
)
from backend.memory.indexing.sources import Source, SourceRow, split_by_size
from backend.memory.models import IndexChange, IndexState
from backend.vault.sealing import Sealer

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
    index: VectorIndex, owner_id: UUID, container_id: UUID, stored: Mapping[UUID, int]
) -> Differences:
    """Compare the points of a container with its rows. It reads no texts and no vectors."""
    found: defaultdict[UUID, set[int]] = defaultdict(set)
    async for page in index.scan(owner_id, container_id=container_id):
        for _, payload in page:
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
            users = set(await session.scalars(select(User.id).where(User.deleted_at.is_(None))))
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
                found = await compare_container(index, user_id, container_id, stored)
                if found.gone:
                    await index.delete_sources(user_id, found.gone)
                if found.missing:
                    async with self._database.write() as session:
                        await self._outbox.record_missing(
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


ROWS_PER_BATCH = 200

SLICE_BYTES = 64_000
"""Bytes of rows that are processed at once. Other tasks run between two slices. A larger row is a
slice of one row."""

MAX_NOTES = 5000
"""Notes that one step of a job processes. The next step takes the rest."""

_NOTES = (
    select(IndexChange.id, IndexChange.source_id)
    .where(
        IndexChange.container_id == bindparam("container_id"),
        IndexChange.user_id == bindparam("owner_id"),
    )
    .order_by(IndexChange.id)
    .limit(MAX_NOTES)
)
_IMPORTED = (
    select(IndexChange.kind, IndexChange.container_id)
    .where(IndexChange.user_id == bindparam("owner_id"), IndexChange.source_id.is_(None))
    .order_by(IndexChange.id)
)
_FORGET = delete(get_table(IndexChange)).where(IndexChange.id.in_(bindparam("ids", expanding=True)))
_FORGET_ONE = delete(get_table(IndexChange)).where(IndexChange.id == bindparam("note_id"))

Report = Callable[[int, int], Awaitable[None]]


IndexSide = tuple[VectorIndex, VectorSource]


class Indexer:
    """Runs the jobs that index changed rows or all rows of a user."""

    def __init__(
        self,
        database: Database,
        collections: Collections,
        sources: Sequence[Source],
        *,
        embedders: UserEmbedders,
        maker: PointMaker,
        outbox: IndexOutbox,
        pool: CpuPool,
    ) -> None:
        self._database = database
        self._collections = collections
        self._embedders = embedders
        self._moves = ModelMoves(database, collections, embedders)
        self._outbox = outbox
        self._sources: Mapping[Kind, Source] = {source.kind: source for source in sources}
        self._maker = maker
        self._pool = pool

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {
            INDEX: JobKind(self.index, ends_together=True),
            INDEX_IMPORTED: JobKind(self.index_imported, keep=True),
            REINDEX: JobKind(self.reindex, keep=True),
        }

    async def index(self, job: RunningJob) -> None:
        container_id = UUID(job.payload["container_id"])
        source = self._sources[job.payload["kind"]]
        notes, indexes, vectors = await self._index_notes(
            job, source, container_id, report=job.progress
        )
        # False if another model came into use during the job.
        is_current = self._collections.current in indexes
        is_noted = not is_current or self._collections.is_placed(job.keys.user_id)
        if is_noted and not vectors.are_missed:
            await job.finish_statement(_FORGET_ONE, [{"note_id": note.id} for note in notes])
            return
        async with job.finish() as session:
            await _delete_notes(session, notes)
            if vectors.are_missed:
                await self._outbox.follow_later(session, job.keys.user_id)
            if is_current:
                await self._collections.mark_ready_if_new(session, job.keys.user_id)

    async def index_imported(self, job: RunningJob) -> None:
        """Index the imported containers of a user, oldest first, one after the other.

        The progress counts containers, or the rows of the only one.
        """
        owner_id, done = job.keys.user_id, 0
        while True:
            async with self._database.read() as session:
                rows = await session.execute(_IMPORTED, {"owner_id": owner_id})
            waiting = list(dict.fromkeys((row.kind, row.container_id) for row in rows))
            if not waiting:
                break
            for place, (kind, container_id) in enumerate(waiting):
                is_only = done + len(waiting) == 1
                if not is_only:
                    await job.progress(done, done + len(waiting) - place)
                notes, indexes, vectors = await self._index_notes(
                    job,
                    self._sources[cast("Kind", kind)],
                    container_id,
                    report=job.progress if is_only else None,
                )
                async with job.step() as session:
                    await _delete_notes(session, notes)
                    if vectors.are_missed:
                        await self._outbox.follow_later(session, owner_id)
                    if self._collections.current in indexes:
                        await self._collections.mark_ready_if_new(session, owner_id)
                done += 1

    async def _index_notes(
        self,
        job: RunningJob,
        source: Source,
        container_id: UUID,
        *,
        report: Report | None,
    ) -> tuple[Sequence[Row[UUID, UUID | None]], list[VectorIndex], VectorSource]:
        """Index the changes of a container.

        Return the notes to delete, the collections that were written, and the target's vectors.
        """
        run, is_again = IndexRun(job.keys), False
        while True:
            notes, rows, place, indexes = await self._changes(job, source, container_id)
            vectors = await self._embedders.find(job.keys, place)
            sides = _list_sides(indexes, vectors)
            changed = _list_changed_rows(notes)
            if len(changed) < len(notes):
                for side in sides:
                    await self._index_container(
                        run, source, container_id, side, report, is_full=is_again
                    )
            # Also after the whole container: neighbours of deleted rows contain their words.
            if rows is None:
                await self._index_rows(run, source, container_id, changed, sides)
            else:
                await self._store_rows(run, rows, sides, instead_of=changed)
            _raise_failure(run)
            is_again = place.is_chosen and await self._moves.has_changed(job.keys, place)
            if is_again:
                continue  # the new points may have vectors of the previous model
            if len(notes) < MAX_NOTES:
                return notes, indexes, vectors
            async with job.step() as session:
                await _delete_notes(session, notes)

    async def _changes(
        self, job: RunningJob, source: Source, container_id: UUID
    ) -> tuple[
        Sequence[Row[UUID, UUID | None]], Sequence[SourceRow] | None, Placement, list[VectorIndex]
    ]:
        """Load the notes of a container, oldest first, and the collections to write to.

        Also load the changed rows if they are few, as after a turn; otherwise they are None.
        """
        owner_id = job.keys.user_id
        values = {"container_id": container_id, "owner_id": owner_id}
        async with self._database.read() as session:
            notes = (await session.execute(_NOTES, values)).all()
            place, indexes = await self._collections.places_to_write(session, owner_id)
            changed, rows = _list_changed_rows(notes), None
            if notes and len(changed) == len(notes) <= ROWS_PER_BATCH:
                rows = await source.rows(session, job.keys, container_id, changed, neighbours=True)
        return notes, rows, place, indexes

    async def reindex(self, job: RunningJob) -> None:
        """Index all texts of a user in their target collection, and make search use it.

        The payload has the target at the time of enqueuing; null means the current one. With `anew`
        in the payload, existing points are rebuilt as well.
        """
        wanted, is_full = job.payload["collection"], job.payload.get("anew", False)
        move = await self._moves.follow(job.keys, job.step)
        is_wanted = wanted in {None, move.place.target}
        if is_wanted:
            await self._everything(job.keys, job.progress, move, is_full=is_full or move.is_full)
        async with job.finish() as session:
            if is_wanted:
                await self._moves.complete(session, job.keys, move)
                is_full = is_full or move.is_full
                await self._outbox.delete_failed(session, job.keys.user_id, is_full=is_full)

    async def rebuild(self, sealer: Sealer, report: Callable[[int, int], None]) -> str:
        """Index all texts of a user outside a job, and return the name of the collection."""

        async def report_progress(done: int, total: int) -> None:
            report(done, total)

        move = await self._moves.follow(sealer, self._database.write)
        await self._everything(sealer, report_progress, move, is_full=move.is_full)
        async with self._database.write() as session:
            await self._moves.complete(session, sealer, move)
        return move.place.target

    async def _everything(
        self, sealer: Sealer, report: Report, move: Move, *, is_full: bool = False
    ) -> None:
        """Index all containers of a user in their target. `report` receives the numbers of rows.

        If the embedder fails, all points are stored with terms alone before the error is raised.
        """
        async with self._database.read() as session:
            containers = [
                (source, container_id)
                for source in self._sources.values()
                for container_id in await source.containers(session, owner_id=sealer.user_id)
            ]
            total = 0
            for source in self._sources.values():
                total += await source.count(session, owner_id=sealer.user_id)
        run, done = IndexRun(sealer), 0
        side = await self._collections.open(move.place.target), move.vectors
        for source, container_id in containers:
            report_progress = partial(_report_container, report, done, total)
            await report_progress(0, 0)
            done += await self._index_container(
                run, source, container_id, side, report_progress, is_full=is_full
            )
        _raise_failure(run)
        await report(total, total)

    async def _index_rows(
        self,
        run: IndexRun,
        source: Source,
        container_id: UUID,
        source_ids: Sequence[UUID],
        sides: Sequence[IndexSide],
    ) -> None:
        for part in split_chunks(source_ids, ROWS_PER_BATCH):
            async with self._database.read() as session:
                rows = await source.rows(session, run.sealer, container_id, part, neighbours=True)
            await self._store_rows(run, rows, sides, instead_of=part)

    async def _index_container(
        self,
        run: IndexRun,
        source: Source,
        container_id: UUID,
        side: IndexSide,
        report: Report | None = None,
        *,
        is_full: bool = False,
    ) -> int:
        """Update a collection with the rows of a container that differ, or with all (`is_full`).

        Return the number of rows in the container.
        """
        sealer, index = run.sealer, side[0]
        async with self._database.read() as session:
            stored = await source.inventory(session, container_id, owner_id=sealer.user_id)
        if stored is None:
            await index.delete_container(sealer.user_id, container_id)
            return 0
        found = await compare_container(index, sealer.user_id, container_id, stored)
        if found.gone:
            await index.delete_sources(sealer.user_id, found.gone)
        missing, stale = (list(stored), set(stored)) if is_full else (found.missing, found.stale)
        for number, part in enumerate(split_chunks(missing, ROWS_PER_BATCH)):
            if report is not None:
                await report(number * ROWS_PER_BATCH, len(missing))
            async with self._database.read() as session:
                rows = await source.rows(session, sealer, container_id, part, neighbours=False)
            await self._store_rows(
                run, rows, [side], instead_of=[each for each in part if each in stale]
            )
        return len(stored)

    async def _store_rows(
        self,
        run: IndexRun,
        rows: Sequence[SourceRow],
        sides: Sequence[IndexSide],
        *,
        instead_of: Sequence[UUID],
    ) -> None:
        """Store the points of rows. They replace all points of the rows `instead_of`."""
        owner_id = run.sealer.user_id
        left = set(instead_of)
        gone = left.difference(row.source_id for row in rows)
        for index, _ in sides if gone else ():
            await index.delete_sources(owner_id, list(gone))
        left -= gone
        for some in split_by_size(rows, SLICE_BYTES):
            size = sum(row.size + row.size_beside for row in some)
            documents = await self._pool.run(
                owner_id, partial(_build_documents, some), size=size, is_job=True
            )
            here = [row.source_id for row in some if row.source_id in left]
            left.difference_update(here)
            for index, vectors in sides:
                points = await self._maker.make(run, documents, vectors=vectors)
                # The old points are deleted in the same step, because until then search needs them.
                if points:
                    with INDEX_SECONDS.labels(operation="write").time():
                        await index.upsert(points, instead_of=here)
                elif here:
                    await index.delete_sources(owner_id, here)


def _list_sides(indexes: Sequence[VectorIndex], vectors: VectorSource) -> list[IndexSide]:
    """Return the target with its vectors, after the other collections that search still uses.

    In these, new points have terms alone, so they do not wait for a model. If the user returns to
    that model, the points get their vectors.
    """
    target, *others = indexes
    left = [
        (each, VectorSource(None, are_missed=parse_dimension(each.name) is not None))
        for each in others
    ]
    return [*left, (target, vectors)]


async def _report_container(report: Report, before: int, total: int, done: int, _: int) -> None:
    await report(min(before + done, total), total)


def _raise_failure(run: IndexRun) -> None:
    """Raise the embedder's error, so that the job is retried after the provider's time."""
    if run.failure is None:
        return
    if run.failure.retry_after is not None:
        raise RetryLaterError(run.failure.detail, after=run.failure.retry_after)
    raise run.failure


def _build_documents(rows: Sequence[SourceRow]) -> list[IndexDocument]:
    return [document for row in rows for document in row.documents()]


def _list_changed_rows(notes: Sequence[Row[UUID, UUID | None]]) -> list[UUID]:
    return [note.source_id for note in notes if note.source_id is not None]


async def _delete_notes(session: AsyncSession, notes: Sequence[Row[UUID, UUID | None]]) -> None:
    for ids in split_chunks([note.id for note in notes]):
        await session.execute(_FORGET, {"ids": ids})
