"""Values of variables: numbers and lists in them, and what counts as true."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import msgspec

# So short that a sum of two is exact in Decimal's 28 digits. Anything longer is text.
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,10})?", re.ASCII)

_FALSE: Final = frozenset({"", "0", "false", "off"})


def is_true(value: str) -> bool:
    """Whether a condition holds."""
    return value.strip().lower() not in _FALSE


def shown(value: str) -> str:
    """A value as it is read: a number in its plain form (`01` is `1`)."""
    number = _number(value) if value.strip() else None
    return value if number is None else _written(number)


def added(value: str, more: str) -> str:
    """A list with one item more, the sum of two numbers, else one text after the other.

    A list is a text that holds a JSON array. Nothing counts as 0 beside a number.
    """
    if (items := _list(value)) is not None:
        return msgspec.json.encode([*items, more]).decode()
    left, right = _number(value), _number(more)
    return value + more if left is None or right is None else _written(left + right)


def subtracted(value: str, less: str) -> str:
    """The difference of two numbers; what is no number counts as 0."""
    return _written((_number(value) or Decimal(0)) - (_number(less) or Decimal(0)))


def counted(value: str, step: int) -> str:
    """The number `step` further on; what is no number counts as 0."""
    return _written((_number(value) or Decimal(0)) + step)


def compared(left: str, right: str) -> int:
    """-1, 0 or 1: as numbers where both are numbers, else as texts."""
    one, two = _number(left), _number(right)
    if one is not None and two is not None:
        return (one > two) - (one < two)
    return (left > right) - (left < right)


def _list(value: str) -> list[object] | None:
    if not value.startswith("["):
        return None
    try:
        return msgspec.json.decode(value, type=list[object])
    except (msgspec.DecodeError, RecursionError):
        return None


def _number(text: str) -> Decimal | None:
    text = text.strip() or "0"
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _written(number: Decimal) -> str:
    """Without an exponent, and without noughts after the point."""
    return format(number.normalize(), "f")
