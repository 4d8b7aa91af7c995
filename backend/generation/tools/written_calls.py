"""Tool calls in a fenced block of the text, for models that keep to no schema either."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, Protocol

from backend.generation.json_text import find_values, mapping, parse_json, sequence
from backend.generation.model import Prompt, PromptMessage, TextPiece, Tool, ToolCall, ToolRound
from backend.generation.tools.calls import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    TOO_LONG_PROBLEM,
    describe_tools,
    find_name_and_arguments,
    make_unreadable_call,
    read_calls,
    to_json,
)

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


OPENING = "```tools"
CLOSING = "\n```"
"""The end of a block. JSON has no line breaks within its texts, so that it cannot contain one."""

_FENCE = "```"
_RUN = re.compile("`+")
_HEAD = re.compile(r"[ \t]{0,4}(\w{0,12})")
_OWN_WORDS = frozenset({"tool", "tools", "tool_call", "tool_calls"})
"""Words after a fence that begin a block of calls. Models do not always write the one asked for."""

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
    """Return the prompt for a model that may write calls into a block."""
    instructions = _INSTRUCTIONS + describe_tools(tools) if tools else _NO_MORE_TOOLS
    return render_rounds(prompt, instructions, _render_round)


def build_prompt_without_tools(prompt: Prompt) -> Prompt:
    """Return the prompt for a model that calls no tools, even if another message asks for calls."""
    return render_rounds(prompt, _NO_TOOLS, _render_round)


def _render_round(tool_round: ToolRound) -> str:
    block = f"{OPENING}\n{write_calls(tool_round.calls)}{CLOSING}" if tool_round.calls else ""
    return "\n\n".join(filter(None, (tool_round.text.rstrip(), block)))


class FencedReader:
    """Streams the text around the blocks and reads the calls in them.

    A block of JSON is one of calls, too, if it contains nothing but calls of offered tools. A block
    that is too long, or not JSON, is one call with a problem.

    Args:
        names: Names of the offered tools.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._place: Literal["text", "fence", "calls", "json"] = "text"
        self._held = ""
        self._opening = ""
        self._block: list[str] = []
        self._length = 0

    def feed(self, text: str) -> Iterator[TextPiece | ToolCall]:
        """See `CallReader`. Takes time in proportion to the text, however it is cut."""
        return self._read(text, is_last=False)

    def close(self) -> Iterator[TextPiece | ToolCall]:
        """See `CallReader`. A block that was not closed is read as well."""
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
        """Keep the end of the text back that may begin a mark. Return the place where it begins."""
        end = len(text) if is_last else max(at, len(text) - count_held_back(text, mark))
        self._held = text[end:]
        return end

    def _begin_block(
        self, text: str, found: int, *, is_last: bool
    ) -> Generator[TextPiece, None, int]:
        """Begin or end a block at a fence, and return the place after it."""
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
    """Return the calls in a text that has no block around them; none if it contains anything else.

    Words before and after the calls are ignored.
    """
    names = find_call_names(text) if len(text) <= MAX_WRITTEN else []
    if not names or not {tool.name for tool in tools}.issuperset(names):
        return []
    return read_written_calls(text)


def count_held_back(text: str, mark: str) -> int:
    """How much of the end of `text` may be the beginning of `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
