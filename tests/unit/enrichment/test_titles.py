"""Titles of chats: those of first lines, and those in the answers of models."""

from __future__ import annotations

import pytest

from backend.accounts.profile.settings import (
    AccountTaskModels,
    EnrichmentSettings,
    PageSettings,
    UserSettings,
)
from backend.enrichment.tasks.title import clean_title
from backend.enrichment.titles import TitleSource, choose_title_source, make_line_title


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Who is there?", "Who is there?"),
        ("\n\n> *Who*  is `there`?\nSpeak.", "Who is there?"),
        ("a" * 61, "a" * 59 + "…"),
        (f"{'word ' * 11}words, and more", f"{'word ' * 11}".rstrip() + "…"),
        ("***\n \n", ""),
    ],
)
def test_the_first_line_is_shortened_after_a_word(text: str, title: str) -> None:
    assert make_line_title(text) == title


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("The Last Lamp", "The Last Lamp"),
        ('"The Last Lamp."\n\nI hope that you like it.', "The Last Lamp"),
        ("**Title: The Last Lamp**", "The Last Lamp"),
        ("One two three four five six seven eight nine", "One two three four five six seven eight"),
        ("<b>The {{user}} Lamp</b>", "‹b>The {user} Lamp‹/b>"),
        ("\n \n", ""),
    ],
)
def test_the_title_in_an_answer_is_found(answer: str, title: str) -> None:
    assert clean_title(answer) == title


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        (UserSettings(), "first_line"),
        (UserSettings(enrichment=EnrichmentSettings(model="a/b")), "model"),
        (UserSettings(task_models=AccountTaskModels(triage="a/b")), "model"),
        (UserSettings(task_models=AccountTaskModels(embedding="a/b")), "first_line"),
        (UserSettings(page=PageSettings(titles="model")), "model"),
        (
            UserSettings(
                page=PageSettings(titles="off"), enrichment=EnrichmentSettings(model="a/b")
            ),
            "off",
        ),
    ],
)
def test_a_model_writes_titles_if_one_is_set_for_such_tasks(
    settings: UserSettings, source: TitleSource
) -> None:
    assert choose_title_source(settings) == source
