"""Values of JSON Schemas and calls of clients' tools, for the demo model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.generation.json_text import mapping, sequence
from backend.generation.model import Tool, ToolCall, ToolChoice

_MAX_DEPTH = 8
"""Maximum nesting of a value. Deeper parts are empty."""

_MAX_MEMBERS = 100
"""Maximum number of members of an object."""


_SIMPLE_VALUES: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": True, "null": None}


def build_value(schema: Mapping[str, Any], text: str, *, depth: int = 0) -> Any:
    """Return the simplest value of a schema. Its texts are `text`."""
    fixed = [schema["const"]] if "const" in schema else sequence(schema.get("enum"))
    if fixed:
        return fixed[0]
    options = sequence(schema.get("anyOf")) or sequence(schema.get("oneOf"))
    if options and depth < _MAX_DEPTH:
        return build_value(mapping(options[0]), text, depth=depth + 1)
    kind = _find_kind(schema)
    if kind in {"object", "array"}:
        return _build_container(kind, schema, text, depth + 1)
    return _SIMPLE_VALUES.get(kind, text)


def _find_kind(schema: Mapping[str, Any]) -> str:
    kinds = [schema.get("type"), *sequence(schema.get("type"))]
    default = "object" if "properties" in schema else "string"
    return next((kind for kind in kinds if isinstance(kind, str)), default)


def _build_container(kind: str, schema: Mapping[str, Any], text: str, depth: int) -> Any:
    members, items = mapping(schema.get("properties")), mapping(schema.get("items"))
    if kind == "array":
        return [build_value(items, text, depth=depth)] if items and depth < _MAX_DEPTH else []
    names = list(members)[:_MAX_MEMBERS] if depth < _MAX_DEPTH else ()
    return {name: build_value(mapping(members[name]), text, depth=depth) for name in names}


def choose_client_calls(
    tools: Sequence[Tool], choice: ToolChoice, line: str, *, is_asked: bool
) -> list[ToolCall]:
    """Return a call of the chosen tool if a call is required, or the user's line asks for one."""
    named = [tool for tool in tools if choice.mode != "named" or tool.name == choice.name]
    is_wanted = choice.mode in {"required", "named"} or (is_asked and choice.mode == "auto")
    if not (is_wanted and named):
        return []
    arguments = mapping(build_value({"type": "object", **named[0].parameters}, line))
    return [ToolCall(id=f"demo-{named[0].name}", name=named[0].name, arguments=arguments)]
