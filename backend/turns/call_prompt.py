"""The prompt that asks a model for the tool calls of a reply that it has already written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from backend.generation.model import Prompt, PromptMessage, Tool
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.generation.tool_arguments import describe_tools
from backend.generation.tool_streams import BLOCK_TOKENS
from backend.turns.built import Built


def prompt_for_calls(
    built: Built, reply: str, request: str, tools: Sequence[Tool]
) -> Prompt | None:
    """Return the reply's prompt, then the reply, then the request. CPU-bound: some milliseconds.

    The prompt is kept whole if the window has room for it, because a local server has it in its
    cache. Else the system messages that lead it are kept, and all from the user's last line on.

    Args:
        built: The prompt that the reply was written for.
        reply: The text of the reply.
        request: The text that asks for the calls.
        tools: The tools that may be called.

    Returns:
        None if the window has no room for the shorter form either.
    """
    window = built.window

    def count(texts: Sequence[str]) -> int:
        counted = get_tokenizer(window.unit.tokenizer).count_many(texts)
        return window.to_model_tokens(sum(counted) + MESSAGE_OVERHEAD * len(counted))

    end = [PromptMessage("assistant", reply), PromptMessage("user", request)]
    room = window.limits.total - count([reply, request, describe_tools(tools)])
    prompt, tokens = built.prompt, built.totals.prompt
    if tokens + BLOCK_TOKENS > room:
        prompt = Prompt(_shorten(prompt.messages))
        tokens = count([message.text for message in prompt.messages])
    if tokens + BLOCK_TOKENS > room:
        return None
    return replace(prompt, messages=[*prompt.messages, *end], reply_room=room - tokens)


def _shorten(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Return the messages without the conversation before the user's last line."""
    leading = list(takewhile(lambda message: message.role == "system", messages))
    spoken = [place for place, message in enumerate(messages) if message.role == "user"]
    return [*leading, *messages[max(len(leading), spoken[-1] if spoken else 0) :]]
