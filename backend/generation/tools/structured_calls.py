"""Tool calls in an answer of JSON: `{"narration": "...", "calls": [{"tool", "arguments"}]}`.

For servers that hold a model to a schema and have no calls. The narration streams out of the JSON
as it comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from backend.generation.model import Prompt, TextPiece, Tool, ToolCall, ToolRound
from backend.generation.tools.calls import (
    TOO_LONG_PROBLEM,
    describe_tools,
    make_unreadable_call,
    to_json,
)
from backend.generation.tools.written_calls import (
    MAX_WRITTEN,
    read_written_calls,
    render_rounds,
    write_calls,
)

_STRUCTURE = re.compile(r'["{}\[\]:,]')
_STRING_MARK = re.compile(r'["\\]')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([^u]))", re.DOTALL)
_LONGEST_ESCAPE = 6
_LONGEST_NAME = 100
"""Of a member: longer ones are told apart by their beginning."""
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class StreamedMember:
    """Takes the text of one member out of a JSON object that comes in parts.

    It is lenient with what models write into texts: line breaks, and escapes that are none.

    Attributes:
        names: Of the members that have begun.
        is_too_long: There is more than `most` characters beside the member's text; the object is
            read no further.
    """

    def __init__(self, name: str, *, most: int) -> None:
        self.names: set[str] = set()
        self.is_too_long = False
        self._name = name
        self._most = most
        self._rest: list[str] = []
        self._length = 0
        self._depth = 0
        self._is_over = False
        self._is_value = False  # what stands next in the object, else a name
        self._string: Literal["name", "text", "other"] | None = None
        self._last_name = ""
        self._held = ""  # an escape that is not complete
        self._half = ""  # the first half of a character

    @property
    def rest(self) -> str:
        """The JSON so far, with an empty text for the member."""
        return "".join(self._rest)

    def feed(self, text: str) -> str:
        """What the next part of the object tells of the member's text."""
        text, self._held = self._held + text, ""
        said: list[str] = []
        at = 0
        while at < len(text) and not self._is_over:
            at = self._structure(text, at) if self._string is None else self._text(text, at, said)
        return self._whole_characters(said)

    def _structure(self, text: str, at: int) -> int:
        """Read to the next mark outside of a string; give back where to go on."""
        found = _STRUCTURE.search(text, at)
        end = found.end() if found else len(text)
        self._keep(text[at:end])
        mark = found[0] if found else ""
        if mark == '"':
            self._open_string()
        elif mark in {"{", "["}:
            self._depth += 1
        elif mark in {"}", "]"}:
            self._depth -= 1
            self._is_over = self._is_over or not self._depth
        elif mark and self._depth == 1:
            self._is_value = mark == ":"
        return end

    def _open_string(self) -> None:
        if self._depth != 1:
            self._string = "other"
        elif not self._is_value:
            self._string, self._last_name = "name", ""
        else:
            self._string = "text" if self._last_name == self._name else "other"

    def _text(self, text: str, at: int, said: list[str]) -> int:
        """Read to the next mark within a string; give back where to go on."""
        found = _STRING_MARK.search(text, at)
        end = found.start() if found else len(text)
        self._take(text[at:end], text[at:end], said)
        if found is None:
            return end
        if found[0] == '"':
            if self._string == "name":
                self.names.add(self._last_name)
            self._string = None
            self._keep('"')
            return end + 1
        if escape := _ESCAPE.match(text, end):
            code, letter = escape.groups()
            self._take(escape[0], chr(int(code, 16)) if code else _unescaped(letter), said)
            return escape.end()
        if len(text) - end < _LONGEST_ESCAPE:
            self._held = text[end:]
            return len(text)
        self._take(r"\u", "\ufffd", said)
        return end + 2

    def _take(self, raw: str, text: str, said: list[str]) -> None:
        if self._string == "text":
            said.append(text)
            return
        if self._string == "name":
            self._last_name = (self._last_name + text)[:_LONGEST_NAME]
        self._keep(raw)

    def _keep(self, raw: str) -> None:
        self._rest.append(raw)
        self._length += len(raw)
        if self._length > self._most:
            self._is_over = self.is_too_long = True

    def _whole_characters(self, said: list[str]) -> str:
        """Surrogates joined; one that may get its other half is kept back, others are U+FFFD."""
        text, self._half = self._half + "".join(said), ""
        if text and "\ud800" <= text[-1] <= "\udbff" and self._string == "text":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(letter: str) -> str:
    return _CONTROLS.get(letter, letter)


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
            yield make_unreadable_call(TOO_LONG_PROBLEM)
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
