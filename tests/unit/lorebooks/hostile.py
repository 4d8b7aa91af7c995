"""Regexes that were made to take for ever, and texts on which they do."""

from __future__ import annotations

import random
from collections.abc import Iterator

TEXTS = (
    "a" * 3_000 + "!",
    "ab" * 1_500 + "c",
    "x " * 1_500,
    "0" * 200 + "1" * 200 + "\n" + "aA1_" * 600,
    "<" * 2_000 + "é" * 500,
)
_ATOMS = ("a", ".", r"\w", r"\s", "[a-z]", "[^b]", "(?:a|aa)", "(a|b|ab)", r"(\w+\s?)", "a?", "ab?")
_REPEATS = ("*", "+", "{2,}", "{0,30}", "{1,200}", "*?", "+?", "{1000}", "{0,1000}")
_TAILS = ("$", "!", "b", r"\1", "(?=z)", "(?!a)", "(?<=z)", "(?<!a)z", r"\b", "c$", r"(?=\1)")


def hostile_patterns(count: int, seed: int) -> Iterator[str]:
    """So many sources of patterns, most of them valid; the same for the same seed."""
    draw = random.Random(seed)
    kinds = (_nested, _alternated, _huge, _looking_behind, _referring, _noise)
    for _ in range(count):
        yield draw.choice(kinds)(draw)


def _nested(draw: random.Random) -> str:
    pattern = draw.choice(_ATOMS)
    for _ in range(draw.randint(2, 5)):
        pattern = f"({pattern}{draw.choice(_REPEATS)})"
    return f"{pattern}{draw.choice(_REPEATS[:3])}{draw.choice(_TAILS)}"


def _alternated(draw: random.Random) -> str:
    parts = ["a" * draw.randint(1, 9) + draw.choice(["", ".*", "?", "+"]) for _ in range(60)]
    return f"(?:{'|'.join(parts)})+{draw.choice(_TAILS)}"


def _huge(draw: random.Random) -> str:
    pattern = draw.choice(_ATOMS)
    for _ in range(draw.randint(1, 5)):
        pattern = f"(?:{pattern}){{{draw.randint(0, 9)},{draw.randint(10, 3_000)}}}"
    return draw.choice(("", "(?=a)", "^", ".*")) + pattern + draw.choice(_TAILS)


def _looking_behind(draw: random.Random) -> str:
    inner = "".join(draw.choice(_ATOMS) + draw.choice(_REPEATS) for _ in range(3))
    return f"(?<={inner}){draw.choice(_ATOMS)}(?<!{inner}){draw.choice(_TAILS)}"


def _referring(draw: random.Random) -> str:
    groups = draw.randint(1, 6)
    head = "".join(f"({draw.choice(_ATOMS)}{draw.choice(_REPEATS)})" for _ in range(groups))
    return head + "".join(rf"\{draw.randint(1, groups)}" for _ in range(3)) + draw.choice(_TAILS)


def _noise(draw: random.Random) -> str:
    signs = r"ab.*+?()[]{}|^$\1d,9<=!:"
    return "".join(draw.choice(signs) for _ in range(draw.randint(3, 60)))
