"""Thoughts in the text of a reply: where tags count, however the reply is cut."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.model import (
    FinishReason,
    Piece,
    TextPiece,
    TextReset,
    ThinkingPiece,
    ThinkingReset,
    ToolCall,
    apply_resets,
)
from backend.generation.servers.replies import Delta
from backend.generation.thoughts import MAX_BLANKS, MAX_TAKEN_BACK, ThoughtReader, ThoughtTags

CALL = ToolCall(id="1", name="look", arguments={})
HARMONY = (
    "<|channel|>analysis<|message|>Who?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Oswin.<|return|>"
)

CASES = [
    # text, thoughts, text that is left, whether the model is known to begin with thoughts
    ("<think>Who?</think>\n\nOswin.", "Who?", "Oswin.", False),
    ("<THINKING>\nWho?</Thinking>Oswin.", "Who?", "Oswin.", False),
    ("<thought>Who?</thought>Oswin.", "Who?", "Oswin.", False),
    ("<reasoning>Who?</reasoning>Oswin.", "Who?", "Oswin.", False),
    ("<seed:think>Who?</seed:think>Oswin.", "Who?", "Oswin.", False),
    ("[THINK]Who?[/THINK]Oswin.", "Who?", "Oswin.", False),
    ("<|channel>thought\nWho?<channel|>Oswin.", "Who?", "Oswin.", False),
    ("<|channel>thought\n<channel|>Oswin.", "", "Oswin.", False),
    (HARMONY, "Who?", "Oswin.", False),
    ("<|channel|>final<|message|>Oswin.", "", "Oswin.", False),
    ("<|START_THINKING|>Who?<|END_THINKING|><|START_RESPONSE|>O.<|END_RESPONSE|>", "Who?", "O.", 0),
    ("<think>One</think> <think>, two</think>Oswin.", "One, two", "Oswin.", False),
    ("<think>`</think>` no</think>Oswin.", "`</think>` no", "Oswin.", False),
    ("<think>in `code`</think>Oswin.", "in `code`", "Oswin.", False),
    ("<think>Who</think></think>Oswin.", "Who", "Oswin.", False),
    ("<think>Who is", "Who is", "", False),
    ("Who?\n</think>\n\nOswin.", "Who?\n", "Oswin.", True),
    ("Who?<channel|>Oswin.", "Who?", "Oswin.", True),
    ("</think>\n\nOswin.", "", "Oswin.", True),
    ("Who?</think>", "Who?", "", True),
    ("Write `</think>` here.", "", "Write `</think>` here.", False),
    ("Write:\n```\n</think>\n```\nSo.", "", "Write:\n```\n</think>\n```\nSo.", False),
    ("He typed <think>x</think>, once.", "", "He typed <think>x</think>, once.", False),
    ("An end.<|end|>", "", "An end.<|end|>", False),
    ("<thin ice", "", "<thin ice", False),
    ("  Oswin.", "", "  Oswin.", False),
    ("1 < 2 [th", "", "1 < 2 [th", False),
]


def read(
    parts: Iterable[str], reader: ThoughtReader, finish: FinishReason | None = "stop"
) -> list[Piece]:
    heard: list[Piece] = []
    for part in parts:
        heard += reader.read(Delta((TextPiece(part),))).pieces
    return [*heard, *reader.read(Delta(finish=finish)).pieces]


def joined(pieces: Iterable[Piece]) -> tuple[str, str]:
    kept = apply_resets(pieces)
    thoughts = "".join(piece.text for piece in kept if isinstance(piece, ThinkingPiece))
    return thoughts, "".join(piece.text for piece in kept if isinstance(piece, TextPiece))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("text", "thoughts", "said", "thinks_first"), CASES)
def test_tags_count_if_a_model_thinks_and_are_text_elsewhere(
    text: str, thoughts: str, said: str, thinks_first: bool, size: int
) -> None:
    reader = ThoughtReader()
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    assert joined(read(parts, reader)) == (thoughts, said)
    assert reader.thinks_first == thinks_first


@given(
    st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "`",
                "```",
                "\n",
                " ",
                "a",
                "<",
                "<|channel>thought",
                "<channel|>",
            ]
        ),
        max_size=20,
    ),
    st.data(),
    st.booleans(),
)
def test_a_reply_is_read_the_same_in_any_pieces(
    tokens: list[str], data: st.DataObject, thinks_first: bool
) -> None:
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = (ThoughtReader(thinks_first=thinks_first) for _ in range(2))
    assert joined(read([text], whole)) == joined(read(parts, cut))
    assert whole.thinks_first == cut.thinks_first


def test_text_streams_until_a_closing_tag_takes_it_back() -> None:
    assert read(["Who ", "is it?", "</think>", "Oswin."], ThoughtReader()) == [
        *(TextPiece("Who "), TextPiece("is it?"), TextReset()),
        *(ThinkingPiece("Who is it?"), TextPiece("Oswin.")),
    ]


def test_a_closing_tag_does_not_count_after_a_tool_call() -> None:
    reader = ThoughtReader()
    heard: list[Piece] = [*reader.read(Delta((TextPiece("I roll."), CALL))).pieces]
    heard += read(["Done.</think>"], reader)
    assert TextReset() not in heard
    assert joined(heard) == ("", "I roll.Done.</think>")


def test_a_closing_tag_does_not_count_when_it_comes_too_late() -> None:
    story = "x" * (MAX_TAKEN_BACK + 1)
    assert joined(read([story, "</think>", "y"], ThoughtReader()))[0] == ""


def test_a_model_that_thinks_first_is_heard_thinking_from_the_first_piece_on() -> None:
    reader = ThoughtReader(thinks_first=True)
    assert read(["Who ", "is it?", "</think>", "Oswin."], reader) == [
        *(ThinkingPiece("Who "), ThinkingPiece("is it?"), TextPiece("Oswin."))
    ]
    assert reader.thinks_first


@pytest.mark.parametrize("finish", ["stop", "other", "tool_calls"])
def test_a_reply_without_the_expected_closing_tag_was_text(finish: FinishReason) -> None:
    reader = ThoughtReader(thinks_first=True)
    assert read(["Os", "win."], reader, finish) == [
        *(ThinkingPiece("Os"), ThinkingPiece("win."), ThinkingReset(), TextPiece("Oswin."))
    ]
    assert not reader.thinks_first


@pytest.mark.parametrize("finish", ["length", "safety"])
def test_a_reply_that_was_cut_short_may_have_been_thoughts(finish: FinishReason) -> None:
    reader = ThoughtReader(thinks_first=True)
    assert joined(read(["Who ", "is"], reader, finish)) == ("Who is", "")
    assert reader.thinks_first


def test_a_tool_call_ends_expected_thoughts() -> None:
    reader = ThoughtReader(thinks_first=True)
    heard = reader.read(Delta((TextPiece("I roll."), CALL))).pieces
    assert heard == (ThinkingPiece("I roll."), ThinkingReset(), TextPiece("I roll."), CALL)


def test_a_server_that_separates_thoughts_is_believed() -> None:
    reader = ThoughtReader(thinks_first=True)
    heard = reader.read(Delta((ThinkingPiece("Who?"), TextPiece("Oswin.")), finish="stop")).pieces
    assert heard == (ThinkingPiece("Who?"), TextPiece("Oswin."))
    assert not reader.thinks_first


@pytest.mark.parametrize("thinks_first", [True, False])
def test_json_that_was_asked_for_has_no_tags(thinks_first: bool) -> None:
    reader = ThoughtReader(thinks_first=thinks_first, is_json=True)
    value = '{"who": "He wrote </think>."}'
    assert joined(read(value, reader)) == ("", value)
    assert reader.thinks_first == thinks_first


def test_thoughts_may_come_before_json_that_was_asked_for() -> None:
    assert joined(read('Who?</think>{"a": 1}', ThoughtReader(is_json=True))) == ("Who?", '{"a": 1}')


def test_a_prefilled_reply_continues_after_its_prefix() -> None:
    begun = ThoughtReader(start="<think>So ", thinks_first=True)
    plain = ThoughtReader(start="Oswin,", thinks_first=True)
    assert joined(read(["it is me</think>", "Oswin."], begun)) == ("So it is me", "Oswin.")
    assert joined(read([" who else?"], plain)) == ("", "Oswin, who else?")


def test_tags_of_the_provider_count_beside_the_known_ones() -> None:
    own = [ThoughtTags("(Muse)", "(/Muse)"), ThoughtTags("~~~", "~~~")]
    assert joined(read("(muse)Who?(/MUSE)Oswin.", ThoughtReader(own))) == ("Who?", "Oswin.")
    assert joined(read("~~~Who?~~~Oswin.", ThoughtReader(own))) == ("Who?", "Oswin.")
    assert joined(read("Who?(/muse)Oswin.", ThoughtReader(own))) == ("Who?", "Oswin.")
    # A closing tag without letters is too common in stories to count without an opening one.
    assert joined(read("Once.\n~~~\nTwice.", ThoughtReader(own))) == ("", "Once.\n~~~\nTwice.")


def test_switched_off_it_leaves_a_reply_as_it_is() -> None:
    reader = ThoughtReader(start="<think>", thinks_first=True, is_off=True)
    assert joined(read(["Who?</think>Oswin."], reader)) == ("", "<think>Who?</think>Oswin.")


def test_little_is_held_back() -> None:
    reader = ThoughtReader()
    text = "Who <is> it, [he] asked, and `wrote` </thin air>. " * 10
    heard = ""
    for at, character in enumerate(text):
        pieces = reader.feed(character)
        heard += "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        assert at + 1 - len(heard) <= len("</think>")
    blanks = ThoughtReader()
    assert blanks.feed(" " * (MAX_BLANKS + 1)) == [TextPiece(" " * (MAX_BLANKS + 1))]
