"""Tags that rules find in a reply."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from backend.campaigns.glossary.tags import TAGS, find_tags

FIXTURES = Path(__file__).parents[2] / "fixtures"


def _tags(text: str, names: tuple[str, ...] = ("Marlena", "Holt"), *players: str) -> set[str]:
    return {each.tag for each in find_tags(text, names, players)}


@pytest.mark.parametrize(
    ("name", "precision", "recall"),
    [("tagged_replies.json", 0.95, 0.9), ("tagged_replies_held_out.json", 0.85, 0.8)],
)
def test_tags_of_labelled_replies_are_found(name: str, precision: float, recall: float) -> None:
    data = json.loads((FIXTURES / name).read_text("utf-8"))
    counts: Counter[str] = Counter()
    for reply in data["replies"]:
        found = {each.tag for each in find_tags(reply["text"], data["names"], data["players"])}
        counts["right"] += len(found & set(reply["tags"]))
        counts["found"] += len(found)
        counts["labelled"] += len(reply["tags"])

    assert counts["right"] / counts["found"] >= precision
    assert counts["right"] / counts["labelled"] >= recall


def test_there_are_200_labelled_replies_and_50_of_them_have_no_tag() -> None:
    files = FIXTURES.glob("tagged_replies*.json")
    replies = [each for file in files for each in json.loads(file.read_text("utf-8"))["replies"]]

    assert len(replies) == 200
    assert sum(not each["tags"] for each in replies) >= 50
    assert {tag for each in replies for tag in each["tags"]} == set(TAGS)


def test_a_tag_comes_with_the_first_sentences_that_have_it() -> None:
    text = "It rains. " + "".join(f"You pocket ring {number}. " for number in "abcde")

    assert find_tags(text) == [
        ("ITEM_ACQUIRED", "You pocket ring a."),
        ("ITEM_ACQUIRED", "You pocket ring b."),
        ("ITEM_ACQUIRED", "You pocket ring c."),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "If you take the key, run.",
        "You do not take the key.",
        "Do you take the key?",
        "You could enter the vault.",
        "You must decide before dawn.",
        "“You pocket the key,” she says.",
        "Marlena pockets the key.",
        "He fights like a drunken sailor.",
        "You take a deep breath.",
    ],
)
def test_what_has_not_happened_to_a_player_is_no_tag(text: str) -> None:
    assert _tags(text) == set()


def test_players_are_told_of_by_name() -> None:
    assert _tags("Jake pockets the key.", ("Jake",), "Jake") == {"ITEM_ACQUIRED"}
    assert _tags("Marlena gives Jake the key.", ("Jake",), "Jake") == {"ITEM_ACQUIRED"}


def test_who_is_known_is_nobody_new() -> None:
    assert _tags("“I am Captain Vex,” she says.") == {"NEW_NPC"}
    assert _tags("“I am Captain Vex,” she says.", ("Captain Vex",)) == set()


@pytest.mark.parametrize(
    "text",
    [
        "you take the " * 4_000,
        "“" * 50_000,
        "a " * 25_000,
        "you " * 12_000,
        "Name is " * 6_000,
        "Captain " * 6_000,
        "you give " * 5_000,
        "," * 50_000,
        "A" + "-a" * 25_000,
    ],
)
def test_any_text_takes_linear_time(text: str) -> None:
    began = time.process_time()
    find_tags(text)

    assert time.process_time() - began < 1
