"""Tool calls in an answer of JSON: `{"narration": "...", "calls": [{"tool", "arguments"}]}`.

For servers that hold a model to a schema and have no calls. The narration streams out of the JSON
as it comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from backend.generation._partial_json import StreamedMember
from backend.generation._tool_calls import TOO_LONG, unreadable_call
from backend.generation._written_calls import (
    MAX_WRITTEN,
    read_written_calls,
    render_rounds,
    write_calls,
)
from backend.generation.model import Prompt, TextPiece, Tool, ToolCall, ToolRound
from backend.generation.tool_arguments import describe_tools, to_json

_INSTRUCTIONS = """\
Answer with one JSON object and nothing else: {"narration": "...", "calls": []}. The narration is \
what the player reads; it comes first, and may be empty. Calls are those of tools, in order: \
{"tool": "<name>", "arguments": {}}. Their results are the next message. Without a call, your \
reply is over. """
_TOOLS = "The tools, with the JSON Schemas of their arguments:\n\n"
_NO_TOOLS = "No tools can be called any more."

_LONGEST_HEAD = 100
"""Characters after which it is clear whether an answer is JSON."""


def structured_prompt(prompt: Prompt, tools: Sequence[Tool]) -> Prompt:
    """The prompt for a model that answers in JSON."""
    offered = _TOOLS + describe_tools(tools) if tools else _NO_TOOLS
    return render_rounds(prompt, _INSTRUCTIONS + offered, _reply)


def answer_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON Schema of an answer that may call these tools."""
    calls = [
        _object(tool={"type": "string", "enum": [tool.name]}, arguments=dict(tool.parameters))
        for tool in tools
    ]
    listed = {"calls": {"type": "array", "items": {"anyOf": calls}}} if calls else {}
    return _object(narration={"type": "string"}, **listed)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _reply(tool_round: ToolRound) -> str:
    return f'{{"narration": {to_json(tool_round.text)}, "calls": {write_calls(tool_round.calls)}}}'


class StructuredReader:
    """Streams the narration and reads the calls at the end.

    An answer that is no JSON, of a server that passes schemas over, is narration as a whole.
    """

    def __init__(self) -> None:
        self._head = ""
        self._is_plain = False
        self._answer: StreamedMember | None = None

    def feed(self, text: str) -> Iterator[TextPiece]:
        """See `CallReader`. In proportion to the text, however it is cut."""
        if self._answer is None and not self._is_plain:
            text = self._begin(text)
        if self._answer is not None:
            text = self._answer.feed(text)
        if text:
            yield TextPiece(text)

    def close(self) -> Iterator[ToolCall]:
        """See `CallReader`. Calls that were cut off are one call with a problem."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if answer.is_too_long:
            yield unreadable_call(TOO_LONG)
        elif "calls" in answer.names:
            yield from read_written_calls(answer.rest)

    def _begin(self, text: str) -> str:
        """What there is to read once it is clear how; nothing before."""
        self._head += text
        before, brace, _ = self._head.partition("{")
        wrapping = before.strip()
        if brace and wrapping in {"", "```", "```json"}:
            self._answer = StreamedMember("narration", most=MAX_WRITTEN)
            return self._head[len(before) :]
        if brace or len(self._head) > _LONGEST_HEAD or not "```json".startswith(wrapping):
            self._is_plain = True
            return self._head
        return ""
