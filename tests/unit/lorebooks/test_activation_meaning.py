"""Entries that are found by what they are about: when that is enough, and what keeps them out."""

from __future__ import annotations

from typing import Any

import pytest

from backend.accounts.profile.settings import LoreMode
from backend.lorebooks.activation.outcome import ScanOutcome, SemanticHit
from backend.lorebooks.activation.timed import NO_EFFECTS
from backend.lorebooks.entries import CharacterFilter
from tests.unit.lorebooks.scans import book, entry, id_of, reasons, refusals, scanned, titles

MEANT = {"semantic": {id_of("It"): SemanticHit(0.6, 1)}, "by_meaning": True}
SAID = ["semantic 0.60, rank 1"]


def meant(line: str = "Rain.", **fields: Any) -> ScanOutcome:
    """A scan in which an entry of these fields was found by its meaning."""
    return scanned(book(entry("It", "inn", **fields)), line, **MEANT)


@pytest.mark.parametrize(
    ("mode", "by_key", "by_meaning", "by_both"),
    [
        ("keys", ['key "inn" in the line'], None, ['key "inn" in the line']),
        (
            "keys_and_meaning",
            ['key "inn" in the line'],
            SAID,
            [*SAID, 'key "inn" in the line'],
        ),
        ("meaning", None, SAID, SAID),
    ],
)
@pytest.mark.parametrize("who", ["entry", "book", "settings"])
def test_a_mode_says_how_entries_are_found(
    who: str,
    mode: LoreMode,
    by_key: list[str] | None,
    by_meaning: list[str] | None,
    by_both: list[str] | None,
) -> None:
    lore = book(
        entry("It", "inn", **({"mode": mode} if who == "entry" else {})),
        **({"mode": mode} if who == "book" else {}),
    )
    said = {"mode": mode} if who == "settings" else {}
    none = {**said, "by_meaning": True}
    assert reasons(scanned(lore, "The inn.", **none)).get("It") == by_key
    assert reasons(scanned(lore, "Rain.", **MEANT, **said)).get("It") == by_meaning
    assert reasons(scanned(lore, "The inn.", **MEANT, **said)).get("It") == by_both


@pytest.mark.parametrize("mode", ["keys", "keys_and_meaning", "meaning"])
def test_without_an_embedding_model_keys_count_in_every_mode_and_words_in_two(
    mode: LoreMode,
) -> None:
    lore = book(entry("It", "inn", mode=mode))
    worded = {"semantic": {id_of("It"): SemanticHit(0.6, 1, kind="words")}, "by_meaning": False}
    assert titles(scanned(lore, "The inn.")) == ["It"]
    assert titles(scanned(lore, "Rain.")) == []
    found = {} if mode == "keys" else {"It": ["words 0.60, rank 1"]}
    assert reasons(scanned(lore, "Rain.", **worded)) == found


def test_what_is_vectorized_is_found_by_its_meaning_whatever_its_book_says() -> None:
    lore = book(entry("It", "inn", vectorized=True), mode="keys")
    assert titles(scanned(lore, "Rain.", **MEANT)) == ["It"]
    assert titles(scanned(lore, "The inn.", by_meaning=True)) == ["It"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"secondary_keys": ["rain"], "logic": "not_any"}, "secondary keys"),
        ({"secondary_keys": ["rain"], "logic": "not_all"}, "secondary keys"),
        ({"triggers": ["continue"]}, "trigger"),
        ({"character_filter": CharacterFilter(names=["Nobody"])}, "character filter"),
        ({"delay": 99}, "delay, 89 messages to go"),
        ({"probability": 0}, "probability 0%"),
        ({"enabled": False}, "disabled"),
        ({"delay_until_recursion": 1}, "recursion, waits for level 1"),
        ({"content": "@@dont_activate\nIt."}, "decorator @@dont_activate"),
        ({"content": "@@exclude_keys rain\nIt."}, 'exclude key "rain"'),
    ],
)
def test_what_its_author_ruled_out_stays_out(fields: dict[str, Any], reason: str) -> None:
    assert refusals(meant(**fields)) == {"It": reason}


@pytest.mark.parametrize("logic", ["and_any", "and_all", "not_any", "not_all"])
def test_secondary_keys_that_exclude_nothing_now_do_not_matter(logic: str) -> None:
    assert titles(meant("Sun.", secondary_keys=["rain"], logic=logic)) == ["It"]


def test_a_cooldown_holds_for_it_too() -> None:
    lore = book(entry("It", "inn", cooldown=9))
    state = scanned(lore, "The inn.", message_count=10).timed
    assert state != NO_EFFECTS
    later = scanned(lore, "Rain.", **MEANT, message_count=12, timed=state)
    assert refusals(later) == {"It": "cooldown, 7 messages left"}


def test_it_gives_way_in_a_group_to_who_wins_it() -> None:
    lore = book(
        entry("It", "inn", group="g"), entry("Other", "rain", group="g", group_override=True)
    )
    outcome = scanned(lore, "Rain.", **MEANT)
    assert titles(outcome) == ["Other"]
