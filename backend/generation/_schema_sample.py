"""A made-up value of a JSON Schema: the same schema always gives the same value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from backend.generation._failures import mapping, sequence

_USUAL_ITEMS = 3
_DEEPEST = 8


def sample(schema: Mapping[str, Any], texts: Sequence[str]) -> Any:
    """A value of `schema`, whose free strings are `texts` in turn.

    Follows `$ref`, `const`, `enum`, types, lengths and bounds, and the first alternative that is
    not null; patterns and formats are not followed. Lists get three items where the schema leaves
    it open, booleans are false. Schemas that contain themselves end at a depth of 8.
    """
    return _Sampler(schema, texts).value(schema, 0)


class _Sampler:
    def __init__(self, root: Mapping[str, Any], texts: Sequence[str]) -> None:
        self._root = root
        self._texts: Iterator[str] = cycle(texts)
        self._makers: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": lambda schema, _: math.ceil(_number(schema)),
            "number": lambda schema, _: _number(schema),
            "boolean": lambda _schema, _: False,
            "null": lambda _schema, _: None,
        }

    def value(self, schema: Mapping[str, Any], depth: int) -> Any:
        schema = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if options := sequence(schema.get("enum")):
            return options[0]
        return self._makers[_type_of(schema)](schema, depth)

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `$ref` and alternatives come down to."""
        for _ in range(_DEEPEST):
            if isinstance(reference := schema.get("$ref"), str):
                schema = self._target(reference)
            elif options := _alternatives(schema):
                schema = next((one for one in options if one.get("type") != "null"), options[0])
            else:
                break
        return schema

    def _target(self, reference: str) -> Mapping[str, Any]:
        found = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            found = mapping(found.get(name))
        return found

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = sequence(schema.get("required"))
        return {
            name: self.value(mapping(member), depth + 1)
            for name, member in mapping(schema.get("properties")).items()
            if depth < _DEEPEST or name in required
        }

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        wanted = max(least, _USUAL_ITEMS) if depth < _DEEPEST else least
        count = min(wanted, schema.get("maxItems", wanted))
        return [self.value(mapping(schema.get("items")), depth + 1) for _ in range(count)]

    def _string(self, schema: Mapping[str, Any], _depth: int) -> str:
        padded = next(self._texts).ljust(schema.get("minLength", 0), ".")
        return padded[: schema.get("maxLength")]


def _alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for name in ("anyOf", "oneOf", "allOf"):
        if options := sequence(schema.get(name)):
            return [mapping(option) for option in options]
    return []


def _type_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    for one in sequence(kind):
        if one != "null":
            return str(one)
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else "string"


def _number(schema: Mapping[str, Any]) -> float:
    """The least number allowed; where there is no least, zero or the next below the greatest."""
    if "minimum" in schema:
        return float(schema["minimum"])
    if "exclusiveMinimum" in schema:
        return float(schema["exclusiveMinimum"]) + 1
    greatest = float(schema.get("maximum", schema.get("exclusiveMaximum", math.inf)))
    return 0.0 if greatest > 0 else greatest - 1
