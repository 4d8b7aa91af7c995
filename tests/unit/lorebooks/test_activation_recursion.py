"""Recursion: entries that are in may bring others in."""

from __future__ import annotations

from itertools import product
from uuid import uuid4

import pytest

from tests.unit.lorebooks.scans import book, entry, reasons, refusals, replacing, scanned, titles


def test_an_entry_s_content_brings_others_in_and_the_reason_names_it() -> None:
    lore = book(entry("Eldoria", "city", content="Ruled by Marlena."), entry("Queen", "marlena"))
    assert reasons(scanned(lore, "The city.")) == {
        "Eldoria": ['key "city" in the line'],
        "Queen": ['key "marlena" in entry "Eldoria" (recursion 1)'],
    }


def test_recursion_continues_over_activated_entries() -> None:
    lore = book(
        entry("A", "one", content="two"),
        entry("B", "two", content="three"),
        entry("C", "three", content="four"),
    )
    outcome = scanned(lore, "one")
    assert titles(outcome) == ["C", "B", "A"]
    assert reasons(outcome)["C"] == ['key "three" in entry "B" (recursion 2)']


def test_recursion_crosses_books() -> None:
    first = book(entry("A", "one", content="two"), name="First")
    second = book(entry("B", "two"), name="Second")
    assert set(titles(scanned([first, second], "one"))) == {"A", "B"}


def test_entries_that_name_each_other_come_in_once() -> None:
    lore = book(entry("A", "one", content="two"), entry("B", "two", content="one"))
    assert titles(scanned(lore, "one")) == ["B", "A"]


def test_without_recursion_contents_bring_nothing_in() -> None:
    lore = book(entry("A", "one", content="two"), entry("B", "two"))
    assert titles(scanned(lore, "one", recursive=False)) == ["A"]


def test_a_book_that_does_not_recurse_is_not_found_by_contents() -> None:
    lore = book(entry("A", "one", content="two"), name="First")
    closed = book(entry("B", "two"), name="Closed", recursive_scanning=False)
    opened = book(entry("B", "two"), name="Open", recursive_scanning=True)
    assert titles(scanned([lore, closed], "one")) == ["A"]
    assert set(titles(scanned([lore, opened], "one", recursive=False))) == {"A", "B"}


def test_exclude_recursion_keeps_an_entry_from_being_found_by_contents() -> None:
    lore = book(
        entry("A", "one", content="two"), entry("B", "two", exclude_recursion=True, content="x")
    )
    outcome = scanned(lore, "one")
    assert titles(outcome) == ["A"]
    assert refusals(outcome) == {"B": "excluded from recursion"}
    assert titles(scanned(lore, "two")) == ["B"]


def test_prevent_recursion_keeps_an_entry_s_content_from_being_searched() -> None:
    lore = book(entry("A", "one", content="two", prevent_recursion=True), entry("B", "two"))
    assert titles(scanned(lore, "one")) == ["A"]


def test_delay_until_recursion_keeps_an_entry_out_of_the_first_step() -> None:
    lore = book(entry("B", "one", delay_until_recursion=1), entry("A", "start", content="x"))
    waiting = scanned(lore, "one")
    assert titles(waiting) == []
    assert refusals(waiting) == {"B": "recursion, waits for level 1"}
    assert set(titles(scanned(lore, "one start"))) == {"A", "B"}


def test_delayed_entries_come_level_by_level_when_the_one_before_is_exhausted() -> None:
    lore = book(
        entry("A", "start", content="one two three"),
        entry("First", "one", delay_until_recursion=1, content="x"),
        entry("More", "x", delay_until_recursion=1, content="y"),
        entry("Second", "two", delay_until_recursion=2, content="z"),
        entry("Third", "three", delay_until_recursion=5, content="z"),
    )

    assert set(titles(scanned(lore, "start"))) == {"A", "First", "More", "Second", "Third"}
    assert set(titles(scanned(lore, "start", max_recursion_steps=2))) == {"A", "First"}
    stopped = scanned(lore, "start", max_recursion_steps=4)
    assert set(titles(stopped)) == {"A", "First", "More"}
    assert refusals(stopped) == {
        "Second": "recursion, waits for level 2",
        "Third": "recursion, waits for level 5",
    }


@pytest.mark.parametrize(("steps", "count"), [(0, 5), (1, 1), (2, 2), (4, 4)])
def test_max_recursion_steps_counts_the_first_step_too(steps: int, count: int) -> None:
    lore = book(*(entry(f"E{n}", f"k{n}", content=f"k{n + 1}") for n in range(5)))
    assert len(scanned(lore, "k0", max_recursion_steps=steps).activated) == count


def test_a_secondary_key_in_a_content_activates_an_entry_later() -> None:
    lore = book(
        entry("It", "one", secondary_keys=["two"]), entry("A", "start", content="Here is two.")
    )
    assert reasons(scanned(lore, "one start"))["It"] == [
        'key "one" in the line',
        'secondary key "two" in entry "A" (recursion 1)',
    ]


def test_a_secondary_regex_in_a_content_activates_an_entry_later() -> None:
    lore = book(
        entry("It", "one", secondary_keys=["/t[wv]o/"]), entry("A", "start", content="Here is two.")
    )
    assert set(titles(scanned(lore, "one start"))) == {"It", "A"}


def test_a_regex_and_a_macro_key_are_looked_for_in_contents() -> None:
    lore = book(
        entry("A", "start", content="Here is Mags at the river."),
        entry("Regex", "/r.ver/"),
        entry("Macro", "{{char}}"),
    )
    outcome = scanned(lore, "start", expand=replacing("{{char}}", "Mags"))
    assert set(titles(outcome)) == {"A", "Regex", "Macro"}


def test_contents_are_searched_with_their_macros_expanded() -> None:
    lore = book(entry("A", "start", content="Ask {{char}}."), entry("B", "mags"))
    outcome = scanned(lore, "start", expand=replacing("{{char}}", "Mags"))
    assert set(titles(outcome)) == {"A", "B"}


def test_a_word_in_a_later_content_counts_though_it_was_a_part_of_one_before() -> None:
    lore = book(
        entry("A", "start", content="A marsh. Go on."),
        entry("B", "on", content="To Mars."),
        entry("It", "mars"),
        entry("Loose", "arsh", match_whole_words=False),
    )
    assert set(titles(scanned(lore, "start"))) == {"A", "B", "It", "Loose"}


def test_reading_further_back_does_not_search_contents() -> None:
    lore = book(
        entry("A", "start", content="two", prevent_recursion=False),
        entry("B", "far", secondary_keys=["two"]),
    )
    outcome = scanned(lore, "start", "-", "far", min_activations=3)
    assert titles(outcome) == ["A"]
    assert refusals(outcome) == {"B": "secondary keys"}


USER, OTHER = uuid4(), uuid4()


def test_a_key_that_only_looks_like_a_regex_is_noted() -> None:
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


def test_a_book_of_many_entries_agrees_with_a_slow_search() -> None:
    names = ["".join(parts) for parts in product("ab", repeat=6)]
    lore = book(*(entry(name, name, name[:3]) for name in names), name="Many")
    text = " ".join(names[::3]) + " aba bab"
    expected = {name for name in names if name in text.split() or name[:3] in text.split()}
    assert set(titles(scanned(lore, text))) == expected
