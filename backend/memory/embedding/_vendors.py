"""What both vendors' embedders share: one question, its deadline, and what its failure is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from backend.generation.gemini import GeminiProvider
from backend.generation.model import ModelError, ModelRateLimitError
from backend.generation.openai_compatible import OpenAICompatibleProvider
from backend.memory.embedding.protocol import EmbedderError

T = TypeVar("T")


async def answer(
    asked: Awaitable[T], *, provider: GeminiProvider | OpenAICompatibleProvider, who: str
) -> T:
    """What `asked`, a call of the provider's SDK, comes to.

    Raises:
        EmbedderError: Whatever went wrong, without the provider's own words; after the
            configuration's `answer_timeout` at the latest.
    """
    seconds = provider.config.answer_timeout
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except TimeoutError:
        raise EmbedderError(
            f"{who} gave no embeddings within {seconds:g} seconds.", retryable=True
        ) from None
    except Exception as error:  # noqa: BLE001  # an SDK raises anything
        raise as_embedder_error(provider.failure(error)) from None


def as_embedder_error(error: ModelError) -> EmbedderError:
    """A provider's failure, for those who asked for embeddings."""
    retry_after = error.retry_after if isinstance(error, ModelRateLimitError) else None
    return EmbedderError(error.detail, retry_after=retry_after, retryable=error.retryable)
