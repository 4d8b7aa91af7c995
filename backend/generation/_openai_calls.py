"""Tool calls out of the chunks of OpenAI's chat completions, put together from their fragments.

Source: https://platform.openai.com/docs/guides/function-calling#streaming

Servers send a call in fragments or as a whole, with an index, an id, both, or neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.generation._json import clean, clean_text, mapping, sequence
from backend.generation._tool_calls import MAX_ARGUMENTS, MAX_CALLS, read_call
from backend.generation.model import ToolCall

REASONING = "reasoning_content"
"""What some servers think aloud, and want back with the calls that followed from it: DeepSeek and
Moonshot AI refuse the next request otherwise. It is kept with the first call."""


@dataclass(slots=True)
class _Growing:
    """A call of which fragments have come. `members` are those beside the standard's."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    length: int = 0
    members: dict[str, Any] = field(default_factory=dict[str, Any])

    def add(self, fragment: Mapping[str, Any]) -> None:
        function = mapping(fragment.get("function"))
        self.id = self.id or _text(fragment, "id")
        self.name = self.name or _text(function, "name")
        self.members |= {name: fragment[name] for name in fragment if name not in _STANDARD}
        given = function.get("arguments")
        # Some servers send an object in place of its text.
        text = given if isinstance(given, str) else _as_text(given)
        if self.length <= MAX_ARGUMENTS:
            self.arguments.append(text)
            self.length += len(text)

    def finished(self) -> ToolCall:
        arguments = "".join(self.arguments)
        call = read_call(self.name, arguments, call_id=self.id)
        # Servers parse what is sent back to them: a text that is no JSON fails the next request.
        function = {
            "name": call.name,
            "arguments": "{}" if call.problem else clean_text(arguments) or "{}",
        }
        standard = {"id": call.id, "type": "function", "function": function}
        return ToolCall(
            id=call.id,
            name=call.name,
            arguments=call.arguments,
            vendor_state={**mapping(_cleaned(self.members)), **standard},
            problem=call.problem,
        )


_STANDARD = frozenset({"index", "id", "type", "function"})


class CallFragments:
    """The calls of one reply, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Growing] = []
        self._by_index: dict[int, _Growing] = {}
        self._reasoning: list[str] = []

    def add(self, message: object, *, is_whole: bool = False) -> None:
        """Take what there is of calls in a message, or a chunk's delta, of whatever shape it is."""
        members = mapping(message)
        if isinstance(reasoning := members.get(REASONING), str):
            self._reasoning.append(reasoning)
        for number, each in enumerate(sequence(members.get("tool_calls"))):
            fragment = {**mapping(each), "index": number} if is_whole else mapping(each)
            if (call := self._continued(fragment)) is None:
                if len(self._calls) == MAX_CALLS:
                    return
                call = _Growing()
                self._calls.append(call)
            if isinstance(index := fragment.get("index"), int):
                self._by_index[index] = call
            call.add(fragment)

    def finish(self) -> list[ToolCall]:
        """The calls, now that no further fragment comes."""
        calls, self._calls = self._calls, []
        self._by_index.clear()
        if calls and self._reasoning:
            calls[0].members[REASONING] = "".join(self._reasoning)
        return [call.finished() for call in calls]

    def _continued(self, fragment: Mapping[str, Any]) -> _Growing | None:
        """The call that a fragment belongs to; None where it begins one.

        Another id begins another call, even under the same index: some servers count none.
        """
        identifier = _text(fragment, "id")
        if isinstance(index := fragment.get("index"), int):
            call = self._by_index.get(index)
            begins = bool(identifier and call and call.id not in {"", identifier})
        else:
            call = self._calls[-1] if self._calls else None
            begins = bool(identifier or _text(mapping(fragment.get("function")), "name"))
            begins = begins and not (identifier and call and call.id == identifier)
        return None if begins else call


def _text(value: Mapping[str, Any], name: str) -> str:
    member = value.get(name)
    return member if isinstance(member, str) else ""


def _as_text(arguments: object) -> str:
    return "" if arguments is None else json.dumps(_cleaned(arguments))


def _cleaned(value: object) -> Any:
    """A JSON value that can be sent; None for one that is nested too deeply."""
    try:
        return clean(value)
    except ValueError:
        return None
