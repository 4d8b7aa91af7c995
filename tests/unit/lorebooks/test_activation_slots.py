"""Where entries stand, in what order, and what they may take."""

from __future__ import annotations

import pytest

from backend.lorebooks.activation.outcome import compute_lore_budget
from backend.lorebooks.entries import LoreSettings, Position
from tests.unit.lorebooks.scans import book, entry, refusals, replacing, scanned, titles

POSITIONS: list[Position] = [
    "before_character",
    "after_character",
    "note_top",
    "note_bottom",
    "at_depth",
    "examples_top",
    "examples_bottom",
    "outlet",
]


@pytest.mark.parametrize("position", POSITIONS)
def test_each_of_the_eight_positions_is_handed_on(position: Position) -> None:
    lore = book(entry("It", "inn", position=position, depth=3, role="user", outlet="door"))
    it = scanned(lore, "inn").activated[0]

    assert (it.position, it.depth, it.role, it.outlet) == (position, 3, "user", "door")


def test_slots_are_written_in_ascending_order_and_ties_backwards() -> None:
    lore = book(
        entry("C", "inn", order=30),
        entry("A", "inn", order=-10),
        entry("D", "inn", order=30),
        entry("B", "inn", order=20),
    )

    assert titles(scanned(lore, "inn")) == ["A", "B", "D", "C"]


def test_entries_of_one_order_stand_in_reverse_of_their_turns() -> None:
    chat = book(entry("C2", "inn"), entry("C1", "inn"), name="Chat")
    world = book(entry("W", "inn"), name="World")

    assert titles(scanned([chat, world], "inn")) == ["W", "C1", "C2"]


def test_the_budget_is_the_share_of_the_context_and_at_most_the_cap() -> None:
    assert compute_lore_budget(LoreSettings(), 8_000) == 2_000
    assert compute_lore_budget(LoreSettings(budget_percent=10, budget_cap=500), 8_000) == 500
    assert compute_lore_budget(LoreSettings(budget_percent=1, budget_cap=500), 8_000) == 80
    assert compute_lore_budget(LoreSettings(budget_percent=0), 8_000) == 0


def test_the_budget_goes_to_the_highest_order_and_stops_at_the_first_overflow() -> None:
    lore = book(
        entry("First", "inn", order=9, content="a b c"),
        entry("Long", "inn", order=8, content="a b c d e"),
        entry("Short", "inn", order=7, content="a"),
    )
    outcome = scanned(lore, "inn", budget=6)

    assert titles(outcome) == ["First"]
    assert refusals(outcome) == {"Long": "budget", "Short": "budget"}
    assert [one.tokens for one in outcome.left_out] == [5, 1]
    assert outcome.tokens == 3


def test_an_entry_that_ignores_the_budget_is_in_after_the_overflow() -> None:
    lore = book(
        entry("Long", "inn", order=8, content="a b c d e"),
        entry("Free", "inn", order=7, content="a b c", ignore_budget=True),
    )

    assert titles(scanned(lore, "inn", budget=2)) == ["Free"]


def test_constant_entries_are_placed_first_and_are_not_dropped_by_the_budget() -> None:
    lore = book(
        entry("High", "inn", order=900, content="a b c"),
        entry("World", order=1, constant=True, content="a b c"),
    )
    outcome = scanned(lore, "inn", budget=4)

    assert titles(outcome) == ["World"]
    assert refusals(outcome) == {"High": "budget"}
    assert titles(scanned(lore, "-", budget=1)) == ["World"]


def test_constant_entries_stop_where_there_is_no_room_in_the_prompt_and_say_so() -> None:
    lore = book(
        entry("A", order=2, constant=True, content="a b c"),
        entry("B", order=1, constant=True, content="a b c"),
    )
    outcome = scanned(lore, "-", budget=2, room=4)

    assert titles(outcome) == ["A"]
    assert refusals(outcome) == {"B": "no room in the context"}


def test_a_book_s_own_budget_stops_its_entries_alone() -> None:
    small = book(
        entry("S1", "inn", order=9, content="a b"),
        entry("S2", "inn", order=8, content="a b"),
        entry("S3", "inn", order=7, content="a"),
        name="Small",
        token_budget=3,
    )
    other = book(entry("O", "inn", order=1, content="a b"), name="Other")
    outcome = scanned([small, other], "inn")

    assert titles(outcome) == ["O", "S1"]
    assert refusals(outcome) == {
        "S2": 'budget of the book "Small"',
        "S3": 'budget of the book "Small"',
    }


def test_after_an_overflow_contents_bring_nothing_more_in() -> None:
    lore = book(
        entry("A", "inn", order=9, content="two"),
        entry("Long", "inn", order=8, content="a b c d e"),
        entry("B", "two", content="x"),
    )

    assert titles(scanned(lore, "inn", budget=3)) == ["A"]


def test_what_is_counted_is_the_content_with_its_macros_expanded() -> None:
    lore = book(entry("It", "inn", content="{{long}}"))
    outcome = scanned(lore, "inn", expand=replacing("{{long}}", "a b c"))

    assert outcome.activated[0].content == "a b c"
    assert outcome.tokens == outcome.activated[0].tokens == 3
