from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from backend.generation._schema_sample import sample

TEXTS = ("One.", "Two.", "Three.", "Four.")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "One."),
        ({"type": "string", "minLength": 6}, "One..."),
        ({"type": "string", "maxLength": 2}, "On"),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "integer", "minimum": 1, "maximum": 5}, 1),
        ({"type": "integer", "exclusiveMinimum": 1}, 2),
        ({"type": "number", "maximum": -2}, -3),
        ({"type": "number"}, 0),
        ({"const": 7}, 7),
        ({"enum": ["b", "a"]}, "b"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 0),
        ({"type": ["null", "boolean"]}, False),
        ({"type": "array", "items": {"type": "string"}}, ["One.", "Two.", "Three."]),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 1}, [False]),
        ({"type": "array", "items": {"type": "null"}, "minItems": 4}, [None] * 4),
        ({"properties": {"a": {"type": "boolean"}}}, {"a": False}),
        ({}, "One."),
    ],
)
def test_a_value_fits_its_schema(schema: dict[str, Any], value: Any) -> None:
    assert sample(schema, TEXTS) == value


class Event(msgspec.Struct):
    summary: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    kind: Literal["decision", "meeting"]
    significance: Annotated[int, msgspec.Meta(ge=1, le=5)]
    who: list[str]
    where: str | None = None
    weight: float = 0.5
    after: Event | None = None


class Events(msgspec.Struct):
    events: Annotated[list[Event], msgspec.Meta(min_length=1, max_length=2)]
    significant: bool


def test_a_schema_of_our_own_types_gives_a_value_of_them() -> None:
    value = sample(msgspec.json.schema(Events), TEXTS)

    assert len(msgspec.convert(value, Events).events) == 2


def test_the_same_schema_gives_the_same_value() -> None:
    schema = msgspec.json.schema(Events)

    assert sample(schema, TEXTS) == sample(schema, TEXTS)
