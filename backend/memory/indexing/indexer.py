"""Bringing the index up to what stands in SQL: the jobs that do it.

SQL is the truth. A job reads what changed, makes points, stores them under ids that follow from the
rows, and ends together with the notes of what changed. Doing any of it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from sqlalchemy import Row, bindparam, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.core.cpu_pool import CpuPool
from backend.database.base import get_table, split_chunks
from backend.database.engine import Database
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import JobKind, RunningJob
from backend.memory.index.protocol import Kind, VectorIndex
from backend.memory.indexing.collections import Collections, Placement, dimension_of
from backend.memory.indexing.documents import Document
from backend.memory.indexing.moves import ModelMoves, Move
from backend.memory.indexing.outbox import INDEX, REINDEX, IndexOutbox
from backend.memory.indexing.points import Attempt, PointMaker, Vectors
from backend.memory.indexing.reconciler import differences
from backend.memory.indexing.sources import Source, SourceRow, slices
from backend.memory.models import IndexChange
from backend.vault.sealing import Sealer

BATCH = 200
"""Rows that are read together."""

SLICE_BYTES = 64_000
"""Bytes of rows that are opened, cut, counted, embedded and stored together: between two slices
others get their turn. One row may be more by itself."""

CHANGES = 5000
"""Notes of changes that one job takes; what is left over is the next one's."""

_NOTES = (
    select(IndexChange.id, IndexChange.source_id)
    .where(
        IndexChange.container_id == bindparam("container_id"),
        IndexChange.user_id == bindparam("owner_id"),
    )
    .order_by(IndexChange.id)
    .limit(CHANGES)
)
_FORGET = delete(get_table(IndexChange)).where(IndexChange.id.in_(bindparam("ids", expanding=True)))
_FORGET_ONE = delete(get_table(IndexChange)).where(IndexChange.id == bindparam("note_id"))

Report = Callable[[int, int], Awaitable[None]]
"""Is told how much is done, of how much."""


Side = tuple[VectorIndex, Vectors]
"""A collection, and what gives points their vectors in it."""


class Indexer:
    """Does the jobs of the index."""

    def __init__(
        self,
        database: Database,
        collections: Collections,
        sources: Sequence[Source],
        *,
        maker: PointMaker,
        moves: ModelMoves,
        outbox: IndexOutbox,
        pool: CpuPool,
    ) -> None:
        self._database = database
        self._collections = collections
        self._moves = moves
        self._outbox = outbox
        self._sources: Mapping[Kind, Source] = {source.kind: source for source in sources}
        self._maker = maker
        self._pool = pool

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {
            INDEX: JobKind(self.index, ends_together=True),
            REINDEX: JobKind(self.reindex, keep=True),
        }

    async def index(self, job: RunningJob) -> None:
        """Follow the changes of one chat, lorebook or chronicle up."""
        container_id = UUID(job.payload["container_id"])
        source = self._sources[job.payload["kind"]]
        attempt, is_again = Attempt(job.keys), False
        while True:
            notes, rows, place, indexes = await self._changes(job, source, container_id)
            vectors, has_to_move = await self._moves.vectors(job.keys, place)
            sides = _sides(indexes, vectors)
            changed = _changed(notes)
            if len(changed) < len(notes):
                for side in sides:
                    await self._whole(
                        attempt, source, container_id, side, job.progress, anew=is_again
                    )
            # After all of it as well: the rows next to one that went held its words.
            if rows is None:
                await self._some(attempt, source, container_id, changed, sides)
            else:
                await self._store_rows(attempt, rows, sides, instead_of=changed)
            _check(attempt)
            is_again = place.is_chosen and await self._moves.is_elsewhere(job.keys, place)
            if is_again:
                continue  # what was just made may have the vectors of the model before
            if len(notes) < CHANGES:
                break
            async with job.step() as session:
                await _delete_notes(session, notes)
        # Not where another model came into use on the way.
        is_current = self._collections.current in indexes
        is_noted = not is_current or self._collections.is_placed(job.keys.user_id)
        if is_noted and not has_to_move:
            await job.finish_statement(_FORGET_ONE, [{"note_id": note.id} for note in notes])
            return
        async with job.finish() as session:
            await _delete_notes(session, notes)
            if has_to_move:
                await self._outbox.follow_later(session, job.keys.user_id)
            if is_current:
                await self._collections.mark_ready_if_new(session, job.keys.user_id)

    async def _changes(
        self, job: RunningJob, source: Source, container_id: UUID
    ) -> tuple[
        Sequence[Row[UUID, UUID | None]], Sequence[SourceRow] | None, Placement, list[VectorIndex]
    ]:
        """What is noted of a container, oldest first, and where it has to be mended.

        With the rows that changed, as a turn's are few; None where they are to be read later.
        """
        owner_id = job.keys.user_id
        values = {"container_id": container_id, "owner_id": owner_id}
        async with self._database.read() as session:
            notes = (await session.execute(_NOTES, values)).all()
            place, indexes = await self._collections.places_to_write(session, owner_id)
            changed, rows = _changed(notes), None
            if notes and len(changed) == len(notes) <= BATCH:
                rows = await source.rows(session, job.keys, container_id, changed, neighbours=True)
        return notes, rows, place, indexes

    async def reindex(self, job: RunningJob) -> None:
        """Index everything of a user's where it belongs, then search there.

        The collection of the payload is where that was when the job was made; none stands for what
        the account's settings say now. With `anew` in its payload also what the index has already.
        """
        wanted, anew = job.payload["collection"], job.payload.get("anew", False)
        move = await self._moves.follow(job.keys, job.step)
        is_wanted = wanted in {None, move.place.target}
        if is_wanted:
            await self._everything(job.keys, job.progress, move, anew=anew or move.is_anew)
        async with job.finish() as session:
            if is_wanted:
                await self._moves.arrived(session, job.keys, move)
                is_anew = anew or move.is_anew
                await self._outbox.reindexed(session, job.keys.user_id, anew=is_anew)

    async def rebuild(self, sealer: Sealer, report: Callable[[int, int], None]) -> str:
        """Index everything of a user's where it belongs, outside of any job: in which collection.

        Raises what `ModelMoves.follow` raises.
        """

        async def tell(done: int, total: int) -> None:
            report(done, total)

        move = await self._moves.follow(sealer, self._database.write)
        await self._everything(sealer, tell, move, anew=move.is_anew)
        async with self._database.write() as session:
            await self._moves.arrived(session, sealer, move)
        return move.place.target

    async def _everything(
        self, sealer: Sealer, report: Report, move: Move, *, anew: bool = False
    ) -> None:
        """Index all containers of a user's where they belong; `report` hears of rows.

        Raises once all are done, as far as words go, where the embedder failed on the way.
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
        attempt, done = Attempt(sealer), 0
        side = await self._collections.open(move.place.target), move.vectors
        for source, container_id in containers:
            tell = partial(_report_on, report, done, total)
            await tell(0, 0)
            done += await self._whole(attempt, source, container_id, side, tell, anew=anew)
        _check(attempt)
        await report(total, total)

    async def _some(
        self,
        attempt: Attempt,
        source: Source,
        container_id: UUID,
        source_ids: Sequence[UUID],
        sides: Sequence[Side],
    ) -> None:
        """Index some rows anew; those that are gone lose their points."""
        for part in split_chunks(source_ids, BATCH):
            async with self._database.read() as session:
                rows = await source.rows(
                    session, attempt.sealer, container_id, part, neighbours=True
                )
            await self._store_rows(attempt, rows, sides, instead_of=part)

    async def _whole(
        self,
        attempt: Attempt,
        source: Source,
        container_id: UUID,
        side: Side,
        report: Report | None = None,
        *,
        anew: bool = False,
    ) -> int:
        """Bring one collection up to date with a container: what differs is made, or all `anew`.

        Returns how many rows the container has.
        """
        sealer, index = attempt.sealer, side[0]
        async with self._database.read() as session:
            stored = await source.inventory(session, container_id, owner_id=sealer.user_id)
        if stored is None:
            await index.delete_container(sealer.user_id, container_id)
            return 0
        found = await differences(index, sealer.user_id, container_id, source.kind, stored)
        if found.gone:
            await index.delete_sources(sealer.user_id, found.gone)
        missing, stale = (list(stored), set(stored)) if anew else (found.missing, found.stale)
        for number, part in enumerate(split_chunks(missing, BATCH)):
            if report is not None:
                await report(number * BATCH, len(missing))
            async with self._database.read() as session:
                rows = await source.rows(session, sealer, container_id, part, neighbours=False)
            await self._store_rows(
                attempt, rows, [side], instead_of=[each for each in part if each in stale]
            )
        return len(stored)

    async def _store_rows(
        self,
        attempt: Attempt,
        rows: Sequence[SourceRow],
        sides: Sequence[Side],
        *,
        instead_of: Sequence[UUID],
    ) -> None:
        """Store what rows make, in place of all points of the rows `instead_of`."""
        owner_id = attempt.sealer.user_id
        left = set(instead_of)
        gone = left.difference(row.source_id for row in rows)
        for index, _ in sides if gone else ():
            await index.delete_sources(owner_id, list(gone))
        left -= gone
        for some in slices(rows, SLICE_BYTES):
            size = sum(row.size + row.size_beside for row in some)
            documents = await self._pool.run(
                owner_id, partial(_documents, some), size=size, is_job=True
            )
            here = [row.source_id for row in some if row.source_id in left]
            left.difference_update(here)
            for index, vectors in sides:
                points = await self._maker.make(attempt, documents, vectors=vectors)
                # Only now, with the new points at hand: in between nothing of these rows is found.
                if points:
                    await index.upsert(points, instead_of=here)
                elif here:
                    await index.delete_sources(owner_id, here)


def _sides(indexes: Sequence[VectorIndex], vectors: Vectors) -> list[Side]:
    """Where new points go: where the texts belong, and where they are found until all are there.

    There they get terms alone, and first: they wait for no model. Whoever comes back to that model
    gets their vectors then.
    """
    target, *others = indexes
    left = [
        (each, Vectors(None, are_missed=dimension_of(each.name) is not None)) for each in others
    ]
    return [*left, (target, vectors)]


async def _report_on(report: Report, before: int, total: int, done: int, _: int) -> None:
    """Report rows of one container, where so many were done before it."""
    await report(min(before + done, total), total)


def _check(attempt: Attempt) -> None:
    """Raise where vectors are missing: the job comes later, as late as the provider says."""
    if attempt.failure is None:
        return
    if attempt.failure.retry_after is not None:
        raise RetryLaterError(attempt.failure.detail, after=attempt.failure.retry_after)
    raise attempt.failure


def _documents(rows: Sequence[SourceRow]) -> list[Document]:
    return [document for row in rows for document in row.documents()]


def _changed(notes: Sequence[Row[UUID, UUID | None]]) -> list[UUID]:
    """The rows that are noted one by one."""
    return [note.source_id for note in notes if note.source_id is not None]


async def _delete_notes(session: AsyncSession, notes: Sequence[Row[UUID, UUID | None]]) -> None:
    for ids in split_chunks([note.id for note in notes]):
        await session.execute(_FORGET, {"ids": ids})
