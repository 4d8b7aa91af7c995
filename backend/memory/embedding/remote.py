"""Embeddings of any server that speaks OpenAI's `/embeddings`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from backend.generation.adapters.gemini import WHO as GOOGLE
from backend.generation.adapters.gemini import GeminiConfig, GeminiProvider
from backend.generation.adapters.openai.server import (
    OpenAICompatibleConfig,
    OpenAICompatibleProvider,
)
from backend.generation.model import ModelError, ModelRateLimitError
from backend.generation.tokens import best_tokenizer, get_tokenizer, starting_ratio
from backend.memory.embedding.protocol import EmbedderError, EmbedderSpec, Floats, Task

T = TypeVar("T")

MAX_TEXT_TOKENS = 2048
"""What `gemini-embedding-001` reads of a text. Others read more, and chunks are far shorter.
Source: https://ai.google.dev/gemini-api/docs/embeddings"""

_VOCABULARY = "gemma3"
_BLANK_TEXT = "."
_SAFETY_FACTOR = 0.95
_MAX_CHARACTERS_PER_TOKEN = 16
"""More than any text has on average, so that the tokenizer need not see all of a long one."""

_MAX_REQUEST_CHARACTERS = 100_000
"""Characters in one request: some 25,000 tokens, a quarter of a megabyte of JSON."""


def prepare_text(text: str, *, longest: int = MAX_TEXT_TOKENS) -> str:
    """`text` as an embedder takes it: not blank, and at most `longest` tokens.

    Tokens are Gemini's, exact where its vocabulary is installed; else an estimate, with some
    margin. Providers refuse blank texts: one is embedded as a full stop.
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
    """`text` without lone surrogates: half an emoji has no form on the wire."""
    return text.encode(errors="replace").decode()


def split_into_batches(texts: Sequence[str], *, most: int) -> Iterator[Sequence[str]]:
    """`texts` in order, at most `most` and about 100,000 characters in a batch."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == most or size + len(text) > _MAX_REQUEST_CHARACTERS):
            yield texts[start:index]
            start, size = index, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]


async def request_embeddings(
    provider: GeminiProvider | OpenAICompatibleProvider,
    ask: Callable[[Any], Awaitable[T]],
    *,
    who: str,
) -> T:
    """What `ask`, a call of the SDK, gets from the provider's connection.

    Raises:
        EmbedderError: Whatever went wrong, without the provider's own words; after the
            configuration's `answer_timeout` at the latest.
    """
    seconds = provider.config.answer_timeout
    try:
        async with provider.connected() as connection, asyncio.timeout(seconds):
            return await ask(connection)
    except TimeoutError:
        raise EmbedderError(
            f"{who} gave no embeddings within {seconds:g} seconds.", retryable=True
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
    who: str,
    count: int,
    dimension: int | None,
) -> Floats:
    """The same directions at unit length.

    Args:
        vectors: What came out of a model: as many rows as texts, of any real type.
        who: Whose they are, for the error.
        count: How many texts there were.
        dimension: How long each must be; None where nobody knows yet.

    Returns:
        Shape (count, d), float32.

    Raises:
        EmbedderError: If the shape is another one, or a row is zero or not finite.
    """
    try:
        rows = np.asarray(vectors, dtype=np.float32).astype(np.float64)
    except (TypeError, ValueError):  # a row that is shorter, or of something else
        raise EmbedderError(f"{who} sent embeddings that are no table of numbers.") from None
    if rows.ndim != 2 or len(rows) != count:  # noqa: PLR2004  # rows and columns
        raise EmbedderError(f"{who} gave {len(rows)} vectors for {count} texts.")
    length = rows.shape[1]
    if length == 0 or (dimension is not None and length != dimension):
        raise EmbedderError(
            f"{who} gives vectors of {length} numbers, and {dimension} are expected. If the model "
            "was changed, rebuild the index; TALEKEEPER_EMBEDDING_DIMENSION, where it is set, has "
            "to be what the model gives."
        )
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EmbedderError(f"{who} gave a vector without a direction.")
    unit: Floats = (rows / norms).astype(np.float32)
    return unit


GEMINI_MODEL = "gemini-embedding-001"
GEMINI_DIMENSION = 768

MAX_TEXTS_PER_REQUEST = 100
"""In one request. Source: https://ai.google.dev/api/embeddings#method:-models.batchembedcontents"""

_TASK_TYPES: dict[Task, str] = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}


class GeminiEmbedder:
    """An `Embedder` of Google's, asked for vectors of `dimension` and `batch` texts a request.

    The configuration's `answer_timeout` is the longest wait for one request.
    """

    def __init__(
        self,
        config: GeminiConfig,
        *,
        model: str = GEMINI_MODEL,
        dimension: int = GEMINI_DIMENSION,
        batch: int = MAX_TEXTS_PER_REQUEST,
    ) -> None:
        self._provider = GeminiProvider(config)
        self.spec = EmbedderSpec(provider="gemini", model=model, dimension=dimension)
        self._batch = min(batch, MAX_TEXTS_PER_REQUEST)
        self.model, self.server = model, f"gemini {config.base_url or ''}"

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:
        """See `Embedder`."""
        parts = [
            await self._ask(batch, task)
            for batch in split_into_batches([*map(prepare_text, texts)], most=self._batch)
        ]
        return np.concatenate([np.empty((0, self.spec.dimension), np.float32), *parts])

    async def _ask(self, texts: Sequence[str], task: Task) -> Floats:
        # Of bare texts the SDK makes one single content for models that it takes to be multimodal:
        # one vector for all of them.
        contents: Any = [{"parts": [{"text": text}]} for text in texts]
        config = {
            "task_type": _TASK_TYPES[task],
            "output_dimensionality": self.spec.dimension,
        }
        response = await request_embeddings(
            self._provider,
            lambda connection: connection.sdk.aio.models.embed_content(
                model=self.spec.model, contents=contents, config=config
            ),
            who=GOOGLE,
        )
        rows: list[list[float]] = [each.values or [] for each in response.embeddings or ()]
        # Below 3,072 dimensions Gemini cuts its vectors off and does not scale them again.
        return normalize_rows(rows, who=GOOGLE, count=len(texts), dimension=self.spec.dimension)

    async def retire(self) -> None:
        """Close the connections as soon as no request uses them."""
        await self._provider.retire()

    async def aclose(self) -> None:
        """See `Embedder`."""
        await self._provider.aclose()


SERVER_LABEL = "The embeddings server"
DEFAULT_BATCH = 100


class OpenAICompatibleEmbedder:
    """An `Embedder` on an OpenAI-compatible server, asked for `batch` texts a request.

    Without a `dimension` vectors are as long as those of the first answer, for many servers refuse
    to be asked for one; or of that `length`, where it is known. The configuration's
    `answer_timeout` is the longest wait for one request.
    """

    def __init__(
        self,
        config: OpenAICompatibleConfig,
        *,
        model: str,
        dimension: int | None = None,
        length: int | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        self._provider = OpenAICompatibleProvider(config)
        self.model, self.server = model, f"openai {config.base_url}"
        self._asked_dimension = dimension
        self._dimension = dimension or length
        self._batch = batch

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`."""
        if self._dimension is None:
            raise EmbedderError(
                f"{SERVER_LABEL} has not answered yet, and how long its vectors are is not configured."
            )
        return EmbedderSpec(provider="openai", model=self.model, dimension=self._dimension)

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`."""
        if self._dimension is None:
            await self.embed(["dimension"], "document")
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:  # noqa: ARG002  # the API knows no tasks
        """See `Embedder`."""
        parts = [
            await self._ask(batch)
            for batch in split_into_batches([*map(prepare_text, texts)], most=self._batch)
        ]
        if not parts:
            return np.empty((0, self._dimension or 0), np.float32)
        return np.concatenate(parts)

    async def _ask(self, texts: Sequence[str]) -> Floats:
        body: dict[str, Any] = {
            "model": self.model,
            "input": list(texts),
            "encoding_format": "base64",
        }
        if self._asked_dimension is not None:
            body["dimensions"] = self._asked_dimension
        address = self._provider.config.base_url.rstrip("/") + "/embeddings"
        data = await request_embeddings(
            self._provider,
            # Unparsed: the vectors are read into their own type.
            lambda connection: connection.post_raw(address, body),
            who=SERVER_LABEL,
        )
        vectors = _decode_vectors(data)
        rows = normalize_rows(
            vectors, who=SERVER_LABEL, count=len(texts), dimension=self._dimension
        )
        self._dimension = rows.shape[1]
        return rows

    async def retire(self) -> None:
        """Close the connections as soon as no request uses them."""
        await self._provider.retire()

    async def aclose(self) -> None:
        """See `Embedder`."""
        await self._provider.aclose()


class _Embedding(msgspec.Struct):
    embedding: str | list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


def _decode_vectors(request_embeddings: bytes) -> list[Any]:
    """The vectors in the texts' order. Some servers send numbers whatever form is asked for.

    Raises `EmbedderError` when the answer holds none, at the first place where it is something
    else: what a broken server sends may be large.
    """
    try:
        data = msgspec.json.decode(request_embeddings, type=_Embeddings).data
        if all(each.index is not None for each in data):
            data.sort(key=lambda each: each.index or 0)
        return [
            np.frombuffer(base64.b64decode(each.embedding, validate=True), "<f4")
            if isinstance(each.embedding, str)
            else each.embedding
            for each in data
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise EmbedderError(f"{SERVER_LABEL} sent an answer that holds no embeddings.") from None
