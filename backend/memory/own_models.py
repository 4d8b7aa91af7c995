"""Embedding models of users' own: which one an account names, opened with its user's key.

They are kept while they are in use, and for some minutes after. Nothing is connected to before a
text is embedded.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from backend.accounts.events import UserSignedOut
from backend.accounts.identity import open_settings
from backend.accounts.models import User
from backend.database.engine import Database
from backend.generation.registry import NoEmbeddingsError, UnknownModelError
from backend.llm.user_models import ProviderEmbedding, UserModels
from backend.memory.embedding.cached import CachedEmbedder
from backend.memory.embedding.cosines import ModelCosines
from backend.memory.embedding.own import OwnEmbedder
from backend.memory.embedding.registry import provider_embedder
from backend.memory.models import GONE
from backend.memory.placement import Placement, dimension_of
from backend.settings import Settings
from backend.vault.sealing import Sealer, digest

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
            model_id = open_settings(sealer, user.sealed_settings).task_models.embedding
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
        mark = digest(sealer.derived("embedding-model"), raw.server.encode(), raw.model.encode())
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
