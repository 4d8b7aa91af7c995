"""The prompt that asks a model for the tool calls of a reply that it has already written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from backend.generation.model import Prompt, PromptMessage, Tool
from backend.generation.tokens import get_tokenizer
from backend.generation.tool_arguments import describe_tools
from backend.generation.tool_streams import BLOCK_TOKENS
from backend.turns.built import Built


def prompt_for_calls(built: Built, reply: str, request: str, tools: Sequence[Tool]) -> Prompt:
    """Return the reply's prompt, then the reply, then the request.

    The prompt is kept whole if the window has room for it, because a local server has it in its
    cache. Else the system messages that lead it are kept, and all from the user's last line on.

    Args:
        built: The prompt that the reply was written for.
        reply: The text of the reply.
        request: The text that asks for the calls.
        tools: The tools that may be called.
    """
    messages = built.prompt.messages
    end = [PromptMessage("assistant", reply), PromptMessage("user", request)]
    count = get_tokenizer(built.window.unit.tokenizer).count
    more = sum(map(count, (reply, request, describe_tools(tools))))
    needed = built.totals.prompt + built.window.to_model_tokens(more) + BLOCK_TOKENS
    if needed <= built.window.limits.total:
        return Prompt([*messages, *end], stable=built.prompt.stable)
    leading = list(takewhile(lambda message: message.role == "system", messages))
    spoken = [place for place, message in enumerate(messages) if message.role == "user"]
    last = max(len(leading), spoken[-1] if spoken else 0)
    return Prompt([*leading, *messages[last:], *end])
