"""Replies with tool calls, from models with and without native calls.

`native`: the provider's tool calls. `structured`: the model writes JSON of a schema, from which the
narration is streamed. `fenced`: it writes calls into a fenced block of its text. `none`: it is not
offered tools.

The first way that works is stored in the model's `ModelAbilities`, unless the user has set one.
After the first tool call, the way is not tested again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

import msgspec

from backend.generation.catalogue import ToolSupport
from backend.generation.model import (
    NO_OPTIONS,
    ChatModel,
    Finish,
    FinishReason,
    ModelEmptyReplyError,
    ModelRequestError,
    Piece,
    Prompt,
    RequestOptions,
    TextPiece,
    TextReset,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolCall,
)
from backend.generation.sampling import Sampling
from backend.generation.servers.replies import Delta, find_finish, read_tool_answer
from backend.generation.tools.calls import MAX_CALLS
from backend.generation.tools.written_calls import (
    CallReader,
    FencedReader,
    StructuredReader,
    build_answer_schema,
    build_fenced_prompt,
    build_prompt_without_tools,
    build_structured_prompt,
    read_bare_calls,
)

_WAYS: tuple[ToolSupport, ...] = ("native", "structured", "fenced")
"""The ways to request calls, the best first."""

BLOCK_TOKENS = 1_024
"""Minimum output limit of a request for calls, even if the user wants shorter replies."""


def choose_tool_support(model: ChatModel) -> ToolSupport:
    """Return the way to request calls: the user's setting, or else the learned way."""
    if "tool_support" in model.spec.fixed:
        return model.spec.tool_support
    return model.learned.tools or model.spec.tool_support


def may_learn_calls(model: ChatModel) -> bool:
    """True if it is unknown whether a model calls tools."""
    is_fixed = "tool_support" in model.spec.fixed
    return not is_fixed and not model.learned.calls_tools and model.learned.tools != "none"


async def stream_with_tools(
    model: ChatModel,
    prompt: Prompt,
    tools: Sequence[Tool],
    sampling: Sampling,
    support: ToolSupport | None = None,
) -> AsyncGenerator[Piece, None]:
    """Yield a reply piece by piece: text and calls, then usage if known, then `Finish`.

    An empty reply after a round of calls is a finish. If the server refuses the request before the
    first piece, the next way is tried. Iterate inside `contextlib.aclosing`.

    Args:
        model: The model.
        prompt: The messages, with the rounds of calls so far.
        tools: The available tools.
        sampling: The user's settings.
        support: The first way to try; `choose_tool_support(model)` by default.

    Raises:
        ModelError: As in `ChatModel.stream`. An unreadable call is a piece with a `problem`.
    """
    first = support or choose_tool_support(model)
    ways = _WAYS[_WAYS.index(first) :] if first in _WAYS else (first,)
    async with aclosing(_stream_in_ways(model, prompt, tools, sampling, ways)) as pieces:
        async for piece in pieces:
            yield piece


async def stream_calls(
    model: ChatModel, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
) -> AsyncGenerator[ToolCall | TokenUsage, None]:
    """Yield the calls of a model that is asked, in the fenced way, only for calls.

    If it writes none, it is remembered as a model without tools, unless it was cut off. Raises
    `ModelError`, and then nothing is remembered.
    """
    sampling = _reserve_call_tokens(sampling, model.spec.max_output_tokens)
    said: list[str] = []
    finish: FinishReason = "stop"
    has_called = False
    try:
        async with aclosing(stream_with_tools(model, prompt, tools, sampling, "fenced")) as pieces:
            async for piece in pieces:
                if isinstance(piece, TokenUsage | ToolCall):
                    has_called = has_called or (isinstance(piece, ToolCall) and not piece.problem)
                    yield piece
                elif isinstance(piece, Finish):
                    finish = piece.reason
                else:
                    _collect_text(said, piece)
    except ModelEmptyReplyError:
        pass
    for call in () if has_called else read_bare_calls("".join(said), tools):
        has_called = True
        yield call
    if has_called:
        _remember(model, "fenced", calls_tools=True)
    elif finish != "length":
        _remember(model, "none", calls_tools=False)


def _collect_text(said: list[str], piece: Piece) -> None:
    if isinstance(piece, TextPiece):
        said.append(piece.text)
    elif isinstance(piece, TextReset):
        said.clear()


def _reserve_call_tokens(sampling: Sampling, max_output_tokens: int) -> Sampling:
    """Raise a low output limit to `BLOCK_TOKENS`."""
    most = sampling.max_output_tokens
    if most is None or most >= BLOCK_TOKENS:
        return sampling
    most = max(most, min(BLOCK_TOKENS, max_output_tokens))
    return msgspec.structs.replace(sampling, max_output_tokens=most)


async def answer_with_tools(
    model: ChatModel, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
) -> ToolAnswer:
    """Return one step of a tool loop, in the best way that the server accepts.

    A model that is known to call no tools is asked in the fenced way, because this task may be
    easier for it. Raises `ModelError`.
    """
    support, refusal = choose_tool_support(model), None
    if support == "native":
        try:
            answer = await model.call_tools(prompt, tools, sampling)
        except ModelRequestError as error:
            support, refusal = "structured", error
        else:
            if answer.calls:
                _remember(model, "native", calls_tools=True)
            return answer
    ways = _WAYS[_WAYS.index("fenced" if support == "none" else support) :]
    pieces: list[Piece] = []
    stream = _stream_in_ways(model, prompt, tools, sampling, ways, refusal=refusal)
    async with aclosing(stream):
        async for piece in stream:
            pieces.append(piece)  # noqa: PERF401 - an async comprehension would not close it
    said = tuple(piece for piece in pieces if isinstance(piece, TextPiece | ToolCall))
    usage = next((piece for piece in pieces if isinstance(piece, TokenUsage)), None)
    finish: FinishReason | None = next(
        (piece.reason for piece in pieces if isinstance(piece, Finish)), None
    )
    return read_tool_answer(Delta(pieces=said, usage=usage, finish=finish), who=model.spec.title)


async def _stream_in_ways(
    model: ChatModel,
    prompt: Prompt,
    tools: Sequence[Tool],
    sampling: Sampling,
    ways: Sequence[ToolSupport],
    *,
    refusal: ModelRequestError | None = None,
) -> AsyncGenerator[Piece, None]:
    """Yield a reply in the first way that the server accepts, and remember that way.

    `refusal` is the error of a better way.
    """
    for way in ways:
        has_begun = False
        try:
            async with aclosing(stream_in_way(model, prompt, tools, sampling, way)) as pieces:
                async for piece in pieces:
                    _remember_piece(model, piece, way, is_new=bool(refusal) and not has_begun)
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


def _remember_piece(model: ChatModel, piece: Piece, way: ToolSupport, *, is_new: bool) -> None:
    """Remember the way if the piece is a call, or if a better way was refused (`is_new`)."""
    if isinstance(piece, ToolCall) and not piece.problem:
        _remember(model, way, calls_tools=True)
    elif is_new:
        _remember(model, way, calls_tools=False)


def _remember(model: ChatModel, way: ToolSupport, *, calls_tools: bool) -> None:
    if "tool_support" in model.spec.fixed:
        return
    if (model.learned.tools, model.learned.calls_tools) != (way, calls_tools):
        model.learn(tools=way, calls_tools=calls_tools)


def stream_in_way(
    model: ChatModel,
    prompt: Prompt,
    tools: Sequence[Tool],
    sampling: Sampling,
    way: ToolSupport,
    *,
    options: RequestOptions = NO_OPTIONS,
) -> AsyncGenerator[Piece, None]:
    """Return a reply in one way, which is not remembered. Only the native way has options."""
    if way == "native":
        return model.stream(prompt, sampling, tools=tools, options=options)
    if way == "none":
        return model.stream(build_prompt_without_tools(prompt), sampling)
    if not (tools or prompt.rounds):
        return model.stream(prompt, sampling)
    sampling = sampling.without_form()
    if way == "structured":
        asked = build_structured_prompt(prompt, tools)
        pieces = model.stream(asked, sampling, schema=build_answer_schema(tools))
        return _read_calls(pieces, StructuredReader)
    names = [tool.name for tool in tools]
    pieces = model.stream(build_fenced_prompt(prompt, tools), sampling)
    return _read_calls(pieces, lambda: FencedReader(names))


async def _read_calls(
    pieces: AsyncGenerator[Piece, None], make_reader: Callable[[], CallReader]
) -> AsyncGenerator[Piece, None]:
    """Yield a reply with the calls in its text. Raises `ModelEmptyReplyError` if it has no content.

    After a reset, the text is read again, but calls in the old text stay valid.
    """
    reader = make_reader()
    has_content = False
    calls = 0
    async with aclosing(pieces):
        async for written in pieces:
            if isinstance(written, TextReset):
                reader = make_reader()
            for piece in _find_calls(written, reader):
                match piece:
                    case TextPiece(text) | ThinkingPiece(text):
                        has_content = has_content or not text.isspace()
                        yield piece
                    case ToolCall():
                        calls += 1
                        if calls <= MAX_CALLS:
                            yield piece
                    case Finish(reason):
                        if not has_content and not calls:
                            raise ModelEmptyReplyError(
                                "The model returned neither text nor tool calls."
                            )
                        yield Finish(find_finish(reason, called=bool(calls)))
                    case _:
                        yield piece


def _find_calls(piece: Piece, reader: CallReader) -> Iterable[Piece]:
    match piece:
        case TextPiece(text):
            return reader.feed(text)
        case TokenUsage() | Finish():
            return (*reader.close(), piece)
        case _:
            return (piece,)
