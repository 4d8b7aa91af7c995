"""The glossary of a prompt, coined words and tags of a reply."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from backend.campaigns.glossary.coinages import (
    MAX_COINED,
    MAX_SNIPPET,
    Familiar,
    find_coined,
    hides_names,
    make_term_key,
)
from backend.campaigns.glossary.tags import TAGS, find_tags
from backend.campaigns.glossary.terms import render_glossary
from backend.campaigns.ledger.items import Term
from backend.generation.tokens import get_tokenizer


def _term(term: str, definition: str = "", status: Literal["approved", "raw"] = "approved") -> Term:
    return Term(term=term, definition=definition, status=status)


def _words(text: str) -> int:
    return len(text.split())


def _lines(*terms: Term, budget: int = 100) -> list[str]:
    return render_glossary(terms, count=_words, budget=budget)


def test_approved_terms_are_explained_and_raw_ones_are_bare() -> None:
    lines = _lines(_term("Skyglass", "A mirror."), _term("Dunmere", "A town.", "raw"), _term("Ys"))
    assert lines == ["- Dunmere", "- Skyglass: A mirror.", "- Ys"]


def test_a_definition_stays_on_its_line() -> None:
    assert _lines(_term("Skyglass", "A\nmirror.\n\n# Rules")) == ["- Skyglass: A mirror. # Rules"]


def test_the_most_used_terms_fill_the_budget_and_are_sorted_by_name() -> None:
    used = [_term("Zeal", "one two"), _term("Ash", "one two"), _term("Moor", "one two")]
    assert _lines(*used, budget=8) == ["- Ash: one two", "- Zeal: one two"]
    assert _lines(*used, budget=7) == ["- Zeal: one two"]
    assert _lines(*used, budget=0) == []


def test_a_long_definition_does_not_keep_the_others_out() -> None:
    long = _term("Long", "word " * 50)
    assert _lines(long, _term("Ash"), budget=10) == ["- Ash"]


def test_no_more_is_counted_than_a_few_terms_that_do_not_fit() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 10

    terms = [_term(f"T{n}") for n in range(100)]
    assert render_glossary(terms, count=count, budget=20) == ["- T0", "- T1"]
    assert len(counted) == 7


FIXTURES = Path(__file__).parents[2] / "fixtures"

LEAST = 0.9
"""Precision and recall over each file of sentences. docs/explanation/quality.md has the figures."""


def _is_common(word: str) -> bool:
    return get_tokenizer("o200k_base").count(f" {word}") == 1


def _familiar(*names: str, terms: tuple[str, ...] = (), card: str = "") -> Familiar:
    return Familiar(names=names, terms=terms, texts=[card], is_common=_is_common)


def _found(text: str, familiar: Familiar | None = None) -> list[str]:
    return [each.term for each in find_coined(text, familiar or _familiar())]


@pytest.mark.parametrize("file", ["coined_terms", "coined_terms_held_out"])
def test_labelled_sentences_give_their_terms_and_little_else(file: str) -> None:
    sentences = json.loads((FIXTURES / f"{file}.json").read_text(encoding="utf-8"))
    familiar = _familiar("Jake", "Marlena")
    found = wanted = both = 0
    for _, text, terms in sentences:
        said, labelled = (
            set(map(make_term_key, _found(text, familiar))),
            set(map(make_term_key, terms)),
        )
        found, wanted, both = found + len(said), wanted + len(labelled), both + len(said & labelled)
    assert both / found >= LEAST
    assert both / wanted >= LEAST


@pytest.mark.parametrize(
    "term", ["Skyglass", "the Skyglass", "skyglass", "Skyglass's", "Marrow Sea", "Captain Vex"]
)
def test_a_term_that_is_known_is_not_found_again(term: str) -> None:
    text = "Then Captain Vex threw the Skyglass into the Marrow Sea, far from Dunmere."
    assert "Dunmere" in _found(text, _familiar(terms=(term,)))
    assert term not in _found(text, _familiar(terms=(term,)))
    assert len(_found(text, _familiar(terms=(term,)))) == len(_found(text)) - 1


def test_names_of_entities_and_fuller_forms_of_them_are_no_terms() -> None:
    familiar = _familiar("Marlena Vossant", "The Salty Sigil", "Brannoc")
    text = (
        "Then Marlena left the Salty Sigil. Old Brannoc followed, and Miss Vossant swore the Oath "
        "of Brannoc on the spot. Nobody told Marlena Ysolde Vossant."
    )
    assert _found(text, familiar) == ["Oath of Brannoc"]


def test_words_of_the_card_are_no_terms() -> None:
    text = "She drank to the Veilward, to the Glass Court and to Ostervane."
    assert _found(text) == ["Veilward", "Glass Court", "Ostervane"]
    assert _found(text, _familiar(card="The Glass Court of Ostervane.")) == ["Veilward"]
    # Single words of a card do not make the coined term known.
    assert "Glass Court" in _found(text, _familiar(card="A court. A glass of wine."))


def test_a_word_at_a_sentence_start_counts_only_if_capitalised_elsewhere_too() -> None:
    assert _found("Tharnok is gone. Nobody saw it.") == []
    assert _found("Tharnok is gone. Nobody saw Tharnok go.") == ["Tharnok"]
    assert _found("Whispering filled the room. She heard whispering, Whispering, whispering.") == []


def test_the_most_frequent_terms_are_kept_in_their_order() -> None:
    names = [f"Zyrath{letter}un" for letter in "abcdefghijkl"]
    text = " ".join(f"We went to {name}." for name in names)
    text += f" And from {names[9]} back to {names[11]}."
    found = _found(text)
    assert len(found) == MAX_COINED
    assert found[-2:] == [names[9], names[11]]


def test_a_snippet_is_the_sentence_around_the_term() -> None:
    text = "It rained.\nThey fear  the Skyglass here! Nobody knows why." + " And so on" * 500
    [coinage] = find_coined(text, _familiar())
    assert coinage == ("Skyglass", "They fear the Skyglass here!")
    [coinage] = find_coined("word " * 400 + "of the Skyglass " + "word " * 400, _familiar())
    assert "Skyglass" in coinage.snippet
    assert len(coinage.snippet) <= MAX_SNIPPET


def test_scripts_without_capitals_and_german_hide_names() -> None:
    assert hides_names("老婆は声をひそめて語りはじめた。")
    assert hides_names("Die Alte beugt sich über den Tisch und flüstert von der Wacht.")
    assert not hides_names("The old woman leans over the table and whispers.")
    assert not hides_names("Старуха шепчет о Стеклянных Вратах.")
    assert not hides_names("")


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
def test_events_that_did_not_happen_to_a_player_are_no_tags(text: str) -> None:
    assert _tags(text) == set()


def test_tags_find_players_by_name() -> None:
    assert _tags("Jake pockets the key.", ("Jake",), "Jake") == {"ITEM_ACQUIRED"}
    assert _tags("Marlena gives Jake the key.", ("Jake",), "Jake") == {"ITEM_ACQUIRED"}


def test_a_known_character_is_no_new_npc() -> None:
    assert _tags("“I am Captain Vex,” she says.") == {"NEW_NPC"}
    assert _tags("“I am Captain Vex,” she says.", ("Captain Vex",)) == set()
