"""Compiled books and their cache."""

from __future__ import annotations

from itertools import product
from uuid import UUID, uuid4

import pytest

from backend.lorebooks.activation.cache import BookCache
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.entries import BookFields
from tests.unit.lorebooks.scans import book, entry, id_of, scanned, titles

USER, OTHER = uuid4(), uuid4()


class Seconds:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def of_revision(revision: int, count: int = 2, book_id: UUID | None = None) -> CompiledBook:
    entries = [(uuid4(), place, entry(f"E{place}", "inn")) for place in range(count)]
    return CompiledBook(book_id or id_of("Book"), revision, BookFields(), entries)


def test_a_compiled_book_is_kept_for_its_revision_and_its_user() -> None:
    cache = BookCache(clock=Seconds())
    compiled = of_revision(3)
    cache.put(USER, compiled)

    assert cache.get(USER, compiled.book_id, 3) is compiled
    assert cache.get(USER, compiled.book_id, 4) is None
    assert cache.get(OTHER, compiled.book_id, 3) is None


def test_a_newer_revision_takes_the_place_of_the_older() -> None:
    cache = BookCache(clock=Seconds())
    cache.put(USER, of_revision(3))
    cache.put(USER, of_revision(4))

    assert cache.get(USER, id_of("Book"), 3) is None
    assert cache.entries == 2


def test_a_book_that_was_not_used_for_some_minutes_is_dropped() -> None:
    clock = Seconds()
    cache = BookCache(clock=clock, seconds=600)
    cache.put(USER, of_revision(1))
    clock.now += 500
    assert cache.get(USER, id_of("Book"), 1) is not None
    clock.now += 500
    assert cache.get(USER, id_of("Book"), 1) is not None
    clock.now += 601
    cache.sweep()

    assert cache.entries == 0


def test_the_cache_is_bounded_in_entries_and_drops_what_was_used_longest_ago() -> None:
    cache = BookCache(clock=Seconds(), max_entries=5)
    first, second, third = (of_revision(1, 2, uuid4()) for _ in range(3))
    cache.put(USER, first)
    cache.put(USER, second)
    cache.get(USER, first.book_id, 1)
    cache.put(USER, third)

    assert cache.get(USER, second.book_id, 1) is None
    assert cache.get(USER, first.book_id, 1) is first
    cache.put(USER, of_revision(1, 6, uuid4()))
    assert cache.entries == 4


def test_a_user_can_be_forgotten() -> None:
    cache = BookCache(clock=Seconds())
    mine, theirs = of_revision(1, 2, uuid4()), of_revision(1, 2, uuid4())
    cache.put(USER, mine)
    cache.put(OTHER, theirs)
    cache.forget(USER)

    assert cache.get(USER, mine.book_id, 1) is None
    assert cache.get(OTHER, theirs.book_id, 1) is theirs


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
    monkeypatch.setattr("backend.lorebooks.activation.compiled.MAX_LOOSE", 5)
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
