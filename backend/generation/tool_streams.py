"""A reply with tool calls in it, from models that call tools by themselves and from others.

`native`: the provider's own calls. `structured`: the model answers in JSON of a schema, out of
which the narration streams. `fenced`: it writes calls into a fenced block of its text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import get_args
from weakref import WeakKeyDictionary

from backend.generation._fenced_calls import FencedReader, fenced_prompt
from backend.generation._replies import Delta, finish_of, tool_answer
from backend.generation._structured_calls import StructuredReader, answer_schema, structured_prompt
from backend.generation._tool_calls import MAX_CALLS
from backend.generation._written_calls import CallReader
from backend.generation.figures import ToolSupport
from backend.generation.model import (
    ChatModel,
    Finish,
    FinishReason,
    ModelEmptyReplyError,
    ModelRequestError,
    Piece,
    Prompt,
    TextPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolCall,
)
from backend.generation.sampling import Sampling

_SUPPORTS: tuple[ToolSupport, ...] = get_args(ToolSupport)
"""The best first."""

_learned: WeakKeyDictionary[ChatModel, ToolSupport] = WeakKeyDictionary()
"""What models take whose servers have refused the better ways, for as long as this process runs."""


def tool_support(model: ChatModel) -> ToolSupport:
    """How a model is asked for calls: in the way that its server took, else as its spec says."""
    return _learned.get(model, model.spec.tool_support)


async def stream_with_tools(
    model: ChatModel,
    prompt: Prompt,
    tools: Sequence[Tool],
    sampling: Sampling,
    support: ToolSupport | None = None,
) -> AsyncGenerator[Piece, None]:
    """Yield a reply piece by piece: text and calls, then usage if known, then `Finish`.

    A model that has called before, and then says no more, has finished. A server that refuses the
    request before a word is said is asked in the next lower way; the one that it takes is what
    `tool_support` tells from then on. Close it early to hang up: iterate inside
    `contextlib.aclosing`.

    Args:
        model: Who is asked.
        prompt: What is sent, with the rounds of calls so far.
        tools: What may be called now.
        sampling: What the user set.
        support: How to ask for calls; `tool_support(model)` by default.

    Raises:
        ModelError: As `ChatModel.stream` does. A call that can't be read is not an error: its
            piece has a `problem`.
    """
    refusal: ModelRequestError | None = None
    for way in _SUPPORTS[_SUPPORTS.index(support or tool_support(model)) :]:
        has_begun = False
        try:
            async with aclosing(_ask(model, prompt, tools, sampling, way)) as pieces:
                async for piece in pieces:
                    if refusal is not None and not has_begun:
                        _learned[model] = way
                    has_begun = True
                    yield piece
        except ModelRequestError as error:
            if has_begun or not tools:
                raise
            refusal = refusal or error
        except ModelEmptyReplyError:
            if not prompt.rounds:
                raise
            yield Finish("stop")
            return
        else:
            return
    if refusal is not None:
        raise refusal


async def answer_with_tools(
    model: ChatModel, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
) -> ToolAnswer:
    """One step of a tool loop, in the best way that the model's server takes.

    Raises `ModelError` as `ChatModel.call_tools` does.
    """
    if tool_support(model) == "native":
        try:
            return await model.call_tools(prompt, tools, sampling)
        except ModelRequestError:
            refused = True
    else:
        refused = False
    way: ToolSupport = "structured" if refused else tool_support(model)
    pieces: list[Piece] = []
    async with aclosing(stream_with_tools(model, prompt, tools, sampling, way)) as stream:
        async for piece in stream:
            pieces.append(piece)  # noqa: PERF401 - it is closed whatever happens
    if refused:
        _learned.setdefault(model, way)
    said = tuple(piece for piece in pieces if isinstance(piece, TextPiece | ToolCall))
    usage = next((piece for piece in pieces if isinstance(piece, TokenUsage)), None)
    finish: FinishReason | None = next(
        (piece.reason for piece in pieces if isinstance(piece, Finish)), None
    )
    return tool_answer(Delta(pieces=said, usage=usage, finish=finish), who=model.spec.title)


def _ask(
    model: ChatModel, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling, way: ToolSupport
) -> AsyncGenerator[Piece, None]:
    if way == "native" or not (tools or prompt.rounds):
        return model.stream(prompt, sampling, tools=tools)
    sampling = sampling.without_form()
    if way == "structured":
        asked = structured_prompt(prompt, tools)
        pieces = model.stream(asked, sampling, schema=answer_schema(tools))
        return _read(pieces, StructuredReader())
    return _read(model.stream(fenced_prompt(prompt, tools), sampling), FencedReader())


async def _read(
    pieces: AsyncGenerator[Piece, None], reader: CallReader
) -> AsyncGenerator[Piece, None]:
    """A reply whose text is taken apart; `ModelEmptyReplyError` where nothing is in it."""
    has_spoken = False
    calls = 0
    async with aclosing(pieces):
        async for written in pieces:
            for piece in _taken_apart(written, reader):
                match piece:
                    case TextPiece(text):
                        has_spoken = has_spoken or not text.isspace()
                        yield piece
                    case ToolCall():
                        calls += 1
                        if calls <= MAX_CALLS:
                            yield piece
                    case Finish(reason):
                        if not has_spoken and not calls:
                            raise ModelEmptyReplyError("It answered with neither text nor calls.")
                        yield Finish(finish_of(reason, called=bool(calls)))
                    case _:
                        yield piece


def _taken_apart(piece: Piece, reader: CallReader) -> Iterable[Piece]:
    match piece:
        case TextPiece(text):
            return reader.feed(text)
        case TokenUsage() | Finish():
            return (*reader.close(), piece)
        case _:
            return (piece,)
