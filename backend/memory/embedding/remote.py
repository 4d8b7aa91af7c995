"""The embedder that sends requests to a provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.core.cpu_pool import INLINE_CHARACTERS
from backend.generation.client.provider import (
    AnyProvider,
    EmbeddingProvider,
    EmbeddingRequest,
    ServerConfig,
    Vector,
)
from backend.generation.model import ModelError, ModelRateLimitError, ModelRequestError
from backend.generation.registry import KINDS, KindName
from backend.generation.tokens import choose_tokenizer, find_starting_ratio, get_tokenizer
from backend.memory.embedding.protocol import (
    EmbedderError,
    EmbedderRequestError,
    EmbedderSpec,
    Floats,
    Task,
)

DEFAULT_BATCH = 100
MAX_TEXT_TOKENS = 2048
"""Input limit of `gemini-embedding-001`. Other models accept more, and chunks are far shorter.
Source: https://ai.google.dev/gemini-api/docs/embeddings"""

_VOCABULARY = "gemma3"
_BLANK_TEXT = "."
_SAFETY_FACTOR = 0.95
_MAX_CHARACTERS_PER_TOKEN = 16
"""No text has more on average. Long texts are cut there before tokens are counted."""

_MAX_REQUEST_CHARACTERS = 100_000


def prepare_text(text: str, *, longest: int = MAX_TEXT_TOKENS) -> str:
    """Truncate `text` to `longest` tokens of Gemini, and replace a blank text by a full stop.

    Providers refuse blank texts. If Gemini's vocabulary is not installed, tokens are estimated with
    a margin.
    """
    text = replace_surrogates(text)
    if len(text.encode()) <= longest:  # no token is shorter than a byte
        return text if text.strip() else _BLANK_TEXT
    vocabulary = choose_tokenizer(_VOCABULARY)
    tokenizer = get_tokenizer(vocabulary)
    most = longest / find_starting_ratio(_VOCABULARY, counted_with=vocabulary)
    if vocabulary != _VOCABULARY:
        most *= _SAFETY_FACTOR
    text = text[: longest * _MAX_CHARACTERS_PER_TOKEN]
    while (count := tokenizer.count(text)) > most:
        text = text[: int(len(text) * most / count * _SAFETY_FACTOR)]
    return text if text.strip() else _BLANK_TEXT


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, such as half an emoji, because UTF-8 can't encode them."""
    return text.encode(errors="replace").decode()


def split_into_batches(texts: Sequence[str], *, most: int) -> Iterator[Sequence[str]]:
    """Yield `texts` in order, in batches of at most `most` texts and about 100,000 characters."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == most or size + len(text) > _MAX_REQUEST_CHARACTERS):
            yield texts[start:index]
            start, size = index, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]


def normalize_rows(
    vectors: NDArray[Any] | Sequence[NDArray[Any] | Sequence[float]],
    *,
    label: str,
    count: int,
    dimension: int | None,
) -> Floats:
    """Scale `count` vectors to unit length, shape (count, d), float32.

    Raises `EmbedderError` if the shape is wrong, or a row is zero or not finite. `label` is the
    model's name in errors. If `dimension` is None, any length is accepted.
    """
    try:
        rows = np.asarray(vectors, dtype=np.float32).astype(np.float64)
    except (TypeError, ValueError):  # rows of different lengths, or not numbers
        raise EmbedderError(f"{label} sent embeddings that are not a table of numbers.") from None
    if rows.ndim != 2 or len(rows) != count:  # noqa: PLR2004  # rows and columns
        raise EmbedderError(f"{label} returned {len(rows)} vectors for {count} texts.")
    length = rows.shape[1]
    if length == 0 or (dimension is not None and length != dimension):
        raise EmbedderRequestError(
            f"{label} returns vectors of {length} numbers; {dimension} are expected. If the model "
            "was changed, rebuild the index; if TALEKEEPER_EMBEDDING_DIMENSION is set, it must "
            "match the model."
        )
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EmbedderError(f"{label} returned a vector that is zero or not finite.")
    unit: Floats = (rows / norms).astype(np.float32)
    return unit


class RemoteEmbedder:
    """An `Embedder` that sends requests to a provider.

    Args:
        kind: The kind of the provider. It must have embeddings.
        config: The server. Its `answer_timeout` is the time limit of a request.
        model: "" for the kind's default.
        dimension: The dimension to request. None uses the kind's default. Many servers refuse one.
        length: The known dimension of the vectors. If neither is known, the first response decides.
        batch: Texts per request.
        provider: An open connection to use. It is not closed with this object.

    Attributes:
        server: Identifies the server.
    """

    def __init__(
        self,
        kind: KindName,
        config: ServerConfig,
        *,
        model: str = "",
        dimension: int | None = None,
        length: int | None = None,
        batch: int = DEFAULT_BATCH,
        provider: AnyProvider | None = None,
    ) -> None:
        provider = provider or KINDS[kind].provider(config)
        embeddings = KINDS[kind].embeddings
        if embeddings is None or not isinstance(provider, EmbeddingProvider):
            raise TypeError(f"{KINDS[kind].title} has no embeddings.")
        self.kind = kind
        self.model = model or embeddings.default_model
        self.server = f"{kind} {config.base_url or ''}"
        self.provider: EmbeddingProvider[Any, Any] = provider
        self._label = embeddings.label
        self._asked_dimension = dimension or embeddings.default_dimension
        self._dimension = self._asked_dimension or length
        self._batch = min(batch, embeddings.max_batch or batch)

    @property
    def spec(self) -> EmbedderSpec:
        if self._dimension is None:
            raise EmbedderError(
                f"{self._label} has not responded yet, and the size of its vectors is not "
                "configured."
            )
        return EmbedderSpec(provider=self.kind, model=self.model, dimension=self._dimension)

    async def ready(self) -> EmbedderSpec:
        if self._dimension is None:
            await self.embed(["dimension"], "document")
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            prepared = [*map(prepare_text, texts)]
        else:
            prepared = await asyncio.to_thread(lambda: [*map(prepare_text, texts)])
        parts = [
            await self._embed_batch(batch, task)
            for batch in split_into_batches(prepared, most=self._batch)
        ]
        return np.concatenate([np.empty((0, self._dimension or 0), np.float32), *parts])

    async def retire(self) -> None:
        """Close the connections as soon as no request uses them."""
        await self.provider.retire()

    async def aclose(self) -> None:
        await self.provider.aclose()

    async def _embed_batch(self, texts: Sequence[str], task: Task) -> Floats:
        vectors = await self._request(
            EmbeddingRequest(self.model, texts, task, self._asked_dimension)
        )
        try:
            rows = [
                np.frombuffer(each, "<f4") if isinstance(each, bytes) else each for each in vectors
            ]
        except ValueError:
            raise EmbedderError(f"{self._label} sent a response without embeddings.") from None
        unit = normalize_rows(rows, label=self._label, count=len(texts), dimension=self._dimension)
        self._dimension = unit.shape[1]
        return unit

    async def _request(self, request: EmbeddingRequest) -> Sequence[Vector]:
        """Raise `EmbedderError` for any failure, without the provider's own text."""
        provider = self.provider
        seconds = provider.config.answer_timeout
        try:
            async with provider.open_connection() as connection, asyncio.timeout(seconds):
                return await provider.embed(connection, request)
        except TimeoutError:
            raise EmbedderError(
                f"{self._label} returned no embeddings within {seconds:g} seconds.", retryable=True
            ) from None
        except Exception as error:  # noqa: BLE001  # an SDK raises anything
            failure = error if isinstance(error, ModelError) else provider.failure(error)
            retry_after = failure.retry_after if isinstance(failure, ModelRateLimitError) else None
            is_refusal = isinstance(failure, ModelRequestError)
            kind = EmbedderRequestError if is_refusal else EmbedderError
            raise kind(
                failure.detail, retry_after=retry_after, retryable=failure.retryable
            ) from None
