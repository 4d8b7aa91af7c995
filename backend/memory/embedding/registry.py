"""The installation's embedder, and users' own embedding models.

Own models are opened with the user's key. They stay open while they are in use and for some minutes
after. The first text opens a connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast
from uuid import UUID

import numpy as np

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.events import UserSignedOut
from backend.accounts.models import User
from backend.database.engine import Database
from backend.generation.registry import KINDS, KindName, NoEmbeddingsError, UnknownModelError
from backend.llm.user_models import ProviderEmbedding, UserModels
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.embedding.catalogue import find_model_in_use
from backend.memory.embedding.local import LocalEmbedder, is_installed
from backend.memory.embedding.protocol import (
    Embedder,
    EmbedderError,
    EmbedderSpec,
    Floats,
    ModelCosines,
    Task,
)
from backend.memory.embedding.remote import RemoteEmbedder
from backend.memory.models import GONE
from backend.settings import EmbedderName, Settings
from backend.vault.sealing import Sealer, digest

_REQUEST_SECONDS = 60.0
"""Time limit of a request for vectors of documents. No turn waits for them."""


def choose_embedder(settings: Settings) -> EmbedderName:
    """Return the kind of embedder in the settings, with `auto` resolved."""
    if settings.embedder != "auto":
        return settings.embedder
    if (kind := find_configured_kind(settings)) is not None:
        return cast("EmbedderName", kind)
    if is_installed() and (settings.embedding_model_path or find_model_in_use(settings.models_dir)):
        return "local"
    return "none"


def find_configured_kind(settings: Settings) -> KindName | None:
    """Return the first provider kind in the environment that has a default embedding model."""
    able: Iterator[KindName] = (
        name
        for name, kind in KINDS.items()
        if kind.embeddings and kind.embeddings.default_model and kind.read_settings(settings)
    )
    return next(able, None)


def find_local_model(settings: Settings) -> tuple[str, Path] | None:
    """Return the name and folder of the downloaded model, if it is the embedder."""
    if settings.embedding_model_path is not None or choose_embedder(settings) != "local":
        return None
    return find_model_in_use(settings.models_dir)


def uses_downloaded_model(settings: Settings) -> bool:
    """True if a downloaded model becomes the embedder, unless an administrator chose a provider."""
    return allows_provider(settings) and find_configured_kind(settings) is None


def allows_provider(settings: Settings) -> bool:
    """True if an administrator may choose a provider's model: the settings must not name one."""
    return settings.embedder == "auto" and settings.embedding_model_path is None


def build_embedder(settings: Settings, shared: ProviderEmbedding | None = None) -> Embedder | None:
    """Build the embedder of a provider, or else that of the settings; None if there is none.

    It sends no requests and loads no model. Raises `EmbedderError` if the folder of a model is
    invalid.
    """
    if shared is not None:
        return build_provider_embedder(shared, settings)
    match choose_embedder(settings):
        case "none":
            return None
        case "local":
            return _build_local(settings)
        case kind:
            return _build_remote(kind, settings)


def build_cached_embedder(
    settings: Settings, database: Database, shared: ProviderEmbedding | None = None
) -> CachedEmbedder | None:
    embedder = build_embedder(settings, shared)
    return None if embedder is None else add_cache(embedder, settings, database)


def add_cache(embedder: Embedder, settings: Settings, database: Database) -> CachedEmbedder:
    """Wrap an embedder with the cache, retries and circuit breaker."""
    return CachedEmbedder(
        database,
        embedder,
        batch=settings.embedding_batch,
        query_timeout=settings.embedding_timeout_seconds,
    )


def build_provider_embedder(
    shared: ProviderEmbedding, settings: Settings, *, length: int | None = None
) -> RemoteEmbedder:
    """Build the embedder of a provider.

    Vectors have the kind's default dimension, or else the model's. If `length` is given, vectors of
    another length are an error.
    """
    return RemoteEmbedder(
        shared.kind,
        replace(shared.config, answer_timeout=_REQUEST_SECONDS),
        model=shared.model,
        length=length,
        batch=settings.embedding_batch,
    )


def _build_remote(kind: KindName, settings: Settings) -> RemoteEmbedder:
    embeddings = KINDS[kind].embeddings
    if embeddings is None:
        raise ValueError(f"{KINDS[kind].title} has no embeddings.")
    return RemoteEmbedder(
        kind,
        replace(embeddings.read_settings(settings), answer_timeout=_REQUEST_SECONDS),
        model=settings.embedding_model,
        dimension=settings.embedding_dimension,
        batch=settings.embedding_batch,
    )


def _build_local(settings: Settings) -> LocalEmbedder:
    workers = settings.embedding_threads
    if (fetched := find_local_model(settings)) is not None:
        name, folder = fetched
        return LocalEmbedder(folder, model=name, workers=workers)
    if settings.embedding_model_path is None:
        raise ValueError("A local embedder needs a folder.")
    return LocalEmbedder(
        settings.embedding_model_path,
        model=settings.embedding_model,
        dimension=settings.embedding_dimension,
        workers=workers,
    )


COLLECTION_DIMENSIONS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Dimensions of the collections for users' own models. The set is fixed, because users' servers may
return vectors of any length, and each length would create a collection."""


class OwnEmbedder:
    """An `Embedder` that pads vectors with zeros, which does not change cosines.

    Args:
        embedder: The embedder of the provider.
        dimension: Length of the padded vectors. If it is None, the first response decides: it is
            the smallest of `COLLECTION_DIMENSIONS` that is sufficient.
        length: Length of the vectors before padding, if it is known.
    """

    def __init__(
        self,
        embedder: RemoteEmbedder,
        *,
        dimension: int | None = None,
        length: int | None = None,
    ) -> None:
        self._embedder = embedder
        self.dimension, self._length = dimension, length
        self.server = embedder.server
        self.model = embedder.model
        self._closing: asyncio.Task[None] | None = None

    @property
    def spec(self) -> EmbedderSpec:
        if self.dimension is None:
            raise EmbedderError("Your embedding model has not responded yet.")
        return EmbedderSpec(
            provider="own",
            model=self.model,
            dimension=self.dimension,
            server=self.server,
            length=self._length,
        )

    async def ready(self) -> EmbedderSpec:
        if self.dimension is None:
            given = (await self._embedder.ready()).dimension
            self.dimension = next((each for each in COLLECTION_DIMENSIONS if each >= given), None)
            if self.dimension is None:
                raise EmbedderError(
                    f"Your embedding model returns vectors of {given:,} numbers. The limit is "
                    f"{COLLECTION_DIMENSIONS[-1]:,}."
                )
            self._length = given
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        dimension = (await self.ready()).dimension
        made = await self._embedder.embed(texts, task)
        missing = dimension - made.shape[1]
        if missing < 0 and len(made):
            raise EmbedderError("Your embedding model returns longer vectors than before.")
        return np.pad(made, ((0, 0), (0, max(0, missing))))

    def retire_soon(self) -> None:
        """Close the connections as soon as no request uses them."""
        self._closing = asyncio.ensure_future(self._embedder.retire())

    async def aclose(self) -> None:
        await self._embedder.aclose()


MAX_OPEN_MODELS = 100
IDLE_SECONDS = 900.0
MAX_COSINES = 1000
MAX_QUERIES_PER_USER = 64
"""Cached query vectors of one user: at most a megabyte."""


class VectorSizes(NamedTuple):
    """The dimension of the collection, and the length of the model's vectors before padding."""

    dimension: int | None
    length: int | None


UNKNOWN_SIZES = VectorSizes(None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """The embedding model that an account has chosen: `id` is the setting, `<provider>/<model>`.

    If its provider no longer exists, `mark` is `GONE`, and `embedder` None. Otherwise `mark` is a
    keyed hash of server and model.
    """

    id: str
    mark: bytes
    embedder: CachedEmbedder | None = field(default=None, repr=False)


@dataclass(slots=True)
class _OpenModel:
    wanted: ProviderEmbedding
    raw: OwnEmbedder
    model: OwnModel
    sizes: VectorSizes
    used_at: float


class OwnModels(UserSignedOut):
    """Opens users' own embedding models and closes them when they are idle."""

    def __init__(
        self,
        database: Database,
        user_models: UserModels,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._user_models = user_models
        self._settings = settings
        self._clock = clock
        self._open: OrderedDict[UUID, _OpenModel] = OrderedDict()
        self._cosines: OrderedDict[tuple[bytes, VectorSizes], ModelCosines] = OrderedDict()

    async def load(self, sealer: Sealer, sizes: VectorSizes = UNKNOWN_SIZES) -> OwnModel | None:
        """Return the model that the account has chosen, if any. It is asked for unknown `sizes`."""
        async with self._database.read() as session:
            user = await session.get(User, sealer.user_id)
            if user is None:
                return None
            model_id = open_user_settings(sealer, user.sealed_settings).task_models.embedding
            if model_id is None:
                return None
            models = await self._user_models.of(session, user, sealer)
        try:
            provider, name = models.find_embedding(model_id)
        except (UnknownModelError, NoEmbeddingsError):
            return OwnModel(id=model_id, mark=GONE)
        wanted = ProviderEmbedding(provider.kind, provider.adapter.config, name)
        return self._get_open(sealer, model_id, wanted, sizes)

    def _get_open(
        self, sealer: Sealer, model_id: str, wanted: ProviderEmbedding, sizes: VectorSizes
    ) -> OwnModel:
        made = self._open.pop(sealer.user_id, None)
        # A model that was opened with unknown sizes must be asked again.
        if made is not None and (
            (made.wanted, made.model.id, made.sizes) != (wanted, model_id, sizes)
            or made.raw.dimension != sizes.dimension
        ):
            self._retire(made)
            made = None
        if made is None:
            made = self._open_model(sealer, model_id, wanted, sizes)
        made.used_at = self._clock()
        self._open[sealer.user_id] = made
        self._sweep()
        return made.model

    def _open_model(
        self, sealer: Sealer, model_id: str, wanted: ProviderEmbedding, sizes: VectorSizes
    ) -> _OpenModel:
        dimension, length = sizes
        asked = build_provider_embedder(wanted, self._settings, length=length)
        raw = OwnEmbedder(asked, dimension=dimension, length=length)
        mark = digest(sealer.derive_key("embedding-model"), raw.server.encode(), raw.model.encode())
        embedder = CachedEmbedder(
            self._database,
            raw,
            batch=self._settings.embedding_batch,
            query_timeout=self._settings.embedding_timeout_seconds,
            queries_kept=MAX_QUERIES_PER_USER,
            cosines=self._cosines.get((mark, sizes)),
        )
        model = OwnModel(id=model_id, mark=mark, embedder=embedder)
        return _OpenModel(wanted, raw, model, sizes, self._clock())

    def _sweep(self) -> None:
        until = self._clock() - IDLE_SECONDS
        while self._open:
            user_id, oldest = next(iter(self._open.items()))
            if oldest.used_at > until and len(self._open) <= MAX_OPEN_MODELS:
                return
            del self._open[user_id]
            self._retire(oldest)

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop the user's query vectors and the key of the provider."""
        if (gone := self._open.pop(user_id, None)) is not None:
            self._retire(gone)

    def _retire(self, gone: _OpenModel) -> None:
        """Close a model, and keep its scale of cosines, which takes two requests to measure."""
        embedder = gone.model.embedder
        if embedder is not None and embedder.known_cosines is not None:
            self._cosines[gone.model.mark, gone.sizes] = embedder.known_cosines
            if len(self._cosines) > MAX_COSINES:
                self._cosines.popitem(last=False)
        gone.raw.retire_soon()

    async def aclose(self) -> None:
        while self._open:
            _, each = self._open.popitem()
            await each.raw.aclose()
