"""Keys of entries: words, logic and regular expressions."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from ahocorasick_rs import AhoCorasick
from hypothesis import given
from hypothesis import strategies as st

from backend.core.operating_system import start_connected
from backend.lorebooks.activation import keys
from backend.lorebooks.activation.keys import Folded, Hits, Key, KeyIndex, classify
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.entries import Logic
from backend.regex.patterns import PATTERN_SECONDS, Answer, Engine
from backend.regex.process import RegexProcess
from tests.unit.lorebooks.scans import (
    book,
    entry,
    id_of,
    reasons,
    refusals,
    replacing,
    scan_of,
    scanned,
    titles,
)


def test_a_key_that_occurs_activates_its_entry_and_names_the_place() -> None:
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
def test_words_end_by_the_rules_of_their_script(key: str, text: str, is_found: bool) -> None:
    assert (titles(scanned(book(entry("It", key)), text)) == ["It"]) is is_found


def test_case_counts_only_if_asked_for() -> None:
    lore = book(entry("Loose", "Rose"), entry("Exact", "Rose", case_sensitive=True))
    assert titles(scanned(lore, "she rose")) == ["Loose"]
    assert set(titles(scanned(lore, "she met Rose"))) == {"Loose", "Exact"}
    assert titles(scanned(lore, "she rose", case_sensitive=True)) == []
    assert titles(scanned(book(entry("Of", "Rose"), case_sensitive=True), "she rose")) == []


def test_case_counts_even_if_folding_changes_lengths() -> None:
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


def test_names_are_searched_if_included() -> None:
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


@pytest.mark.parametrize(
    ("logic", "none", "some", "every"),
    [
        ("and_any", False, True, True),
        ("not_all", True, True, False),
        ("not_any", True, False, False),
        ("and_all", False, False, True),
    ],
)
def test_the_logic_of_secondary_keys(logic: Logic, none: bool, some: bool, every: bool) -> None:
    lore = book(entry("It", "main", secondary_keys=["one", "two"], logic=logic))
    for text, is_in in (("main", none), ("main one", some), ("main one two", every)):
        outcome = scanned(lore, text)
        assert titles(outcome) == (["It"] if is_in else [])
        assert refusals(outcome) == ({} if is_in else {"It": "secondary keys"})


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


def test_a_key_is_found_across_pieces_of_a_long_text() -> None:
    lore = book(entry("It", "iron gate of the north"), entry("Word", "gate"))
    for before in (8_170, 8_180, 8_190, 16_380):
        outcome = scanned(lore, "x" * (before - 1) + " iron gate of the north " + "y" * 9_000)
        assert set(titles(outcome)) == {"It", "Word"}


def test_a_book_that_is_linked_twice_counts_once() -> None:
    lore = book(entry("It", "inn"))
    assert [one.entry_id for one in scanned([lore, lore], "The inn.").activated] == [id_of("It")]


@given(st.lists(st.text("ab ", min_size=1, max_size=4), max_size=30), st.text("ab ", max_size=60))
def test_many_automata_find_the_same_keys_as_one(raws: list[str], text: str) -> None:
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


def test_no_automaton_has_more_keys_than_are_built_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def build(patterns: list[str], **options: Any) -> AhoCorasick:
        sizes.append(len(patterns))
        return AhoCorasick(patterns, **options)

    monkeypatch.setattr(keys, "AhoCorasick", build)
    index = KeyIndex(Key(f"key{number}") for number in range(3 * keys.MAX_AUTOMATON_KEYS))
    assert sizes == [keys.MAX_AUTOMATON_KEYS] * 3
    hits = Hits()
    index.scan(Folded("key0 and key14999"), 0, hits, spelling=False, within=False)
    assert sorted(hits.word) == [0, 14_999]


EXPLODES = "((((a{1000}){1000}){1000}){1000})(?=b)"


@pytest.fixture(scope="module")
def process() -> Iterator[RegexProcess]:
    """The process, ready."""
    process = RegexProcess()
    assert process.prepare()
    yield process
    process.close()


class Counting:
    """The process, and the number of its searches."""

    def __init__(self, process: RegexProcess) -> None:
        self.process, self.asked = process, 0

    def search(self, engine: Engine, pattern: str, text: str, *, seconds: float) -> Answer:
        self.asked += 1
        return self.process.search(engine, pattern, text, seconds=seconds)


class Patient:
    """The process with a long time limit, for tests of matches on a machine under load."""

    def __init__(self, process: RegexProcess) -> None:
        self.process = process

    def search(self, engine: Engine, pattern: str, text: str, *, seconds: float) -> Answer:
        return self.process.search(engine, pattern, text, seconds=200 * seconds)


def is_found(key: str, text: str, process: RegexProcess) -> bool:
    lore = book(entry("It", key))
    outcome = scanned(lore, text, include_names=False, evaluator=Patient(process))
    return titles(outcome) == ["It"]


def test_a_regex_key_is_one_between_slashes_with_flags() -> None:
    outcome = scanned(book(entry("It", "/mar.*a/i")), "Hello.", "Ask MARLENA.")
    assert reasons(outcome) == {"It": ["key /mar.*a/i in message 1"]}


def test_a_regex_is_matched_by_its_flags_and_not_by_the_entry_s_case() -> None:
    assert titles(scanned(book(entry("It", "/mar/", case_sensitive=False)), "MAR")) == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("mar.*a", "mar.*a"),  # no slashes
        ("/usr/bin", "in /usr/bin here"),  # a slash within
        ("/home/pi/x", "go /home/pi/x now"),  # flags that are none
        ("/(/", "a /(/ b"),  # no regex
        ("/a(?>b)/", "so /a(?>b)/ there"),
        ("//", "a // b"),
    ],
)
def test_any_other_key_is_text(key: str, text: str, process: RegexProcess) -> None:
    assert is_found(key, text, process)
    assert not is_found(key, "marla ab", process)


@pytest.mark.parametrize(
    ("key", "text", "found"),
    [
        (r"/a\/b/", "a/b", True),
        (r"/(?<year>\d{4})-\d\d/", "on 1203-04", True),
        (r"/(?<n>[ab])\k<n>/", "xaax", True),
        (r"/(?<n>[ab])\k<n>/", "xabx", False),
        (r"/(a)(b)\2\1/", "abba", True),
        (r"/\u0041\x42\u{43}/u", "ABC", True),
        (r"/\uD83D\uDE00/", "so 😀", True),
        (r"/[\u4e00-\u9fff]{2}/", "日本", True),
        (r"/^b/m", "a\nb", True),
        (r"/^b/", "a\nb", False),
        (r"/a.b/s", "a\nb", True),
        (r"/a.b/", "a\nb", False),
        (r"/a[^]b/", "a\nb", True),
        (r"/a[]b/", "ab", False),
        (r"/b$/", "b\n", False),
        (r"/\d/", "٣", False),
        (r"/\w/", "é", False),
        (r"/\s/", "a\u00a0b", True),
        (r"/\S/", "\u00a0", False),
        (r"/[\s,]x/", "a,x", True),
        (r"/[^\w]x/", "a-x", True),
        (r"/\p{Lu}\p{Script=Greek}/u", "Aλ", True),
        (r"/x{/", "x{", True),
        (r"/x{e<=3}/", "x", False),  # not fuzzy
        (r"/x{,3}y/", "x{,3}y", True),
        (r"/\Ca/", "éa", False),  # an escape that means nothing stands for itself
        (r"/[[:alpha:]]/", "a]", True),
        (r"/[a&&b]/", "&", True),
        (r"/[\b]x/", "\bx", True),
        (r"/\cJx/", "\nx", True),
        (r"/[-a]b[c-]/", "-b-", True),
        (r"/(?i)abc/", "ABC", True),
        (r"/(?=foo)fo+/", "foo", True),
        (r"/(?<!x)foo/", "xfoo", False),
        (r"/(?<!x)\bfoo\b/", "a foo.", True),
        (r"/\d(?=x)/", "٣x", False),
        (r"/b(?=)$/", "b\n", False),
        (r"/(?<![]x)a/", "a", True),
        (r"/(?=a)\x{41}/", "A", False),
        (r"/(a)\1[0]/", "aa0", True),
        (r"/caf\u00e9s?/i", "CAFÉ", True),
        (r"/ou?r house/", "or house", True),
        (r"/colou{0,1}r/", "color", True),
        (r"/(?:abc|def)x/", "defx", True),
        (r"/abcd|ef/", "ef", True),
        (r"/(?i:ABCd)e/", "abcDe", True),
        (r"/kelvin/i", "\u212aelvin", True),
    ],
)
def test_a_regex_has_its_javascript_meaning(
    key: str, text: str, found: bool, process: RegexProcess
) -> None:
    assert is_found(key, text, process) is found


def test_a_regex_may_span_messages_and_the_reason_names_its_start() -> None:
    lore = book(entry("It", "/now[^]*before/", scan_depth=3))
    assert reasons(scanned(lore, "-", "now this", "before that")) == {
        "It": ["key /now[^]*before/ in message 2"]
    }


def test_a_regex_may_name_the_start_of_a_message() -> None:
    lore = book(entry("It", r"/\x01Anna:[^\x01]*door/"), entry("Not", r"/\x01Otto:[^\x01]*door/"))
    assert reasons(scanned(lore, "Hello.", "The door.")) == {
        "It": [r"key /\x01Anna:[^\x01]*door/ in message 1"]
    }


def test_a_regex_is_found_in_text_that_is_not_in_one_normal_form() -> None:
    assert titles(scanned(book(entry("It", "/cafe/")), "cafe\u0301")) == ["It"]


def test_patterns_for_re2_need_no_process() -> None:
    lore = book(entry("It", "/(a+)+$/", "/b{1,30}/"))
    assert not lore.needs_process
    assert titles(scanned(lore, "a" * 5_000 + "!", "bbb")) == ["It"]


def test_look_arounds_and_back_references_are_answered_by_the_process(
    process: RegexProcess,
) -> None:
    lore = book(entry("It", r"/(?<=the )inn/"))
    outcome = scanned(lore, "At the inn.", evaluator=Patient(process))
    assert lore.needs_process
    assert reasons(outcome) == {"It": ["key /(?<=the )inn/ in the line"]}
    assert outcome.notes == []


def test_without_a_process_such_a_regex_is_left_out_with_a_note() -> None:
    outcome = scanned(book(entry("It", r"/(?<=the )inn/")), "At the inn.")
    assert titles(outcome) == []
    assert outcome.notes == [
        'A regex of entry "It" was not tried: there is no process for such patterns.'
    ]


def test_the_process_is_not_asked_without_the_required_literals(process: RegexProcess) -> None:
    counting = Counting(process)
    lore = book(entry("It", r"/(?<=the )inn/"), entry("Key", "rain", r"/(?=a)rain/"))
    scanned(lore, "Rain on the way.", evaluator=counting)
    assert counting.asked == 0


def test_a_regex_that_takes_too_long_is_given_up_with_a_note_and_costs_nothing_next_time(
    process: RegexProcess,
) -> None:
    counting = Counting(process)
    lore = book(entry("Bad", f"/{EXPLODES}/"), entry("Good", "a"))
    notes: list[str] = []
    for _ in range(20):  # a machine under load may need more than one try to be sure
        assert process.prepare()
        outcome = scanned(lore, "a", evaluator=counting)
        assert titles(outcome) == ["Good"]
        notes = outcome.notes
        if lore.given_up:
            break

    assert notes == [
        'A regex of entry "Bad" took too long, and is not tried again until the book changes.'
    ]
    asked = counting.asked
    assert titles(scanned(lore, "a", evaluator=counting)) == ["Good"]
    assert counting.asked == asked


def test_a_scan_stops_trying_such_regexes_when_their_time_is_used_up(process: RegexProcess) -> None:
    counting = Counting(process)
    lore = book(*(entry(f"E{n}", f"/{n}?{EXPLODES}/") for n in range(40)))
    outcome = scanned(lore, "aaa", evaluator=counting)
    assert 0 < counting.asked < 40
    assert any("others took the time" in note for note in outcome.notes)


def test_a_scan_stops_searching_when_its_regexes_are_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backend.lorebooks.activation.window.MAX_SCAN_WORK", 500)
    lore = book(*(entry(f"E{n}", f"/{n}?[a-c]/") for n in range(40)))
    outcome = scanned(lore, "aaa")
    assert 0 < len(titles(outcome)) < 40
    assert any("what a scan may take" in note for note in outcome.notes)


def test_the_process_goes_on_after_a_pattern_that_had_to_be_stopped(process: RegexProcess) -> None:
    assert process.search("regex", EXPLODES, "aaa", seconds=PATTERN_SECONDS).status != "found"
    assert process.prepare()
    answer = process.search("regex", "(?<=é)x", "éx", seconds=10.0)
    assert (answer.status, answer.start) == ("found", 1)


def test_a_process_that_was_killed_is_started_again() -> None:
    process = RegexProcess()
    assert process.prepare()
    killed = process.pid
    assert killed is not None
    os.kill(killed, getattr(signal, "SIGKILL", signal.SIGTERM))
    while process.pid == killed:
        process.prepare()

    assert process.prepare()
    assert process.search("regex", "(?=a)a", "a", seconds=10.0).status == "found"
    process.close()


def test_a_process_that_does_not_start_is_not_awaited_and_its_patterns_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    def start_other(program: str) -> object:
        started.append(program)
        return start_connected("backend.no_such_module")

    monkeypatch.setattr("backend.regex.process.start_connected", start_other)
    process = RegexProcess()
    starts_of_turns: list[int] = []
    try:
        for _ in range(3):
            assert not process.prepare()
            outcome = scanned(
                book(entry("It", r"/(?<=the )inn/"), entry("Other", "inn")),
                "At the inn.",
                evaluator=process,
            )

            assert titles(outcome) == ["Other"]
            assert outcome.notes == [
                'A regex of entry "It" was not tried: the process for such patterns does not start.'
            ]
            starts_of_turns.append(len(started))
        assert process.starts.is_failing
        assert starts_of_turns[0] == starts_of_turns[-1], "only the first turn starts processes"
    finally:
        process.close()


def test_a_closed_process_answers_nothing_and_starts_nothing() -> None:
    process = RegexProcess()
    process.close()
    assert not process.prepare()
    assert process.search("regex", "a", "a", seconds=PATTERN_SECONDS).status == "busy"


def test_a_long_text_goes_through_the_pipe_as_a_whole(process: RegexProcess) -> None:
    answer = process.search("regex", "(?<=x)y", "a" * 3_000_000 + "xy", seconds=20.0)
    assert (answer.status, answer.start) == ("found", 3_000_001)


HOSTILE_TEXTS = (
    "a" * 3_000 + "!",
    "ab" * 1_500 + "c",
    "x " * 1_500,
    "0" * 200 + "1" * 200 + "\n" + "aA1_" * 600,
    "<" * 2_000 + "é" * 500,
)
ATOMS = ("a", ".", r"\w", r"\s", "[a-z]", "[^b]", "(?:a|aa)", "(a|b|ab)", r"(\w+\s?)", "a?", "ab?")
REPEATS = ("*", "+", "{2,}", "{0,30}", "{1,200}", "*?", "+?", "{1000}", "{0,1000}")
TAILS = ("$", "!", "b", r"\1", "(?=z)", "(?!a)", "(?<=z)", "(?<!a)z", r"\b", "c$", r"(?=\1)")


def draw_hostile_pattern(draw: random.Random) -> str:
    """Draw the source of a pattern that takes very long on some text. Most sources are valid."""
    kind, tail, pattern = draw.randrange(6), draw.choice(TAILS), draw.choice(ATOMS)
    if kind == 0:
        for _ in range(draw.randint(2, 5)):
            pattern = f"({pattern}{draw.choice(REPEATS)})"
        return f"{pattern}{draw.choice(REPEATS[:3])}{tail}"
    if kind == 1:
        parts = ["a" * draw.randint(1, 9) + draw.choice(["", ".*", "?", "+"]) for _ in range(60)]
        return f"(?:{'|'.join(parts)})+{tail}"
    if kind == 2:
        for _ in range(draw.randint(1, 5)):
            pattern = f"(?:{pattern}){{{draw.randint(0, 9)},{draw.randint(10, 3_000)}}}"
        return draw.choice(("", "(?=a)", "^", ".*")) + pattern + tail
    if kind == 3:
        inner = "".join(draw.choice(ATOMS) + draw.choice(REPEATS) for _ in range(3))
        return f"(?<={inner}){pattern}(?<!{inner}){tail}"
    if kind == 4:
        groups = draw.randint(1, 6)
        head = "".join(f"({draw.choice(ATOMS)}{draw.choice(REPEATS)})" for _ in range(groups))
        return head + "".join(rf"\{draw.randint(1, groups)}" for _ in range(3)) + tail
    return "".join(draw.choice(r"ab.*+?()[]{}|^$\1d,9<=!:") for _ in range(draw.randint(3, 60)))


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.thorough)])
def test_hostile_patterns_are_answered_or_given_up(count: int, process: RegexProcess) -> None:
    draw = random.Random(1)
    for number in range(count):
        lore = book(entry("It", f"/{draw_hostile_pattern(draw)}/i"), entry("Good", "good"))
        text = HOSTILE_TEXTS[number % len(HOSTILE_TEXTS)]
        scan = scan_of(lore, text, "good", evaluator=process)
        assert process.prepare()
        outcome = activate(scan)

        assert "Good" in titles(outcome)
        if any("took too long" in note for note in outcome.notes):
            assert lore.given_up


def test_a_regex_that_is_too_long_is_text() -> None:
    key = classify("/" + "a" * 2_001 + "/")
    assert key is not None
    assert key.pattern is None
