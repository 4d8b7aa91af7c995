"""Tool calls as models and servers write them: their names, their arguments, and their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar, cast
from uuid import uuid4

import msgspec

from backend.generation.json_text import clean, clean_text, find_values, mapping, sequence
from backend.generation.model import Tool, ToolCall, ToolRound

T = TypeVar("T", bound=msgspec.Struct)

_NOTHING = frozenset({"none", "null"})
"""Words for an absent value."""

_KEPT = ("description", "type", "enum", "minimum", "maximum", "minItems", "maxItems", "required")


class InvalidCallError(Exception):
    """The model called something that there is not, or with wrong arguments; says what is wrong."""


def tool_of(name: str, arguments: type[msgspec.Struct]) -> Tool:
    schema = plain_schema(arguments)
    return Tool(name, schema.pop("description"), schema)


def plain_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A JSON Schema that every provider takes: no references, no alternatives, no lengths of text.

    What is left out of it is validated all the same.
    """
    schema = msgspec.json.schema(kind)
    return _plain(schema, schema.get("$defs", {}))


def describe_tools(tools: Sequence[Tool]) -> str:
    """Return the tools with their JSON Schemas as a text for the prompt."""
    return "\n".join(
        f"- {tool.name}: {tool.description}\n  arguments: {to_json(dict(tool.parameters))}"
        for tool in tools
    )


def to_json(value: object) -> str:
    """Return JSON as a model reads it best: with the letters of every script as they are."""
    return json.dumps(value, ensure_ascii=False)


def read_arguments(arguments: Mapping[str, Any], wanted: type[T], schema: Mapping[str, Any]) -> T:
    """A call's arguments, validated; `schema` is the struct's `plain_schema`.

    Members that hold nothing are absent. Raises `InvalidCallError`.
    """
    return converted(_given(arguments, schema), wanted)


def converted(given: Mapping[str, Any], wanted: type[T]) -> T:
    """A value as a struct. Raises `InvalidCallError`."""
    try:
        return msgspec.convert(given, wanted)
    except msgspec.ValidationError as error:
        raise InvalidCallError(f"{error}.") from None


def _given(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they were meant: small models are not that strict about types."""
    members, required = schema["properties"], schema.get("required", ())
    return {
        name: _meant(value, members[name]) if name in members else value
        for name, value in arguments.items()
        if value is not None
        and (name in required or name not in members or not _is_nothing(value, members[name]))
    }


def _is_nothing(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value says that there is none. A text may be empty: that takes one away."""
    if not isinstance(value, str):
        return value is None
    word, is_text = value.strip().casefold(), schema["type"] == "string" and "enum" not in schema
    return word in _NOTHING or not (word or is_text)


def _meant(value: Any, schema: Mapping[str, Any]) -> Any:
    """12 as "12" and "Mara" as ["Mara"], where that is wanted, and 3.0 as 3."""
    if schema["type"] == "array":
        items = schema["items"]
        many = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
        return [_meant(each, items) for each in many if each != "" and not _is_nothing(each, items)]
    if schema["type"] == "object" and isinstance(value, dict) and "properties" in schema:
        return _given(cast("dict[str, Any]", value), schema)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if schema["type"] == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return cast("Any", value)


def _plain(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    if reference := schema.get("$ref"):
        return {**_plain(defs[reference.rsplit("/", 1)[-1]], defs), **_described(schema)}
    if options := schema.get("anyOf"):
        # Absent and null are the same here, so of `X | None` only X is left.
        (one,) = (option for option in options if option.get("type") != "null")
        return {**_plain(one, defs), **_described(schema)}
    plain: dict[str, Any] = {name: schema[name] for name in _KEPT if name in schema}
    if "enum" in schema:
        plain["type"] = "string"
    if plain.get("required") == []:
        del plain["required"]
    if "items" in schema:
        plain["items"] = _plain(schema["items"], defs)
    if plain.get("type") == "object":
        properties = schema.get("properties", {})
        plain["properties"] = {name: _plain(each, defs) for name, each in properties.items()}
    return plain


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": schema["description"]} if "description" in schema else {}


MAX_CALLS = 64
"""Calls of one reply. Further calls are ignored."""

MAX_ARGUMENTS = 65_536
"""Characters of one call's arguments."""

TOO_LONG = f"The arguments are longer than {MAX_ARGUMENTS} characters."

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
            id=(clean_text(call_id) if not place else "") or _new_id(),
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
            raise ValueError(TOO_LONG)
        values = _decode(arguments)
    else:
        values = [clean(arguments)]
        if len(json.dumps(values[0], ensure_ascii=False)) > MAX_ARGUMENTS:
            raise ValueError(TOO_LONG)
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


def arguments_text(arguments: object) -> str:
    """Return arguments as the text that a server should have sent. None is empty."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(clean(arguments))
    except ValueError as error:
        return f"({error})"


def name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and the arguments of a call, in a member `function` or in the call itself.

    The name is empty if there is none, and the arguments are None.
    """
    function = mapping(call.get("function")) or call
    names = (*(function.get(member) for member in NAMES), call.get("function"))
    name = next((each for each in names if isinstance(each, str) and each), "")
    return name, next((function[member] for member in ARGUMENTS if member in function), None)


def unreadable_call(problem: str) -> ToolCall:
    """Return a call of which not even the name is known."""
    return ToolCall(id=_new_id(), name="", arguments={}, problem=problem)


def distinct_ids(calls: Iterable[ToolCall]) -> Iterator[ToolCall]:
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


def with_distinct_ids(rounds: Sequence[ToolRound]) -> list[ToolRound]:
    """Return the rounds of a prompt with one id for each call.

    Servers refuse a prompt in which two calls have one id, even if they sent it themselves. A call
    has the same id in every prompt that begins with the same rounds, because providers that keep
    a prompt compare it.
    """
    calls = distinct_ids(call for each in rounds for call in each.calls)
    return [replace(each, calls=[next(calls) for _ in each.calls]) for each in rounds]


def _new_id() -> str:
    return uuid4().hex[:_ID_CHARACTERS]
