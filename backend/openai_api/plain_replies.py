"""Replies of plain models: chat completions and text completions that store nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.errors import AppError
from backend.generation.model import (
    Finish,
    Piece,
    TextPiece,
    TextReset,
    ThinkingPiece,
    ThinkingReset,
    TokenUsage,
    ToolCall,
)
from backend.openai_api.contracts import SentMessage
from backend.openai_api.errors import ChatCompletionsOnlyError
from backend.openai_api.model_names import ModelNames, PlainTarget
from backend.openai_api.options import IGNORED_HEADER, list_names
from backend.openai_api.plain import PlainModels, PlainReply, PlainRequest
from backend.openai_api.streaming import (
    CallDelta,
    CompletionReply,
    Ended,
    Failed,
    ReplyEvent,
    SpokenText,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from backend.openai_api.wire import (
    ChatCompletionRequest,
    SampledRequest,
    TextCompletionRequest,
)


class PlainCompletionReply:
    """The pieces of a plain model as the events of a reply.

    Args:
        ignored: Members of the request that had no effect.
        is_stream: False to send each text at its end, because a stream cannot take text back.
    """

    def __init__(
        self,
        reply: PlainReply,
        *,
        ignored: Sequence[str],
        headers: Mapping[str, str] | None = None,
        is_stream: bool = True,
    ) -> None:
        self._reply = reply
        self._ignored = ignored
        self._headers = headers or {}
        self._is_stream = is_stream
        self._texts: defaultdict[int, SpokenText] = defaultdict(SpokenText)
        self._thoughts: defaultdict[int, SpokenText] = defaultdict(SpokenText)

    @property
    def ignored(self) -> list[str]:
        """The members of the request that have no effect, as far as they are known."""
        return list(dict.fromkeys((*self._ignored, *self._reply.left_out)))

    @property
    def headers(self) -> Mapping[str, str]:
        ignored = list_names(self.ignored)
        return {**self._headers, **({IGNORED_HEADER: ignored} if ignored else {})}

    async def events(self) -> AsyncGenerator[list[ReplyEvent], None]:
        """Yield an event for each piece. Closing it ends the request."""
        try:
            async with aclosing(self._reply.pieces()) as pieces:
                async for index, piece in pieces:
                    if batch := self._convert(index, piece):
                        yield batch
        except AppError as error:
            yield [Failed(error)]

    def _convert(self, index: int, piece: Piece) -> list[ReplyEvent]:
        match piece:
            case TextPiece(text):
                self._texts[index].append(text)
            case ThinkingPiece(text):
                self._thoughts[index].append(text)
            case TextReset():
                self._texts[index].cut(0)
            case ThinkingReset():
                self._thoughts[index].cut(0)
            case ToolCall():
                return [*self._take_new(index), CallDelta(index, piece)]
            case Finish(reason):
                return [*self._take_new(index), Ended(index, reason)]
            case TokenUsage():
                return [UsageReported(piece)]
            case _:
                pass
        return self._take_new(index) if self._is_stream else []

    def _take_new(self, index: int) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        if thinking := self._thoughts[index].take_new():
            events.append(ThinkingDelta(index, thinking))
        if text := self._texts[index].take_new():
            events.append(TextDelta(index, text))
        return events


class PlainCompletions:
    """Answers requests with plain models."""

    def __init__(self, plain: PlainModels, names: ModelNames) -> None:
        self._plain = plain
        self._names = names

    async def answer(
        self,
        identity: Identity,
        model_id: str,
        request: ChatCompletionRequest,
        *,
        chat_id: UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PlainCompletionReply:
        """Answer the messages of a request as they are. Raises the errors of `PlainModels.start`.

        `chat_id` is the chat of a quiet request.
        """
        extra = choose_extra(identity, request)
        plain = PlainRequest(
            model=model_id,
            messages=request.messages,
            sampling=request.sampling,
            tools=request.tools,
            tool_choice=request.tool_choice,
            form=request.format,
            n=request.count,
            extra=extra,
            chat_id=chat_id,
        )
        return PlainCompletionReply(
            await self._plain.start(identity, plain),
            ignored=[name for name in request.unknown if name not in extra],
            headers=headers,
            is_stream=request.is_stream,
        )

    async def start(self, identity: Identity, request: TextCompletionRequest) -> CompletionReply:
        """Continue texts, each as the only message of a chat.

        Raises `ModelNameNotFoundError`, `ChatCompletionsOnlyError` and the errors of
        `PlainModels.start`.
        """
        target = await self._names.resolve(identity, request.model)
        if not isinstance(target, PlainTarget):
            raise ChatCompletionsOnlyError(
                "Use `/v1/chat/completions` for characters, chats and campaigns."
            )
        extra = choose_extra(identity, request)
        requests = [
            PlainRequest(
                model=target.model_id,
                messages=[SentMessage(role="user", text=prompt)],
                sampling=request.sampling,
                n=request.count,
                extra=extra,
            )
            for prompt in request.prompts
        ]
        return PlainCompletionReply(
            await self._plain.start(identity, *requests),
            ignored=[name for name in request.unknown if name not in extra],
            is_stream=request.is_stream,
        )


def choose_extra(identity: Identity, request: SampledRequest) -> Mapping[str, object]:
    """Return the unknown members of a request that the account passes on."""
    passes_on = identity.settings.client.unknown_parameters == "pass_on"
    return request.unknown if passes_on else {}
