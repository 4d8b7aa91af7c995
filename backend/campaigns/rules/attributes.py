"""Helpers for rule systems: read and check attributes by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from backend.campaigns.ledger.changes import State
from backend.errors import ValidationError


def get_attributes(state: State) -> State:
    """Return the attributes of an item."""
    return state.get("attributes") or {}


def get_number(state: State, name: str, otherwise: int = 0) -> int:
    """Return an attribute that is a whole number, else `otherwise`."""
    value = get_attributes(state).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def read_list(value: object) -> Sequence[Any]:
    """Return a list unchanged, and an empty one for other values."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def read_mapping(value: object) -> Mapping[str, Any]:
    """Return a dictionary unchanged, and an empty one for other values."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def get_texts(state: State, name: str) -> list[str]:
    """Return the texts of an attribute that is a list, else an empty list."""
    return [one for one in read_list(get_attributes(state).get(name)) if isinstance(one, str)]


def check_number(before: State, after: State, name: str, least: int, most: int) -> None:
    """Raise `ValidationError` if an attribute changes to something else than a number of a range.

    An invalid old value may stay, because other rules may have allowed it.
    """
    value = get_attributes(after).get(name)
    if value is None or value == get_attributes(before).get(name):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValidationError(f"`attributes.{name}` must be a whole number from {least} to {most}.")


def check_numbers(before: State, after: State, name: str, least: int, most: int) -> None:
    """Raise `ValidationError` if an attribute changes to an invalid object of whole numbers."""
    value: Any = get_attributes(after).get(name)
    if value is None or value == get_attributes(before).get(name):
        return
    is_object = isinstance(value, dict)
    held = read_mapping(value).values()
    if not is_object or any(not isinstance(one, int) or not least <= one <= most for one in held):
        raise ValidationError(f"`attributes.{name}` are whole numbers from {least} to {most}.")


def check_texts(before: State, after: State, name: str) -> None:
    """Raise `ValidationError` if an attribute changes to something else than a list of texts."""
    value: Any = get_attributes(after).get(name)
    if value is None or value == get_attributes(before).get(name):
        return
    if not isinstance(value, list) or any(
        not isinstance(one, str) for one in read_list(cast("object", value))
    ):
        raise ValidationError(f"`attributes.{name}` is a list of texts.")
