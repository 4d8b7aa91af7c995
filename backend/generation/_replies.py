"""What the replies of all providers have in common: time-outs, silence, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.generation._json import clean_text, parse_json
from backend.generation._tool_calls import MAX_CALLS
from backend.generation.model import (
    Finish,
    FinishReason,
    ModelBlockedError,
    ModelEmptyReplyError,
    ModelError,
    ModelInterruptedError,
    ModelMalformedAnswerError,
    ModelTimeoutError,
    ModelUnavailableError,
    Piece,
    TextPiece,
    TextReset,
    ThinkingPiece,
    TokenUsage,
    ToolAnswer,
    ToolCall,
)

T = TypeVar("T")

_TRAILER_TIMEOUT = 5.0
"""Seconds for what may follow the end of a reply (usage): the reply no longer depends on it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One chunk of a vendor's stream in our own terms.

    `reason` is the provider's word for `finish` (`PROHIBITED_CONTENT`, say).
    """

    pieces: tuple[Piece, ...] = ()
    usage: TokenUsage | None = None
    finish: FinishReason | None = None
    reason: str = ""


@dataclass(slots=True)
class _Content:
    """What a stream has yielded so far."""

    has_begun: bool = False
    has_text: bool = False
    has_thoughts: bool = False
    calls: int = 0

    def add(self, piece: Piece) -> bool:
        """Take note of a piece; return False for a call beyond `MAX_CALLS`."""
        self.has_begun = True
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
        """True if there is nothing to keep. What a filter has let through of thoughts is not."""
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
        ModelInterruptedError: It broke off, or ended without saying that it had finished.
        ModelBlockedError: The provider's filter let nothing through.
        ModelEmptyReplyError: It finished without text, thoughts or calls.
    """
    usage: TokenUsage | None = None
    end: Delta | None = None
    content = _Content()
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
            for piece in delta.pieces:
                if content.add(piece):
                    yield piece
            usage = delta.usage or usage
            end = delta if delta.finish else end
    if end is None or end.finish is None:
        raise ModelInterruptedError(f"{who} broke off before the model had finished.")
    if content.is_empty(end.finish):
        raise _nothing_said(who, end.finish, end.reason)
    if usage is not None:
        yield usage
    yield Finish(finish_of(end.finish, called=bool(content.calls)))


def finish_of(finish: FinishReason, *, called: bool) -> FinishReason:
    """Why a reply ended, where a server says "stop" although it calls."""
    return "tool_calls" if called and finish in {"stop", "other"} else finish


def _broken(
    error: TimeoutError | ModelError, who: str, chunk_timeout: float, *, began: bool
) -> ModelError:
    if isinstance(error, TimeoutError):
        return _silence(who, chunk_timeout)
    if began and isinstance(error, ModelUnavailableError):
        return ModelInterruptedError(f"{who} broke off before the model had finished.")
    return error


async def whole(
    answer: Awaitable[T],
    *,
    who: str,
    answer_timeout: float,
    failure: Callable[[Exception], ModelError],
) -> T:
    """Wait for an answer that is not streamed.

    Raises:
        ModelTimeoutError: After `answer_timeout` seconds.
        ModelError: What `failure` makes of whatever the SDK raises.
    """
    try:
        async with asyncio.timeout(answer_timeout):
            return await answer
    except TimeoutError:
        raise _silence(who, answer_timeout) from None
    except Exception as error:  # noqa: BLE001 - a server may answer anything
        raise failure(error) from None


def tool_answer(answer: Delta, *, who: str) -> ToolAnswer:
    """An answer that came as a whole, with its calls.

    Raises:
        ModelMalformedAnswerError: There is a call that can't be read.
        ModelBlockedError, ModelEmptyReplyError: There is neither text nor a call.
        ModelUnavailableError: There is nothing at all.
    """
    calls = [piece for piece in answer.pieces if isinstance(piece, ToolCall)][:MAX_CALLS]
    if any(call.problem for call in calls):
        raise ModelMalformedAnswerError(
            f"{who} calls a tool with arguments that are not a JSON object, or too deep a one."
        )
    if calls:
        text, finish = _text(answer), finish_of(answer.finish or "other", called=True)
    else:
        text, finish = said(answer, who=who)
    return ToolAnswer(text=text, calls=calls, usage=answer.usage, finish=finish)


def said(answer: Delta, *, who: str) -> tuple[str, FinishReason]:
    """Text and finish of an answer that came as a whole.

    Raises:
        ModelBlockedError, ModelEmptyReplyError: There is no text.
        ModelUnavailableError: There is nothing at all.
    """
    text = _text(answer)
    if text.strip():
        return text, answer.finish or "other"
    if answer.finish is None:
        raise ModelUnavailableError(f"{who} answers with something that is no reply.")
    raise _nothing_said(who, answer.finish, answer.reason)


def _text(answer: Delta) -> str:
    pieces = (piece.text for piece in answer.pieces if isinstance(piece, TextPiece))
    return clean_text("".join(pieces))


def _nothing_said(who: str, finish: FinishReason, reason: str) -> ModelError:
    """The error for a reply that finished without a word (and, with tools, without a call)."""
    if finish == "safety":
        word = reason or finish
        return ModelBlockedError(f"{who}'s filter let nothing through ({word}).", reason=word)
    if finish == "length":
        return ModelEmptyReplyError(
            f"{who} used up max_output_tokens before the first word; thinking counts towards it."
        )
    return ModelEmptyReplyError(f"{who} finished without a word ({reason or finish}).")


def parse_value(text: str, *, who: str, finish: FinishReason) -> Any:
    """The JSON value in `text`, also where a server that ignores schemas put it in a code fence.

    Raises:
        ModelInterruptedError: It was cut off at the output limit.
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
        raise ModelMalformedAnswerError(
            f"{who} was asked for JSON and wrote something else."
        ) from None


def _may_be_json(text: str) -> bool:
    return text.lstrip()[:1] in ("", *'{["-0123456789tfn')


def _within(text: str) -> str:
    """The object in a text that has words around it: from its first brace to its last."""
    return text[max(text.find("{"), 0) : text.rfind("}") + 1]


def _silence(who: str, seconds: float) -> ModelTimeoutError:
    return ModelTimeoutError(f"{who} has said nothing for {seconds:g} seconds.")
