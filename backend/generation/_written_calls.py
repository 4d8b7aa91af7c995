"""Tool calls that a model writes into its text, as JSON: what it is told, and how it is read.

For models that don't call tools by themselves. The texts here describe a format, which the readers
beside this module take apart again; how to play is said by the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from backend.generation._json import mapping, parse_json, sequence
from backend.generation._lenient_json import find_values
from backend.generation._tool_calls import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    name_and_arguments,
    read_calls,
    unreadable_call,
)
from backend.generation.model import Prompt, PromptMessage, TextPiece, ToolCall, ToolRound
from backend.generation.tool_arguments import to_json

MAX_WRITTEN = MAX_ARGUMENTS
"""Characters in which the calls of one reply, or of one block of it, are written."""

_LISTS = ("calls", "tool_calls")
"""Members of an object that contain a list of calls, the one that is asked for first."""


class CallReader(Protocol):
    """Takes text and calls apart. Raises nothing."""

    def feed(self, text: str) -> Iterable[TextPiece | ToolCall]:
        """What has become clear with the next part of the reply."""
        ...

    def close(self) -> Iterable[TextPiece | ToolCall]:
        """What is left at the end of the reply; nothing when asked again."""
        ...


def read_written_calls(text: str) -> list[ToolCall]:
    """Return the calls in a text of JSON, the first `MAX_CALLS` of them.

    It may contain a list of calls, several calls one after the other, or objects that have calls as
    a member. A text that cannot be read is one call with a problem.
    """
    if not text.strip():
        return []
    try:
        values = find_values(text)
    except ValueError as error:
        return [unreadable_call(f"The calls are not JSON: {error}.")]
    entries = (entry for value in values for entry in _entries(value))
    return [call for entry in entries for call in _read_entry(entry)][:MAX_CALLS]


def call_names(text: str) -> list[str]:
    """Return the names of the calls in a text, "" for an entry that is no call.

    The list is empty if the text contains no JSON.
    """
    try:
        values = find_values(text)
    except ValueError:
        return []
    return [name_and_arguments(mapping(e))[0] for value in values for e in _entries(value)]


def _entries(value: object) -> Sequence[object]:
    """Return the entries of a list of calls: itself, a member of an object, or one call alone."""
    members = mapping(value)
    value = next((members[name] for name in _LISTS if name in members), value)
    if isinstance(value, str):  # encoded twice
        with suppress(ValueError):
            value = parse_json(value)
    return sequence(value) or ([value] if value else [])


def _read_entry(entry: object) -> list[ToolCall]:
    name, arguments = name_and_arguments(mapping(entry))
    if not name:
        return [unreadable_call('A call is an object: {"tool": "<name>", "arguments": {}}.')]
    return read_calls(name, arguments)


def write_calls(calls: Sequence[ToolCall]) -> str:
    """Return the calls as a model would have written them, without those that have no name."""
    known = [call for call in calls if call.name]
    return to_json([{"tool": call.name, "arguments": dict(call.arguments)} for call in known])


def render_rounds(prompt: Prompt, instructions: str, reply: Callable[[ToolRound], str]) -> Prompt:
    """Return the prompt with its rounds as messages, and instructions before the user's last line.

    Args:
        prompt: The messages and the rounds of calls so far.
        instructions: How to call tools.
        reply: Returns a round's text and calls as the model wrote them.
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
    return replace(prompt, messages=messages, rounds=())
