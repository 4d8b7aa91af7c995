"""The scan: probability, groups, order, budget, slots and places of entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest

from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.outcome import SemanticHit, compute_lore_budget
from backend.lorebooks.activation.places import KeyMatch, PlaceFinder
from backend.lorebooks.activation.scan import INACTIVE
from backend.lorebooks.entries import CharacterFilter, LoreEntry, LoreSettings, Position, Trigger
from tests.unit.lorebooks.scans import (
    book,
    entry,
    id_of,
    reasons,
    refusals,
    replacing,
    said,
    scan_of,
    scanned,
    titles,
)


def test_a_constant_entry_is_always_in() -> None:
    outcome = scanned(book(entry("World", constant=True)), "Hello.")
    assert reasons(outcome) == {"World": ["constant"]}
    assert outcome.activated[0].is_constant


def test_a_disabled_entry_is_out_even_if_it_is_constant_or_its_key_occurs() -> None:
    lore = book(entry("Off", "inn", enabled=False), entry("World", constant=True, enabled=False))
    assert refusals(scanned(lore, "The inn.")) == {"Off": "disabled", "World": "disabled"}


@pytest.mark.parametrize(
    ("trigger", "is_in"), [("normal", False), ("swipe", True), ("regenerate", True)]
)
def test_triggers_activate_an_entry_only_for_named_kinds(trigger: Trigger, is_in: bool) -> None:
    lore = book(entry("It", "inn", triggers=["swipe", "regenerate"]))
    outcome = scanned(lore, "The inn.", triggers=[trigger])
    assert titles(outcome) == (["It"] if is_in else [])
    assert refusals(outcome) == ({} if is_in else {"It": "trigger"})


@pytest.mark.parametrize(
    ("chosen", "is_in"),
    [
        (CharacterFilter(names=["Mags"]), True),
        (CharacterFilter(names=["mags"]), False),
        (CharacterFilter(names=["Otto"]), False),
        (CharacterFilter(tags=["elf"]), True),
        (CharacterFilter(tags=["Elf"]), False),
        (CharacterFilter(tags=["orc"]), False),
        (CharacterFilter(names=["Mags"], tags=["orc"]), False),
        (CharacterFilter(names=["Mags"], is_exclude=True), False),
        (CharacterFilter(names=["Otto"], is_exclude=True), True),
        (CharacterFilter(tags=["elf"], is_exclude=True), False),
        (CharacterFilter(is_exclude=True), True),
    ],
)
def test_the_character_filter_activates_an_entry_for_its_characters(
    chosen: CharacterFilter, is_in: bool
) -> None:
    lore = book(entry("It", "inn", character_filter=chosen))
    outcome = scanned(lore, "The inn.", speaker="Mags", tags=["elf", "keeper"])
    assert titles(outcome) == (["It"] if is_in else [])
    assert refusals(outcome) == ({} if is_in else {"It": "character filter"})


def test_an_entry_found_by_meaning_is_in_without_its_keys() -> None:
    lore = book(entry("It", "inn", secondary_keys=["x"]))
    outcome = scanned(lore, "A bed for the night.", semantic={id_of("It"): SemanticHit(0.634, 2)})
    assert reasons(outcome) == {"It": ["semantic 0.63, rank 2"]}
    assert outcome.activated[0].rank == 2


def test_an_entry_found_by_key_and_meaning_appears_once_with_both_reasons() -> None:
    hits = {id_of("It"): SemanticHit(0.5, 1)}
    outcome = scanned(book(entry("It", "inn")), "The inn.", semantic=hits)
    assert reasons(outcome) == {"It": ["semantic 0.50, rank 1", 'key "inn" in the line']}


def test_an_entry_found_by_meaning_is_still_kept_out_by_its_gates() -> None:
    hits = {id_of(name): SemanticHit(0.5, 1) for name in ("Off", "Late", "Other")}
    lore = book(
        entry("Off", enabled=False),
        entry("Late", delay=13),
        entry("Other", content="@@exclude_keys rain\nText."),
    )

    assert refusals(scanned(lore, "Rain.", semantic=hits)) == {
        "Off": "disabled",
        "Late": "delay, 3 messages to go",
        "Other": 'exclude key "rain"',
    }


def test_probability_is_drawn_from_the_seed() -> None:
    lore = book(entry("It", "inn", probability=30))
    drawn = [tuple(titles(scanned(lore, "The inn.", seed=seed))) for seed in range(1_000)]
    assert 250 < Counter(drawn)[("It",)] < 350
    assert drawn == [tuple(titles(scanned(lore, "The inn.", seed=seed))) for seed in range(1_000)]


def test_a_probability_of_nothing_or_everything_is_no_draw() -> None:
    lore = book(
        entry("Never", "inn", probability=0),
        entry("Always", "inn", probability=100),
        entry("Ignored", "inn", probability=0, use_probability=False),
    )
    for seed in range(50):
        outcome = scanned(lore, "The inn.", seed=seed)
        assert titles(outcome) == ["Ignored", "Always"]
        assert refusals(outcome) == {"Never": "probability 0%"}


def test_a_failed_probability_holds_for_the_whole_scan() -> None:
    lore = book(
        entry("First", "inn", content="The rain."), entry("Rain", "inn", "rain", probability=50)
    )
    drawn = Counter(
        tuple(sorted(titles(scanned(lore, "The inn.", seed=seed)))) for seed in range(1_000)
    )
    assert 420 < drawn[("First",)] < 580  # drawn again in the recursion it would be 250


def test_draws_of_entries_do_not_depend_on_each_other() -> None:
    first, second = entry("A", "inn", probability=50), entry("B", "inn", probability=50)
    for seed in range(50):
        alone = titles(scanned(book(first), "inn", seed=seed))
        together = titles(scanned(book(second, first), "inn", seed=seed))
        assert alone == [title for title in together if title == "A"]


def test_one_entry_of_a_group_is_activated_by_weight() -> None:
    lore = book(
        entry("Rain", "sky", group="weather", group_weight=300),
        entry("Sun", "sky", group="weather", group_weight=100),
        entry("Never", "sky", group="weather", group_weight=0),
    )
    drawn: Counter[str] = Counter()
    for seed in range(1_000):
        outcome = scanned(lore, "The sky.", seed=seed)
        winner = titles(outcome)[0]
        assert set(refusals(outcome).values()) == {f'group "weather" lost to "{winner}"'}
        drawn.update(titles(outcome))

    assert drawn.total() == 1_000
    assert 700 < drawn["Rain"] < 800
    assert drawn["Never"] == 0


def test_a_group_s_override_goes_by_order_and_not_by_weight() -> None:
    lore = book(
        entry("Heavy", "sky", group="weather", group_weight=10_000, order=900),
        entry("Low", "sky", group="weather", group_override=True, order=1),
        entry("High", "sky", group="weather", group_override=True, order=2),
    )
    assert {tuple(titles(scanned(lore, "sky", seed=seed))) for seed in range(30)} == {("High",)}


def test_group_scoring_prefers_the_entry_with_most_keys_in_the_texts() -> None:
    lore = book(
        entry("One", "sky", group="weather", group_weight=10_000),
        entry("Two", "sky", "cloud", group="weather", group_weight=1),
        entry("With", "sky", group="weather", secondary_keys=["cloud"], group_weight=1),
    )
    free = {tuple(titles(scanned(lore, "sky, cloud", seed=seed))) for seed in range(200)}
    scored = {
        tuple(titles(scanned(lore, "sky, cloud", seed=seed, use_group_scoring=True)))
        for seed in range(200)
    }

    assert ("One",) in free
    assert scored == {("Two",), ("With",)}


def test_group_scoring_can_be_the_entry_s_own_choice() -> None:
    lore = book(
        entry("Scored", "sky", group="w", use_group_scoring=True, group_weight=10_000),
        entry("Free", "sky", "cloud", group="w", group_weight=1),
    )
    assert {tuple(titles(scanned(lore, "sky cloud", seed=seed))) for seed in range(30)} == {
        ("Free",)
    }


def test_an_entry_that_is_not_scored_stays_in_the_draw() -> None:
    lore = book(
        entry("Scored", "sky", "cloud", group="w", use_group_scoring=True, group_weight=1),
        entry("Free", "sky", group="w", group_weight=10_000),
    )
    assert titles(scanned(lore, "sky cloud")) == ["Free"]


def test_a_group_with_an_entry_from_an_earlier_step_lets_no_other_in() -> None:
    lore = book(
        entry("Rain", "sky", group="weather", content="Clouds."),
        entry("Storm", "clouds", group="weather", order=900, group_override=True),
    )
    outcome = scanned(lore, "The sky.")
    assert titles(outcome) == ["Rain"]
    assert refusals(outcome) == {"Storm": 'group "weather" lost to "Rain"'}


def test_an_entry_in_several_groups_must_win_each() -> None:
    lore = book(
        entry("Both", "sky", group="a, b", group_override=True, order=1),
        entry("A", "sky", group="a", order=5),
        entry("B", "sky", group="b", group_override=True, order=9),
    )
    outcome = scanned(lore, "sky")
    assert titles(outcome) == ["A", "B"]
    assert refusals(outcome) == {"Both": 'group "a" lost to "A"'}


def test_groups_cross_books() -> None:
    rain = book(entry("Rain", "sky", group="weather"), name="One")
    sun = book(entry("Sun", "sky", group="weather"), name="Two")
    for seed in range(20):
        assert len(scanned([rain, sun], "sky", seed=seed).activated) == 1


def test_min_activations_reads_further_back_until_enough_are_in() -> None:
    lore = book(entry("Near", "one"), entry("Far", "three"), entry("Farther", "four"))
    texts = ("one", "two", "three", "four")
    assert titles(scanned(lore, *texts)) == ["Near"]
    assert titles(scanned(lore, *texts, min_activations=2)) == ["Far", "Near"]
    assert len(titles(scanned(lore, *texts, min_activations=9))) == 3


def test_min_activations_reads_one_message_beyond_its_depth() -> None:
    lore = book(entry("Far", "three"), entry("Farther", "four"))
    texts = ("one", "two", "three", "four")
    assert titles(scanned(lore, *texts, min_activations=2, min_activations_depth=2)) == ["Far"]


def test_min_activations_does_not_move_entries_with_an_own_depth() -> None:
    lore = book(entry("Own", "two", scan_depth=1))
    assert titles(scanned(lore, "one", "two", "three", "four", min_activations=2)) == []


def test_min_activations_counts_messages_read_for_a_deeper_entry() -> None:
    lore = book(entry("Deep", "none", scan_depth=4), entry("Far", "three"))
    assert titles(scanned(lore, "one", "two", "three", "four", min_activations=2)) == ["Far"]


def test_every_entry_that_was_considered_is_listed_and_the_rest_is_counted() -> None:
    lore = book(
        entry("In", "inn"),
        entry("Off", "inn", enabled=False),
        entry("Second", "inn", secondary_keys=["x"]),
        entry("Never", "inn", probability=0),
        entry("Absent", "sea"),
    )
    outcome = scanned(lore, "inn")

    assert len(outcome.activated) + len(outcome.left_out) + outcome.not_found == 5
    assert refusals(outcome).keys() == {"Off", "Second", "Never"}


def test_the_record_lists_a_thousand_refusals_and_counts_the_others() -> None:
    lore = book(*(entry(f"E{place}", "inn", enabled=False) for place in range(1_200)))
    outcome = scanned(lore, "inn")
    assert (len(outcome.left_out), outcome.left_out_more, outcome.not_found) == (1_000, 200, 0)


def test_an_entry_without_content_takes_its_place_in_a_group_and_is_left_out() -> None:
    lore = book(
        entry("Nothing", "sky", content=" ", group="w", group_override=True),
        entry("Rain", "sky", group="w"),
    )
    outcome = scanned(lore, "sky")
    assert titles(outcome) == []
    assert refusals(outcome)["Nothing"] == "empty content"


LEFT = {"inactive": {id_of("Bell")}}


@pytest.mark.parametrize(
    "bell",
    [
        entry("Bell", "clapper"),
        entry("Bell", "/clapp.r/"),
        entry("Bell", constant=True),
        entry("Bell", "clapper", constant=True, sticky=3),
    ],
)
def test_neither_a_key_nor_constant_activates_an_inactive_entry(bell: LoreEntry) -> None:
    with_it = book(bell, entry("Stair", "stair"))
    assert titles(scanned(with_it, "The clapper on the stair.")) == ["Stair", "Bell"]
    outcome = scanned(with_it, "The clapper on the stair.", **LEFT)
    assert titles(outcome) == ["Stair"]
    assert refusals(outcome) == {"Bell": said(INACTIVE)}
    assert outcome.not_found == 0


def test_meaning_does_not_activate_an_inactive_entry() -> None:
    hit = {"semantic": {id_of("Bell"): SemanticHit(0.9, 1)}}
    found = book(entry("Bell"))
    assert titles(scanned(found, "A ringing.", **hit)) == ["Bell"]
    assert refusals(scanned(found, "A ringing.", **hit, **LEFT)) == {"Bell": said(INACTIVE)}


def test_sticky_does_not_activate_an_inactive_entry() -> None:
    sticky = book(entry("Bell", "clapper", sticky=20))
    first = scan_of(sticky, "The clapper.")
    timed = scanned(sticky, "The clapper.").timed
    later = {"timed": timed, "message_count": first.message_count + 2}
    assert titles(scanned(sticky, "On we go.", **later)) == ["Bell"]
    outcome = scanned(sticky, "On we go.", **later, **LEFT)
    assert titles(outcome) == []
    # Its effect continues: back on its branch the entry is still sticky.
    assert outcome.timed == timed


def test_an_inactive_entry_without_a_found_key_is_not_listed() -> None:
    outcome = scanned(book(entry("Bell", "clapper")), "A ringing.", **LEFT)
    assert (outcome.left_out, outcome.not_found) == ([], 1)


def test_an_inactive_entry_activates_no_other_and_takes_no_group_place() -> None:
    chain = book(
        entry("Bell", "clapper", content="It calls the keeper.", group="one", group_override=True),
        entry("Keeper", "keeper"),
        entry("Rope", "clapper", group="one"),
    )
    assert titles(scanned(chain, "The clapper.")) == ["Keeper", "Bell"]
    outcome = scanned(chain, "The clapper.", **LEFT)
    assert titles(outcome) == ["Rope"]
    assert refusals(outcome) == {"Bell": said(INACTIVE)}


@pytest.mark.parametrize("position", get_args(Position))
def test_every_position_is_passed_on(position: Position) -> None:
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


def test_entries_of_one_order_are_written_in_reverse() -> None:
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


def test_constant_entries_without_room_in_the_prompt_are_left_out() -> None:
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


def test_tokens_are_counted_after_macro_expansion() -> None:
    lore = book(entry("It", "inn", content="{{long}}"))
    outcome = scanned(lore, "inn", expand=replacing("{{long}}", "a b c"))
    assert outcome.activated[0].content == "a b c"
    assert outcome.tokens == outcome.activated[0].tokens == 3


def find_places(lore: CompiledBook, *texts: str) -> Iterator[list[KeyMatch]]:
    """Find the places of each entry, one after the other."""
    finder = PlaceFinder(scan_of(lore, *texts))
    return (finder.places(compiled) for compiled in lore.entries)


def test_a_place_is_the_first_whole_word_of_the_newest_message() -> None:
    lore = book(entry("Inn", "inn", scan_depth=3))
    [places] = find_places(lore, "Dinner.", "The inner INN, an inn.", "Inn.")
    assert places == [KeyMatch("inn", is_secondary=False, message=1, start=10, end=13)]


def test_text_that_folding_makes_longer_has_its_original_place() -> None:
    [[place]] = find_places(book(entry("Street", "strasse")), "ßß STRAẞE.")
    assert (place.start, place.end) == (3, 9)


def test_the_search_for_keys_that_are_no_whole_words_ends() -> None:
    stubborn = [entry(str(number), "a" * (number + 1)) for number in range(20)]
    lore = book(entry("Inn", "inn"), *stubborn, entry("Late", "inn"))
    first, *others = find_places(lore, "inn " + "a" * 100_000)
    assert first
    assert others == [[]] * 21
