"""Dice that the server rolls from a stored seed, so that a roll can be repeated."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Literal

from backend.errors import ValidationError

DiceMode = Literal["pool", "srd"]

SEED_BYTES = 16
MAX_DICE = 20
MAX_SIDES = 100

_NOTATION = re.compile(r"(\d{0,2})d(\d{1,3})([+-]\d{1,3})?", re.ASCII)


def new_seed() -> str:
    """Return a seed of 128 bits, as hexadecimal digits."""
    return secrets.token_hex(SEED_BYTES)


def roll(seed: str, first: int, count: int, *, sides: int = 6) -> list[int]:
    """Return the dice number `first` to `first + count - 1` of a seed, each 1 to `sides`.

    Every die is an HMAC-SHA256 of its number under the seed. Values that would favour low sides are
    drawn again.
    """
    return [_die(bytes.fromhex(seed), number, sides) for number in range(first, first + count)]


def parse_notation(text: str) -> tuple[int, int, int]:
    """Return the count, the sides and the added number of dice such as `2d6+3`.

    Raises `ValidationError`.
    """
    found = _NOTATION.fullmatch(text.replace(" ", "").lower()[:12])
    count, sides = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if found is None or not 1 <= count <= MAX_DICE or not 2 <= sides <= MAX_SIDES:  # noqa: PLR2004
        raise ValidationError(
            f"Write dice as 2d6+3: 1 to {MAX_DICE} dice with 2 to {MAX_SIDES} sides."
        )
    return count, sides, int(found[3] or 0)


def _die(seed: bytes, number: int, sides: int) -> int:
    fair = 2**32 - 2**32 % sides
    attempt = 0
    while True:
        digest = hmac.digest(seed, b"%d.%d" % (number, attempt), "sha256")
        if (value := int.from_bytes(digest[:4])) < fair:
            return value % sides + 1
        attempt += 1
