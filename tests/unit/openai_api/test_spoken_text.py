"""The text of a reply that a client has not got yet."""

from __future__ import annotations

import pytest

from backend.openai_api.streaming import SpokenText


def speak(text: SpokenText, *pieces: str) -> list[str]:
    taken: list[str] = []
    for piece in pieces:
        text.append(piece)
        taken.append(text.take_new())
    return taken


@pytest.mark.parametrize(
    ("pieces", "taken"),
    [
        (["Well, ", "come in."], ["", "come in."]),
        (["We", "ll, co", "me in."], ["", "co", "me in."]),
        (["Come", " in."], ["Come", " in."]),
        (["Wel", "come."], ["", "Welcome."]),
        (["Well, "], [""]),
    ],
)
def test_the_beginning_that_the_client_has_sent_is_not_repeated(
    pieces: list[str], taken: list[str]
) -> None:
    assert speak(SpokenText("Well, "), *pieces) == taken


def test_text_that_was_taken_back_is_replaced_from_its_place() -> None:
    text = SpokenText("Well, ")
    assert speak(text, "Well, hm.") == ["hm."]
    text.cut(6)
    assert speak(text, "come in.") == ["come in."]
    text.cut(2)
    assert speak(text, "!") == ["!"]
