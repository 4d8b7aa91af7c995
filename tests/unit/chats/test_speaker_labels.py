"""Speaker labels in a reply: the speaker's is removed, another's ends it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chats.speaker_labels import MAX_BLANKS, SpeakerFilter

OTHERS = ("tester", "Bob", "Alda Maria", "C. (the 3rd)")

OWN = [
    *("Alda:", "Alda :", "alda:", "ALDA\u00a0:", "Alda\uff1a", " \n Alda:\n\n", "Alda: Alda:"),
    *("**Alda:**", "**Alda**:", "*Alda:*", "***Alda***:", "__Alda:__", "_Alda_:"),
    *("[Alda]:", "[Alda:]", "**[Alda]:**"),
    *("(secret: game master only)", "(known to Alda and Bob only) Alda:"),
]
ENDS = [
    *("tester: I leave.", "Tester: I leave.", "**Bob:** No.", "[Bob]: No.", "Alda Maria: No."),
    *("  Bob: No.", "C. (the 3rd): No.", "*tester*: No."),
]
TEXT = [
    "Alda the keeper: gone.",
    "The door: Alda: the keeper.",
    "Bobby: not here.\nBobs: no.",
    "Good.\nSaid Bob: no.",
    "Good.\n```\nBob: 1\n```\nYes.",
    "Good.\nBob",
    "Ald",
    "**Alda** smiles: yes.",
    "Good.  \n\n",
    "tester: I leave.\nAlda waves.",
    "(known to Al",
    "(It rains.)",
    "Good.\n(secret: game master only) The pears.",
]


def read(parts: Iterable[str], **changes: bool) -> str:
    speakers = SpeakerFilter("Alda", OTHERS, **changes)
    said = "".join(map(speakers.feed, parts))
    return said if speakers.is_over else said + speakers.close()


@pytest.mark.parametrize("label", OWN)
def test_a_reply_loses_the_label_of_its_speaker(label: str) -> None:
    text = f"{label} **Good** day."
    assert read(text) == read([text]) == "**Good** day."


@pytest.mark.parametrize("line", ENDS)
def test_a_reply_ends_before_a_line_of_another_speaker(line: str) -> None:
    text = f"Alda: Good day. \n \n{line}\nAlda: And more."
    assert read(text) == read([text]) == "Good day."


@pytest.mark.parametrize("text", TEXT)
def test_names_that_are_no_labels_and_a_first_label_of_another_speaker_stay(text: str) -> None:
    assert read(text) == read([text]) == text


def test_text_that_begins_with_another_s_label_ends_a_reply_that_has_text_before_it() -> None:
    assert read("tester: I leave.", has_text=True) == ""


def test_lines_of_other_speakers_can_be_kept() -> None:
    assert read("Alda: Hi.\nBob: No.", keeps_others=True) == "Hi.\nBob: No."


def test_nameless_speakers_have_no_label_and_namesakes_share_the_speakers() -> None:
    nameless = SpeakerFilter(" ", ["", "Robin"])
    alone = SpeakerFilter(" ", [""])
    twins = SpeakerFilter("Robin", ["robin"])
    assert nameless.feed(": a\n: b\nRobin: c") == ": a\n: b"
    assert alone.feed("*Well*: a\n: b") == "*Well*: a\n: b"
    assert twins.feed("Robin: a\nRobin: b") == "a\nRobin: b"


TOKENS = ["Alda", "Bob", ":", " ", "\n", "*", "**", "[", "]", "```", "a", "Alda Maria", "tester:"]


@given(st.lists(st.sampled_from(TOKENS), max_size=20), st.data())
def test_a_reply_is_read_the_same_in_any_pieces(tokens: list[str], data: st.DataObject) -> None:
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(parts) == read([text])


def test_no_more_than_a_label_and_some_blanks_are_held_back() -> None:
    speakers = SpeakerFilter("Alda", OTHERS)
    said = ""
    for at, character in enumerate("Good day.\nAlda Mark\n**Bob is**\n" * 5):
        said += speakers.feed(character)
        assert at + 1 - len(said) <= len("\n**Alda Maria")
    assert speakers.feed("\n" * (MAX_BLANKS + 10)).endswith("\n" * MAX_BLANKS)
