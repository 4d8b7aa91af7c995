"""The limit on the length of a reply, because a server may send one without an end."""

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
"""Gemini's words for a reply that ends with a call that it could not read."""

_TRAILER_TIMEOUT = 5.0
"""Seconds for what may follow the end of a reply (usage): the reply no longer depends on it."""


DeltaPiece = TextPiece | ThinkingPiece | TextReset | ThinkingReset | ToolCall | SentRequest


@dataclass(frozen=True, slots=True)
class Delta:
    """One chunk of a vendor's stream in our own terms.

    `reason` is the provider's word for `finish` (`PROHIBITED_CONTENT`, say).
    """

    pieces: tuple[DeltaPiece, ...] = ()
    usage: TokenUsage | None = None
    finish: FinishReason | None = None
    reason: str = ""


@dataclass(slots=True)
class _Content:
    """The content that a stream has yielded so far."""

    has_begun: bool = False
    has_text: bool = False
    has_thoughts: bool = False
    calls: int = 0

    def add(self, piece: DeltaPiece) -> bool:
        """Take note of a piece; return False for a call beyond `MAX_CALLS`."""
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
        """True if nothing can be kept. Thoughts alone are not kept if a filter ended the reply."""
        has_content = self.has_text or self.calls or (self.has_thoughts and finish != "safety")
        return not has_content


async def relay(
    deltas: AsyncGenerator[Delta, None], *, who: str, chunk_timeout: float
) -> AsyncGenerator[Piece, None]:
    """Turn a vendor's chunks into the pieces that `ChatModel.stream` promises.

    Args:
        deltas: The chunks. Raises `ModelError` and nothing else, and hangs up when it is closed.
        who: The provider's name, for error texts.
        chunk_timeout: Seconds of silence before the model counts as failed.

    Raises:
        ModelTimeoutError: Silence.
        ModelInterruptedError: The connection was lost, or the stream ended without a finish.
        ModelBlockedError: A content filter left nothing.
        ModelMalformedCallError: The provider could not read a call, and there is nothing else.
        ModelEmptyReplyError: It finished without text, thoughts or calls.
        ModelError: What `deltas` raises, which keeps its cause after the reply has begun, too.
    """
    usage: TokenUsage | None = None
    end: Delta | None = None
    content, joiner = _Content(), _PieceJoiner()
    async with aclosing(deltas):
        while True:
            try:
                async with asyncio.timeout(
                    min(chunk_timeout, _TRAILER_TIMEOUT) if end else chunk_timeout
                ):
                    delta = await anext(deltas, None)
            except (TimeoutError, ModelError) as error:
                if end is None:
                    raise _broken(error, who, chunk_timeout, began=content.has_begun) from None
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
    yield Finish(finish_of(finish, called=bool(content.calls)))


def _check_end(end: Delta | None, who: str, content: _Content) -> FinishReason:
    """Return why a reply ended. Raise `ModelError` if it is not a reply, or has no end."""
    if end is None and not content.has_begun:
        raise _foreign_answer(who)
    if end is None or end.finish is None:
        raise ModelInterruptedError(f"{who} ended the stream before the model had finished.")
    if content.is_empty(end.finish):
        raise _nothing_said(who, end.finish, end.reason)
    return end.finish


class _PieceJoiner:
    """Joins the characters that are cut in two between pieces of text, and of thoughts."""

    def __init__(self) -> None:
        self._text, self._thinking = CharacterJoiner(), CharacterJoiner()

    def join(self, pieces: Iterable[DeltaPiece], *, is_last: bool) -> Iterator[DeltaPiece]:
        """Yield pieces of whole characters; a part at the very end becomes U+FFFD."""
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


def finish_of(finish: FinishReason, *, called: bool) -> FinishReason:
    """Why a reply ended, where a server says "stop" although it calls."""
    return "tool_calls" if called and finish in {"stop", "other"} else finish


def _broken(
    error: TimeoutError | ModelError, who: str, chunk_timeout: float, *, began: bool
) -> ModelError:
    if isinstance(error, TimeoutError):
        return _silence(who, chunk_timeout)
    return find_interruption(error, who) if began else error


def tool_answer(answer: Delta, *, who: str) -> ToolAnswer:
    """An answer that came as a whole, with its calls.

    Raises:
        ModelMalformedAnswerError: There is a call that can't be read.
        ModelBlockedError, ModelEmptyReplyError: There is neither text nor a call.
        ModelForeignAnswerError: It is not an answer.
    """
    calls = [piece for piece in answer.pieces if isinstance(piece, ToolCall)][:MAX_CALLS]
    if problem := next((call.problem for call in calls if call.problem), None):
        raise ModelMalformedAnswerError(f"{who} made an invalid tool call. {problem}")
    if calls:
        text, finish = _text(answer), finish_of(answer.finish or "other", called=True)
    else:
        text, finish = said(answer, who=who)
    return ToolAnswer(text=text, calls=calls, usage=answer.usage, finish=finish)


def said(answer: Delta, *, who: str) -> tuple[str, FinishReason]:
    """Text and finish of an answer that came as a whole.

    Raises:
        ModelBlockedError, ModelEmptyReplyError: There is no text.
        ModelForeignAnswerError: It is not an answer.
    """
    text = _text(answer)
    if text.strip():
        return text, answer.finish or "other"
    if answer.finish is None:
        raise _foreign_answer(who)
    raise _nothing_said(who, answer.finish, answer.reason)


def _text(answer: Delta) -> str:
    pieces = (piece.text for piece in answer.pieces if isinstance(piece, TextPiece))
    return clean_text("".join(pieces))


def _nothing_said(who: str, finish: FinishReason, reason: str) -> ModelError:
    """Return the error for a reply that finished without text (and, with tools, without a call)."""
    if finish == "safety":
        word = reason or finish
        return ModelBlockedError(
            f"{who}'s content filter left nothing ({word}). Change the text, or choose another "
            "model.",
            reason=word,
        )
    if finish == "length":
        return ModelEmptyReplyError(
            f"{who} reached max_output_tokens before the first word; thinking counts towards it. "
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


def _foreign_answer(who: str) -> ModelForeignAnswerError:
    return ModelForeignAnswerError(
        f"{who} answered with something that is not a reply. Check the address of the provider: "
        "most addresses end in /v1."
    )


def parse_value(text: str, *, who: str, finish: FinishReason) -> Any:
    """The JSON value in `text`, also where a server that ignores schemas put it in a code fence.

    Raises:
        ModelInterruptedError: It was cut off at the output limit.
        ModelDeclinedError: The model declines to answer.
        ModelMalformedAnswerError: It is not JSON.
    """
    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.strip("`").removeprefix("json")
    try:
        return parse_json(bare if _may_be_json(bare) else _within(text))
    except ValueError:
        if finish == "length":
            raise ModelInterruptedError(
                f"{who} reached max_output_tokens in the middle of its answer."
            ) from None
        check_declined(text)
        raise ModelMalformedAnswerError(f"{who} did not return the requested JSON.") from None


def _may_be_json(text: str) -> bool:
    return text.lstrip()[:1] in ("", *'{["-0123456789tfn')


def _within(text: str) -> str:
    """The object in a text that has words around it: from its first brace to its last."""
    return text[max(text.find("{"), 0) : text.rfind("}") + 1]


def _silence(who: str, seconds: float) -> ModelTimeoutError:
    return ModelTimeoutError(
        f"{who} sent nothing for {seconds:g} seconds. Try again. For a slow server, "
        "TALEKEEPER_MODEL_SILENCE_SECONDS sets a longer limit."
    )


SLICE_CHARACTERS = 4_000
"""Characters that are read before others get their turn. A server may send a reply in one event,
and reading short lines takes up to 4 µs a character."""


class ReplyLimit:
    """Cuts one reply after so many characters of text, and after as many of thoughts.

    Attributes:
        is_reached: True once the reply was cut. Nothing after that is read.
    """

    def __init__(self, characters: int) -> None:
        self._left = {TextPiece: characters, ThinkingPiece: characters}
        self.is_reached = False

    def read(self, delta: Delta) -> Sequence[Delta]:
        """Return a part of the reply in slices. If it was cut, the last one has finish `length`."""
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
