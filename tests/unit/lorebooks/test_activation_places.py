"""Where keys stand, and how much is done to find that out."""

from __future__ import annotations

from backend.lorebooks.activation.places import KeyMatch, PlaceFinder
from tests.unit.lorebooks.scans import book, entry, id_of, scan_of


def found(finder: PlaceFinder, title: str) -> list[KeyMatch]:
    (compiled,) = finder._scan.books
    return finder.places(compiled.by_id[id_of(title)])


def test_a_place_is_the_newest_messages_first_that_is_a_word_of_its_own() -> None:
    lore = book(entry("Inn", "inn", scan_depth=3))
    finder = PlaceFinder(scan_of(lore, "Dinner.", "The inner INN, an inn.", "Inn."))
    assert found(finder, "Inn") == [
        KeyMatch("inn", is_secondary=False, message=1, start=10, end=13)
    ]


def test_what_folding_makes_longer_is_marked_as_it_is_written() -> None:
    lore = book(entry("Street", "strasse"))
    finder = PlaceFinder(scan_of(lore, "ßß STRAẞE."))
    assert [(place.start, place.end) for place in found(finder, "Street")] == [(3, 9)]


def test_keys_that_are_nowhere_a_word_of_their_own_are_not_looked_for_without_end() -> None:
    titles = [str(number) for number in range(20)]
    stubborn = [entry(title, "a" * (number + 1)) for number, title in enumerate(titles)]
    finder = PlaceFinder(scan_of(book(entry("Inn", "inn"), *stubborn), "inn " + "a" * 100_000))
    assert found(finder, "Inn")
    for title in titles:
        assert found(finder, title) == []
    assert found(finder, "Inn") == []
