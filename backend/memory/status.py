"""How memory is: what embeds texts, what is indexed, what is under way, what needs a hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.jobs.models import Job
from backend.jobs.schemas import JobView
from backend.memory.embedding.own_models import OwnModel
from backend.memory.index.protocol import IndexUnavailableError, Kind
from backend.memory.indexing.collections import Placement, dimension_of
from backend.memory.indexing.outbox import INDEX, REINDEX
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexChange, IndexState
from backend.memory.runtime import MemoryRuntime

MOST_JOBS = 20

ProblemKind = Literal[
    "no_model",
    "model_unavailable",
    "own_model_unavailable",
    "own_model_gone",
    "index_unavailable",
    "gave_up",
    "delayed",
    "waiting_key",
]

_TROUBLES: tuple[ProblemKind, ...] = ("gave_up", "delayed", "waiting_key")

_ADVICE: dict[ProblemKind, str] = {
    "no_model": (
        "No embedding model is configured, so memory is searched by words only. An administrator "
        "can download one without an API key: run `talekeeper doctor` for instructions."
    ),
    "model_unavailable": (
        "The embedding model did not respond to the last search, which used words only. It is "
        "retried automatically."
    ),
    "own_model_unavailable": (
        "Your account's embedding model did not respond, so memory is searched by words only. It "
        "is retried automatically. Test its provider, or choose another model. If the model "
        "behind it was changed, rebuild the index."
    ),
    "own_model_gone": (
        "The provider of your account's embedding model no longer exists, so memory is searched "
        "by words only. Choose another embedding model for the account, or none."
    ),
    "index_unavailable": (
        "The index is unavailable. Turns continue without memory. The administrator can find the "
        "reason in the server log."
    ),
    "gave_up": "Jobs failed. Retry them, or rebuild the index.",
    "delayed": "Jobs failed and are retried automatically.",
    "waiting_key": (
        "Jobs are waiting for your key. They run while you are signed in. To let them run without "
        "you, change the account's key mode."
    ),
}


class EmbeddingModel(msgspec.Struct, kw_only=True):
    """The model that turns texts into vectors.

    `is_own`: the account names it, and its texts are in its collection or move there. `dimension`
    is how long the vectors are that the index has.
    """

    provider: str
    model: str
    dimension: int
    is_own: bool = False


class IndexedRows(msgspec.Struct, kw_only=True):
    """How many rows of a kind memory looks after; `waiting` ones the index does not show yet."""

    kind: Kind
    total: int
    waiting: int


class MemoryMove(msgspec.Struct, kw_only=True):
    """Texts on their way into another collection. `source` is where they are found until then.

    Collections are named after their models. Without a `source` nothing is found yet.
    """

    source: str | None
    target: str


class MemoryProblem(msgspec.Struct, kw_only=True):
    """Something that keeps memory from being complete, and what to do about it.

    `count` is how many jobs it is about.
    """

    kind: ProblemKind
    advice: str
    count: int = 0


class MemoryStatus(msgspec.Struct, kw_only=True):
    """The state of a user's memory.

    `points` is what the index counts of the user's; null where it does not answer. `compared_at` is
    when the index was last compared with the database. `jobs` are the last ones of memory: under
    way, waiting, given up, and rebuilds for a day.
    """

    model: EmbeddingModel | None
    indexed: list[IndexedRows]
    points: int | None
    move: MemoryMove | None
    compared_at: datetime | None
    jobs: list[JobView]
    problems: list[MemoryProblem]


class MemoryStatusService:
    """Says how a user's memory is, and has it rebuilt."""

    def __init__(
        self, database: Database, memory: MemoryRuntime, sources: Sequence[Source]
    ) -> None:
        self._database = database
        self._memory = memory
        self._sources = sources

    async def get(self, identity: Identity) -> MemoryStatus:
        """How it is now: counts on indexes alone."""
        owner_id, memory = identity.user_id, self._memory
        place, own = await memory.own_model(identity.sealer)
        async with self._database.read() as session:
            states = list(
                await session.scalars(select(IndexState).where(IndexState.user_id == owner_id))
            )
            indexed = await self._indexed(session, owner_id)
            jobs = await _jobs(session, owner_id)
        try:
            points = await (await memory.collections.open(place.target)).count(owner_id)
        except IndexUnavailableError:
            points = None
        here = next((each for each in states if each.collection == place.target), None)
        return MemoryStatus(
            model=self._model(place, own),
            indexed=indexed,
            points=points,
            move=_move(states, place),
            compared_at=here.compared_at if here else None,
            jobs=list(map(JobView.from_row, jobs)),
            problems=list(self._problems(jobs, place, own, answers=points is not None)),
        )

    async def rebuild(self, identity: Identity) -> JobView:
        """Have every point of the user's made again, unless that is under way."""
        async with self._database.write() as session:
            job = await _rebuild(session, identity.user_id)
            if job is None:
                await self._memory.outbox.rebuild(session, identity)
                job = await _rebuild(session, identity.user_id)
        if job is None:
            raise RuntimeError("A job that was enqueued is not there.")
        return JobView.from_row(job)

    async def _indexed(self, session: AsyncSession, owner_id: UUID) -> list[IndexedRows]:
        noted = (
            select(
                IndexChange.kind,
                IndexChange.container_id,
                func.count(IndexChange.source_id.distinct()).label("rows"),
                (func.count() - func.count(IndexChange.source_id)).label("wholes"),
            )
            .where(IndexChange.user_id == owner_id)
            .group_by(IndexChange.kind, IndexChange.container_id)
        )
        notes = (await session.execute(noted)).all()
        found: list[IndexedRows] = []
        for source in self._sources:
            here = [each for each in notes if each.kind == source.kind]
            wholes = [each.container_id for each in here if each.wholes]
            waiting: int = sum(each.rows for each in here if not each.wholes)
            for some in split_chunks(wholes):
                waiting += await source.count(session, owner_id=owner_id, container_ids=some)
            total = await source.count(session, owner_id=owner_id)
            found.append(IndexedRows(kind=source.kind, total=total, waiting=min(waiting, total)))
        return found

    def _model(self, place: Placement, own: OwnModel | None) -> EmbeddingModel | None:
        """The model of the collection that the user's texts belong to."""
        if place.is_chosen:
            if own is None:
                return None
            slug, _, name = own.id.partition("/")
            dimension = dimension_of(place.target) or 0
            return EmbeddingModel(provider=slug, model=name, dimension=dimension, is_own=True)
        if self._memory.embedder is None:
            return None
        spec = self._memory.embedder.spec
        return EmbeddingModel(provider=spec.provider, model=spec.model, dimension=spec.dimension)

    def _problems(
        self, jobs: Sequence[Job], place: Placement, own: OwnModel | None, *, answers: bool
    ) -> Iterator[MemoryProblem]:
        if not answers:
            yield MemoryProblem(kind="index_unavailable", advice=_ADVICE["index_unavailable"])
        troubles: list[ProblemKind | None] = [_trouble(job) for job in jobs]
        trouble = self._model_trouble(troubles, place, own)
        if trouble is not None:
            yield MemoryProblem(kind=trouble, advice=_ADVICE[trouble])
        for kind in _TROUBLES:
            if count := troubles.count(kind):
                yield MemoryProblem(kind=kind, advice=_ADVICE[kind], count=count)

    def _model_trouble(
        self, troubles: Sequence[ProblemKind | None], place: Placement, own: OwnModel | None
    ) -> ProblemKind | None:
        """What is wrong with the model that the user's texts are embedded by."""
        usual = self._memory.embedder
        if own is not None:
            if own.embedder is None:
                return "own_model_gone"
            # Until it has answered once nothing belongs to its collection.
            is_waited_for = not place.is_chosen and any(troubles)
            return "own_model_unavailable" if own.embedder.is_failing or is_waited_for else None
        if place.is_chosen:
            return None  # on their way back
        if usual is None:
            return "no_model"
        return "model_unavailable" if usual.is_failing else None


def _trouble(job: Job) -> ProblemKind | None:
    """What a job has come to, where that is a problem."""
    if job.state in {"queued", "running"} and job.error is not None:
        return "delayed"  # also while it is tried again: it failed the last time
    if job.state == "dead":
        return "gave_up"
    return "waiting_key" if job.state == "waiting_key" else None


def _move(states: Sequence[IndexState], place: Placement) -> MemoryMove | None:
    """Where a user's texts move; None where they are all where they belong."""
    found = {each.collection: each.state for each in states}
    if found.get(place.target) != "due":
        return None
    source = next((name for name, state in found.items() if state == "ready"), None)
    return MemoryMove(source=source, target=place.target)


async def _jobs(session: AsyncSession, owner_id: UUID) -> Sequence[Job]:
    query = select(Job).where(Job.user_id == owner_id, Job.kind.in_((INDEX, REINDEX)))
    return list(await session.scalars(query.order_by(Job.id.desc()).limit(MOST_JOBS)))


async def _rebuild(session: AsyncSession, owner_id: UUID) -> Job | None:
    """The job that indexes everything of a user's, while it is under way."""
    under_way = (
        Job.user_id == owner_id,
        Job.kind == REINDEX,
        Job.state.in_(("queued", "waiting_key", "running")),
    )
    job: Job | None = await session.scalar(select(Job).where(*under_way).order_by(Job.id).limit(1))
    return job
