"""A card's greetings: which there are, and how long they may be as messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from backend.characters.cards.model import Card, Limit

MAX_OPENING: Final = 1_000_000
"""Characters that the greetings of one chat may have together: ten of the longest messages."""

MAX_WARNINGS: Final = 10
"""Greetings that an import names one by one."""


def greetings_of(card: Card, *, is_group: bool) -> list[str]:
    """The greetings that a chat opens with, their macros not expanded; blank ones among them."""
    texts = [card.first_mes, *card.alternate_greetings]
    return [*texts, *card.group_only_greetings] if is_group else texts


def check_greetings(card: Card, *, known: Card | None = None, longest: int) -> None:
    """Raise `CardLimitError` for a greeting that no chat could open with.

    Those of `known` pass: an imported card stays editable. `longest` is a message's limit, in
    characters.
    """
    limit = Limit("greeting_characters", longest, "characters")
    before = frozenset(greetings_of(known, is_group=True)) if known else frozenset[str]()
    for name, text in _named(card):
        if text not in before:
            limit.check(len(text), name)


def greeting_warnings(card: Card, *, longest: int) -> list[str]:
    """Sentences about greetings that keep a chat from being opened, for the person who imports."""
    too_long = [(name, text) for name, text in _named(card) if len(text) > longest]
    warnings = [
        f"{name} has {len(text):,} characters; a message may have {longest:,}. "
        "Shorten it before you open a chat."
        for name, text in too_long[:MAX_WARNINGS]
    ]
    if (more := len(too_long) - MAX_WARNINGS) > 0:
        warnings.append(f"{more} more greetings are too long.")
    together = sum(map(len, greetings_of(card, is_group=True)))
    if together > MAX_OPENING:
        warnings.append(
            f"The greetings have {together:,} characters together; a chat opens with "
            f"{MAX_OPENING:,} at most. Shorten or delete some before you open a chat."
        )
    return warnings


def _named(card: Card) -> Iterator[tuple[str, str]]:
    """Each greeting, and where it is in the card."""
    yield "`first_mes`", card.first_mes
    for name, texts in (
        ("alternate_greetings", card.alternate_greetings),
        ("group_only_greetings", card.group_only_greetings),
    ):
        for number, text in enumerate(texts, start=1):
            yield f"`{name}` {number}", text
