"""Entries of a branch that was left: in no way do they come into a prompt."""

from __future__ import annotations

import pytest

from backend.lorebooks.activation.outcome import SemanticHit
from backend.lorebooks.activation.scan import INACTIVE
from backend.lorebooks.entries import LoreEntry
from tests.unit.lorebooks.scans import book, entry, id_of, refusals, said, scan_of, scanned, titles

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
def test_neither_a_key_nor_being_constant_brings_one_in(bell: LoreEntry) -> None:
    with_it = book(bell, entry("Stair", "stair"))
    assert titles(scanned(with_it, "The clapper on the stair.")) == ["Stair", "Bell"]
    outcome = scanned(with_it, "The clapper on the stair.", **LEFT)
    assert titles(outcome) == ["Stair"]
    assert refusals(outcome) == {"Bell": said(INACTIVE)}
    assert outcome.not_found == 0


def test_neither_does_being_found_by_meaning() -> None:
    hit = {"semantic": {id_of("Bell"): SemanticHit(0.9, 1)}}
    found = book(entry("Bell"))
    assert titles(scanned(found, "A ringing.", **hit)) == ["Bell"]
    assert refusals(scanned(found, "A ringing.", **hit, **LEFT)) == {"Bell": said(INACTIVE)}


def test_neither_does_being_sticky() -> None:
    sticky = book(entry("Bell", "clapper", sticky=20))
    first = scan_of(sticky, "The clapper.")
    timed = scanned(sticky, "The clapper.").timed
    later = {"timed": timed, "message_count": first.message_count + 2}
    assert titles(scanned(sticky, "On we go.", **later)) == ["Bell"]
    outcome = scanned(sticky, "On we go.", **later, **LEFT)
    assert titles(outcome) == []
    # What runs goes on running: back on its branch the entry is still sticky.
    assert outcome.timed == timed


def test_one_whose_key_does_not_occur_is_not_even_mentioned() -> None:
    outcome = scanned(book(entry("Bell", "clapper")), "A ringing.", **LEFT)
    assert (outcome.left_out, outcome.not_found) == ([], 1)


def test_one_sets_off_no_other_and_takes_no_group_s_place() -> None:
    chain = book(
        entry("Bell", "clapper", content="It calls the keeper.", group="one", group_override=True),
        entry("Keeper", "keeper"),
        entry("Rope", "clapper", group="one"),
    )
    assert titles(scanned(chain, "The clapper.")) == ["Keeper", "Bell"]
    outcome = scanned(chain, "The clapper.", **LEFT)
    assert titles(outcome) == ["Rope"]
    assert refusals(outcome) == {"Bell": said(INACTIVE)}
