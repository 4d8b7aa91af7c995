"""Code spans, word forms, file names and audience marks."""

from __future__ import annotations

import unicodedata
from typing import Literal
from uuid import UUID

import pytest
import regex  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from backend.core import text_forms
from backend.core.audience import MARK_PATTERN, AudienceMarks, encode_audience
from backend.core.code_spans import CodeSpans
from backend.core.files import file_stem, portable_paths
from backend.core.text_forms import MAX_MARKS, normalize


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("text", "in_fence", "in_code"),
    [
        ("plain", False, False),
        ("a `b", False, True),
        ("a `b` c", False, False),
        ("a ``b ` c", False, True),
        ("a ``b ` c`` d", False, False),
        ("a `b\nc", False, False),
        ("```\nx", True, True),
        ("```py\nx\n```\ny", False, False),
        ("````\n```\nx", True, True),
        ("  ```\nx", True, True),
        ("a ```b", False, True),
        ("```\na `b", True, True),
    ],
)
def test_code_begins_and_ends_as_markdown_has_it(
    text: str, in_fence: bool, in_code: bool, cut: bool
) -> None:
    spans = CodeSpans()
    for part in text if cut else [text]:
        spans.add(part)
    assert (spans.ends_in_fence(), spans.ends_in_code()) == (in_fence, in_code)


FORMS: tuple[Literal["NFC", "NFKC"], ...] = ("NFC", "NFKC")
MARKS = "\u0301\u0316\u0323\u0308"


@given(st.sampled_from(FORMS), st.text())
def test_ordinary_texts_get_the_form_that_python_gives_them(
    form: Literal["NFC", "NFKC"], text: str
) -> None:
    assert normalize(form, text) == unicodedata.normalize(form, text)


@given(st.sampled_from(FORMS), st.lists(st.text("e" + MARKS, max_size=MAX_MARKS), max_size=9))
def test_letters_with_as_many_marks_as_belong_together_do_so_too(
    form: Literal["NFC", "NFKC"], parts: list[str]
) -> None:
    text = "e".join(parts)
    assert normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("run", [MARKS[:2], MARKS, "\u0301"])
def test_marks_without_end_are_put_in_order_a_few_at_a_time(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0

    class Watched:
        @staticmethod
        def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
            nonlocal longest
            longest = max(longest, len(text))
            return unicodedata.normalize(form, text)

    monkeypatch.setattr(text_forms, "unicodedata", Watched)
    text = "a" + run * (100_000 // len(run))
    assert len(normalize("NFC", text)) in {len(text), len(text) - 1}
    assert longest <= MAX_MARKS + 1


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Marlena", "Marlena"),
        ("CON", "tale"),
        ("aux.json", "tale"),
        ("com¹", "tale"),
        ("nul .txt", "tale"),
        ("CONSTANCE", "CONSTANCE"),
        ("a:b", "a b"),
        ("../../etc/passwd", "etc passwd"),
        ("trailing dots... ", "trailing dots"),
        ("...", "tale"),
        ("", "tale"),
        ("two\nlines\x00", "two lines"),
        ("\u202egnp.exe", "gnp.exe"),
        ("日本", "日本"),
    ],
)
def test_a_name_becomes_a_stem_that_every_system_can_have(name: str, stem: str) -> None:
    assert file_stem(name, fallback="tale") == stem


@pytest.mark.parametrize("letter", ["a", "日", "😀"])
def test_a_long_name_is_cut(letter: str) -> None:
    stem = file_stem(300 * letter, fallback="tale")
    assert 40 < len(stem) <= 80
    assert len(f"{stem}.json".encode()) < 255


def test_paths_of_an_archive_can_be_unpacked_everywhere_and_good_ones_stay() -> None:
    long = "long" * 100
    wanted = [
        "assets/icon/main.png",
        "assets/CON/aux.png",
        "assets/a:b?.png",
        "dots./spaces /x",
        "assets/Icon/MAIN.png",
        f"assets/{long}.webp",
        "a//b",
    ]
    assert list(portable_paths(wanted).values()) == [
        "assets/icon/main.png",
        "assets/_CON/_aux.png",
        "assets/a_b_.png",
        "dots/spaces/x",
        "assets/Icon/MAIN-2.png",
        f"assets/{long[:195]}.webp",
        "a/_/b",
    ]


JAKE, KIM, MARA, SHADE, *MORE = (UUID(int=number) for number in range(1, 12))
NAMES = {JAKE: "Jake", KIM: "Kim", MARA: "Mara", **{each: f"Guest {each.int}" for each in MORE}}
AUDIENCE_MARKS = AudienceMarks(NAMES.get)


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
        ([JAKE, KIM, *MORE], "known to Jake, Kim, Guest 5, Guest 6, Guest 7 and 4 others only"),
    ],
)
def test_a_limited_audience_is_named(audience: list[UUID] | str, words: str) -> None:
    assert AUDIENCE_MARKS.words(audience) == words
    marked = AUDIENCE_MARKS.mark("The pears are poisoned.", audience)
    assert marked == (f"({words}) " if words else "") + "The pears are poisoned."
    if words:
        assert regex.fullmatch(MARK_PATTERN, f"({words})")


def test_an_audience_is_unnamed_if_all_present_know_or_the_parent_says_so() -> None:
    present = AudienceMarks(NAMES.get, [frozenset({JAKE}), frozenset({KIM})])
    assert present.words([JAKE, KIM, MARA]) == ""
    assert present.words([JAKE, MARA]) == "known to Jake and Mara only"
    assert AUDIENCE_MARKS.mark("He lies.", [JAKE], within=encode_audience([JAKE])) == "He lies."
    secret = "(secret: game master only) He lies."
    assert AUDIENCE_MARKS.mark("He lies.", "gm", within=[JAKE]) == secret
    assert AUDIENCE_MARKS.mark(" ", "gm") == " "
