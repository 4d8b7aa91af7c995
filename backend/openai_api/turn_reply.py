"""A turn of a chat as a reply of the endpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.errors import AppError
from backend.generation.model import FinishReason, TokenUsage
from backend.http.connections import ServerStoppingError
from backend.openai_api.choices import render_options
from backend.openai_api.streaming import (
    Ended,
    Failed,
    ReplyEvent,
    SpokenText,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from backend.turns.api.service import TurnService
from backend.turns.models import TurnState
from backend.turns.run.events import AWAITING_CHOICE, CHOICE_MADE, TurnEvent

BEAT_SECONDS = 2.0
"""Interval of empty batches while the turn is silent."""

PARAGRAPH = "\n\n"

_FINISH_REASONS: frozenset[str] = frozenset(get_args(FinishReason))

RecordPart = Callable[[UUID, str], Awaitable[None]]
"""Called with a reply and the text of it that the client has got, if it is one of several parts."""


class FailedTurnError(AppError):
    """The error with which a turn ended, as its event describes it."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        members = dict(problem)
        self.slug = str(members.pop("type", "")).rpartition(":")[2] or "internal"  # type: ignore[misc]
        self.title = str(members.pop("title", ""))  # type: ignore[misc]
        self.status = int(members.pop("status", 500))  # type: ignore[misc]
        members.pop("turn_id", None)
        super().__init__(str(members.pop("detail", "")), extra=members)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStatus:
    """A turn as it is stored.

    Attributes:
        prefix_length: The characters of its reply before the turn: of a continued one.
        thinking_prefix_length: The same for its thoughts.
        position: The position of its reply on the path.
        text: The text of its reply.
        waiting: The data of the choice that it waits for.
    """

    id: UUID
    state: TurnState
    user_message_id: UUID | None
    reply_id: UUID | None
    prefix_length: int
    thinking_prefix_length: int
    position: int | None
    text: str = field(repr=False)
    waiting: Mapping[str, Any] | None = None


class TurnReply:
    """The events of a running turn. If they are closed early, the turn is stopped.

    Args:
        last_id: The event after which the reply begins: that of a choice.
        prefill: The beginning of the reply, which the client has sent and shows itself.
        is_stream: False to send the text at the end, because a stream cannot take text back.
        record_part: Records a part of a reply that waits, or has waited, for a choice.
    """

    def __init__(
        self,
        turns: TurnService,
        identity: Identity,
        turn: TurnStatus,
        *,
        headers: Mapping[str, str],
        record_part: RecordPart,
        last_id: int = 0,
        prefill: str = "",
        is_stream: bool = True,
    ) -> None:
        self.headers = headers
        self._turns = turns
        self._identity = identity
        self._turn_id = turn.id
        self._reply_id = turn.reply_id
        self._record_part = record_part
        self._last_id = last_id
        # Resets count the characters of the whole reply, with those before this response.
        self._text_before, self._thinking_before = turn.prefix_length, turn.thinking_prefix_length
        self._is_stream = is_stream
        # The choice is a message between the two parts, so no line break is needed there.
        self._text = SpokenText(PARAGRAPH if last_id else prefill)
        self._thinking = SpokenText()
        self._has_choices = last_id > 0
        self._is_over = self._is_waiting = False

    async def events(self) -> AsyncGenerator[list[ReplyEvent], None]:
        """Yield the events in batches, and empty lists in silence."""
        try:
            stream = self._turns.events(self._identity, self._turn_id, last_id=0, beat=BEAT_SECONDS)
            async for batch in stream:
                events = [each for event in self._skip(batch) for each in self._convert(event)]
                if self._is_stream:
                    events = [*self._take_new(), *events]
                if not self._is_over and not self._is_waiting:
                    yield events
                    continue
                if self._has_choices and self._reply_id is not None:
                    await self._record_part(self._reply_id, str(self._text))
                yield [*self._take_new(), *events]
                if self._is_waiting:
                    yield [Ended(0, "stop")]
                return
            self._is_over = True  # another process stops as well, and keeps the text
            yield [*self._take_new(), Failed(ServerStoppingError())]
        finally:
            if not self._is_over and not self._is_waiting:
                await asyncio.shield(self._stop())

    async def _stop(self) -> None:
        """Stop the turn, and record the part of its reply that the client has got."""
        with contextlib.suppress(AppError):
            await self._turns.stop(self._identity, self._turn_id)
        if self._has_choices and self._is_stream and self._reply_id is not None:
            await self._record_part(self._reply_id, str(self._text))

    def _skip(self, batch: Sequence[TurnEvent]) -> Iterator[TurnEvent]:
        """Yield the events of this response, and count the text of those before it."""
        for event in batch:
            if event.id > self._last_id:
                yield event
            elif event.name == "text.delta":
                self._text_before += len(event.data["text"])
            elif event.name == "thinking.delta":
                self._thinking_before += len(event.data["text"])

    def _convert(self, event: TurnEvent) -> list[ReplyEvent]:
        """Take the text of an event. Returns its other contents."""
        data = event.data
        match event.name:
            case "text.delta":
                self._text.append(data["text"])
            case "thinking.delta":
                self._thinking.append(data["text"])
            case "text.reset":
                self._text.cut(max(0, data["length"] - self._text_before))
            case "thinking.reset":
                self._thinking.cut(max(0, data["length"] - self._thinking_before))
            case _ if event.name == AWAITING_CHOICE:
                self._text.append(f"{PARAGRAPH if str(self._text) else ''}{render_options(data)}")
                self._has_choices = self._is_waiting = True
            case _ if event.name == CHOICE_MADE:
                self._is_waiting = False
            case "usage":
                names = ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens")
                return [UsageReported(TokenUsage(*(data[name] or 0 for name in names)))]
            case "turn.completed":
                self._is_over = True
                return [Ended(0, _find_finish_reason(data["finish_reason"]))]
            case "turn.failed":
                self._is_over = True
                return [Failed(FailedTurnError(data))]
            case _:
                pass
        return []

    def _take_new(self) -> list[ReplyEvent]:
        """Return the text and the thoughts that the client has not got."""
        events: list[ReplyEvent] = []
        if thinking := self._thinking.take_new():
            events.append(ThinkingDelta(0, thinking))
        if text := self._text.take_new():
            events.append(TextDelta(0, text))
        return events


class JoinedReply:
    """The reply of several turns: each but the last was cut, and the next one continues it."""

    def __init__(self, parts: Sequence[TurnReply]) -> None:
        *self._begins, self._rest = parts
        self.headers = self._rest.headers

    async def events(self) -> AsyncGenerator[list[ReplyEvent], None]:
        """Yield the texts of the first parts, and all events of the last one."""
        async with contextlib.aclosing(self._rest.events()) as rest:
            for part in self._begins:
                async with contextlib.aclosing(part.events()) as begin:
                    async for batch in begin:
                        spoken: list[ReplyEvent] = [
                            each for each in batch if isinstance(each, TextDelta | ThinkingDelta)
                        ]
                        if spoken:
                            yield spoken
            async for batch in rest:
                yield batch


class FixedReply:
    """A text that is sent and not stored."""

    def __init__(self, text: str, *, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._text = text

    async def events(self) -> AsyncGenerator[list[ReplyEvent], None]:
        yield [TextDelta(0, self._text), Ended(0, "stop")]


def _find_finish_reason(name: str) -> FinishReason:
    """Return the reason of a completed turn. That of a stopped turn is `stop`."""
    return cast("FinishReason", name) if name in _FINISH_REASONS else "stop"
