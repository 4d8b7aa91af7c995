"""Embedders that send requests to Gemini or to a server with OpenAI's `/embeddings`."""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from backend.generation.adapters.gemini import WHO as GEMINI_LABEL
from backend.generation.adapters.gemini import GeminiConfig, GeminiProvider
from backend.generation.adapters.openai.server import (
    OpenAICompatibleConfig,
    OpenAICompatibleProvider,
)
from backend.generation.model import ModelError, ModelRateLimitError
from backend.generation.tokens import best_tokenizer, get_tokenizer, starting_ratio
from backend.memory.embedding.protocol import EmbedderError, EmbedderSpec, Floats, Task

T = TypeVar("T")
Provider = GeminiProvider | OpenAICompatibleProvider

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
    vocabulary = best_tokenizer(_VOCABULARY)
    tokenizer = get_tokenizer(vocabulary)
    most = longest / starting_ratio(_VOCABULARY, counted_with=vocabulary)
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


async def request_embeddings(
    provider: Provider,
    ask: Callable[[Any], Awaitable[T]],
    *,
    label: str,
) -> T:
    """Return the result of `ask` with the provider's connection, within `answer_timeout`.

    Every failure raises `EmbedderError`, without the provider's own text.
    """
    seconds = provider.config.answer_timeout
    try:
        async with provider.connected() as connection, asyncio.timeout(seconds):
            return await ask(connection)
    except TimeoutError:
        raise EmbedderError(
            f"{label} returned no embeddings within {seconds:g} seconds.", retryable=True
        ) from None
    except Exception as error:  # noqa: BLE001  # an SDK raises anything
        failure = error if isinstance(error, ModelError) else provider.failure(error)
        retry_after = failure.retry_after if isinstance(failure, ModelRateLimitError) else None
        raise EmbedderError(
            failure.detail, retry_after=retry_after, retryable=failure.retryable
        ) from None


def normalize_rows(
    vectors: NDArray[Any] | Sequence[Sequence[float]],
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
        raise EmbedderError(
            f"{label} returns vectors of {length} numbers; {dimension} are expected. If the model "
            "was changed, rebuild the index; if TALEKEEPER_EMBEDDING_DIMENSION is set, it must "
            "match the model."
        )
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EmbedderError(f"{label} returned a vector that is zero or not finite.")
    unit: Floats = (rows / norms).astype(np.float32)
    return unit


GEMINI_MODEL = "gemini-embedding-001"
GEMINI_DIMENSION = 768

MAX_TEXTS_PER_REQUEST = 100
"""Source: https://ai.google.dev/api/embeddings#method:-models.batchembedcontents"""

_TASK_TYPES: dict[Task, str] = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}


SERVER_LABEL = "The embeddings server"
DEFAULT_BATCH = 100


class RemoteEmbedder(ABC):
    """An `Embedder` that sends requests to a provider, `batch` texts per request.

    The time limit of a request is the configuration's `answer_timeout`. `server` identifies the
    server of the model. If `dimension` is None, the first response decides.
    """

    kind: ClassVar[str]

    def __init__(
        self, provider: Provider, *, model: str, server: str, dimension: int | None, batch: int
    ) -> None:
        self._provider = provider
        self.model, self.server = model, server
        self._dimension = dimension
        self._batch = batch

    @property
    def spec(self) -> EmbedderSpec:
        if self._dimension is None:
            raise EmbedderError(
                f"{SERVER_LABEL} has not responded yet, and the size of its vectors is not "
                "configured."
            )
        return EmbedderSpec(provider=self.kind, model=self.model, dimension=self._dimension)

    async def ready(self) -> EmbedderSpec:
        if self._dimension is None:
            await self.embed(["dimension"], "document")
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        parts = [
            await self._ask(batch, task)
            for batch in split_into_batches([*map(prepare_text, texts)], most=self._batch)
        ]
        return np.concatenate([np.empty((0, self._dimension or 0), np.float32), *parts])

    @abstractmethod
    async def _ask(self, texts: Sequence[str], task: Task) -> Floats:
        """Return the vectors of one batch. Raises `EmbedderError`."""

    async def retire(self) -> None:
        """Close the connections as soon as no request uses them."""
        await self._provider.retire()

    async def aclose(self) -> None:
        await self._provider.aclose()


class GeminiEmbedder(RemoteEmbedder):
    kind = "gemini"

    def __init__(
        self,
        config: GeminiConfig,
        *,
        model: str = GEMINI_MODEL,
        dimension: int = GEMINI_DIMENSION,
        batch: int = MAX_TEXTS_PER_REQUEST,
    ) -> None:
        super().__init__(
            GeminiProvider(config),
            model=model,
            server=f"gemini {config.base_url or ''}",
            dimension=dimension,
            batch=min(batch, MAX_TEXTS_PER_REQUEST),
        )

    async def _ask(self, texts: Sequence[str], task: Task) -> Floats:
        # The SDK would merge plain strings into one content for models that it considers
        # multimodal, and return one vector.
        contents: Any = [{"parts": [{"text": text}]} for text in texts]
        config = {"task_type": _TASK_TYPES[task], "output_dimensionality": self._dimension}
        response = await request_embeddings(
            self._provider,
            lambda connection: connection.sdk.aio.models.embed_content(
                model=self.model, contents=contents, config=config
            ),
            label=GEMINI_LABEL,
        )
        rows: list[list[float]] = [each.values or [] for each in response.embeddings or ()]
        # Gemini truncates vectors to fewer than 3,072 dimensions without scaling them.
        return normalize_rows(rows, label=GEMINI_LABEL, count=len(texts), dimension=self._dimension)


class OpenAICompatibleEmbedder(RemoteEmbedder):
    """An `Embedder` that asks an OpenAI-compatible server.

    Many servers refuse a `dimension`; None leaves it out. `length` is that of the vectors.
    """

    kind = "openai"

    def __init__(
        self,
        config: OpenAICompatibleConfig,
        *,
        model: str,
        dimension: int | None = None,
        length: int | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        super().__init__(
            OpenAICompatibleProvider(config),
            model=model,
            server=f"openai {config.base_url}",
            dimension=dimension or length,
            batch=batch,
        )
        self._asked_dimension = dimension
        self._address = config.base_url.rstrip("/") + "/embeddings"

    async def _ask(self, texts: Sequence[str], task: Task) -> Floats:  # noqa: ARG002  # the API knows no tasks
        body: dict[str, Any] = {
            "model": self.model,
            "input": list(texts),
            "encoding_format": "base64",
        }
        if self._asked_dimension is not None:
            body["dimensions"] = self._asked_dimension
        data = await request_embeddings(
            self._provider,
            # Unparsed, because the vectors are decoded into their own type.
            lambda connection: connection.post_raw(self._address, body),
            label=SERVER_LABEL,
        )
        vectors = _decode_vectors(data)
        rows = normalize_rows(
            vectors, label=SERVER_LABEL, count=len(texts), dimension=self._dimension
        )
        self._dimension = rows.shape[1]
        return rows


class _Embedding(msgspec.Struct):
    embedding: str | list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


def _decode_vectors(response: bytes) -> list[Any]:
    """Return the vectors in the order of the texts. Some servers ignore the requested encoding.

    Raises `EmbedderError` at the first invalid value, because a faulty response may be large.
    """
    try:
        data = msgspec.json.decode(response, type=_Embeddings).data
        if all(each.index is not None for each in data):
            data.sort(key=lambda each: each.index or 0)
        return [
            np.frombuffer(base64.b64decode(each.embedding, validate=True), "<f4")
            if isinstance(each.embedding, str)
            else each.embedding
            for each in data
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise EmbedderError(f"{SERVER_LABEL} sent a response without embeddings.") from None
