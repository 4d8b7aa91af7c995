"""Replies of a scripted service behind the routes of the OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backend.accounts.auth.identity import Identity
from backend.generation.model import ModelAuthError, TokenUsage, ToolCall
from backend.openai_api.embeddings import TextVectors
from backend.openai_api.errors import ChatCompletionsOnlyError, ModelNameNotFoundError
from backend.openai_api.options import ClientOptions
from backend.openai_api.streaming import (
    CallDelta,
    Ended,
    Failed,
    ReplyEvent,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from backend.openai_api.wire import (
    ChatCompletionRequest,
    TextCompletionRequest,
)


@dataclass
class ScriptedReply:
    batches: Sequence[list[ReplyEvent]]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    is_endless: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def events(self) -> AsyncGenerator[list[ReplyEvent], None]:
        try:
            for batch in self.batches:
                yield batch
            while self.is_endless:
                yield []
                await asyncio.sleep(0.01)
        finally:
            self.closed.set()


class ScriptedCompletions:
    """Answers by the last message, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[ChatCompletionRequest] = []
        self.options: list[ClientOptions] = []
        self.replies: list[ScriptedReply] = []

    async def start(
        self, _: Identity, request: ChatCompletionRequest, options: ClientOptions
    ) -> ScriptedReply:
        if request.model == "nobody":
            raise ModelNameNotFoundError(extra={"param": "model"})
        self.requests.append(request)
        self.options.append(options)
        reply = _answer(request.messages[-1].text, request.count)
        self.replies.append(reply)
        return reply


class ScriptedTexts:
    async def start(self, _: Identity, request: TextCompletionRequest) -> ScriptedReply:
        if ":" in request.model:
            raise ChatCompletionsOnlyError("Send it to `/v1/chat/completions`.")
        return _answer(request.prompts[0], request.count)


class ScriptedEmbedder:
    async def embed(
        self, _: Identity, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> TextVectors:
        vectors = np.array([[len(text), 0.5] for text in texts], dtype=np.float32)
        return TextVectors(model=model, vectors=vectors, tokens=dimensions or 3)


def _answer(asked: str, count: int) -> ScriptedReply:
    usage = UsageReported(TokenUsage(7, 5, cached_tokens=2, thinking_tokens=1))
    match asked:
        case "fail":
            return ScriptedReply([[Failed(ModelAuthError("The key is wrong."))]])
        case "fail later":
            return ScriptedReply([[TextDelta(0, "The door")], [Failed(ModelAuthError())]])
        case "call":
            call: dict[str, Any] = {"city": "Oslo"}
            called = CallDelta(0, ToolCall("call_1", "weather", call))
            return ScriptedReply([[called, Ended(0, "tool_calls"), usage]])
        case "wait":
            return ScriptedReply([[TextDelta(0, "The")]], is_endless=True)
        case "wait silently":
            return ScriptedReply([], is_endless=True)
        case _:
            events: list[ReplyEvent] = []
            for index in range(count):
                events += [ThinkingDelta(index, "Hm."), TextDelta(index, "The door ")]
                events += [TextDelta(index, "creaks."), Ended(index, "stop")]
            batches = [[each] for each in events]
            return ScriptedReply([[], *batches, [usage]], {"X-Talekeeper-Chat": "a-chat"})
