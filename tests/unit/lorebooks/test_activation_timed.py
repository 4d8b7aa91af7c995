"""Timed effects, and entries that are activated by their meaning."""

from __future__ import annotations

from typing import Any

import pytest

from backend.accounts.profile.settings import LoreMode
from backend.lorebooks.activation.outcome import ScanOutcome, SemanticHit
from backend.lorebooks.activation.timed import NO_EFFECTS, TimedState
from backend.lorebooks.entries import CharacterFilter
from tests.unit.lorebooks.scans import book, entry, id_of, reasons, refusals, scanned, titles


def test_a_sticky_entry_stays_for_so_many_messages() -> None:
    lore = book(entry("It", "inn", sticky=4))
    state = scanned(lore, "inn", message_count=10).timed
    later = scanned(lore, "-", message_count=12, timed=state)
    assert reasons(later) == {"It": ["sticky, 2 messages left"]}
    assert reasons(scanned(lore, "-", message_count=13, timed=state)) == {
        "It": ["sticky, 1 message left"]
    }
    assert titles(scanned(lore, "-", message_count=14, timed=state)) == []


def test_a_sticky_entry_does_not_keep_itself() -> None:
    lore = book(entry("It", "inn", sticky=4))
    state = scanned(lore, "inn", message_count=10).timed
    state = scanned(lore, "inn", message_count=12, timed=state).timed
    assert titles(scanned(lore, "-", message_count=14, timed=state)) == []


def test_a_sticky_entry_with_a_found_key_has_both_reasons() -> None:
    lore = book(entry("It", "inn", sticky=4))
    state = scanned(lore, "inn", message_count=10).timed
    assert reasons(scanned(lore, "inn", message_count=12, timed=state)) == {
        "It": ["sticky, 2 messages left", 'key "inn" in the line']
    }


def test_cooldown_keeps_an_entry_out_for_so_many_messages() -> None:
    lore = book(entry("It", "inn", cooldown=3))
    state = scanned(lore, "inn", message_count=10).timed
    assert refusals(scanned(lore, "inn", message_count=12, timed=state)) == {
        "It": "cooldown, 1 message left"
    }
    assert titles(scanned(lore, "inn", message_count=13, timed=state)) == ["It"]


def test_cooldown_begins_when_sticky_ends() -> None:
    lore = book(entry("It", "inn", sticky=2, cooldown=4))
    state = scanned(lore, "inn", message_count=10).timed

    assert titles(scanned(lore, "inn", message_count=11, timed=state)) == ["It"]
    assert refusals(scanned(lore, "inn", message_count=12, timed=state)) == {
        "It": "cooldown, 4 messages left"
    }
    state = scanned(lore, "inn", message_count=12, timed=state).timed
    assert titles(scanned(lore, "inn", message_count=15, timed=state)) == []
    assert titles(scanned(lore, "inn", message_count=16, timed=state)) == ["It"]


def test_cooldown_begins_with_the_first_scan_in_which_nothing_is_sticky() -> None:
    lore = book(entry("It", "inn", sticky=2, cooldown=4))
    state = scanned(lore, "inn", message_count=10).timed
    late = scanned(lore, "inn", message_count=20, timed=state)
    assert refusals(late) == {"It": "cooldown, 4 messages left"}
    assert titles(scanned(lore, "inn", message_count=23, timed=late.timed)) == []
    assert titles(scanned(lore, "inn", message_count=24, timed=late.timed)) == ["It"]


def test_cooldown_keeps_a_constant_entry_out_too() -> None:
    lore = book(entry("It", constant=True, cooldown=4))
    state = scanned(lore, "-", message_count=10).timed
    assert refusals(scanned(lore, "-", message_count=12, timed=state)) == {
        "It": "cooldown, 2 messages left"
    }


def test_delay_keeps_an_entry_out_until_the_chat_has_so_many_messages() -> None:
    lore = book(entry("It", "inn", delay=10))
    assert refusals(scanned(lore, "inn", message_count=7)) == {"It": "delay, 3 messages to go"}
    assert titles(scanned(lore, "inn", message_count=10)) == ["It"]


def test_a_sticky_entry_is_not_drawn_again() -> None:
    lore = book(entry("It", "inn", sticky=4, probability=50))
    seed = next(seed for seed in range(99) if titles(scanned(lore, "inn", seed=seed)))
    unlucky = next(seed for seed in range(99) if not titles(scanned(lore, "inn", seed=seed)))
    state = scanned(lore, "inn", seed=seed, message_count=10).timed
    assert titles(scanned(lore, "-", seed=unlucky, message_count=12, timed=state)) == ["It"]


def test_a_sticky_entry_wins_its_group() -> None:
    lore = book(
        entry("Old", "rain", group="weather", sticky=4),
        entry("New", "sun", group="weather", group_override=True),
    )
    state = scanned(lore, "rain", message_count=10).timed
    outcome = scanned(lore, "sun", message_count=12, timed=state)
    assert titles(outcome) == ["Old"]
    assert refusals(outcome) == {"New": 'group "weather" lost to "Old"'}


def test_effects_of_another_branch_do_not_count() -> None:
    lore = book(entry("It", "inn", sticky=9))
    root = scanned(lore, "-", message_count=8).timed
    branch = scanned(lore, "inn", message_count=10, timed=root).timed
    assert titles(scanned(lore, "-", message_count=12, timed=branch)) == ["It"]
    assert titles(scanned(lore, "-", message_count=12, timed=root)) == []


def test_regenerating_at_the_same_count_gives_the_same_outcome() -> None:
    lore = book(entry("It", "inn", cooldown=9), entry("Stays", "inn", sticky=2))
    before = scanned(lore, "-", message_count=8).timed
    first = scanned(lore, "inn", message_count=10, timed=before)
    assert scanned(lore, "inn", message_count=10, timed=before) == first
    assert scanned(lore, "inn", message_count=10, timed=first.timed) == first


def test_effects_of_changed_or_deleted_entries_end() -> None:
    state = scanned(book(entry("It", "inn", sticky=9)), "inn", message_count=10).timed
    changed = scanned(book(entry("It", "tavern", sticky=9)), "-", message_count=12, timed=state)
    gone = scanned(book(), "-", message_count=12, timed=state)
    assert titles(changed) == []
    assert changed.timed == gone.timed == NO_EFFECTS


def test_effects_that_are_over_are_dropped_from_the_state() -> None:
    lore = book(entry("It", "inn", sticky=2, cooldown=2))
    state = scanned(lore, "inn", message_count=10).timed
    state = scanned(lore, "-", message_count=12, timed=state).timed
    assert id_of("It") in state.effects
    assert scanned(lore, "-", message_count=14, timed=state).timed == NO_EFFECTS


def test_an_entry_that_did_not_get_in_leaves_no_effect() -> None:
    lore = book(entry("It", "inn", sticky=9))
    assert scanned(lore, "inn", budget=0).timed == NO_EFFECTS


def test_the_state_is_the_same_after_storage() -> None:
    state = scanned(book(entry("It", "inn", sticky=4, cooldown=2)), "inn").timed
    assert TimedState.decode(state.encode()) == state
    assert TimedState.decode(b"") == NO_EFFECTS


MEANT = {"semantic": {id_of("It"): SemanticHit(0.6, 1)}, "by_meaning": True}
SAID = ["semantic 0.60, rank 1"]


def meant(line: str = "Rain.", **fields: Any) -> ScanOutcome:
    """A scan in which an entry of these fields was found by its meaning."""
    return scanned(book(entry("It", "inn", **fields)), line, **MEANT)


@pytest.mark.parametrize(
    ("mode", "by_key", "by_meaning", "by_both"),
    [
        ("keys", ['key "inn" in the line'], None, ['key "inn" in the line']),
        ("keys_and_meaning", ['key "inn" in the line'], SAID, [*SAID, 'key "inn" in the line']),
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


def test_vectorized_entries_are_found_by_meaning_in_every_book() -> None:
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
def test_conditions_of_an_entry_hold_if_found_by_meaning(
    fields: dict[str, Any], reason: str
) -> None:
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


def test_an_entry_found_by_meaning_can_lose_its_group() -> None:
    lore = book(
        entry("It", "inn", group="g"), entry("Other", "rain", group="g", group_override=True)
    )
    outcome = scanned(lore, "Rain.", **MEANT)
    assert titles(outcome) == ["Other"]


def keep_heard(state: TimedState, *positions: int) -> TimedState:
    return state.keep_heard(set(positions).__contains__)


def test_an_effect_counts_for_those_who_heard_its_reply() -> None:
    lore = book(entry("It", "inn", sticky=9))
    state = scanned(lore, "inn", message_count=10).timed.place(10)
    assert titles(scanned(lore, "-", message_count=12, timed=keep_heard(state, 10))) == ["It"]
    assert titles(scanned(lore, "-", message_count=12, timed=keep_heard(state, 11))) == []
    # The count of a continued reply is that of the message after it.
    continued = scanned(lore, "inn", message_count=11).timed.place(10)
    assert continued.list_positions() == {10}
    assert keep_heard(continued, 11) == NO_EFFECTS


def test_a_scan_for_one_speaker_keeps_the_effects_of_others() -> None:
    lore = book(entry("It", "inn", sticky=9))
    other = book(entry("Else", "inn", sticky=9), name="Other")
    first = scanned([lore, other], "inn", message_count=10).timed.place(10)
    # Someone who has not heard it, and has only one of the books, hears the key as well.
    heard = keep_heard(first)
    after = scanned(lore, "inn", message_count=14, timed=heard).timed
    state = first.replace_heard(heard, after, scanned={id_of("It")}).place(14)
    state = TimedState.decode(state.encode())
    assert state.effects[id_of("Else")] == first.effects[id_of("Else")]
    assert state.list_positions() == {10, 14}
    assert keep_heard(state, 10) == first
    assert keep_heard(state, 14).effects.keys() == {id_of("It")}
    # Those who heard both have the last effect. After it, the earlier one remains for others.
    both = keep_heard(state, 10, 14)
    assert both.effects[id_of("It")].at == 14
    over = scanned(lore, "-", message_count=40, timed=both).timed
    state = state.replace_heard(both, over, scanned={id_of("It")})
    assert keep_heard(state, 10) == first
    assert keep_heard(state, 14) == NO_EFFECTS
