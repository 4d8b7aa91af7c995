"""Normal forms: Python's own, and in linear time."""

from __future__ import annotations

import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.core import text_forms
from backend.core.text_forms import MAX_MARKS, normalize

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
