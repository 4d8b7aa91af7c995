"""Tool calls that a model writes into its text, as JSON: what it is told, and how it is read.

For models that don't call tools by themselves. The texts here describe a format, which the readers
beside this module take apart again; how to play is said by the prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from backend.generation._json import mapping, parse_json, sequence
from backend.generation._tool_calls import MAX_ARGUMENTS, MAX_CALLS, read_call, unreadable_call
from backend.generation.model import Prompt, PromptMessage, TextPiece, Tool, ToolCall, ToolRound

MAX_WRITTEN = MAX_ARGUMENTS
"""Characters in which the calls of one reply, or of one block of it, are written."""


class CallReader(Protocol):
    """Takes text and calls apart. Raises nothing."""

    def feed(self, text: str) -> Iterable[TextPiece | ToolCall]:
        """What has become clear with the next part of the reply."""
        ...

    def close(self) -> Iterable[TextPiece | ToolCall]:
        """What is left at the end of the reply; nothing when asked again."""
        ...


def read_written_calls(text: str) -> list[ToolCall]:
    """The calls in a JSON text: a list, one alone, or the member `calls` of an object."""
    if not text.strip():
        return []
    try:
        value = parse_json(text)
    except ValueError as error:
        return [unreadable_call(f"The calls are not JSON: {error}.")]
    if "calls" in (members := mapping(value)):
        value = members["calls"]
    calls = sequence(value) or ([value] if value else [])
    return [_read_written_call(mapping(call)) for call in calls[:MAX_CALLS]]


def _read_written_call(call: Any) -> ToolCall:
    name = call.get("tool", call.get("name"))
    if not isinstance(name, str):
        return unreadable_call('A call is an object: {"tool": "<name>", "arguments": {}}.')
    return read_call(name, call.get("arguments") or {})


def written(calls: Sequence[ToolCall]) -> str:
    """The calls as a model would have written them; those of which nothing is known stay out."""
    known = [call for call in calls if call.name]
    return to_json([{"tool": call.name, "arguments": dict(call.arguments)} for call in known])


def described(tools: Sequence[Tool]) -> str:
    """What there is to call, with its JSON Schemas."""
    return "\n".join(
        f"- {tool.name}: {tool.description}\n  arguments: {to_json(dict(tool.parameters))}"
        for tool in tools
    )


def told(prompt: Prompt, instructions: str, reply: Callable[[ToolRound], str]) -> Prompt:
    """The prompt without rounds: these are messages, and the user's last line has instructions.

    Args:
        prompt: What is sent.
        instructions: How to call.
        reply: A round's text and calls as the model wrote them.
    """
    messages = list(prompt.messages)
    spoken = [at for at, message in enumerate(messages) if message.role == "user"]
    messages.insert(spoken[-1] if spoken else len(messages), PromptMessage("system", instructions))
    for tool_round in prompt.rounds:
        results = [
            {"tool": call.name, "result": result}
            for call, result in zip(tool_round.calls, tool_round.results, strict=True)
        ]
        messages += [
            PromptMessage("assistant", reply(tool_round)),
            PromptMessage("user", f"Results of the calls: {to_json(results)}"),
        ]
    return Prompt(messages, stable=prompt.stable)


def to_json(value: object) -> str:
    """JSON as a model reads it best: letters of every script as they are."""
    return json.dumps(value, ensure_ascii=False)
