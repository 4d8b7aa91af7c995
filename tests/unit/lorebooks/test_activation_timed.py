"""Sticky, cooldown and delay count messages and follow the message tree."""

from __future__ import annotations

from backend.lorebooks.activation.timed import NO_EFFECTS, TimedState
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


def test_a_sticky_entry_whose_key_occurs_has_both_reasons() -> None:
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


def test_what_happened_on_another_branch_does_not_count() -> None:
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


def test_effects_of_an_entry_whose_keys_changed_or_which_is_gone_vanish() -> None:
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
