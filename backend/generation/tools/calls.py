"""Tool calls: schemas for models, and lenient reading of names, arguments and ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar, cast
from uuid import uuid4

import msgspec
from msgspec import structs

from backend.generation.json_text import clean, clean_text, find_values, mapping, sequence
from backend.generation.model import Prompt, PromptMessage, Tool, ToolCall, ToolRound

T = TypeVar("T", bound=msgspec.Struct)

_ABSENT_WORDS = frozenset({"none", "null"})
"""Words that models write for an absent value."""

_SCHEMA_MEMBERS = (
    "description",
    "type",
    "enum",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "required",
)


class InvalidCallError(Exception):
    """A call of an unknown tool or with invalid arguments. The message is for the model."""


def make_tool(name: str, arguments: type[msgspec.Struct]) -> Tool:
    schema = simplify_schema(arguments)
    return Tool(name, schema.pop("description"), schema)


def simplify_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a JSON Schema without references, alternatives and text lengths.

    All providers accept it. The omitted rules are still validated.
    """
    schema = msgspec.json.schema(kind)
    return _simplify(schema, schema.get("$defs", {}))


def describe_tools(tools: Sequence[Tool]) -> str:
    """Render tools and their JSON Schemas as a text for the prompt."""
    return "\n".join(
        f"- {tool.name}: {tool.description}\n  arguments: {to_json(dict(tool.parameters))}"
        for tool in tools
    )


def to_json(value: object) -> str:
    """Return JSON without escapes of letters, because models read it better."""
    return json.dumps(value, ensure_ascii=False)


def read_arguments(arguments: Mapping[str, Any], wanted: type[T], schema: Mapping[str, Any]) -> T:
    """Validate a call's arguments. Raises `InvalidCallError`.

    `schema` is the result of `simplify_schema(wanted)`. Members without a value are removed.
    """
    return convert_arguments(_correct_arguments(arguments, schema), wanted)


def convert_arguments(given: Mapping[str, Any], wanted: type[T]) -> T:
    """Convert arguments to a struct. Raises `InvalidCallError`."""
    try:
        return msgspec.convert(given, wanted)
    except msgspec.ValidationError as error:
        raise InvalidCallError(f"{error}.") from None


def _correct_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Correct the types of arguments, because small models often confuse them."""
    members, required = schema["properties"], schema.get("required", ())
    return {
        name: _correct_value(value, members[name]) if name in members else value
        for name, value in arguments.items()
        if value is not None
        and (name in required or name not in members or not _means_absent(value, members[name]))
    }


def _means_absent(value: Any, schema: Mapping[str, Any]) -> bool:
    """True if a value means "none". An empty text is a value, because it removes a text."""
    if not isinstance(value, str):
        return value is None
    word, is_text = value.strip().casefold(), schema["type"] == "string" and "enum" not in schema
    return word in _ABSENT_WORDS or not (word or is_text)


def _correct_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert 12 to "12", "Mara" to ["Mara"] and 3.0 to 3 if the schema requires it."""
    if schema["type"] == "array":
        items = schema["items"]
        many = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
        return [
            _correct_value(each, items)
            for each in many
            if each != "" and not _means_absent(each, items)
        ]
    if schema["type"] == "object" and isinstance(value, dict) and "properties" in schema:
        return _correct_arguments(cast("dict[str, Any]", value), schema)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if schema["type"] == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return cast("Any", value)


def _simplify(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    if reference := schema.get("$ref"):
        return {**_simplify(defs[reference.rsplit("/", 1)[-1]], defs), **_copy_description(schema)}
    if options := schema.get("anyOf"):
        # `X | None` becomes X, because absent and null are the same here.
        (one,) = (option for option in options if option.get("type") != "null")
        return {**_simplify(one, defs), **_copy_description(schema)}
    plain: dict[str, Any] = {name: schema[name] for name in _SCHEMA_MEMBERS if name in schema}
    if "enum" in schema:
        plain["type"] = "string"
    if plain.get("required") == []:
        del plain["required"]
    if "items" in schema:
        plain["items"] = _simplify(schema["items"], defs)
    if plain.get("type") == "object":
        properties = schema.get("properties", {})
        plain["properties"] = {name: _simplify(each, defs) for name, each in properties.items()}
    return plain


def _copy_description(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": schema["description"]} if "description" in schema else {}


MAX_CALLS = 64
"""Maximum number of calls in one reply. Further calls are ignored."""

MAX_ARGUMENTS = 65_536
"""Maximum number of characters of one call's arguments."""

TOO_LONG_PROBLEM = f"The arguments are longer than {MAX_ARGUMENTS} characters."

ARGUMENTS = ("arguments", "parameters", "args", "input")
"""Members of a call that contain its arguments, the usual one first."""

NAMES = ("name", "tool")
"""Members of a call that contain its name, the usual one first."""

_MAX_ENCODINGS = 3
"""Maximum nesting of JSON texts in JSON texts."""

_ID_CHARACTERS = 9
"""Length of a generated id. Mistral's servers accept no other.
Source: https://github.com/mistralai/mistral-common, protocol/instruct/validator.py"""


def read_calls(
    name: str, arguments: object, *, call_id: str = "", vendor_state: Any = None
) -> list[ToolCall]:
    """Return the call of a tool, or several calls that a server has joined into one.

    If the arguments cannot be read, the first call has a `problem`.

    Args:
        name: The name that the model wrote.
        arguments: JSON, as text or parsed. A text may be empty, in a code fence, encoded twice,
            between other words, or almost JSON (see `find_values`). Each of several objects is a
            call, unless it is empty or equals the one before.
        call_id: The vendor's id; "" generates one.
        vendor_state: See `ToolCall`. Added to the first call.
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
    """Return the value as arguments. Null and an empty list are no arguments."""
    if len(entries := sequence(value)) == 1:
        value = entries[0]
    if value is None or value == []:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def serialize_arguments(arguments: object) -> str:
    """Return arguments as text, which some servers send parsed. None becomes ""."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(clean(arguments))
    except ValueError as error:
        return f"({error})"


def find_name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and arguments in a call or in its member `function`; else "" and None."""
    function = mapping(call.get("function")) or call
    names = (*(function.get(member) for member in NAMES), call.get("function"))
    name = next((each for each in names if isinstance(each, str) and each), "")
    return name, next((function[member] for member in ARGUMENTS if member in function), None)


def make_unreadable_call(problem: str) -> ToolCall:
    return ToolCall(id=_make_id(), name="", arguments={}, problem=problem)


def assign_distinct_ids(calls: Iterable[ToolCall]) -> Iterator[ToolCall]:
    """Yield the calls, and replace ids that an earlier call has. The result is deterministic."""
    used: set[str] = set()
    counts: dict[str, int] = {}
    for call in calls:
        call_id = call.id
        while call_id in used:
            count = counts[call.id] = counts.get(call.id, 1) + 1
            call_id = sha256(f"{call.id} {count}".encode()).hexdigest()[:_ID_CHARACTERS]
        used.add(call_id)
        yield call if call_id == call.id else replace(call, id=call_id)


def list_messages(prompt: Prompt) -> list[PromptMessage]:
    """Return the messages of a prompt, and then its rounds as messages.

    Each call has its own id, because servers refuse duplicates, even their own. The ids are stable
    if rounds are appended, so that providers can cache the prompt.
    """
    messages = [*prompt.messages, *map(build_round_message, prompt.rounds)]
    calls = assign_distinct_ids(call for each in messages for call in each.calls)
    return [
        structs.replace(each, calls=tuple(next(calls) for _ in each.calls)) if each.calls else each
        for each in messages
    ]


def build_round_message(tool_round: ToolRound) -> PromptMessage:
    return PromptMessage(
        "assistant",
        tool_round.text,
        calls=tuple(tool_round.calls),
        results=tuple(tool_round.results),
    )


def pair_results(message: PromptMessage) -> Iterator[tuple[ToolCall, Any]]:
    """Yield each call of a message with its result."""
    return zip(message.calls, message.results, strict=True)


def render_result(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _make_id() -> str:
    return uuid4().hex[:_ID_CHARACTERS]
