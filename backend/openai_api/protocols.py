"""The services that the routes of the endpoint call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from backend.accounts.auth.identity import Identity
from backend.openai_api.embeddings import TextVectors
from backend.openai_api.options import ClientOptions
from backend.openai_api.streaming import CompletionReply
from backend.openai_api.wire import (
    ChatCompletionRequest,
    TextCompletionRequest,
)


@runtime_checkable
class ChatCompletionStarter(Protocol):
    async def start(
        self, identity: Identity, request: ChatCompletionRequest, options: ClientOptions
    ) -> CompletionReply:
        """Begin a reply of a model, a character, a chat or a campaign."""
        ...


@runtime_checkable
class TextCompletionStarter(Protocol):
    async def start(self, identity: Identity, request: TextCompletionRequest) -> CompletionReply:
        """Begin to continue texts with a plain model.

        Raises `ChatCompletionsOnlyError` for other names.
        """
        ...


@runtime_checkable
class EmbeddingMaker(Protocol):
    async def embed(
        self, identity: Identity, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> TextVectors:
        """Return the vectors of texts."""
        ...
