"""Dice that the server rolls from a stored seed: with the seed, a roll can be repeated."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Literal

from backend.errors import ValidationError

DiceMode = Literal["pool", "srd"]
Tier = Literal["critical", "success", "partial", "bad"]
TIERS: tuple[Tier, ...] = ("critical", "success", "partial", "bad")

SEED_BYTES = 16
MAX_DICE = 20
MAX_SIDES = 100

_NOTATION = re.compile(r"(\d{0,2})d(\d{1,3})([+-]\d{1,3})?", re.ASCII)


def new_seed() -> str:
    """A seed of 128 bits, as hexadecimal digits."""
    return secrets.token_hex(SEED_BYTES)


def roll(seed: str, first: int, count: int, *, sides: int = 6) -> list[int]:
    """The dice number `first` to `first + count - 1` that a seed comes to, each 1 to `sides`.

    Every die is an HMAC-SHA256 of its number under the seed. A value that would favour low sides
    is drawn again.
    """
    return [_die(bytes.fromhex(seed), number, sides) for number in range(first, first + count)]


def tier_of(die: int) -> Tier:
    """What a die of six sides comes to."""
    if die == 6:  # noqa: PLR2004  # the faces of a die
        return "critical"
    if die >= 4:  # noqa: PLR2004
        return "success"
    return "partial" if die >= 2 else "bad"  # noqa: PLR2004


def srd_tier(dice: Sequence[int], *, none: bool = False) -> tuple[int, Tier]:
    """The die of a roll that counts, and what it comes to: two sixes are critical.

    The highest counts; with `none`, a roll of no dice, the lowest of the two that stand for it,
    and that is never critical.
    """
    if none:
        die = min(dice)
        return die, "success" if die == 6 else srd_tier([die])[1]  # noqa: PLR2004
    die = max(dice)
    if die == 6:  # noqa: PLR2004
        return die, "critical" if list(dice).count(6) > 1 else "success"
    return die, "partial" if die >= 4 else "bad"  # noqa: PLR2004


def parse_notation(text: str) -> tuple[int, int, int]:
    """Dice such as `2d6+3`: their count, their sides, and what is added.

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
