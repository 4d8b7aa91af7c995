"""Tool calls as models and servers write them: their names, their arguments, and their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast
from uuid import uuid4

from backend.generation.json_text import clean, clean_text, find_values, mapping, sequence
from backend.generation.model import ToolCall, ToolRound

MAX_CALLS = 64
"""Calls of one reply. Further calls are ignored."""

MAX_ARGUMENTS = 65_536
"""Characters of one call's arguments."""

TOO_LONG_PROBLEM = f"The arguments are longer than {MAX_ARGUMENTS} characters."

ARGUMENTS = ("arguments", "parameters", "args", "input")
"""Members of a call that contain its arguments, the usual one first."""

NAMES = ("name", "tool")
"""Members of a call that contain its name, the usual one first."""

_MAX_ENCODINGS = 3
"""JSON texts within JSON texts."""

_ID_CHARACTERS = 9
"""Letters and digits of an id that is made up. Mistral's servers accept no other length.
Source: https://github.com/mistralai/mistral-common, protocol/instruct/validator.py"""


def read_calls(
    name: str, arguments: object, *, call_id: str = "", vendor_state: Any = None
) -> list[ToolCall]:
    """Return the call of a tool, or the calls that a server has joined to one.

    Nothing is raised: the first call has a `problem` if the arguments cannot be read.

    Args:
        name: The name that the model gave.
        arguments: JSON, as text or parsed. A text may be empty, in a code fence, encoded twice,
            between other words, or almost JSON (see `find_values`). Several objects one after the
            other are one call each, unless they are empty or repeat the one before.
        call_id: The vendor's id; one is made up if it is empty.
        vendor_state: See `ToolCall`. It goes with the first call.
    """
    found: list[dict[str, Any]] = [{}]
    problem = ""
    try:
        found = _read_arguments(arguments)
    except ValueError as error:
        problem = str(error)
    return [
        ToolCall(
            id=(clean_text(call_id) if not place else "") or _make_id(),
            name=clean_text(name).strip(),
            arguments=each,
            vendor_state=vendor_state if not place else None,
            problem=problem,
        )
        for place, each in enumerate(found)
    ]


def _read_arguments(arguments: object) -> list[dict[str, Any]]:
    """Raise `ValueError` with a message for the model."""
    if isinstance(arguments, str):
        if len(arguments) > MAX_ARGUMENTS:
            raise ValueError(TOO_LONG_PROBLEM)
        values = _decode(arguments)
    else:
        values = [clean(arguments)]
        if len(json.dumps(values[0], ensure_ascii=False)) > MAX_ARGUMENTS:
            raise ValueError(TOO_LONG_PROBLEM)
    objects = [each for value in values if (each := _as_object(value)) is not None]
    if not objects:
        raise ValueError("The arguments are not a JSON object.")
    different = [
        each
        for place, each in enumerate(objects)
        if each and (not place or each != objects[place - 1])
    ]
    return different or [{}]


def _decode(text: str) -> Sequence[Any]:
    """Return the values in a text that was encoded at least once. Raise `ValueError`."""
    for _ in range(_MAX_ENCODINGS):
        if not text.strip():
            return [{}]
        try:
            values = find_values(text)
        except ValueError as error:
            raise ValueError(f"The arguments are not JSON: {error}.") from None
        if not isinstance(values[0], str):
            return values
        text = values[0]
    raise ValueError("The arguments are not a JSON object.")


def _as_object(value: object) -> dict[str, Any] | None:
    """Return the arguments that a value contains: null and an empty list are none."""
    if len(entries := sequence(value)) == 1:
        value = entries[0]
    if value is None or value == []:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def serialize_arguments(arguments: object) -> str:
    """Return arguments as the text that a server should have sent. None is empty."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(clean(arguments))
    except ValueError as error:
        return f"({error})"


def find_name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and the arguments of a call, in a member `function` or in the call itself.

    The name is empty if there is none, and the arguments are None.
    """
    function = mapping(call.get("function")) or call
    names = (*(function.get(member) for member in NAMES), call.get("function"))
    name = next((each for each in names if isinstance(each, str) and each), "")
    return name, next((function[member] for member in ARGUMENTS if member in function), None)


def make_unreadable_call(problem: str) -> ToolCall:
    """Return a call of which not even the name is known."""
    return ToolCall(id=_make_id(), name="", arguments={}, problem=problem)


def assign_distinct_ids(calls: Iterable[ToolCall]) -> Iterator[ToolCall]:
    """Yield the calls. One that has the id of an earlier call gets another id.

    The same calls get the same ids each time.
    """
    used: set[str] = set()
    counts: dict[str, int] = {}
    for call in calls:
        call_id = call.id
        while call_id in used:
            count = counts[call.id] = counts.get(call.id, 1) + 1
            call_id = sha256(f"{call.id} {count}".encode()).hexdigest()[:_ID_CHARACTERS]
        used.add(call_id)
        yield call if call_id == call.id else replace(call, id=call_id)


def make_ids_distinct(rounds: Sequence[ToolRound]) -> list[ToolRound]:
    """Return the rounds of a prompt with one id for each call.

    Servers refuse a prompt in which two calls have one id, even if they sent it themselves. A call
    has the same id in every prompt that begins with the same rounds, because providers that keep
    a prompt compare it.
    """
    calls = assign_distinct_ids(call for each in rounds for call in each.calls)
    return [replace(each, calls=[next(calls) for _ in each.calls]) for each in rounds]


def _make_id() -> str:
    return uuid4().hex[:_ID_CHARACTERS]
