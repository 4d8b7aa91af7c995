"""The lines of a prompt's glossary: what they say, in which order, within a budget."""

from __future__ import annotations

from typing import Literal

from backend.campaigns.glossary.terms import render_glossary
from backend.campaigns.ledger.items import Term


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


def test_the_most_used_come_first_into_the_budget_and_stand_by_name() -> None:
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

    assert render_glossary([_term(f"T{n}") for n in range(100)], count=count, budget=20) == [
        "- T0",
        "- T1",
    ]
    assert len(counted) == 7
