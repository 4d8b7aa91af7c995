"""Regex keys: what is one, what JavaScript means by it, and what becomes of hostile ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.lorebooks.activation.keys import classify
from backend.lorebooks.activation.scan import activate
from backend.regex.patterns import PATTERN_SECONDS, Answer, Engine
from backend.regex.process import RegexProcess
from tests.unit.lorebooks.hostile import TEXTS, hostile_patterns
from tests.unit.lorebooks.scans import book, entry, reasons, scan_of, scanned, titles

EXPLODES = "((((a{1000}){1000}){1000}){1000})(?=b)"


@pytest.fixture(scope="module")
def process() -> Iterator[RegexProcess]:
    """The process, ready."""
    process = RegexProcess()
    assert process.prepare()
    yield process
    process.close()


class Counting:
    """The process, and how often it was asked."""

    def __init__(self, process: RegexProcess) -> None:
        self.process, self.asked = process, 0

    def search(self, engine: Engine, pattern: str, text: str, *, seconds: float) -> Answer:
        self.asked += 1
        return self.process.search(engine, pattern, text, seconds=seconds)


class Patient:
    """The process, with all the time it wants: for what patterns mean, on a machine under load."""

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
def test_a_regex_means_what_it_means_in_javascript(
    key: str, text: str, found: bool, process: RegexProcess
) -> None:
    assert is_found(key, text, process) is found


def test_a_regex_may_span_messages_and_the_reason_names_where_it_begins() -> None:
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


def test_what_re2_can_do_asks_no_process() -> None:
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


def test_the_process_is_not_asked_where_what_the_regex_needs_does_not_occur(
    process: RegexProcess,
) -> None:
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


def test_a_scan_stops_trying_such_regexes_when_their_time_is_used_up(
    process: RegexProcess,
) -> None:
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
    assert process._process is not None
    process._process._popen.kill()
    process._process.wait()

    assert process.prepare()
    assert process.search("regex", "(?=a)a", "a", seconds=10.0).status == "found"
    process.close()


def test_a_process_that_does_not_start_is_not_waited_for_and_the_record_says_what_was_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backend.regex.process._PROGRAM", "backend.no_such_module")
    process = RegexProcess()
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
        assert process.starts.is_failing
        assert process._killed == []  # only the first of these turns has started one
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


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.thorough)])
def test_hostile_patterns_are_answered_or_given_up(count: int, process: RegexProcess) -> None:
    for number, source in enumerate(hostile_patterns(count, seed=1)):
        lore = book(entry("It", f"/{source}/i"), entry("Good", "good"))
        scan = scan_of(lore, TEXTS[number % len(TEXTS)], "good", evaluator=process)
        assert process.prepare()
        outcome = activate(scan)

        assert "Good" in titles(outcome)
        if any("took too long" in note for note in outcome.notes):
            assert lore.given_up


def test_a_regex_that_is_too_long_is_text() -> None:
    key = classify("/" + "a" * 2_001 + "/")

    assert key is not None
    assert key.pattern is None
