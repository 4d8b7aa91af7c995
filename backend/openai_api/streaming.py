"""The events of a reply, and their two forms: chunks of a stream, or one JSON object.

A chunk cannot be taken back, so no event takes text back. A model may do so while it streams: then
the code that makes the events decides which part is sent again.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from backend.errors import AppError
from backend.generation.model import FinishReason, TokenUsage, ToolCall
from backend.openai_api.errors import make_error_body
from backend.openai_api.schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    ChunkDelta,
    CompletionChoice,
    CompletionFunction,
    CompletionMessage,
    CompletionTokensDetails,
    CompletionToolCall,
    CompletionUsage,
    FinishName,
    PromptTokensDetails,
    TextCompletion,
    TextCompletionChoice,
)

FINISH_NAMES: Mapping[FinishReason, FinishName] = {
    "stop": "stop",
    "length": "length",
    "safety": "content_filter",
    "tool_calls": "tool_calls",
    "other": "stop",
}

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

ReplyForm = Literal["chat", "text"]
"""The form of `/v1/chat/completions`, or that of `/v1/completions`."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A part of the text of choice `index`. Never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A part of the thoughts of choice `index`. Never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A complete tool call of choice `index`."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of choice `index`."""

    index: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class UsageReported:
    """Tokens of the reply. Several reports are added."""

    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of the whole reply. No event follows."""

    error: AppError


ReplyEvent = TextDelta | ThinkingDelta | CallDelta | Ended | UsageReported | Failed


class SpokenText:
    """Text that grows and may be cut, and the length of the part that was taken from it.

    Models take back text that turns out to be thoughts. A part that a client has got cannot be
    taken back, but later text follows it at the right place.

    A client that has sent the `beginning` of the text shows it itself, and does not get it again.
    Space at its end may differ, because some models refuse it.
    """

    def __init__(self, beginning: str = "") -> None:
        self._buffer = io.StringIO()
        self._sent = 0
        self._beginning = beginning

    def append(self, text: str) -> None:
        self._buffer.seek(0, io.SEEK_END)
        self._buffer.write(text)

    def cut(self, length: int) -> None:
        self._buffer.truncate(length)
        self._sent = min(self._sent, length)

    def take_new(self) -> str:
        if not self._sent and self._beginning:
            self._buffer.seek(0)
            head = self._buffer.read(len(self._beginning))
            if head != self._beginning and self._beginning.startswith(head):
                return ""  # the text may still grow to its beginning
            self._sent = _measure_beginning(self._beginning, head)
        self._buffer.seek(self._sent)
        new = self._buffer.read()
        self._sent += len(new)
        return new

    def __str__(self) -> str:
        return self._buffer.getvalue()


def _measure_beginning(beginning: str, head: str) -> int:
    """Return the length of the beginning of a text, or 0 if the text begins in another way."""
    if head == beginning:
        return len(beginning)
    words = beginning.rstrip()
    return len(words) if head.startswith(words) else 0


class CompletionReply(Protocol):
    """A reply that has begun."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response, such as `X-Talekeeper-Chat`."""
        ...

    def events(self) -> AsyncGenerator[list[ReplyEvent], None]:
        """Yield the events in batches, and an empty list every few seconds of silence.

        Closing the generator early stops the reply, because the client has left.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """The members that all chunks of a reply share. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    form: ReplyForm = "chat"


class ReplyEncoder:
    """Encodes events as server-sent events.

    Args:
        head: The members of each chunk.
        with_usage: True to send a last chunk with usage (`stream_options.include_usage`).
        for_administrator: True to include the private members of errors.
    """

    def __init__(
        self, head: ReplyHead, *, with_usage: bool = False, for_administrator: bool = False
    ) -> None:
        self._head = head
        self._with_usage = with_usage
        self._for_administrator = for_administrator
        self._usage: TokenUsage | None = None
        self._calls: dict[int, int] = {}
        self._begun: set[int] = set()
        self.has_failed = False
        """True after an error, which ends the stream."""

    def encode(self, events: Iterable[ReplyEvent]) -> bytes:
        """Return the chunks of the events. Empty if they only report usage."""
        return b"".join(map(self._encode_event, events))

    def finish(self) -> bytes:
        """Return the end of the stream: the chunk with usage, if requested, and `[DONE]`."""
        if not self._with_usage or self.has_failed:
            return DONE
        # OpenAI always sends this chunk. Null means that the provider has not reported usage.
        usage = make_usage(self._usage) if self._usage else None
        return self._encode_chunk([], usage) + DONE

    def _encode_event(self, event: ReplyEvent) -> bytes:
        match event:
            case UsageReported(usage):
                self._usage = add_usage(self._usage, usage)
                return b""
            case Failed(error):
                self.has_failed = True
                body = make_error_body(error, for_administrator=self._for_administrator)
                return _encode_data(body)
            case _:
                return self._encode_text(event) if self._is_text else self._encode_chat(event)

    @property
    def _is_text(self) -> bool:
        return self._head.form == "text"

    def _encode_chat(self, event: TextDelta | ThinkingDelta | CallDelta | Ended) -> bytes:
        first = b""
        if event.index not in self._begun:
            self._begun.add(event.index)
            first = self._encode_choice(event.index, ChunkDelta(role="assistant", content=""))
        match event:
            case TextDelta(index, text):
                return first + self._encode_choice(index, ChunkDelta(content=text))
            case ThinkingDelta(index, text):
                return first + self._encode_choice(index, ChunkDelta(reasoning_content=text))
            case CallDelta(index, call):
                place = self._calls.get(index, 0)
                self._calls[index] = place + 1
                delta = ChunkDelta(tool_calls=[make_tool_call(call, index=place)])
                return first + self._encode_choice(index, delta)
            case Ended(index, reason):
                return first + self._encode_choice(index, ChunkDelta(), FINISH_NAMES[reason])

    def _encode_text(self, event: TextDelta | ThinkingDelta | CallDelta | Ended) -> bytes:
        match event:
            case TextDelta(index, text):
                return self._encode_chunk([TextCompletionChoice(index=index, text=text)])
            case Ended(index, reason):
                choice = TextCompletionChoice(
                    index=index, text="", finish_reason=FINISH_NAMES[reason]
                )
                return self._encode_chunk([choice])
            case _:  # this form has neither thoughts nor calls
                return b""

    def _encode_choice(
        self, index: int, delta: ChunkDelta, finish: FinishName | None = None
    ) -> bytes:
        return self._encode_chunk([ChunkChoice(index=index, delta=delta, finish_reason=finish)])

    def _encode_chunk(
        self,
        choices: Sequence[ChunkChoice | TextCompletionChoice],
        usage: CompletionUsage | None = None,
    ) -> bytes:
        kind: Any = TextCompletion if self._is_text else ChatCompletionChunk
        chunk = kind(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=usage if self._with_usage else msgspec.UNSET,
        )
        return _encode_data(chunk)


@dataclass(slots=True)
class _ChoiceParts:
    text: list[str] = field(default_factory=list[str])
    thinking: list[str] = field(default_factory=list[str])
    calls: list[CompletionToolCall] = field(default_factory=list[CompletionToolCall])
    finish: FinishName = "stop"


class ReplyCollector:
    """Collects the events of a reply that is not streamed."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._usage: TokenUsage | None = None
        self._choices: dict[int, _ChoiceParts] = {}

    def add(self, events: Iterable[ReplyEvent]) -> None:
        """Add events. Raises the error of a failed reply."""
        for event in events:
            match event:
                case UsageReported(usage):
                    self._usage = add_usage(self._usage, usage)
                case Failed(error):
                    raise error
                case TextDelta(index, text):
                    self._get_choice(index).text.append(text)
                case ThinkingDelta(index, text):
                    self._get_choice(index).thinking.append(text)
                case CallDelta(index, call):
                    self._get_choice(index).calls.append(make_tool_call(call))
                case Ended(index, reason):
                    self._get_choice(index).finish = FINISH_NAMES[reason]

    def build(self) -> ChatCompletion | TextCompletion:
        """Return the response to `/v1/chat/completions` or `/v1/completions`."""
        head, choices = self._head, sorted(self._choices.items())
        usage = make_usage(self._usage) if self._usage else msgspec.UNSET
        if head.form == "text":
            return TextCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[
                    TextCompletionChoice(
                        index=index, text="".join(parts.text), finish_reason=parts.finish
                    )
                    for index, parts in choices
                ],
                usage=usage,
            )
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[
                CompletionChoice(
                    index=index, message=_make_message(parts), finish_reason=parts.finish
                )
                for index, parts in choices
            ],
            usage=usage,
        )

    def _get_choice(self, index: int) -> _ChoiceParts:
        return self._choices.setdefault(index, _ChoiceParts())


def add_usage(one: TokenUsage | None, other: TokenUsage) -> TokenUsage:
    if one is None:
        return other
    return TokenUsage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.cached_tokens + other.cached_tokens,
        one.thinking_tokens + other.thinking_tokens,
    )


def make_usage(usage: TokenUsage) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.thinking_tokens),
    )


def make_tool_call(
    call: ToolCall, *, index: int | msgspec.UnsetType = msgspec.UNSET
) -> CompletionToolCall:
    arguments = msgspec.json.encode(call.arguments).decode()
    function = CompletionFunction(name=call.name, arguments=arguments)
    return CompletionToolCall(id=call.id, function=function, index=index)


def _make_message(parts: _ChoiceParts) -> CompletionMessage:
    text = "".join(parts.text)
    return CompletionMessage(
        content=text if text or not parts.calls else None,
        reasoning_content="".join(parts.thinking) or msgspec.UNSET,
        tool_calls=parts.calls or msgspec.UNSET,
    )


def _encode_data(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
