"""Tool calls of models without native calls: in a fenced block of the text, or in a JSON object."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, Protocol

from backend.generation.json_text import find_values, mapping, parse_json, sequence
from backend.generation.model import Prompt, PromptMessage, TextPiece, Tool, ToolCall
from backend.generation.tools.calls import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    TOO_LONG_PROBLEM,
    build_round_message,
    describe_tools,
    find_name_and_arguments,
    make_unreadable_call,
    pair_results,
    read_calls,
    to_json,
)

MAX_WRITTEN = MAX_ARGUMENTS
"""Maximum number of characters of the calls in one reply or block."""

_LISTS = ("calls", "tool_calls")
"""Members that contain a list of calls. The prompt asks for the first one."""


class CallReader(Protocol):
    """Separates text and calls. Raises nothing."""

    def feed(self, text: str) -> Iterable[TextPiece | ToolCall]:
        """Yield the pieces that the next part of the reply completes."""
        ...

    def close(self) -> Iterable[TextPiece | ToolCall]:
        """Yield the rest at the end of the reply. Idempotent."""
        ...


def read_written_calls(text: str) -> list[ToolCall]:
    """Return the first `MAX_CALLS` calls in a JSON text.

    It may contain a list of calls, several calls, or objects with a list of calls. An unreadable
    text is one call with a problem.
    """
    if not text.strip():
        return []
    try:
        values = find_values(text)
    except ValueError as error:
        return [make_unreadable_call(f"The calls are not JSON: {error}.")]
    entries = (entry for value in values for entry in _find_entries(value))
    return [call for entry in entries for call in _read_entry(entry)][:MAX_CALLS]


def find_call_names(text: str) -> list[str]:
    """Return the names of the calls in a text, "" for an entry that is no call.

    The list is empty if the text contains no JSON.
    """
    try:
        values = find_values(text)
    except ValueError:
        return []
    return [
        find_name_and_arguments(mapping(e))[0] for value in values for e in _find_entries(value)
    ]


def _find_entries(value: object) -> Sequence[object]:
    """Return the entries of a list of calls: itself, a member of an object, or one call alone."""
    members = mapping(value)
    value = next((members[name] for name in _LISTS if name in members), value)
    if isinstance(value, str):  # encoded twice
        with suppress(ValueError):
            value = parse_json(value)
    return sequence(value) or ([value] if value else [])


def _read_entry(entry: object) -> list[ToolCall]:
    name, arguments = find_name_and_arguments(mapping(entry))
    if not name:
        return [make_unreadable_call('A call is an object: {"tool": "<name>", "arguments": {}}.')]
    return read_calls(name, arguments)


def write_calls(calls: Sequence[ToolCall]) -> str:
    """Render calls as a model writes them. Calls without a name are omitted."""
    known = [call for call in calls if call.name]
    return to_json([{"tool": call.name, "arguments": dict(call.arguments)} for call in known])


def render_rounds(
    prompt: Prompt, instructions: str, reply: Callable[[PromptMessage], str]
) -> Prompt:
    """Render calls and results as texts, and insert instructions before the user's last message.

    Args:
        prompt: The messages and the rounds of calls so far.
        instructions: Explain how to call tools.
        reply: Renders the text and calls of a message as the model wrote them.
    """
    messages: list[PromptMessage] = []
    for message in prompt.messages:
        messages += _render_results(message, reply) if message.calls else [message]
    spoken = [at for at, message in enumerate(messages) if message.role == "user"]
    messages.insert(spoken[-1] if spoken else len(messages), PromptMessage("system", instructions))
    for tool_round in prompt.rounds:
        messages += _render_results(build_round_message(tool_round), reply)
    return replace(prompt, messages=messages, rounds=())


def _render_results(
    message: PromptMessage, reply: Callable[[PromptMessage], str]
) -> list[PromptMessage]:
    results = [{"tool": call.name, "result": result} for call, result in pair_results(message)]
    return [
        PromptMessage("assistant", reply(message)),
        PromptMessage("user", f"Results of the calls: {to_json(results)}"),
    ]


OPENING = "```tools"
CLOSING = "\n```"
"""The end of a block. JSON texts contain no line breaks, so the block cannot contain it."""

_FENCE = "```"
_RUN = re.compile("`+")
_HEAD = re.compile(r"[ \t]{0,4}(\w{0,12})")
_OWN_WORDS = frozenset({"tool", "tools", "tool_call", "tool_calls"})
"""Words after a fence that begin a block of calls, because models do not always write "tools"."""

_INSTRUCTIONS = """\
You can call tools. To call some, end your reply with a block like this, which the player does not \
see:

```tools
[{"tool": "<name>", "arguments": {}}]
```

It is a JSON list, in the order in which to call. Their results are the next message. Without a \
block, your reply is over. The tools, with the JSON Schemas of their arguments:

"""

_NO_MORE_TOOLS = "No tools can be called any more: finish your reply in words."
_NO_TOOLS = """\
There are no tools that you can call. Tell the story in words alone, and write no names of tools \
and no calls."""


def build_fenced_prompt(prompt: Prompt, tools: Sequence[Tool]) -> Prompt:
    instructions = _INSTRUCTIONS + describe_tools(tools) if tools else _NO_MORE_TOOLS
    return render_rounds(prompt, instructions, _render_round)


def build_prompt_without_tools(prompt: Prompt) -> Prompt:
    """Return a prompt that forbids calls, because another message may ask for them."""
    return render_rounds(prompt, _NO_TOOLS, _render_round)


def _render_round(message: PromptMessage) -> str:
    block = f"{OPENING}\n{write_calls(message.calls)}{CLOSING}" if message.calls else ""
    return "\n\n".join(filter(None, (message.text.rstrip(), block)))


class FencedReader:
    """Streams the text around the blocks and reads the calls in them.

    A `json` block is also read if it contains only calls of the available tools (`names`). A block
    that is too long or not JSON is one call with a problem.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._place: Literal["text", "fence", "calls", "json"] = "text"
        self._held = ""
        self._opening = ""
        self._block: list[str] = []
        self._length = 0

    def feed(self, text: str) -> Iterator[TextPiece | ToolCall]:
        """See `CallReader`. The time is linear in the text."""
        return self._read(text, is_last=False)

    def close(self) -> Iterator[TextPiece | ToolCall]:
        """See `CallReader`. An unclosed block is read, too."""
        yield from self._read("", is_last=True)
        if self._place in {"calls", "json"}:
            yield from self._end_block("")

    def _read(self, text: str, *, is_last: bool) -> Iterator[TextPiece | ToolCall]:
        text, self._held = self._held + text, ""
        at = 0
        while at < len(text):
            if self._place in {"calls", "json"}:
                found = text.find(CLOSING, at)
                end = found if found >= 0 else self._hold(text, at, CLOSING, is_last=is_last)
                self._take(text[at:end])
                if found >= 0:
                    yield from self._end_block(CLOSING)
                    end += len(CLOSING)
                elif self._place == "json" and self._length > MAX_WRITTEN:
                    self._place = "fence"
                    yield TextPiece(self._opening + "".join(self._block))
            else:
                found = text.find(_FENCE, at)
                end = found if found >= 0 else self._hold(text, at, _FENCE, is_last=is_last)
                if end > at:
                    yield TextPiece(text[at:end])
                if found >= 0:
                    end = yield from self._begin_block(text, found, is_last=is_last)
            at = end
            if self._held:
                return

    def _hold(self, text: str, at: int, mark: str, *, is_last: bool) -> int:
        """Hold back the end of the text that may begin a mark, and return its position."""
        end = len(text) if is_last else max(at, len(text) - count_held_back(text, mark))
        self._held = text[end:]
        return end

    def _begin_block(
        self, text: str, found: int, *, is_last: bool
    ) -> Generator[TextPiece, None, int]:
        """Begin or end a block at a fence, and return the position after it."""
        run = _RUN.match(text, found)
        begin = (run.end() if run else len(text)) - len(_FENCE)
        if begin > found:
            yield TextPiece(text[found:begin])
        head = _HEAD.match(text, begin + len(_FENCE))
        end = head.end() if head else len(text)
        if end == len(text) and not is_last:
            self._held = text[begin:]
            return end
        word = head[1].lower() if head else ""
        is_calls = word in _OWN_WORDS
        if is_calls or (word == "json" and self._place == "text"):
            self._place = "calls" if is_calls else "json"
            self._opening, self._block, self._length = text[begin:end], [], 0
            return end
        self._place = "text" if self._place == "fence" else "fence"
        yield TextPiece(_FENCE)
        return begin + len(_FENCE)

    def _take(self, text: str) -> None:
        if self._length <= MAX_WRITTEN:
            self._block.append(text)
            self._length += len(text)

    def _end_block(self, closing: str) -> Iterator[TextPiece | ToolCall]:
        block, place = "".join(self._block), self._place
        self._place = "text"
        is_too_long = self._length > MAX_WRITTEN
        if place == "json" and (is_too_long or not self._is_of_calls(block)):
            yield TextPiece(self._opening + block + closing)
        elif is_too_long:
            yield make_unreadable_call(TOO_LONG_PROBLEM)
        else:
            yield from read_written_calls(block.strip().removesuffix(_FENCE))

    def _is_of_calls(self, block: str) -> bool:
        names = find_call_names(block)
        return bool(names) and self._names.issuperset(names)


def read_bare_calls(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Return the calls in a text without a block. Words before and after the calls are ignored.

    Return none if the text contains other JSON values.
    """
    names = find_call_names(text) if len(text) <= MAX_WRITTEN else []
    if not names or not {tool.name for tool in tools}.issuperset(names):
        return []
    return read_written_calls(text)


def count_held_back(text: str, mark: str) -> int:
    """Return the length of the end of `text` that may begin `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


_STRUCTURE = re.compile(r'["{}\[\]:,]')
_STRING_MARK = re.compile(r'["\\]')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([^u]))", re.DOTALL)
_LONGEST_ESCAPE = 6
_LONGEST_NAME = 100
"""Compared characters of a member's name."""
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class StreamedMember:
    """Extracts the text of one member from a streamed JSON object.

    Line breaks and invalid escapes are accepted, because models write them.

    Attributes:
        names: The names of the members that have begun.
        is_too_long: True if the rest of the object exceeds `most` characters. Reading has stopped.
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
        self._is_value = False  # the next string is a value, not a name
        self._string: Literal["name", "text", "other"] | None = None
        self._last_name = ""
        self._held = ""  # an incomplete escape
        self._half = ""  # the first half of a surrogate pair

    @property
    def rest(self) -> str:
        """The JSON so far, with an empty text as the member's value."""
        return "".join(self._rest)

    def feed(self, text: str) -> str:
        """Return the next part of the member's text."""
        text, self._held = self._held + text, ""
        said: list[str] = []
        at = 0
        while at < len(text) and not self._is_over:
            if self._string is None:
                at = self._read_structure(text, at)
            else:
                at = self._read_string(text, at, said)
        return self._join_surrogates(said)

    def _read_structure(self, text: str, at: int) -> int:
        """Read to the next mark outside of a string, and return the position after it."""
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

    def _read_string(self, text: str, at: int, said: list[str]) -> int:
        """Read to the next mark within a string, and return the position after it."""
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
            self._take(escape[0], chr(int(code, 16)) if code else _unescape(letter), said)
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

    def _join_surrogates(self, said: list[str]) -> str:
        """Join surrogate pairs. A first half at the end is held back, other halves are U+FFFD."""
        text, self._half = self._half + "".join(said), ""
        if text and "\ud800" <= text[-1] <= "\udbff" and self._string == "text":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescape(letter: str) -> str:
    return _CONTROLS.get(letter, letter)


_STRUCTURED_INSTRUCTIONS = """\
Answer with one JSON object and nothing else: {"narration": "...", "calls": []}. The narration is \
what the player reads; it comes first, and may be empty. Calls are those of tools, in order: \
{"tool": "<name>", "arguments": {}}. Their results are the next message. Without a call, your \
reply is over. """
_TOOLS = "The tools, with the JSON Schemas of their arguments:\n\n"
_NO_TOOLS_STRUCTURED = "No tools can be called any more."

_LONGEST_HEAD = 100
"""Characters after which an answer is known to be JSON or not."""


def build_structured_prompt(prompt: Prompt, tools: Sequence[Tool]) -> Prompt:
    offered = _TOOLS + describe_tools(tools) if tools else _NO_TOOLS_STRUCTURED
    return render_rounds(prompt, _STRUCTURED_INSTRUCTIONS + offered, _render_json_round)


def build_answer_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    calls = [
        _build_object(tool={"type": "string", "enum": [tool.name]}, arguments=dict(tool.parameters))
        for tool in tools
    ]
    listed = {"calls": {"type": "array", "items": {"anyOf": calls}}} if calls else {}
    return _build_object(narration={"type": "string"}, **listed)


def _build_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _render_json_round(message: PromptMessage) -> str:
    return f'{{"narration": {to_json(message.text)}, "calls": {write_calls(message.calls)}}}'


class StructuredReader:
    """Streams the narration and reads the calls at the end.

    An answer that is not JSON is narration as a whole, because some servers ignore schemas.
    """

    def __init__(self) -> None:
        self._head = ""
        self._is_plain = False
        self._answer: StreamedMember | None = None

    def feed(self, text: str) -> Iterator[TextPiece]:
        """See `CallReader`. The time is linear in the text."""
        if self._answer is None and not self._is_plain:
            text = self._begin(text)
        if self._answer is not None:
            text = self._answer.feed(text)
        if text:
            yield TextPiece(text)

    def close(self) -> Iterator[ToolCall]:
        """See `CallReader`. Incomplete calls are one call with a problem."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if answer.is_too_long:
            yield make_unreadable_call(TOO_LONG_PROBLEM)
        elif "calls" in answer.names:
            yield from read_written_calls(answer.rest)

    def _begin(self, text: str) -> str:
        """Return the text to read once the format is known, and "" until then."""
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
