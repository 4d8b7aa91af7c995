"""Embeddings for clients: of the account's model, the installation's, or one of a provider.

Nothing is stored: memory's cache of vectors is not used.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

import msgspec
import numpy as np

from backend.accounts.auth.identity import Identity
from backend.core.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.generation.registry import OfferedProvider
from backend.generation.servers.abilities import ServerLimit
from backend.llm.answers import CHARACTERS_PER_TOKEN
from backend.llm.server_slots import ModelBusyError, ModelSlots, SlotTakenError
from backend.llm.slot_rules import Rank, SlotWork
from backend.llm.user_models import UserModels
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.embedding.protocol import Embedder, EmbedderRequestError, Floats
from backend.memory.embedding.remote import (
    MAX_TEXT_TOKENS,
    RemoteEmbedder,
    prepare_text,
    split_into_batches,
)
from backend.openai_api.schemas import EmbeddingEntry, EmbeddingList, EmbeddingUsage
from backend.quotas.ledgers import add_tokens_if_account
from backend.quotas.limits import TOKENS_PER_DAY
from backend.quotas.service import Quotas

Encoding = Literal["float", "base64"]

DEFAULT_MODEL = "default"
"""The name of the account's embedding model, or else the installation's."""

SLOT_SECONDS = 120.0
"""Time that a request waits for turns at a server with few slots."""

_BATCH = 64
"""Texts between two checks if a turn needs the server."""


class EmbeddingInputError(ValidationError):
    """A text is too long to be embedded whole."""

    slug, title = "embedding-input", "These texts cannot be embedded"


class DimensionsNotTakenError(ValidationError):
    """The model does not make vectors of the requested length."""

    slug, title = "dimensions-not-taken", "The model does not support these dimensions"


class NoEmbeddingModelError(ValidationError):
    """Neither the account nor the installation has an embedding model."""

    slug, title = "no-embedding-model", "No embedding model is set up"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVectors:
    """The vectors of a request, in the order of its texts, each of unit length.

    Attributes:
        model: The model's id.
        vectors: Shape (n, d).
        tokens: An estimate, because few servers report it.
    """

    model: str
    vectors: Floats
    tokens: int


@dataclass(frozen=True, slots=True)
class _Source:
    """An embedding model, the length of its vectors if it cannot be chosen, and its limit."""

    id: str
    embedder: Embedder
    limit: ServerLimit | None = None
    can_choose: bool = False


class PlainEmbeddings:
    """Embeds the texts of clients.

    Args:
        find_shared: Returns the installation's embedding model.
        batch: Texts in one request to a provider.
    """

    def __init__(
        self,
        database: Database,
        user_models: UserModels,
        quotas: Quotas,
        slots: ModelSlots,
        pool: CpuPool,
        *,
        find_shared: Callable[[], CachedEmbedder | None],
        batch: int,
    ) -> None:
        self._database = database
        self._user_models = user_models
        self._quotas = quotas
        self._slots = slots
        self._pool = pool
        self._find_shared = find_shared
        self._batch = batch

    async def embed(
        self, identity: Identity, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> TextVectors:
        """Return the vectors of texts.

        Args:
            identity: The account.
            model: `DEFAULT_MODEL`, or `<provider>/<model>`, or the installation's model by name.
            texts: One or more.
            dimensions: The length of the vectors. None is the model's own.

        Raises:
            EmbeddingInputError: A text is too long to be embedded whole.
            UnknownModelError: The account has no such provider.
            NoEmbeddingsError: The provider has no embedding models.
            NoEmbeddingModelError: Neither the account nor the installation has a model.
            DimensionsNotTakenError: The model does not support `dimensions`.
            QuotaExceededError: A quota is used up.
            ModelBusyError: Turns used the model's server for too long.
            EmbedderError: The model failed.
        """
        size = sum(map(len, texts))
        await self._pool.run(identity.user_id, partial(check_texts, texts), size=size)
        await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
        source = await self._find(identity, model, dimensions)
        with self._quotas.turns.hold(identity.user_id):
            parts: list[Floats] = []
            spent = 0
            try:
                for some in split_into_batches(texts, most=_BATCH):
                    parts.append(await self._embed_batch(identity.user_id, source, some))
                    spent += _estimate(some)
            except EmbedderRequestError as error:
                if dimensions is None:
                    raise
                raise DimensionsNotTakenError(
                    f"{source.id} does not make vectors of {dimensions:,} numbers. {error.detail}"
                ) from None
            finally:
                if spent:
                    await self._count(identity.user_id, spent)
        vectors = np.concatenate(parts)
        _check_length(source, vectors.shape[1], dimensions)
        return TextVectors(model=source.id, vectors=vectors, tokens=spent)

    async def _embed_batch(self, user_id: UUID, source: _Source, texts: Sequence[str]) -> Floats:
        """Embed a batch between the turns of a server with few slots."""
        until = time.monotonic() + SLOT_SECONDS
        work = SlotWork(use="request", rank=Rank.ASKED, user_id=user_id, chat_id=new_id())
        while True:
            try:
                async with self._slots.hold(
                    [source.limit], work, patience=until - time.monotonic()
                ):
                    return await source.embedder.embed(texts, "document")
            except SlotTakenError:
                if time.monotonic() >= until:
                    raise ModelBusyError("Embed the texts again later.") from None

    async def _find(self, identity: Identity, model: str, dimensions: int | None) -> _Source:
        own = identity.settings.task_models.embedding
        name = own if model == DEFAULT_MODEL and own is not None else model
        shared = self._find_shared()
        if name == DEFAULT_MODEL or (shared is not None and name == (await shared.ready()).model):
            if shared is None:
                raise NoEmbeddingModelError(
                    "Choose an embedding model in your settings, or name one as <provider>/<model>."
                )
            source = _Source((await shared.ready()).model, shared.uncached)
            _check_length(source, (await shared.ready()).dimension, dimensions)
            return source
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
        provider, model_name = models.find_embedding(name)
        embedder = self._open(provider, model_name, dimensions)
        return _Source(name, embedder, models.find_limit(name), can_choose=True)

    def _open(self, provider: OfferedProvider, name: str, dimensions: int | None) -> RemoteEmbedder:
        return RemoteEmbedder(
            provider.kind,
            provider.adapter.config,
            model=name,
            dimension=dimensions,
            batch=self._batch,
            provider=provider.adapter,
        )

    async def _count(self, user_id: UUID, tokens: int) -> None:
        async with self._database.write() as session:
            await add_tokens_if_account(session, user_id, tokens)


def render_vectors(found: TextVectors, encoding: Encoding) -> bytes:
    """Return the JSON of a response in OpenAI's form. CPU-bound: it may have 50 MB."""
    rows = found.vectors.astype("<f4")
    data = [
        EmbeddingEntry(
            index=at,
            embedding=b64encode(row.tobytes()).decode() if encoding == "base64" else row.tolist(),
        )
        for at, row in enumerate(rows)
    ]
    usage = EmbeddingUsage(prompt_tokens=found.tokens, total_tokens=found.tokens)
    return msgspec.json.encode(EmbeddingList(data=data, model=found.model, usage=usage))


def check_texts(texts: Sequence[str]) -> None:
    """Raise `EmbeddingInputError` if texts cannot be embedded whole. CPU-bound."""
    for place, text in enumerate(texts):
        if len(prepare_text(text)) < len(text):
            raise EmbeddingInputError(
                f"input[{place}]: the text has more than {MAX_TEXT_TOKENS:,} tokens."
            )


def _check_length(source: _Source, length: int, dimensions: int | None) -> None:
    if dimensions not in {None, length}:
        raise DimensionsNotTakenError(
            f"{source.id} makes vectors of {length:,} numbers."
            + ("" if source.can_choose else " Leave `dimensions` out.")
        )


def _estimate(texts: Sequence[str]) -> int:
    return sum(len(text) // CHARACTERS_PER_TOKEN + 1 for text in texts)
