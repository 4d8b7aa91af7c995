"""Dice formulas, and draws that come out the same for the same key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import shake_256
from struct import unpack
from typing import Final

# Longer numbers are no dice formula. Those within are checked against the limits by who rolls.
_FORMULA: Final = re.compile(
    r"(?:(?P<dice>\d{0,9})d)?(?P<sides>\d{1,9})\s*(?P<plus>[+-]\s*\d{1,9})?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Roll:
    """`dice` dice of `sides` sides each (at least 1), and a number added to their sum."""

    dice: int
    sides: int
    plus: int


def parse_roll(formula: str) -> Roll | None:
    """Read `2d6+1`, `d20`, or `20` for one die of 20 sides; None for anything else."""
    found = _FORMULA.fullmatch(formula.strip())
    if found is None or int(found["sides"]) == 0:
        return None
    plus = "".join((found["plus"] or "0").split())
    return Roll(dice=int(found["dice"] or 1), sides=int(found["sides"]), plus=int(plus))


def draw(key: tuple[object, ...], *, choices: int, count: int) -> list[int]:
    """`count` numbers from 0 to `choices` - 1, a function of `key` alone.

    A hash and not `random.Random`, whose draws may change between Python versions: what was picked
    for a chat has to stay. Of 2**64 values, the modulo favours none by more than
    `choices` / 2**64.
    """
    name = "\x1f".join(str(part) for part in key).encode("utf-8", "surrogatepass")
    stream = shake_256(name).digest(8 * count)
    return [number % choices for number in unpack(f">{count}Q", stream)]
