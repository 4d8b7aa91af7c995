"""Compiled books and their cache."""

from __future__ import annotations

from itertools import product
from uuid import uuid4

import pytest

from tests.unit.lorebooks.scans import book, entry, scanned, titles

USER, OTHER = uuid4(), uuid4()


def test_what_looks_like_a_regex_and_is_none_is_noted() -> None:
    lore = book(entry("It", "/(/"))

    assert scanned(lore, "-").notes == [
        "The key /(/ looks like a regex, but is none: it is taken as text."
    ]


def test_the_regexes_of_a_book_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.lorebooks.activation.compiled.MAX_REGEX_SIZE", 1_000)
    lore = book(*(entry(f"E{n}", f"/in+{n}?x?/") for n in range(200)))
    outcome = scanned(lore, "inn")

    assert 0 < len(titles(outcome)) < 200
    assert outcome.notes


def test_keys_that_are_endings_of_each_other_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.lorebooks.activation.compiled.MAX_LOOSE_KEYS", 5)
    lore = book(*(entry(f"E{n}", "a" * n) for n in range(1, 60)))
    outcome = scanned(lore, "a" * 99, match_whole_words=False)

    assert len(titles(outcome)) == 12 + 5
    assert outcome.notes == ["Too many keys are endings of each other: some are left out."]


def test_a_book_of_many_entries_finds_what_a_slow_search_finds() -> None:
    names = ["".join(parts) for parts in product("ab", repeat=6)]
    lore = book(*(entry(name, name, name[:3]) for name in names), name="Many")
    text = " ".join(names[::3]) + " aba bab"
    expected = {name for name in names if name in text.split() or name[:3] in text.split()}

    assert set(titles(scanned(lore, text))) == expected
