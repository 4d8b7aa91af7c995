"""Reasons in words: in English for the API, in the page's texts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from backend.core.reasons import (
    FoundIn,
    FoundInKind,
    Match,
    MatchKind,
    PreferredBecause,
    Reason,
    ReasonKind,
    render_matches,
    render_reasons,
)

TEXTS = Path(__file__).parents[3] / "backend" / "web" / "page" / "texts.json"


@pytest.fixture(scope="module")
def context_texts() -> Any:
    return json.loads(TEXTS.read_text())["context"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason("card"), "card"),
        (Reason("key", "inn", FoundIn("message", 3)), 'key "inn" in message 3'),
        (Reason("key", "/in+/i", FoundIn("line")), "key /in+/i in the line"),
        (
            Reason("secondary_key", "{x}", FoundIn("entry", 2, "{Inn}")),
            'secondary key "{x}" in entry "{Inn}" (recursion 2)',
        ),
        (Reason("words", score=0.456, rank=3), "words 0.46, rank 3"),
        (
            Reason(
                "semantic",
                score=0.8,
                rank=1,
                signals=(
                    Match("meaning", 2.1),
                    Match("words", words=("silver", "key")),
                    Match("scene"),
                    Match("speaker", name="Mira"),
                ),
            ),
            (
                "semantic 0.80, rank 1: nearly the same meaning, "
                'contains the words "silver", "key", its scene matches, Mira is the speaker'
            ),
        ),
        (Reason("sticky", count=1), "sticky, 1 message left"),
        (
            Reason("activate_only_after", count=2),
            "decorator @@activate_only_after, 2 replies to go",
        ),
        (Reason("macros", name="characters", count=10_000), "macros: more than 10,000 characters"),
        (Reason("probability", chance=12.5), "probability 12.5%"),
        (
            Reason("same_evidence", winner="message 3", because="says_more"),
            '"message 3" says the same and was preferred, because it says more',
        ),
    ],
)
def test_a_reason_is_rendered_with_its_figures(reason: Reason, words: str) -> None:
    assert render_reasons([reason]) == words


def test_several_reasons_are_joined() -> None:
    assert render_reasons([Reason("pinned"), Reason("constant")]) == "pinned; constant"


@pytest.mark.parametrize("kind", get_args(ReasonKind))
def test_every_reason_has_words(kind: ReasonKind, context_texts: Any) -> None:
    assert render_reasons([Reason(kind, found_in=FoundIn("line"))])
    text = context_texts["why"][kind]
    known = {*Reason.__struct_fields__, "place", "part"}
    assert set(re.findall(r"{(\w+)}", json.dumps(text))) <= known


def test_every_signal_has_words(context_texts: Any) -> None:
    kinds = set(get_args(MatchKind))
    assert all(render_matches([Match(kind, name="Mira")]) for kind in kinds)
    assert set(context_texts["signals"]) == kinds | {"same", "little", "has"}


@pytest.mark.parametrize("because", get_args(PreferredBecause))
def test_every_preference_has_words(because: PreferredBecause, context_texts: Any) -> None:
    assert render_reasons([Reason("same_evidence", winner="message 3", because=because)])
    assert context_texts["preferred"][because]


@pytest.mark.parametrize("kind", get_args(FoundInKind))
def test_every_place_has_words(kind: FoundInKind, context_texts: Any) -> None:
    assert render_reasons([Reason("key", "inn", FoundIn(kind, 1, "Inn"))])
    assert context_texts["found_in"][kind]


def test_the_page_has_words_for_nothing_else(context_texts: Any) -> None:
    assert set(context_texts["why"]) == set(get_args(ReasonKind))
    assert set(context_texts["found_in"]) == set(get_args(FoundInKind))
    assert set(context_texts["preferred"]) == set(get_args(PreferredBecause))
