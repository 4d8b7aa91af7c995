"""`/memory`: the status of memory, and rebuilding it."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.database.base import now, split_chunks
from backend.database.engine import Database
from backend.http.schemas import STORES
from backend.jobs.models import Job
from backend.jobs.schemas import JobView
from backend.memory.embedding.registry import OwnModel
from backend.memory.index.protocol import IndexUnavailableError, Kind
from backend.memory.indexing.collections import Placement, parse_dimension
from backend.memory.indexing.outbox import INDEX, INDEX_IMPORTED, REINDEX
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexChange, IndexState
from backend.memory.runtime import MemoryRuntime
from backend.quotas.limits import QUEUED_JOBS
from backend.quotas.service import Quotas

MAX_JOBS = 20

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

_KEY_PATIENCE = timedelta(seconds=10)
"""Time in which a process where the user is signed in takes a job that waits for the key."""

_JOB_PROBLEMS: tuple[ProblemKind, ...] = ("gave_up", "delayed", "waiting_key")

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

    `is_own` is true if the account has chosen it for itself. `dimension` is the length of the
    vectors in the index.
    """

    provider: str
    model: str
    dimension: int
    is_own: bool = False


class IndexedRows(msgspec.Struct, kw_only=True):
    """Number of rows of a kind that belong in the index; `waiting` ones are not up to date yet."""

    kind: Kind
    total: int
    waiting: int


class MemoryMove(msgspec.Struct, kw_only=True):
    """A move of your texts to another collection. Search uses `source` until it is complete.

    Collections are named after their models. Without a `source`, search finds nothing yet.
    """

    source: str | None
    target: str


class MemoryProblem(msgspec.Struct, kw_only=True):
    """A problem of memory, with advice. `count` is the number of jobs that it concerns."""

    kind: ProblemKind
    advice: str
    count: int = 0


class MemoryStatus(msgspec.Struct, kw_only=True):
    """The status of your memory.

    `points` is the number of your points in the index; null if it does not respond. `compared_at`
    is the time of the last comparison between index and database. `jobs` are the latest jobs of
    memory that run, wait or have failed, and rebuilds of the last day.
    """

    model: EmbeddingModel | None
    indexed: list[IndexedRows]
    points: int | None
    move: MemoryMove | None
    compared_at: datetime | None
    jobs: list[JobView]
    problems: list[MemoryProblem]


class MemoryStatusService:
    def __init__(
        self, database: Database, memory: MemoryRuntime, sources: Sequence[Source]
    ) -> None:
        self._database = database
        self._memory = memory
        self._sources = sources

    async def get(self, identity: Identity) -> MemoryStatus:
        """Return the status. The counts read indexes of the database alone."""
        owner_id, memory = identity.user_id, self._memory
        place, own = await memory.own_model(identity.sealer)
        async with self._database.read() as session:
            states = list(
                await session.scalars(select(IndexState).where(IndexState.user_id == owner_id))
            )
            indexed = await self._count_rows(session, owner_id)
            jobs = await _load_jobs(session, owner_id)
        try:
            points = await (await memory.collections.open(place.target)).count(owner_id)
        except IndexUnavailableError:
            points = None
        here = next((each for each in states if each.collection == place.target), None)
        return MemoryStatus(
            model=self._describe_model(place, own),
            indexed=indexed,
            points=points,
            move=_find_move(states, place),
            compared_at=here.compared_at if here else None,
            jobs=list(map(JobView.from_row, jobs)),
            problems=list(self._problems(jobs, place, own, answers=points is not None)),
        )

    async def rebuild(self, identity: Identity) -> JobView:
        """Queue the job that rebuilds all points of the user, or return the one that is pending."""
        async with self._database.write() as session:
            job = await _load_rebuild(session, identity.user_id)
            if job is None:
                await self._memory.outbox.rebuild(session, identity)
                job = await _load_rebuild(session, identity.user_id)
        if job is None:
            raise RuntimeError("The queued job is missing.")
        return JobView.from_row(job)

    async def _count_rows(self, session: AsyncSession, owner_id: UUID) -> list[IndexedRows]:
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

    def _describe_model(self, place: Placement, own: OwnModel | None) -> EmbeddingModel | None:
        if place.is_chosen:
            if own is None:
                return None
            slug, _, name = own.id.partition("/")
            dimension = parse_dimension(place.target) or 0
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
        problems: list[ProblemKind | None] = [find_problem(job) for job in jobs]
        problem = self._find_model_problem(problems, place, own)
        if problem is not None:
            yield MemoryProblem(kind=problem, advice=_ADVICE[problem])
        for kind in _JOB_PROBLEMS:
            if count := problems.count(kind):
                yield MemoryProblem(kind=kind, advice=_ADVICE[kind], count=count)

    def _find_model_problem(
        self, problems: Sequence[ProblemKind | None], place: Placement, own: OwnModel | None
    ) -> ProblemKind | None:
        usual = self._memory.embedder
        if own is not None:
            if own.embedder is None:
                return "own_model_gone"
            # The texts belong to its collection only after its first response.
            is_waited_for = not place.is_chosen and any(problems)
            return "own_model_unavailable" if own.embedder.is_failing or is_waited_for else None
        if place.is_chosen:
            return None  # the texts are moving back to the installation's model
        if usual is None:
            return "no_model"
        return "model_unavailable" if usual.is_failing else None


def find_problem(job: Job) -> ProblemKind | None:
    if job.state in {"queued", "running"} and job.error is not None:
        return "delayed"  # also while a retry is running, because the last attempt failed
    if job.state == "dead":
        return "gave_up"
    is_late = job.state == "waiting_key" and job.run_after < now() - _KEY_PATIENCE
    return "waiting_key" if is_late else None


def _find_move(states: Sequence[IndexState], place: Placement) -> MemoryMove | None:
    found = {each.collection: each.state for each in states}
    if found.get(place.target) != "due":
        return None
    source = next((name for name, state in found.items() if state == "ready"), None)
    return MemoryMove(source=source, target=place.target)


async def _load_jobs(session: AsyncSession, owner_id: UUID) -> Sequence[Job]:
    query = select(Job).where(
        Job.user_id == owner_id, Job.kind.in_((INDEX, INDEX_IMPORTED, REINDEX))
    )
    return list(await session.scalars(query.order_by(Job.id.desc()).limit(MAX_JOBS)))


async def _load_rebuild(session: AsyncSession, owner_id: UUID) -> Job | None:
    under_way = (
        Job.user_id == owner_id,
        Job.kind == REINDEX,
        Job.state.in_(("queued", "waiting_key", "running")),
    )
    job: Job | None = await session.scalar(select(Job).where(*under_way).order_by(Job.id).limit(1))
    return job


Caller = NamedDependency[Identity]
Status = NamedDependency[MemoryStatusService]


class MemoryController(Controller):
    """Your memory."""

    path = "/memory"
    tags = ("Memory",)

    @get(operation_id="getMemory", summary="Read the memory status")
    async def status(self, identity: Caller, memory_status: Status) -> MemoryStatus:
        """Return the model in use, what is indexed and what is pending, and problems with advice.

        While texts move to another model's collection, `move` names both collections.
        """
        return await memory_status.get(identity)

    @post(
        "/rebuild",
        status_code=202,
        opt={STORES: False},
        operation_id="rebuildMemory",
        summary="Rebuild your index",
    )
    async def rebuild(
        self, identity: Caller, memory_status: Status, quotas: NamedDependency[Quotas]
    ) -> JobView:
        """Queue a job that rebuilds all points of your texts. Search continues during the rebuild.

        Vectors come from the cache if the text was embedded before. If a rebuild is already
        pending or running, the response is that job.
        """
        await quotas.check(QUEUED_JOBS, identity.user_id)
        return await memory_status.rebuild(identity)
