"""Variables while a field is expanded, and how numbers in them are counted up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

# So short that a sum of two is exact in Decimal's 28 digits. Anything longer is text.
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,10})?", re.ASCII)


@dataclass(slots=True)
class Draft:
    """Variables that can be written; what was handed in stays as it was."""

    given: Mapping[str, str]
    written: dict[str, str] = field(default_factory=dict[str, str])

    def read(self, name: str) -> str:
        """The value; empty where there is none."""
        return self.written.get(name, self.given.get(name, ""))

    def write(self, name: str, value: str) -> None:
        """Set the value."""
        self.written[name] = value

    def result(self) -> Mapping[str, str]:
        """The variables now: what was handed in, where nothing was written."""
        return {**self.given, **self.written} if self.written else self.given


def added(value: str, more: str) -> str:
    """The sum of two numbers (nothing counts as 0), else one text after the other."""
    left, right = _number(value), _number(more)
    return value + more if left is None or right is None else _written(left + right)


def counted(value: str, step: int) -> str:
    """The number `step` further on; what is no number counts as 0."""
    return _written((_number(value) or Decimal(0)) + step)


def _number(text: str) -> Decimal | None:
    text = text.strip() or "0"
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _written(number: Decimal) -> str:
    """Without an exponent, and without noughts after the point."""
    return format(number.normalize(), "f")
