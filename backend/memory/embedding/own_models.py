"""Embedding models of users' own: which one an account names, opened with its user's key.

They are kept while they are in use, and for some minutes after. Nothing is connected to before a
text is embedded.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.events import UserSignedOut
from backend.accounts.models import User
from backend.database.engine import Database
from backend.generation.registry import NoEmbeddingsError, UnknownModelError
from backend.llm.user_models import ProviderEmbedding, UserModels
from backend.memory.embedding.cached import CachedEmbedder
from backend.memory.embedding.gemini import GeminiEmbedder
from backend.memory.embedding.openai_compatible import OpenAICompatibleEmbedder
from backend.memory.embedding.protocol import (
    EmbedderError,
    EmbedderSpec,
    Floats,
    ModelCosines,
    Task,
)
from backend.memory.embedding.registry import provider_embedder
from backend.memory.indexing.collections import Placement, dimension_of
from backend.memory.models import GONE
from backend.settings import Settings
from backend.vault.sealing import Sealer, digest

DIMENSIONS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Of the collections for users' own models. Servers that users name may say anything: without a
fixed set each answer of another length would be another collection."""


class OwnEmbedder:
    """An `Embedder` whose vectors are filled up with zeros, which changes no cosine.

    Args:
        embedder: What asks the provider.
        dimension: How long the filled vectors are; None for the shortest of `DIMENSIONS` that
            holds those of the first answer.
        length: How long they are before, where that is known: the embedder gives no others.
    """

    def __init__(
        self,
        embedder: GeminiEmbedder | OpenAICompatibleEmbedder,
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
        """See `Embedder`."""
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
        """See `Embedder`."""
        if self.dimension is None:
            given = (await self._embedder.ready()).dimension
            self.dimension = next((each for each in DIMENSIONS if each >= given), None)
            if self.dimension is None:
                raise EmbedderError(
                    f"Your embedding model returns vectors of {given:,} numbers. The limit is "
                    f"{DIMENSIONS[-1]:,}."
                )
            self._length = given
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
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
        """See `Embedder`."""
        await self._embedder.aclose()


MOST_KEPT = 100
KEPT_SECONDS = 900.0
COSINES_KEPT = 1000
QUERIES_KEPT = 64
"""Vectors of one user's queries: a megabyte at most."""


Sizes = tuple[int | None, int | None]
"""The dimension of a collection, and the length of the vectors before they are filled up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """The embedding model that an account names.

    Attributes:
        id: As the settings have it, `<provider>/<model>`.
        mark: A keyed hash of server and model; `GONE` where the provider is not there any more.
        embedder: None where the provider is not there any more.
    """

    id: str
    mark: bytes
    embedder: CachedEmbedder | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Open:
    wanted: ProviderEmbedding
    raw: OwnEmbedder
    model: OwnModel
    sizes: Sizes
    used_at: float


class OwnModels(UserSignedOut):
    """Opens users' own embedding models.

    Args:
        database: Where accounts and their providers are.
        user_models: Whose providers there are.
        settings: How many texts a request takes, and how long a query may.
        clock: Seconds that only go up.
    """

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
        self._open: OrderedDict[UUID, _Open] = OrderedDict()
        self._cosines: OrderedDict[tuple[bytes, Sizes], ModelCosines] = OrderedDict()

    async def of(self, sealer: Sealer, place: Placement | None = None) -> OwnModel | None:
        """The model that the account names now; None where it names none.

        `place` is where the user's texts are, which says how long its vectors have to be; None is
        for finding that out.
        """
        async with self._database.read() as session:
            user = await session.get(User, sealer.user_id)
            if user is None:
                return None
            model_id = open_user_settings(sealer, user.sealed_settings).task_models.embedding
            if model_id is None:
                return None
            models = await self._user_models.of(session, user, sealer)
        try:
            wanted = ProviderEmbedding(*models.embedding_server(model_id))
        except (UnknownModelError, NoEmbeddingsError):
            return OwnModel(id=model_id, mark=GONE)
        dimension = dimension_of(place.target) if place else None
        return self._opened(sealer, model_id, wanted, (dimension, place.length if place else None))

    def _opened(
        self, sealer: Sealer, model_id: str, wanted: ProviderEmbedding, sizes: Sizes
    ) -> OwnModel:
        made = self._open.pop(sealer.user_id, None)
        # One that was to find the dimension out has to ask again.
        if made is not None and (
            (made.wanted, made.model.id, made.sizes) != (wanted, model_id, sizes)
            or made.raw.dimension != sizes[0]
        ):
            self._retire(made)
            made = None
        if made is None:
            made = self._made(sealer, model_id, wanted, sizes)
        made.used_at = self._clock()
        self._open[sealer.user_id] = made
        self._sweep()
        return made.model

    def _made(
        self, sealer: Sealer, model_id: str, wanted: ProviderEmbedding, sizes: Sizes
    ) -> _Open:
        dimension, length = sizes
        asked = provider_embedder(wanted, self._settings, length=length)
        raw = OwnEmbedder(asked, dimension=dimension, length=length)
        mark = digest(sealer.derive_key("embedding-model"), raw.server.encode(), raw.model.encode())
        embedder = CachedEmbedder(
            self._database,
            raw,
            batch=self._settings.embedding_batch,
            query_timeout=self._settings.embedding_timeout_seconds,
            queries_kept=QUERIES_KEPT,
            cosines=self._cosines.get((mark, sizes)),
        )
        model = OwnModel(id=model_id, mark=mark, embedder=embedder)
        return _Open(wanted, raw, model, sizes, self._clock())

    def _sweep(self) -> None:
        until = self._clock() - KEPT_SECONDS
        while self._open:
            user_id, oldest = next(iter(self._open.items()))
            if oldest.used_at > until and len(self._open) <= MOST_KEPT:
                return
            del self._open[user_id]
            self._retire(oldest)

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop the vectors of a user's queries, and the key of the provider."""
        if (gone := self._open.pop(user_id, None)) is not None:
            self._retire(gone)

    def _retire(self, gone: _Open) -> None:
        """Close it, and keep what its cosines say: to find that out takes two requests."""
        embedder = gone.model.embedder
        if embedder is not None and embedder.known_cosines is not None:
            self._cosines[gone.model.mark, gone.sizes] = embedder.known_cosines
            if len(self._cosines) > COSINES_KEPT:
                self._cosines.popitem(last=False)
        gone.raw.retire_soon()

    async def aclose(self) -> None:
        """Close all connections."""
        while self._open:
            _, each = self._open.popitem()
            await each.raw.aclose()
