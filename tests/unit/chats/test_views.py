"""Texts of a list of chats: previews of messages, and titles of copies."""

from __future__ import annotations

import pytest

from backend.chats.service import make_copy_title
from backend.chats.views import clean_tags, make_preview


@pytest.mark.parametrize(
    ("text", "preview"),
    [
        ("  Who\n\n is\tthere? ", "Who is there?"),
        ("x" * 200, "x" * 160),
        ("x " * 200, ("x " * 80).rstrip()),
        (" \n", ""),
    ],
)
def test_a_preview_is_the_beginning_on_one_line(text: str, preview: str) -> None:
    assert make_preview(text) == preview


def test_tags_are_kept_once_and_without_spaces_around() -> None:
    assert clean_tags([" sea  side", "Storm", "", "storm"]) == ["sea side", "storm"]


@pytest.mark.parametrize(
    ("title", "copy"),
    [
        ("Night", "Night (copy)"),
        ("Night (copy)", "Night (copy 2)"),
        ("Night (copy 9)", "Night (copy 10)"),
        ("x" * 300, f"{'x' * 293} (copy)"),
    ],
)
def test_the_title_of_a_copy_says_that_it_is_one(title: str, copy: str) -> None:
    assert make_copy_title(title) == copy
