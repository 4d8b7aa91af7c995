"""Lore that new lines name is known, whatever the index finds."""

from __future__ import annotations

from uuid import UUID

from backend.enrichment.agent.lookup import KnownEntry, find_named
from backend.lorebooks.entries import LoreEntry


def known(number: int, title: str, *keys: str) -> KnownEntry:
    return KnownEntry(
        id=UUID(int=number),
        book_id=UUID(int=99),
        revision=1,
        entry=LoreEntry(title=title, keys=list(keys)),
        may_edit=True,
        text="Something.",
    )


def test_an_entry_is_named_by_its_title_or_a_key_as_whole_words() -> None:
    morrow, ash, gate = known(1, "Morrow"), known(2, "The Order", "ash"), known(3, "Gate")
    text = "At MORROW\nwe saw ashes, gates and washing."
    assert find_named(text, [morrow, ash, gate]) == [morrow]
    assert find_named("Nothing but ash.", [morrow, ash, gate]) == [ash]


def test_the_longest_name_comes_first_and_patterns_and_empty_keys_name_nothing() -> None:
    short, long = known(1, "Morrow"), known(2, "The Lamp of Morrow")
    assert find_named("The lamp of Morrow is lit.", [short, long]) == [long, short]
    assert find_named("Anything at all.", [known(3, "", "", "/.*/", "(")]) == []
