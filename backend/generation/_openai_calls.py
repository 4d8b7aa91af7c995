"""Tool calls in the chunks of OpenAI's chat completions, assembled from their fragments.

Source: https://platform.openai.com/docs/guides/function-calling#streaming

Servers send a call in fragments or as a whole, with an index, an id, both, or neither. Several
calls may have one index, one id, or no id at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from backend.generation._json import clean, clean_text, mapping, sequence
from backend.generation._lenient_json import ValueProgress
from backend.generation._tool_calls import (
    ARGUMENTS,
    MAX_ARGUMENTS,
    MAX_CALLS,
    NAMES,
    arguments_text,
    distinct_ids,
    name_and_arguments,
    read_calls,
)
from backend.generation.model import ToolCall

REASONING = "reasoning_content"
"""Thoughts that DeepSeek and Moonshot AI want back with the calls that followed from them. Without
them they refuse the next request. They are kept with the first call."""

_STANDARD = frozenset({"index", "id", "type", "function", *NAMES, *ARGUMENTS})

_MAX_INDEX_DIGITS = 9

MAX_MEMBERS = 20
"""Members of a call that the standard does not name. They are sent back with it."""


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A part of a call, or a whole one. `members` are those that the standard does not name."""

    index: int | None
    id: str
    name: str
    arguments: str
    members: Mapping[str, Any]

    @classmethod
    def read(cls, value: object) -> _Fragment:
        fragment = mapping(value)
        name, arguments = name_and_arguments(fragment)
        return cls(
            index=_read_index(fragment.get("index")),
            id=_read_id(fragment.get("id")),
            name=name,
            arguments=arguments_text(arguments),
            members={name: fragment[name] for name in fragment if name not in _STANDARD},
        )


@dataclass(slots=True)
class _PartialCall:
    """A call of which fragments have arrived. `is_kept`: it is one of the first `MAX_CALLS`."""

    is_kept: bool
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    length: int = 0
    progress: ValueProgress = field(default_factory=ValueProgress)
    members: dict[str, Any] = field(default_factory=dict[str, Any])

    def add(self, fragment: _Fragment) -> None:
        self.id = self.id or fragment.id
        if not self.name:
            self.name = fragment.name
        elif fragment.name != self.name and not self.length:
            self.name += fragment.name
        if len(self.members) <= MAX_MEMBERS:
            self.members |= fragment.members
        if self.length <= MAX_ARGUMENTS:
            self.arguments.append(fragment.arguments)
            self.length += len(fragment.arguments)
            self.progress.feed(fragment.arguments)

    def ends_before(self, fragment: _Fragment, names: Collection[str]) -> bool:
        """True if a fragment under this call's index or id begins another call.

        A call has one name, and one value as its arguments. So a fragment without a name continues
        this call. One with a name begins another call if

        - its id is another one,
        - its name is another one, and not the rest of a name of which only a part has arrived, or
        - it has arguments although those of this call are complete. Servers that repeat the name
          in each fragment send no more of them then.
        """
        if not fragment.name or not self.name:
            return False
        if fragment.id and self.id and fragment.id != self.id:
            return True
        if fragment.name != self.name:
            whole = self.name + fragment.name
            return bool(self.length) or not any(name.startswith(whole) for name in names)
        return self.progress.is_complete and bool(fragment.arguments.strip())

    def finish(self) -> list[ToolCall]:
        """Return the call, or the calls that its arguments are of. Each has a `vendor_state`."""
        text = clean_text("".join(self.arguments))
        calls = read_calls(self.name, text, call_id=self.id)
        # The model's own text if it is JSON, since providers that keep a prompt compare it.
        # Servers parse it: a text that is not JSON makes them refuse the next request.
        own = text if len(calls) == 1 and not calls[0].problem and _is_object(text) else ""
        members = mapping(_cleaned(self.members))
        return [replace(each, vendor_state=_state(each, own, members)) for each in calls]


def _state(call: ToolCall, text: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as it is sent back, without its id."""
    function = {"name": call.name, "arguments": text or json.dumps(dict(call.arguments))}
    return {**members, "type": "function", "function": function}


class CallFragments:
    """The calls of one reply, in the order in which they began.

    `names` are those of the tools that the model was offered: some servers send a name in parts.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._by_id: dict[str, _PartialCall] = {}
        self._last: _PartialCall | None = None
        self._reasoning: list[str] = []

    def add(self, message: object, *, is_whole: bool = False) -> None:
        """Take the calls, or parts of calls, in a message or in the delta of a chunk.

        Args:
            message: JSON of any shape.
            is_whole: Each entry is one call.
        """
        members = mapping(message)
        if isinstance(reasoning := members.get(REASONING), str):
            self._reasoning.append(reasoning)
        given = members.get("tool_calls")
        entries: Sequence[Any] = [mapping(given)] if mapping(given) else sequence(given)
        if not entries and mapping(members.get("function_call")):
            # The form before tool calls. Some servers send a call in both.
            entries = [{"function": members["function_call"]}]
        for entry in entries:
            fragment = _Fragment.read(entry)
            call = None if is_whole else self._find(fragment)
            self._last = call = call or self._begin(fragment)
            call.add(fragment)
            if call.is_kept and fragment.id and fragment.id == call.id:
                self._by_id[call.id] = call

    def finish(self) -> list[ToolCall]:
        """Return the calls, now that no further fragment comes."""
        partial, self._calls, self._last = self._calls, [], None
        self._by_index.clear()
        self._by_id.clear()
        if partial and self._reasoning:
            partial[0].members[REASONING] = "".join(self._reasoning)
        calls = distinct_ids(call for each in partial for call in each.finish())
        return [
            replace(each, vendor_state={**each.vendor_state, "id": each.id})
            for each in islice(calls, MAX_CALLS)
        ]

    def _find(self, fragment: _Fragment) -> _PartialCall | None:
        """Return the call that a fragment continues, None if it begins one."""
        known = self._by_id.get(fragment.id)
        if fragment.index is None:
            call = known or self._last
        elif (call := self._by_index.get(fragment.index)) is not None:
            call = known if known and fragment.id != call.id else call
        elif fragment.name or (fragment.id and not known) or len(self._calls) == MAX_CALLS:
            return None
        else:
            call = known or self._last
        return None if call is None or call.ends_before(fragment, self._names) else call

    def _begin(self, fragment: _Fragment) -> _PartialCall:
        call = _PartialCall(is_kept=len(self._calls) < MAX_CALLS)
        if call.is_kept:
            self._calls.append(call)
            if fragment.index is not None:
                self._by_index[fragment.index] = call
        return call


def _read_index(value: object) -> int | None:
    """Return a number, or a text of digits, as a number."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_INDEX_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_id(value: object) -> str:
    """Return a text or a number as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return clean_text(value) if isinstance(value, str) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _cleaned(value: object) -> Any:
    """Return a JSON value that can be sent, None if it is nested too deeply."""
    try:
        return clean(value)
    except ValueError:
        return None
