"""Keys: plain ones, several words, case, whole words, depth, fields, and the four logics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.lorebooks.activation import keys
from backend.lorebooks.activation.keys import Folded, Hits, Key, KeyIndex, classify
from backend.lorebooks.entries import Logic
from tests.unit.lorebooks.scans import (
    book,
    entry,
    id_of,
    reasons,
    refusals,
    replacing,
    scanned,
    titles,
)


def test_a_key_that_occurs_lets_its_entry_in_and_says_where() -> None:
    outcome = scanned(book(entry("Inn", "tavern", "inn")), "Hello.", "We met at the inn.")

    assert reasons(outcome) == {"Inn": ['key "inn" in message 1']}


def test_an_entry_of_which_no_key_occurs_is_counted_and_not_listed() -> None:
    outcome = scanned(book(entry("Inn", "inn"), entry("Sea", "sea")), "By the sea.")

    assert titles(outcome) == ["Sea"]
    assert outcome.left_out == []
    assert outcome.not_found == 1


def test_a_blank_key_and_an_entry_without_keys_match_nothing() -> None:
    outcome = scanned(book(entry("Blank", " ", ""), entry("None")), "  some text  ")

    assert titles(outcome) == []
    assert outcome.not_found == 2


def test_a_single_word_matches_only_as_a_whole_word() -> None:
    lore = book(entry("Art", "art"))

    assert titles(scanned(lore, "The party starts.")) == []
    assert titles(scanned(lore, "The (art) of it")) == ["Art"]
    assert titles(scanned(lore, "art's")) == ["Art"]
    assert titles(scanned(lore, "the party", "of art")) == ["Art"]


def test_a_word_that_is_not_whole_does_not_hide_a_whole_one_behind_it() -> None:
    assert reasons(scanned(book(entry("Art", "art")), "party art")) == {
        "Art": ['key "art" in the line']
    }


def test_without_whole_words_a_key_matches_within_a_word() -> None:
    lore = book(entry("Art", "art", match_whole_words=False))

    assert titles(scanned(lore, "The party.")) == ["Art"]


def test_on_whole_words_the_entry_beats_the_book_and_the_book_beats_the_settings() -> None:
    of_book = book(entry("A", "art"), entry("B", "art", match_whole_words=True))
    loose = book(
        entry("A", "art"), entry("B", "art", match_whole_words=True), match_whole_words=False
    )

    assert titles(scanned(of_book, "party")) == []
    assert titles(scanned(of_book, "party", match_whole_words=False)) == ["A"]
    assert titles(scanned(loose, "party")) == ["A"]


def test_several_words_match_as_text() -> None:
    lore = book(entry("Gate", "iron gate"))

    assert titles(scanned(lore, "The iron gates.")) == ["Gate"]
    assert titles(scanned(lore, "The iron, gate.")) == []


@pytest.mark.parametrize(
    ("key", "text", "is_found"),
    [
        ("Élan", "son élan!", True),
        ("élan", "le\u0301lan", False),
        ("café", "cafe\u0301 noir", True),  # two ways to write one letter
        ("Анна", "где анна?", True),
        ("анна", "маннан", False),
        ("東京", "昨日東京に行った", True),
        ("Anna", "Annaは元気", True),
        ("마를레나", "마를레나는 왔다", True),
        ("กรุงเทพ", "ไปกรุงเทพกัน", True),
        ("STRASSE", "die Straße dort", True),
        ("Straße", "STRASSEN", False),
        ("C++", "in C++, say", True),
        ("❤", "so ❤\ufe0f", True),
        ("naïve_key", "a naïve_key2", False),
    ],
)
def test_words_end_where_their_script_says(key: str, text: str, is_found: bool) -> None:
    assert (titles(scanned(book(entry("It", key)), text)) == ["It"]) is is_found


def test_case_counts_only_where_it_is_asked_for() -> None:
    lore = book(entry("Loose", "Rose"), entry("Exact", "Rose", case_sensitive=True))

    assert titles(scanned(lore, "she rose")) == ["Loose"]
    assert set(titles(scanned(lore, "she met Rose"))) == {"Loose", "Exact"}
    assert titles(scanned(lore, "she rose", case_sensitive=True)) == []
    assert titles(scanned(book(entry("Of", "Rose"), case_sensitive=True), "she rose")) == []


def test_case_counts_also_where_folding_changes_lengths() -> None:
    lore = book(entry("Exact", "Rose", case_sensitive=True))

    assert titles(scanned(lore, "Straße, Straße, Rose")) == ["Exact"]
    assert titles(scanned(lore, "Straße, Straße, rose")) == []
    assert titles(scanned(lore, "Straße, Rosen")) == []


def test_scan_depth_is_how_many_messages_are_looked_at() -> None:
    lore = book(
        entry("Default", "moon"), entry("Deep", "moon", scan_depth=3), entry("No", scan_depth=0)
    )

    assert titles(scanned(lore, "one", "two", "moon")) == ["Deep"]
    assert set(titles(scanned(lore, "one", "moon", "three"))) == {"Default", "Deep"}
    assert set(titles(scanned(lore, "one", "two", "moon", scan_depth=3))) == {"Default", "Deep"}


def test_on_scan_depth_the_entry_beats_the_book_and_the_book_beats_the_settings() -> None:
    lore = book(entry("Book", "moon"), entry("Own", "moon", scan_depth=1), scan_depth=3)

    assert titles(scanned(lore, "one", "two", "moon", scan_depth=1)) == ["Book"]


def test_a_scan_depth_of_nothing_looks_at_no_message() -> None:
    assert titles(scanned(book(entry("No", "moon", scan_depth=0)), "moon")) == []


def test_names_are_looked_at_where_they_are_included() -> None:
    lore = book(entry("Anna", "anna"))

    assert titles(scanned(lore, "Hello.")) == ["Anna"]
    assert titles(scanned(lore, "Hello.", include_names=False)) == []


def test_a_macro_in_a_key_is_expanded_in_each_scan() -> None:
    lore = book(entry("Her", "{{char}}"), entry("Or", "/{{char}}[a-z]*/i"))

    expand = replacing("{{char}}", "Mags")

    assert set(titles(scanned(lore, "Ask Mags.", expand=expand))) == {"Her", "Or"}
    assert titles(scanned(lore, "Ask magsy.", expand=expand)) == ["Or"]
    assert titles(scanned(lore, "Ask {{char}}.", expand=expand)) == []


def test_card_fields_are_looked_at_by_entries_that_opted_for_them() -> None:
    lore = book(
        entry("In", "dragon", match_fields=["scenario"]),
        entry("Regex", "/drag.n/", match_fields=["scenario"]),
        entry("Other", "dragon", match_fields=["creator_notes"]),
        entry("Not", "dragon"),
    )
    outcome = scanned(lore, "Hello.", fields={"scenario": "A dragon sleeps."})

    assert reasons(outcome) == {
        "In": ['key "dragon" in the scenario'],
        "Regex": ["key /drag.n/ in the scenario"],
    }


LOGICS: list[tuple[Logic, str, bool]] = [
    ("and_any", "main", False),
    ("and_any", "main one", True),
    ("and_any", "main one two", True),
    ("not_all", "main", True),
    ("not_all", "main one", True),
    ("not_all", "main one two", False),
    ("not_any", "main", True),
    ("not_any", "main one", False),
    ("not_any", "main one two", False),
    ("and_all", "main", False),
    ("and_all", "main one", False),
    ("and_all", "main one two", True),
]


def decided(logic: Logic, text: str) -> bool:
    lore = book(entry("It", "main", secondary_keys=["one", "two"], logic=logic))
    outcome = scanned(lore, text)
    is_in = titles(outcome) == ["It"]
    assert refusals(outcome) == ({} if is_in else {"It": "secondary keys"})
    return is_in


@pytest.mark.parametrize(("text", "is_in"), [case[1:] for case in LOGICS if case[0] == "and_any"])
def test_and_any_lets_an_entry_in_if_a_secondary_key_occurs(text: str, is_in: bool) -> None:
    assert decided("and_any", text) is is_in


@pytest.mark.parametrize(("text", "is_in"), [case[1:] for case in LOGICS if case[0] == "not_all"])
def test_not_all_lets_an_entry_in_unless_all_secondary_keys_occur(text: str, is_in: bool) -> None:
    assert decided("not_all", text) is is_in


@pytest.mark.parametrize(("text", "is_in"), [case[1:] for case in LOGICS if case[0] == "not_any"])
def test_not_any_lets_an_entry_in_if_no_secondary_key_occurs(text: str, is_in: bool) -> None:
    assert decided("not_any", text) is is_in


@pytest.mark.parametrize(("text", "is_in"), [case[1:] for case in LOGICS if case[0] == "and_all"])
def test_and_all_lets_an_entry_in_only_if_all_secondary_keys_occur(text: str, is_in: bool) -> None:
    assert decided("and_all", text) is is_in


def test_secondary_keys_alone_let_nothing_in_and_are_not_listed() -> None:
    outcome = scanned(book(entry("It", "main", secondary_keys=["one"])), "one")

    assert titles(outcome) == []
    assert outcome.not_found == 1


def test_secondary_keys_do_not_count_for_an_entry_that_is_not_selective() -> None:
    lore = book(entry("It", "main", secondary_keys=["one"], selective=False))

    assert titles(scanned(lore, "main")) == ["It"]


def test_a_secondary_key_that_counted_is_named_in_the_reasons() -> None:
    outcome = scanned(book(entry("It", "main", secondary_keys=["one"])), "main", "with one")

    assert reasons(outcome) == {
        "It": ['key "main" in the line', 'secondary key "one" in message 1']
    }


def test_keys_that_are_endings_of_each_other_are_all_found() -> None:
    lore = book(*(entry(f"E{count}", "a" * count) for count in range(1, 60)))

    found = scanned(lore, "a" * 40, match_whole_words=False)
    whole = scanned(lore, "a" * 40)

    assert len(found.activated) == 40
    assert titles(whole) == ["E40"]


def test_a_key_is_found_where_a_long_text_is_taken_in_pieces() -> None:
    lore = book(entry("It", "iron gate of the north"), entry("Word", "gate"))
    for before in (8_170, 8_180, 8_190, 16_380):
        outcome = scanned(lore, "x" * (before - 1) + " iron gate of the north " + "y" * 9_000)
        assert set(titles(outcome)) == {"It", "Word"}


def test_a_book_that_is_linked_twice_counts_once() -> None:
    lore = book(entry("It", "inn"))

    assert [one.entry_id for one in scanned([lore, lore], "The inn.").activated] == [id_of("It")]


@given(st.lists(st.text("ab ", min_size=1, max_size=4), max_size=30), st.text("ab ", max_size=60))
def test_many_automata_find_what_one_finds(raws: list[str], text: str) -> None:
    def found(at_once: int) -> tuple[set[str], set[str]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keys, "MAX_AUTOMATON_KEYS", at_once)
            patch.setattr(keys, "PIECE_CHARACTERS", 8)
            plain = [key for raw in raws if (key := classify(raw)) is not None]
            index, hits = KeyIndex(plain), Hits()
            index.scan(Folded(text), 0, hits, spelling=False, within=True)
        return (
            {key.folded for key in plain if key.number in hits.text},
            {key.folded for key in plain if key.number in hits.word},
        )

    assert found(2) == found(1000)


def test_no_automaton_has_more_keys_than_are_built_quickly() -> None:
    index = KeyIndex(Key(f"key{number}") for number in range(3 * keys.MAX_AUTOMATON_KEYS))
    assert len(index._automata) == 3
    hits = Hits()
    index.scan(Folded("key0 and key14999"), 0, hits, spelling=False, within=False)
    assert sorted(hits.word) == [0, 14_999]
