"""What separates a reply from its continuation."""

from __future__ import annotations

import pytest

from backend.turns.run.reply_text import find_joint


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ("He opens the door.", "Behind it is a room."),
        ("He opens the", "door."),
        ("*He nods.*", "“Well?”"),
        ("“Well?”", "he asks."),
        ("„Nun?“", "Er nickt."),
        ("«Bien.»", "Il part."),
        ('"Well?"', '"No."'),
        ("*He nods.*", "*He goes.*"),
        ("Five", "(or six) came."),
        ("He said:", "'No.'"),
        ("…", "and then"),
    ],
)
def test_a_space_is_put_between_two_words(before: str, more: str) -> None:
    assert find_joint(before, more) == " "


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ("", "He nods."),
        ("He nods. ", "He goes."),
        ("He nods.", "\n\nHe goes."),
        ("He nods", ", and goes."),
        ("He nods", "… and goes."),
        ("I don", "'t know."),
        ("I don", "’t know."),
        ("*He nods", "*"),
        ('He says "no', '"'),
        ("„Nun", "“, sagt er."),
        ("“Well", "”, he says."),
        ("»Nun", "«, sagt er."),
        ("He says: “", "No."),
        ('He says "', 'No."'),
        ("He says: **", "No.**"),
        ("Five (", "or six)"),
        ("Five (or six", ") came."),
        ("A well-", "known man"),
        ("He was—", "gone."),
        ("He was", "—gone."),
        ("彼は言った。", "「行こう」"),
        ("ไม่เป็น", "ไร"),
    ],
)
def test_nothing_is_put_between_what_belongs_together(before: str, more: str) -> None:
    assert find_joint(before, more) == ""


def test_text_after_a_block_of_code_begins_a_line() -> None:
    assert find_joint("```\nroll 2d6\n```", "He rolls.") == "\n"


def test_only_the_end_of_a_long_text_is_read() -> None:
    assert find_joint("“" * 1_000_000, "No.") == ""
