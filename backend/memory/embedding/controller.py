"""`/admin/embedding-models`: downloading embedding models, for administrators."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal
from uuid import UUID, uuid5

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, JSONBody
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
    find_model,
    is_fetched,
    list_models,
    recommend_model,
)
from backend.memory.embedding.download import (
    DiskFullError,
    FetchUnderWayError,
    ModelChangedError,
    ModelDamagedError,
    ModelNotOnHubError,
    fetch_model,
)
from backend.memory.embedding.registry import choose_embedder, uses_downloaded_model
from backend.memory.runtime import MemoryRuntime
from backend.settings import EmbedderName
from backend.vault.sealing import Sealer

FETCH_MODEL = "memory.fetch_model"
AcceptLanguage = Annotated[
    str | None, HeaderParameter(name="Accept-Language", include_in_schema=False)
]
_NAMESPACE = UUID("c1f6f6c6-6a0c-5c0e-9d53-0b9f4a6f0c11")


class UnknownEmbeddingModelError(NotFoundError):
    """No downloadable embedding model has this name."""

    slug, title = "unknown-embedding-model", "Unknown embedding model"


class EmbeddingModelOffer(msgspec.Struct, kw_only=True):
    """An embedding model that can be downloaded.

    `size` is in bytes, `languages` are BCP 47 tags. `lines_per_second` is about the number of lines
    of 25 words that a core embeds. `is_recommended` marks the model for the languages of the
    account. `job` is its last download, for a day. The user who started it can stop it.
    """

    name: str
    size: int
    languages: Sequence[str]
    licence: str
    dimension: int
    lines_per_second: int
    is_recommended: bool
    state: Literal["on_offer", "fetched", "in_use"]
    job: JobView | None


class EmbeddingModelOffers(msgspec.Struct, kw_only=True):
    """Embedding models. `embedder` is the kind of embedder in use, `model` its model.

    `is_used` is false if the settings choose something else than a downloaded model.
    """

    embedder: EmbedderName | Literal["provider"]
    model: str | None
    is_used: bool
    models: list[EmbeddingModelOffer]


class ModelWish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The model to download."""

    name: str


class ModelFetches:
    """Offers and downloads models. `find_languages` returns the languages that a user writes in."""

    def __init__(
        self,
        queue: JobQueue,
        memory: MemoryRuntime,
        find_languages: Callable[[Sealer], Awaitable[Sequence[str]]],
    ) -> None:
        self._queue = queue
        self._find_languages = find_languages
        self._database = queue.database
        self._memory = memory
        self._settings = memory.settings

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {FETCH_MODEL: JobKind(self.fetch, needs_key=False, keep=True, stoppable=True)}

    async def offers(
        self, identity: Identity, page_languages: Sequence[str] = ()
    ) -> EmbeddingModelOffers:
        """Return all models. `page_languages` are the languages of the page, as BCP 47 tags."""
        # In a thread, because the first call imports fastembed, which takes a second.
        models = await asyncio.to_thread(list_models)
        async with self._database.read() as session:
            jobs = [await _load_last_fetch(session, each) for each in models]
        written = await self._find_languages(identity.sealer)
        recommended = recommend_model([*page_languages, *written])
        settings, embedder = self._settings, self._memory.embedder
        is_shared = isinstance(self._memory.chosen, ProviderEmbedding)
        return EmbeddingModelOffers(
            embedder="provider" if is_shared else choose_embedder(settings),
            model=embedder.spec.model if embedder else None,
            is_used=uses_downloaded_model(settings) and not is_shared,
            models=[
                self._offer(each, job, is_recommended=each is recommended)
                for each, job in zip(models, jobs, strict=True)
            ],
        )

    async def begin(self, identity: Identity, name: str) -> JobView:
        """Queue the download of a model, or return the pending job.

        Raises `UnknownEmbeddingModelError`.
        """
        model = await asyncio.to_thread(find_model, name) if name else None
        if model is None:
            raise UnknownEmbeddingModelError
        job = NewJob(
            kind=FETCH_MODEL,
            user_id=identity.user_id,
            payload={"model": model.name},
            lane=_find_lane(model),
            dedupe_key=_build_dedupe_key(model),
        )
        async with self._database.write() as session:
            last = await _load_last_fetch(session, model)
            if last is None or last.state in {"done", "dead"}:
                await self._queue.enqueue(session, job)
                last = await _load_last_fetch(session, model)
        if last is None:
            raise RuntimeError("The queued job is missing.")
        return JobView.from_row(last)

    async def fetch(self, job: RunningJob) -> None:
        """Download a model and switch to it. Errors that a retry can't fix end the job."""
        model = await asyncio.to_thread(find_model, job.payload["model"])
        if model is None:  # a job of another version of Talekeeper
            return
        settings = self._settings
        try:
            await fetch_model(model, settings.models_dir, job.progress, hub=settings.hf_endpoint)
        except FetchUnderWayError as error:  # by the command line, or a stopped job
            raise RetryLaterError(error.detail, after=1.0) from error
        except (
            ModelNotOnHubError,
            ModelChangedError,
            ModelDamagedError,
            DiskFullError,
        ) as error:
            failed = update(Job).where(Job.id == job.id).values(error=error.slug)
            async with job.finish() as session:
                await session.execute(failed, execution_options=UNSYNCHRONIZED)
            return
        await self._memory.follow_model()

    def _offer(
        self, model: OfferedModel, job: Job | None, *, is_recommended: bool
    ) -> EmbeddingModelOffer:
        is_here = is_fetched(self._settings.models_dir, model)
        chosen = self._memory.chosen
        in_use = isinstance(chosen, tuple) and chosen[0] == model.name
        return EmbeddingModelOffer(
            name=model.folder,
            size=model.size,
            languages=model.languages,
            licence=model.licence,
            dimension=model.dimension,
            lines_per_second=model.lines_per_second,
            is_recommended=is_recommended,
            state="in_use" if in_use else "fetched" if is_here else "on_offer",
            job=JobView.from_row(job) if job else None,
        )


async def _load_last_fetch(session: AsyncSession, model: OfferedModel) -> Job | None:
    query = select(Job).where(Job.lane == _find_lane(model))
    job: Job | None = await session.scalar(query.order_by(Job.id.desc()).limit(1))
    return job


def _find_lane(model: OfferedModel) -> UUID:
    return uuid5(_NAMESPACE, model.name)


def _build_dedupe_key(model: OfferedModel) -> str:
    return f"{FETCH_MODEL}/{model.name}"


class EmbeddingModelController(Controller):
    """Embedding models that run on the server and need no API key, for administrators."""

    path = "/admin/embedding-models"
    tags = ("Administration",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="List downloadable embedding models")
    async def list_embedding_models(
        self,
        identity: NamedDependency[Identity],
        model_fetches: NamedDependency[ModelFetches],
        accept_language: AcceptLanguage = None,
    ) -> EmbeddingModelOffers:
        """Return the models that can be downloaded, and the embedder in use.

        One is recommended for the languages of the account: those of the user's last lines, and the
        language of the page, or else the first one in `Accept-Language`. This sends no requests to
        other servers.
        """
        language = identity.settings.page.language or (accept_language or "").partition(",")[0]
        return await model_fetches.offers(identity, [language.partition(";")[0].strip()])

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
        """Download a model from Hugging Face or from the mirror in `HF_ENDPOINT`, and use it.

        The job reports progress in bytes. Afterwards the texts of all users move to the model while
        search continues. A model that was downloaded before is used immediately.
        """
        return await model_fetches.begin(identity, data.name)
