"""JSON that models wrote: nested without end, perhaps, and with halves of characters in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

MAX_DEPTH = 64
"""Objects and lists within each other: deeper ones are no answer to anything that is asked."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_json(text: str) -> Any:
    """The value of a JSON text, as `clean` leaves it. Raises `ValueError`."""
    try:
        return clean(json.loads(text))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def clean(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A value with U+FFFD for lone surrogates, which can neither be stored nor sent.

    Raises `ValueError` where it is nested more than `depth` deep.
    """
    if isinstance(value, str):
        return clean_text(value)
    if not isinstance(value, Mapping | list):
        return value
    if not depth:
        raise ValueError("the value is nested too deeply")
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {clean_text(name): clean(each, depth - 1) for name, each in members.items()}
    return [clean(each, depth - 1) for each in cast("Sequence[Any]", value)]


def clean_text(text: str) -> str:
    """A text with U+FFFD for lone surrogates."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def mapping(value: object) -> Mapping[str, Any]:
    """`value` where it is a JSON object, else an empty one: for bodies of any shape."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """`value` where it is a JSON array, else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()
