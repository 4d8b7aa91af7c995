"""Who knows a text that is not for everyone, in words."""

from __future__ import annotations

from uuid import UUID

import pytest
import regex  # type: ignore[import-untyped]  # it has no types

from backend.core.audience import MARK_PATTERN, AudienceMarks, encode_audience

JAKE, KIM, MARA, SHADE, *MORE = (UUID(int=number) for number in range(1, 12))
NAMES = {JAKE: "Jake", KIM: "Kim", MARA: "Mara", **{each: f"Guest {each.int}" for each in MORE}}
MARKS = AudienceMarks(NAMES.get)


@pytest.mark.parametrize(
    ("audience", "words"),
    [
        ("public", ""),
        ("gm", "secret: game master only"),
        ("not an audience", "secret: game master only"),
        ([JAKE], "known to Jake only"),
        (encode_audience([JAKE, KIM]), "known to Jake and Kim only"),
        ([MARA, JAKE, KIM], "known to Mara, Jake and Kim only"),
        ([JAKE, SHADE], "known to Jake only"),
        ([SHADE], "known to a few only"),
        ([], "secret: game master only"),
        (
            [JAKE, KIM, *MORE],
            "known to Jake, Kim, Guest 5, Guest 6, Guest 7 and 4 others only",
        ),
    ],
)
def test_a_limited_audience_is_named(audience: list[UUID] | str, words: str) -> None:
    assert MARKS.words(audience) == words
    marked = MARKS.mark("The pears are poisoned.", audience)
    assert marked == (f"({words}) " if words else "") + "The pears are poisoned."
    if words:
        assert regex.fullmatch(MARK_PATTERN, f"({words})")


def test_nothing_is_said_where_all_who_are_present_know_or_what_it_stands_in_says_so() -> None:
    present = AudienceMarks(NAMES.get, frozenset({JAKE, KIM}))
    assert present.words([JAKE, KIM, MARA]) == ""
    assert present.words([JAKE, MARA]) == "known to Jake and Mara only"
    assert MARKS.mark("He lies.", [JAKE], within=encode_audience([JAKE])) == "He lies."
    assert MARKS.mark("He lies.", "gm", within=[JAKE]) == "(secret: game master only) He lies."
    assert MARKS.mark(" ", "gm") == " "
