"""Coined terms found by rules: against labelled sentences, and against what is familiar."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from backend.campaigns.glossary.coinages import (
    MAX_COINED,
    MAX_SNIPPET,
    Familiar,
    find_coined,
    hides_names,
    make_term_key,
)
from backend.generation.tokens import get_tokenizer

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
    assert _found(text, _familiar(card="Marlena is of the Glass Court of Ostervane.")) == [
        "Veilward"
    ]
    # Its words one by one are not what was coined of them.
    assert "Glass Court" in _found(text, _familiar(card="A court. A glass of wine."))


def test_a_sentence_start_counts_only_where_the_word_is_capitalised_inside_one_too() -> None:
    assert _found("Tharnok is gone. Nobody saw it.") == []
    assert _found("Tharnok is gone. Nobody saw Tharnok go.") == ["Tharnok"]
    assert _found("Whispering filled the room. She heard whispering, Whispering, whispering.") == []


def test_of_many_terms_those_said_most_often_are_kept_in_their_order() -> None:
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


@pytest.mark.parametrize(
    "part",
    ["Aa Bb ", '"', "“", "'a", "Veil ", "VECTRA ", "a-", "aB", "x", "a *B", "Order of the ", "「"],
)
def test_no_text_takes_long(part: str) -> None:
    familiar = _familiar("Marlena", card="Of the sea. " * 10_000)
    text = part * (50_000 // len(part))
    begun = time.process_time()
    find_coined(text, familiar)
    assert time.process_time() - begun < 1.0
