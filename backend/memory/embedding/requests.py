"""What embedders share: texts as they take them, answers in time, vectors of unit length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from backend.generation.adapters.gemini import GeminiProvider
from backend.generation.adapters.openai.server import OpenAICompatibleProvider
from backend.generation.model import ModelError, ModelRateLimitError
from backend.generation.tokens import best_tokenizer, get_tokenizer, starting_ratio
from backend.memory.embedding.protocol import EmbedderError, Floats

T = TypeVar("T")

LONGEST_TOKENS = 2048
"""What `gemini-embedding-001` reads of a text. Others read more, and chunks are far shorter.
Source: https://ai.google.dev/gemini-api/docs/embeddings"""

_VOCABULARY = "gemma3"
_NOTHING = "."
_MARGIN = 0.95
_CHARS_A_TOKEN = 16
"""More than any text has on average, so that the tokenizer need not see all of a long one."""

_REQUEST_CHARS = 100_000
"""Characters in one request: some 25,000 tokens, a quarter of a megabyte of JSON."""


def prepared(text: str, *, longest: int = LONGEST_TOKENS) -> str:
    """`text` as an embedder takes it: not blank, and at most `longest` tokens.

    Tokens are Gemini's, exact where its vocabulary is installed; else an estimate, with some
    margin. Providers refuse blank texts: one is embedded as a full stop.
    """
    text = repaired(text)
    if len(text.encode()) <= longest:  # no token is shorter than a byte
        return text if text.strip() else _NOTHING
    vocabulary = best_tokenizer(_VOCABULARY)
    tokenizer = get_tokenizer(vocabulary)
    most = longest / starting_ratio(_VOCABULARY, counted_with=vocabulary)
    if vocabulary != _VOCABULARY:
        most *= _MARGIN
    text = text[: longest * _CHARS_A_TOKEN]
    while (count := tokenizer.count(text)) > most:
        text = text[: int(len(text) * most / count * _MARGIN)]
    return text if text.strip() else _NOTHING


def repaired(text: str) -> str:
    """`text` without lone surrogates: half an emoji has no form on the wire."""
    return text.encode(errors="replace").decode()


def batches(texts: Sequence[str], *, most: int) -> Iterator[Sequence[str]]:
    """`texts` in order, at most `most` and about 100,000 characters in a batch."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == most or size + len(text) > _REQUEST_CHARS):
            yield texts[start:index]
            start, size = index, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]


async def answer(
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
            f"{who} returned no embeddings within {seconds:g} seconds.", retryable=True
        ) from None
    except Exception as error:  # noqa: BLE001  # an SDK raises anything
        failure = error if isinstance(error, ModelError) else provider.failure(error)
        retry_after = failure.retry_after if isinstance(failure, ModelRateLimitError) else None
        raise EmbedderError(
            failure.detail, retry_after=retry_after, retryable=failure.retryable
        ) from None


def unit_rows(
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
        raise EmbedderError(f"{who} sent embeddings that are not a table of numbers.") from None
    if rows.ndim != 2 or len(rows) != count:  # noqa: PLR2004  # rows and columns
        raise EmbedderError(f"{who} returned {len(rows)} vectors for {count} texts.")
    length = rows.shape[1]
    if length == 0 or (dimension is not None and length != dimension):
        raise EmbedderError(
            f"{who} returns vectors of {length} numbers; {dimension} are expected. If the model "
            "was changed, rebuild the index; if TALEKEEPER_EMBEDDING_DIMENSION is set, it must "
            "match the model."
        )
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EmbedderError(f"{who} returned a vector of length zero.")
    unit: Floats = (rows / norms).astype(np.float32)
    return unit
