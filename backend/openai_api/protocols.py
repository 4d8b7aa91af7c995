"""The services behind the routes of the endpoint."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from backend.accounts.auth.identity import Identity
from backend.openai_api.options import ClientOptions
from backend.openai_api.schemas import EmbeddingList
from backend.openai_api.streaming import CompletionReply
from backend.openai_api.wire import (
    ChatCompletionRequest,
    EmbeddingRequest,
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
class TextEmbedder(Protocol):
    async def embed(self, identity: Identity, request: EmbeddingRequest) -> EmbeddingList: ...
