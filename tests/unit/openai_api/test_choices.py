"""Options of a waiting turn as text, lines that choose, and the parts of one reply."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from backend.openai_api.choices import (
    ReplyParts,
    fold_choices,
    list_part_forms,
    parse_choice,
    render_options,
)
from backend.openai_api.contracts import Line
from backend.openai_api.streaming import SpokenText

DOORS = {
    "prompt": "Which door?",
    "options": [
        {"id": "1.0", "label": "The red door", "detail": "warm"},
        {"id": "1.1", "label": "The black door"},
        {"id": "1.2", "label": "Wait"},
    ],
    "own": "1.own",
}
DIE = {**DOORS, "own": ""}


def test_options_are_numbered_and_own_words_are_offered_if_they_are_allowed() -> None:
    rendered = "Which door?\n1. The red door (warm)\n2. The black door\n3. Wait"
    assert render_options(DIE) == rendered
    assert render_options(DOORS) == f"{rendered}\nOr answer in your own words."


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("2", "1.1"), ("2.", "1.1"), ("(2)", "1.1"), ("Option 2, please.", "1.1"), ("#3", "1.2"),
        ("the RED  door", "1.0"), ("black", "1.1"), ("I take the black door", "1.1"),
        ("4", None), ("2nd", None), ("door", None), ("", None), ("Hm?", None),
    ],
)  # fmt: skip
def test_a_line_chooses_by_number_or_by_words(said: str, option: str | None) -> None:
    choice = parse_choice(DIE, said)
    assert (choice.option if choice else None) == option


def test_other_lines_are_answers_in_own_words_if_they_are_allowed() -> None:
    choice = parse_choice(DOORS, " I climb out of the window. ")
    assert choice is not None
    assert (choice.option, choice.text) == ("1.own", "I climb out of the window.")


def test_a_part_is_also_recognised_without_its_last_sentence() -> None:
    assert list_part_forms("You walk. And th") == ("You walk. And th", "You walk.")
    assert list_part_forms("no sentence") == ("no sentence",)


ONE, OTHER = uuid4(), uuid4()


def fold(
    texts: Sequence[str], *replies: tuple[str, str], waiting: str = "", chat: UUID = ONE
) -> list[str]:
    """Fold lines of the user and replies in turn.

    A reply is its stored text, and its parts with `/` between them; `-` is a choice.
    """
    roles = ("user", "assistant")
    lines = [
        Line(role=roles[at % 2], text=text, author="", place=at)  # type: ignore[arg-type]
        for at, text in enumerate(texts)
    ]
    known = [
        ReplyParts(
            chat_id=chat,
            is_waiting=text == waiting,
            text=text,
            digests=[() if part == "-" else (part.encode(),) for part in parts.split("/")],
        )
        for text, parts in replies
    ]
    folded = fold_choices(lines, [text.encode() for text in texts], known)
    return [line.text for line in folded]


def test_parts_and_choices_are_one_line() -> None:
    whole = ("AB", "a/-/b")
    assert fold(["hi", "a", "1", "b", "on"], whole) == ["hi", "AB", "on"]
    assert fold(["hi", "a", "1", "c", "2", "b"], ("ACB", "a/-/c/-/b")) == ["hi", "ACB"]
    assert fold(["hi", "x", "on", "y"], whole) == ["hi", "x", "on", "y"]


def test_the_last_choice_of_a_waiting_reply_stays_a_line() -> None:
    assert fold(["hi", "a", "1"], ("A", "a"), waiting="A") == ["hi", "A", "1"]
    # The options were sent again.
    asked = fold(["hi", "a", "hm", "again", "1"], ("A", "a/again"), waiting="A")
    assert asked == ["hi", "A", "1"]


def test_a_reply_without_its_last_part_is_left_out() -> None:
    assert fold(["hi", "a", "1"], ("AB", "a/-/b")) == ["hi"]
    assert fold(["hi", "a", "1"], ("A", "a/-")) == ["hi"]
    assert fold(["hi", "a", "1", "new", "on"], ("AB", "a/-/b")) == ["hi", "new", "on"]


def test_equal_questions_of_several_turns_belong_to_their_turns() -> None:
    first, second = ("?B", "?/-/b"), ("?C", "?/-/c")
    texts = ["hi", "?", "1", "b", "on", "?", "1", "c"]
    assert fold(texts, first, second) == ["hi", "?B", "on", "?C"]
    assert fold(texts[:-1], first, ("?", "?"), waiting="?") == ["hi", "?B", "on", "?", "1"]


@pytest.mark.parametrize(
    ("beginning", "pieces", "got"),
    [
        ("Well, ", ["Well, ", "I am."], ["", "I am."]),
        ("Well, ", ["We", "ll, I", " am."], ["", "I", " am."]),
        ("Well, ", ["Well,", "\nI am."], ["", "\nI am."]),
        ("Well,", ["Well, I am."], [" I am."]),
        ("Well, ", ["We are."], ["We are."]),
        ("Well, ", ["We"], [""]),
        ("", ["Well"], ["Well"]),
    ],
)
def test_the_beginning_that_the_client_shows_is_not_sent(
    beginning: str, pieces: list[str], got: list[str]
) -> None:
    text = SpokenText(beginning)
    sent: list[str] = []
    for piece in pieces:
        text.append(piece)
        sent.append(text.take_new())
    assert sent == got
    assert str(text) == "".join(pieces)


def test_a_text_that_begins_again_is_compared_with_the_beginning_again() -> None:
    text = SpokenText("Well, ")
    text.append("Well, no")
    assert text.take_new() == "no"
    text.cut(0)
    text.append("Well, yes")
    assert text.take_new() == "yes"
