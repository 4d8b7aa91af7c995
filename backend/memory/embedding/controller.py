"""Embedding models that can be fetched, for administrators: `/admin/embedding-models`."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.accounts.profile.administration import require_administrator
from backend.database.base import UNSYNCHRONIZED
from backend.errors import NotFoundError
from backend.http.schemas import RAISES, STORES
from backend.jobs.errors import RetryLaterError
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.schemas import JobView
from backend.llm.user_models import ProviderEmbedding
from backend.memory.embedding.catalogue import (
    OfferedModel,
    find_offered,
    is_fetched,
    offered_models,
)
from backend.memory.embedding.fetching import (
    DiskFullError,
    FetchUnderWayError,
    ModelDamagedError,
    ModelNotOnHubError,
    fetch_model,
)
from backend.memory.embedding.registry import Choice, choose
from backend.memory.runtime import MemoryRuntime

FETCH = "memory.fetch_model"


class UnknownEmbeddingModelError(NotFoundError):
    """No downloadable embedding model has this name."""

    slug, title = "unknown-embedding-model", "Unknown embedding model"


class EmbeddingModelOffer(msgspec.Struct, kw_only=True):
    """An embedding model that can be fetched.

    `size` is in bytes, `languages` are BCP 47 tags. `job` is its last fetch, for a day; whoever
    began it can stop it.
    """

    name: str
    size: int
    languages: Sequence[str]
    licence: str
    dimension: int
    state: Literal["on_offer", "fetched", "in_use"]
    job: JobView | None


class EmbeddingModelOffers(msgspec.Struct, kw_only=True):
    """What can be fetched. `embedder` is what embeds now, `model` its model.

    `is_used` says whether a fetched model would: not where the settings name something else.
    """

    embedder: Choice | Literal["provider"]
    model: str | None
    is_used: bool
    models: list[EmbeddingModelOffer]


class ModelWish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which model to fetch."""

    name: str


class ModelFetches:
    """Lists models, and fetches them."""

    def __init__(self, queue: JobQueue, memory: MemoryRuntime) -> None:
        self._queue = queue
        self._database = queue.database
        self._memory = memory
        self._settings = memory.settings

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {FETCH: JobKind(self.fetch, needs_key=False, keep=True, stoppable=True)}

    async def offers(self) -> EmbeddingModelOffers:
        """All models, whether they are here, and how fetching them goes."""
        # The list is fastembed's, which takes a second to import the first time.
        models = await asyncio.to_thread(offered_models)
        async with self._database.read() as session:
            jobs = [await _last_fetch(session, each) for each in models]
        settings, embedder = self._settings, self._memory.embedder
        is_shared = isinstance(self._memory.chosen, ProviderEmbedding)
        return EmbeddingModelOffers(
            embedder="provider" if is_shared else choose(settings),
            model=embedder.spec.model if embedder else None,
            is_used=settings.embedder == "auto"
            and not is_shared
            and settings.gemini_api_key is None
            and settings.embedding_model_path is None,
            models=list(map(self._offer, models, jobs)),
        )

    async def begin(self, identity: Identity, name: str) -> JobView:
        """Have a model fetched and used, unless that is under way.

        Raises `UnknownEmbeddingModelError`.
        """
        model = await asyncio.to_thread(find_offered, name) if name else None
        if model is None:
            raise UnknownEmbeddingModelError
        job = NewJob(
            kind=FETCH,
            user_id=identity.user_id,
            payload={"model": model.name},
            dedupe_key=_dedupe_key(model),
        )
        async with self._database.write() as session:
            last = await _last_fetch(session, model)
            if last is None or last.state in {"done", "dead"}:
                await self._queue.enqueue(session, job)
                last = await _last_fetch(session, model)
        if last is None:
            raise RuntimeError("A job that was enqueued is not there.")
        return JobView.from_row(last)

    async def fetch(self, job: RunningJob) -> None:
        """Fetch a model and go over to it. What trying again does not mend ends the job."""
        model = await asyncio.to_thread(find_offered, job.payload["model"])
        if model is None:  # another version of Talekeeper offered it
            return
        settings = self._settings
        try:
            await fetch_model(model, settings.models_dir, job.progress, hub=settings.hf_endpoint)
        except FetchUnderWayError as error:  # by the command, or a fetch that was just stopped
            raise RetryLaterError(error.detail, after=1.0) from error
        except (ModelNotOnHubError, ModelDamagedError, DiskFullError) as error:
            failed = update(Job).where(Job.id == job.id).values(error=error.slug)
            async with job.finish() as session:
                await session.execute(failed, execution_options=UNSYNCHRONIZED)
            return
        await self._memory.follow_model()

    def _offer(self, model: OfferedModel, job: Job | None) -> EmbeddingModelOffer:
        is_here = is_fetched(self._settings.models_dir, model)
        chosen = self._memory.chosen
        in_use = isinstance(chosen, tuple) and chosen[0] == model.name
        return EmbeddingModelOffer(
            name=model.folder,
            size=model.size,
            languages=model.languages,
            licence=model.licence,
            dimension=model.dimension,
            state="in_use" if in_use else "fetched" if is_here else "on_offer",
            job=JobView.from_row(job) if job else None,
        )


async def _last_fetch(session: AsyncSession, model: OfferedModel) -> Job | None:
    query = select(Job).where(Job.dedupe_key == _dedupe_key(model))
    job: Job | None = await session.scalar(query.order_by(Job.id.desc()).limit(1))
    return job


def _dedupe_key(model: OfferedModel) -> str:
    return f"{FETCH}/{model.name}"


class EmbeddingModelController(Controller):
    """Embedding models for memory by meaning without a key, for administrators."""

    path = "/admin/embedding-models"
    tags = ("Administration",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="List downloadable embedding models")
    async def list_embedding_models(
        self, model_fetches: NamedDependency[ModelFetches]
    ) -> EmbeddingModelOffers:
        """Which can be fetched, with their sizes, languages and licences, and what is in use.

        Nothing is asked of anybody else for this.
        """
        return await model_fetches.offers()

    @post(
        "/fetch",
        status_code=202,
        opt={STORES: False, RAISES: (UnknownEmbeddingModelError,)},
        summary="Download an embedding model",
    )
    async def fetch_embedding_model(
        self,
        data: JSONBody[ModelWish],
        identity: NamedDependency[Identity],
        model_fetches: NamedDependency[ModelFetches],
    ) -> JobView:
        """Fetch a model from Hugging Face, or from where `HF_ENDPOINT` points, and use it.

        The job counts bytes. When it is done everybody's texts move to the model, while search goes
        on. One that is here already is used without fetching it again.
        """
        return await model_fetches.begin(identity, data.name)
