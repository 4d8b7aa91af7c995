"""A reply with tool calls in it, from models that call tools by themselves and those that don't."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from backend.generation.model import ChatModel, Piece, Prompt, Tool, ToolSupport
from backend.generation.sampling import Sampling


def tool_support(model: ChatModel) -> ToolSupport:
    """How a model is asked for calls: as its server is known to take it, else as it is expected."""
    return model.spec.tool_support


async def stream_with_tools(
    model: ChatModel,
    prompt: Prompt,
    tools: Sequence[Tool],
    sampling: Sampling,
    support: ToolSupport | None = None,  # noqa: ARG001 - native alone, for now
) -> AsyncGenerator[Piece, None]:
    """Yield a reply piece by piece: text and calls, then usage if known, then `Finish`.

    Close it early to hang up: iterate inside `contextlib.aclosing`.

    Args:
        model: Who is asked.
        prompt: What is sent, with the rounds of calls so far.
        tools: What may be called; with none it is a plain reply.
        sampling: What the user set.
        support: How to ask for calls; `tool_support(model)` by default.

    Raises:
        ModelError: As `ChatModel.stream` does. A call that can't be read is none: its piece has a
            `problem`.
    """
    async with aclosing(model.stream(prompt, sampling, tools=tools)) as pieces:
        async for piece in pieces:
            yield piece
