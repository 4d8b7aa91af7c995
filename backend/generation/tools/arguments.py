"""The arguments of tools as structs: the JSON Schemas that models get of them, and calls read back.

A struct's docstring and its members' descriptions are what the model reads of a tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from backend.generation.model import Tool

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
