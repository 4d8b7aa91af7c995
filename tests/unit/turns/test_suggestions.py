"""The suggestions of a model that are shown."""

from __future__ import annotations

import pytest

from backend.turns.api.suggestions import read_suggestions


@pytest.mark.parametrize(
    "line",
    [
        "I follow her down the stairs.",
        '"Halt!" I shout. "Who goes there?"',
        "*I draw my sword.* You will not pass.",
        "[OOC: shall we skip to the morning?]",
        "{{user}} looks away.",
        "...",
        "The required papers? I have them here.",
        "I ask {about the key}.",
        "First line.\nSecond line.",
        "我跟着她走下楼梯。",
    ],
)
def test_possible_user_lines_are_shown(line: str) -> None:
    found = read_suggestions([line], most=3)
    assert found.lines == [line]
    assert found.dropped == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"lines": ["I go."]}',
        '["I go.", "I stay."]',
        "['I go.']",
        '"lines": ["I go.", "I stay."]',
        '{"type": "object", "properties": {"lines": {"type": "array"}}}',
        'I go.", "type": "string"',
        "```json",
        "lines: array, string",
        "string",
        "[",
        "{}",
    ],
)
def test_json_and_schema_text_are_dropped(line: str) -> None:
    found = read_suggestions(["I stay.", line], most=3)
    assert found.lines == ["I stay."]
    assert (found.code, found.empty) == (1, 0)


@pytest.mark.parametrize("line", ["", "  \n ", "I go.\n\nI stay.", "I go.\n  \t\nI stay."])
def test_lines_that_are_empty_or_have_empty_lines_are_dropped(line: str) -> None:
    found = read_suggestions([line, "I stay."], most=3)
    assert found.lines == ["I stay."]
    assert (found.code, found.empty) == (0, 1)


def test_no_more_lines_are_shown_than_were_asked_for() -> None:
    assert read_suggestions(["a", "b", "c"], most=2).lines == ["a", "b"]


def test_reading_a_long_line_takes_time_in_proportion_to_it() -> None:
    # Would not end if a pattern tried all ways to divide the blanks.
    assert read_suggestions(['"a' + " " * 200_000, "\n" + " " * 200_000], most=3).dropped == 1
