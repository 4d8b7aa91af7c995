"""Attributes that rules count with: read, checked and named by their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from backend.campaigns.ledger.changes import State
from backend.errors import ValidationError


def attributes_of(state: State) -> State:
    """The attributes of an item."""
    return state.get("attributes") or {}


def number(state: State, name: str, otherwise: int = 0) -> int:
    """An attribute that is a whole number; `otherwise` where it is none."""
    value = attributes_of(state).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def sequence(value: object) -> Sequence[Any]:
    """A list as it is; anything else as an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def members(value: object) -> Mapping[str, Any]:
    """An object as it is; anything else as an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def texts(state: State, name: str) -> list[str]:
    """An attribute that is a list, its texts; empty where it is none."""
    return [one for one in sequence(attributes_of(state).get(name)) if isinstance(one, str)]


def check_number(before: State, after: State, name: str, least: int, most: int) -> None:
    """Raise `ValidationError` where an attribute becomes what is no whole number of a range.

    What it was before may stay: other rules may have allowed it.
    """
    value = attributes_of(after).get(name)
    if value is None or value == attributes_of(before).get(name):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValidationError(f"`attributes.{name}` must be a whole number from {least} to {most}.")


def check_numbers(before: State, after: State, name: str, least: int, most: int) -> None:
    """Raise `ValidationError` where an attribute becomes no object of whole numbers of a range."""
    value: Any = attributes_of(after).get(name)
    if value is None or value == attributes_of(before).get(name):
        return
    is_object = isinstance(value, dict)
    held = members(value).values()
    if not is_object or any(not isinstance(one, int) or not least <= one <= most for one in held):
        raise ValidationError(f"`attributes.{name}` must be whole numbers from {least} to {most}.")


def check_texts(before: State, after: State, name: str) -> None:
    """Raise `ValidationError` where an attribute becomes what is no list of texts."""
    value: Any = attributes_of(after).get(name)
    if value is None or value == attributes_of(before).get(name):
        return
    if not isinstance(value, list) or any(
        not isinstance(one, str) for one in sequence(cast("object", value))
    ):
        raise ValidationError(f"`attributes.{name}` must be a list of texts.")
