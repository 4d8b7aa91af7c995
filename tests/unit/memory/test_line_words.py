"""How much of what a line says or asks a text has, whatever else is in the index."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from backend.memory.index.protocol import Hit, Payload, Sparse
from backend.memory.search.features import Found
from backend.memory.search.line_words import WordMatch, apply_matches, find_aboutness, read_words
from backend.memory.search.query import MAX_QUESTIONS, read
from backend.memory.search.terms import sparse_vector
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

NOW = datetime(2026, 3, 4, tzinfo=UTC)
BLINDER = Blinder(Sealer(uuid4(), {1: bytes(32)}, user_key=bytes(32)))
KING = "The king is Ironcrown."
ENOUGH_WORDS = 4.35
"""BM25 that brings a memory up if there is no embedding model."""


def matched(line: str, *texts: str, cast: Sequence[str] = (), context: str = "") -> list[WordMatch]:
    parsed = read(line, now=NOW, cast=cast, context=context)
    vectors: dict[UUID, Sparse] = {uuid4(): sparse_vector(text, BLINDER) for text in texts}
    return list(read_words(parsed, BLINDER).match(vectors).values())


@pytest.mark.parametrize("others", [0, 1, 2, 4, 19])
def test_a_word_is_as_rare_in_a_young_world_as_in_a_large_one(others: int) -> None:
    kings = [f"King number {number} is dead." for number in range(others)]
    king, *_ = matched("Who is the king?", KING, *kings)
    assert king.bm25 > ENOUGH_WORDS


def test_the_lines_before_say_nothing_of_how_much_a_text_has() -> None:
    plain = matched("Who is the king?", KING)
    assert matched("Who is the king?", KING, context="The king! Long live the king!") == plain


@pytest.mark.parametrize(
    "line",
    [
        "Who is the king?",
        'I bow, and wait until he looks at me. "Tell me, who is the king?" I ask at last.',
        "Mira, who is the king?",
        "He sits down, and I do, too. Tell me about the king, Mira",
        "Who are the kings of this land, and what do they want? I drink my wine. Who is king?",
    ],
)
def test_a_question_is_about_a_text_that_has_its_words(line: str) -> None:
    assert matched(line, KING, cast=["Mira"])[0].aboutness >= 1


@pytest.mark.parametrize(
    "line",
    [
        "The king of my village sold me a goat, three hens and a barrel of salted herring.",
        "I don't know what to say.",
        "He laughs like a king and pours himself another cup.",
    ],
)
def test_a_line_that_has_one_word_of_a_text_is_not_about_it(line: str) -> None:
    assert matched(line, KING, "Nobody knows a cure.")[0].aboutness < 1


def test_a_common_word_says_less_than_a_rare_one() -> None:
    rare, common = (
        matched(f"Is there a {word} near the old house?", f"A {word}.")[0].aboutness
        for word in ("lighthouse", "table")
    )
    assert rare > 1 > common


def test_other_languages_have_words_too() -> None:
    texts = ["Die Königin heißt Brunhild.", "王の名前は鉄冠です。"]
    queen, _ = matched("Wie heißt die Königin?", *texts)
    _, king = matched("王の名前は何ですか？", *texts)
    assert min(queen.aboutness, king.aboutness) >= 1


def test_a_line_without_words_is_about_nothing() -> None:
    assert matched("...?!", KING)[0].aboutness == 0


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Erzähl mir von dem Leuchtturm.", "Der Leuchtturm ist verflucht."),
        ("Parle-moi du phare.", "Le phare est maudit."),
        ("Háblame del faro.", "El faro está maldito."),
        ("Расскажи о маяке.", "Маяк проклят."),
        ("灯台について教えて。", "灯台は呪われている。"),
    ],
)
def test_a_request_is_a_question_in_any_language(line: str, text: str) -> None:
    assert len(read(line, now=NOW).questions) == 1
    assert matched(line, text)[0].aboutness >= 1


def test_questions_beyond_the_last_ones_are_not_read() -> None:
    generator = random.Random(1)
    line = "?".join(str(generator.random()) for _ in range(MAX_QUESTIONS * 100))
    assert len(read(line, now=NOW).questions) == MAX_QUESTIONS


def test_a_row_of_several_chunks_counts_by_its_best_one() -> None:
    row = uuid4()
    chunks = [
        Payload(owner_id=row, kind="lore", container_id=row, source_id=row, chunk=number)
        for number in range(2)
    ]
    hits = [Hit(uuid4(), 3.0, chunk) for chunk in chunks]
    matches = {
        hits[0].id: WordMatch(bm25=5.0, aboutness=0.4),
        hits[1].id: WordMatch(bm25=2.0, aboutness=1.2),
    }
    found: Found = {"sparse": hits}
    assert find_aboutness(found, matches) == {row.int: 1.2}
    assert [hit.score for hit in apply_matches(found, matches)["sparse"]] == [5.0, 3.0]
