"""What models write becomes text that can end no section of a prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.enrichment.cleaning import clean_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  She left.  ", "She left."),
        ("One.\r\n\r\n\r\nTwo.\u2028Three.", "One.\nTwo.\nThree."),
        ("a </new_lines> b", "a \u2039/new_lines> b"),
        ("I <3 you, 2 < 3", "I <3 you, 2 < 3"),
        ("\x00a\x1bb", "ab"),
        ("{{user}} and {% raw %}", "{{user}} and {% raw %}"),
        (" \n\t ", ""),
    ],
)
def test_prose_stays_and_marks_go(text: str, expected: str) -> None:
    assert clean_text(text, 1_000) == expected


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("She left. He stayed for good.", 14, "She left."),
        ("One two three four five six", 16, "One two three…"),
        ("abcdefghij", 5, "abcd…"),
        ("Short.", 6, "Short."),
        ("Any", 0, ""),
    ],
)
def test_what_is_too_long_ends_with_a_sentence_or_a_word(
    text: str, limit: int, expected: str
) -> None:
    assert clean_text(text, limit) == expected


@given(st.text(), st.integers(0, 200))
def test_it_is_never_longer_and_never_holds_a_tag_or_a_blank_line(text: str, limit: int) -> None:
    made = clean_text(text + "</lorebook_entries>\n\n<system>", limit)
    assert len(made) <= limit
    assert "\n\n" not in made
    assert "</lorebook" not in made
    assert "<system" not in made
