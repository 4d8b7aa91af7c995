"""Reads replies: chunks of a stream become pieces, with a limit on silence and length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from backend.generation.client.client import CharacterJoiner
from backend.generation.declined_answers import check_declined
from backend.generation.failures.failures import find_interruption
from backend.generation.json_text import clean_text, parse_json
from backend.generation.model import (
    Finish,
    FinishReason,
    ModelBlockedError,
    ModelEmptyReplyError,
    ModelError,
    ModelForeignAnswerError,
    ModelInterruptedError,
    ModelMalformedAnswerError,
    ModelMalformedCallError,
    ModelTimeoutError,
    Piece,
    SentRequest,
    TextPiece,
    TextReset,
    ThinkingPiece,
    ThinkingReset,
    TokenUsage,
    ToolAnswer,
    ToolCall,
)
from backend.generation.tools.calls import MAX_CALLS

_MALFORMED_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})
"""Gemini's finish reasons of replies with a malformed call."""

_USAGE_TIMEOUT = 5.0
"""Maximum wait for the usage report after the end of a reply, in seconds."""


DeltaPiece = TextPiece | ThinkingPiece | TextReset | ThinkingReset | ToolCall | SentRequest


@dataclass(frozen=True, slots=True)
class Delta:
    """One chunk of a stream, independent of the vendor.

    `reason` is the provider's word for `finish`, such as `PROHIBITED_CONTENT`.
    """

    pieces: tuple[DeltaPiece, ...] = ()
    usage: TokenUsage | None = None
    finish: FinishReason | None = None
    reason: str = ""


@dataclass(slots=True)
class _Content:
    has_begun: bool = False
    has_text: bool = False
    has_thoughts: bool = False
    calls: int = 0

    def add(self, piece: DeltaPiece) -> bool:
        """Record a piece. Return False for a call beyond `MAX_CALLS`."""
        self.has_begun = self.has_begun or not isinstance(piece, SentRequest)
        match piece:
            case TextPiece(text):
                self.has_text = self.has_text or not text.isspace()
            case ThinkingPiece(text):
                self.has_thoughts = self.has_thoughts or not text.isspace()
            case TextReset():
                self.has_text = False
            case ToolCall():
                self.calls += 1
                return self.calls <= MAX_CALLS
            case _:
                pass
        return True

    def is_empty(self, finish: FinishReason) -> bool:
        """True if there is nothing to store. Thoughts do not count if a filter ended the reply."""
        has_content = self.has_text or self.calls or (self.has_thoughts and finish != "safety")
        return not has_content


async def relay(
    deltas: AsyncGenerator[Delta, None], *, who: str, chunk_timeout: float
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of `ChatModel.stream` from a vendor's chunks.

    Args:
        deltas: The chunks. It raises only `ModelError`, and closing it ends the request.
        who: The provider's name in error texts.
        chunk_timeout: Maximum silence, in seconds.

    Raises:
        ModelTimeoutError: The model sent nothing for too long.
        ModelInterruptedError: The connection was lost, or the stream ended without a finish.
        ModelBlockedError: A content filter blocked the whole reply.
        ModelMalformedCallError: The reply contains only a malformed call.
        ModelEmptyReplyError: The reply contains no text, thoughts or calls.
        ModelError: An error of `deltas`.
    """
    usage: TokenUsage | None = None
    end: Delta | None = None
    content, joiner = _Content(), _PieceJoiner()
    async with aclosing(deltas):
        while True:
            try:
                async with asyncio.timeout(
                    min(chunk_timeout, _USAGE_TIMEOUT) if end else chunk_timeout
                ):
                    delta = await anext(deltas, None)
            except (TimeoutError, ModelError) as error:
                if end is None:
                    raise _find_failure(
                        error, who, chunk_timeout, began=content.has_begun
                    ) from None
                break
            if delta is None:
                break
            for piece in joiner.join(delta.pieces, is_last=delta.finish is not None):
                if content.add(piece):
                    yield piece
            usage = delta.usage or usage
            end = delta if delta.finish else end
    finish = _check_end(end, who, content)
    if usage is not None:
        yield usage
    yield Finish(find_finish(finish, called=bool(content.calls)))


def _check_end(end: Delta | None, who: str, content: _Content) -> FinishReason:
    """Return the finish reason. Raises `ModelError` if it is not a complete reply."""
    if end is None and not content.has_begun:
        raise _make_foreign_error(who)
    if end is None or end.finish is None:
        raise ModelInterruptedError(f"{who} ended the stream before the model had finished.")
    if content.is_empty(end.finish):
        raise _make_empty_error(who, end.finish, end.reason)
    return end.finish


class _PieceJoiner:
    """Joins characters that are split between two pieces."""

    def __init__(self) -> None:
        self._text, self._thinking = CharacterJoiner(), CharacterJoiner()

    def join(self, pieces: Iterable[DeltaPiece], *, is_last: bool) -> Iterator[DeltaPiece]:
        """Yield pieces of whole characters. Half a character at the end becomes U+FFFD."""
        for piece in pieces:
            match piece:
                case TextPiece(text):
                    if text := self._text.feed(text):
                        yield TextPiece(text)
                case ThinkingPiece(text):
                    if text := self._thinking.feed(text):
                        yield ThinkingPiece(text)
                case _:
                    yield piece
        if is_last:
            if text := self._thinking.close():
                yield ThinkingPiece(text)
            if text := self._text.close():
                yield TextPiece(text)


def find_finish(finish: FinishReason, *, called: bool) -> FinishReason:
    """Correct the finish reason "stop" of a reply that called tools."""
    return "tool_calls" if called and finish in {"stop", "other"} else finish


def _find_failure(
    error: TimeoutError | ModelError, who: str, chunk_timeout: float, *, began: bool
) -> ModelError:
    if isinstance(error, TimeoutError):
        return _make_timeout_error(who, chunk_timeout)
    return find_interruption(error, who) if began else error


def read_tool_answer(answer: Delta, *, who: str) -> ToolAnswer:
    """Return a complete answer with its calls.

    Raises:
        ModelMalformedAnswerError: A call cannot be read.
        ModelBlockedError, ModelEmptyReplyError: There is neither text nor a call.
        ModelForeignAnswerError: It is not an answer.
    """
    calls = [piece for piece in answer.pieces if isinstance(piece, ToolCall)][:MAX_CALLS]
    if problem := next((call.problem for call in calls if call.problem), None):
        raise ModelMalformedAnswerError(f"{who} made an invalid tool call. {problem}")
    if calls:
        text, finish = _join_text(answer), find_finish(answer.finish or "other", called=True)
    else:
        text, finish = read_text(answer, who=who)
    return ToolAnswer(text=text, calls=calls, usage=answer.usage, finish=finish)


def read_text(answer: Delta, *, who: str) -> tuple[str, FinishReason]:
    """Return the text and finish of a complete answer.

    Raises:
        ModelBlockedError, ModelEmptyReplyError: There is no text.
        ModelForeignAnswerError: It is not an answer.
    """
    text = _join_text(answer)
    if text.strip():
        return text, answer.finish or "other"
    if answer.finish is None:
        raise _make_foreign_error(who)
    raise _make_empty_error(who, answer.finish, answer.reason)


def _join_text(answer: Delta) -> str:
    pieces = (piece.text for piece in answer.pieces if isinstance(piece, TextPiece))
    return clean_text("".join(pieces))


def _make_empty_error(who: str, finish: FinishReason, reason: str) -> ModelError:
    if finish == "safety":
        word = reason or finish
        return ModelBlockedError(
            f"{who}'s content filter blocked the reply ({word}). Change the text, or choose "
            "another model.",
            reason=word,
        )
    if finish == "length":
        return ModelEmptyReplyError(
            f"{who} reached max_output_tokens before the first word. Thinking counts towards it. "
            "Raise it, or let the model think less."
        )
    if reason in _MALFORMED_CALLS:
        return ModelMalformedCallError(
            f"{who} ended the reply with a malformed function call ({reason}). Try again."
        )
    return ModelEmptyReplyError(
        f"{who} finished without writing anything ({reason or finish}). Try again, or choose "
        "another model."
    )


def _make_foreign_error(who: str) -> ModelForeignAnswerError:
    return ModelForeignAnswerError(
        f"{who} sent a response that is not a reply. Check the address of the provider: most "
        "addresses end in /v1."
    )


def parse_value(text: str, *, who: str, finish: FinishReason) -> Any:
    """Return the JSON value in a text, which may be in a code fence or between other words.

    Raises:
        ModelInterruptedError: It was cut off at the output limit.
        ModelDeclinedError: The model declined to answer.
        ModelMalformedAnswerError: It is not JSON.
    """
    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.strip("`").removeprefix("json")
    try:
        return parse_json(bare if _may_be_json(bare) else _cut_to_braces(text))
    except ValueError:
        if finish == "length":
            raise ModelInterruptedError(
                f"{who} reached max_output_tokens in the middle of its answer."
            ) from None
        check_declined(text)
        raise ModelMalformedAnswerError(f"{who} did not return the requested JSON.") from None


def _may_be_json(text: str) -> bool:
    return text.lstrip()[:1] in ("", *'{["-0123456789tfn')


def _cut_to_braces(text: str) -> str:
    return text[max(text.find("{"), 0) : text.rfind("}") + 1]


def _make_timeout_error(who: str, seconds: float) -> ModelTimeoutError:
    return ModelTimeoutError(
        f"{who} sent nothing for {seconds:g} seconds. Try again. For a slow server, "
        "TALEKEEPER_MODEL_SILENCE_SECONDS sets a longer limit."
    )


SLICE_CHARACTERS = 4_000
"""Characters to read before other tasks run. A server may send a reply in one event, and reading
short lines takes up to 4 µs per character."""


class ReplyLimit:
    """A limit on the characters of one reply, and also on those of its thoughts.

    `is_reached` is true after the reply was cut. Later chunks are ignored.
    """

    def __init__(self, characters: int) -> None:
        self._left = {TextPiece: characters, ThinkingPiece: characters}
        self.is_reached = False

    def read(self, delta: Delta) -> Sequence[Delta]:
        """Split a chunk into slices. If it was cut, the last one has the finish `length`."""
        pieces = [part for piece in delta.pieces for part in self._slices(piece)]
        if self.is_reached:
            end = Delta(usage=delta.usage, finish="length")
        elif len(pieces) == len(delta.pieces):
            return (delta,)
        else:
            end = replace(delta, pieces=())
        return (*(Delta((each,)) for each in pieces), end)

    def _slices(self, piece: DeltaPiece) -> Iterator[DeltaPiece]:
        if self.is_reached:
            return
        if not isinstance(piece, TextPiece | ThinkingPiece):
            yield piece
            return
        kind, text = type(piece), piece.text[: self._left[type(piece)]]
        self._left[kind] -= len(text)
        self.is_reached = len(text) < len(piece.text)
        for start in range(0, len(text), SLICE_CHARACTERS):
            yield kind(text[start : start + SLICE_CHARACTERS])
