"""Files in LongMemEval's format: the questions that count, and the figures of each unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import log2
from pathlib import Path
from uuid import UUID

import pytest

from scripts.bench.retrieval.longmemeval import (
    Haystack,
    measure,
    measure_haystack,
    read_array,
    read_haystacks,
)
from scripts.bench.vectors import HashedWords

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[2] / "fixtures" / "longmemeval.json"
LESSON, SOUP, RUNS = read_haystacks(DATA)


def find_line(haystack: Haystack, words: str) -> UUID:
    [line] = [line for line in haystack.dialogue.lines if words in line.text]
    return line.id


def pick(figures: Mapping[str, float], *names: str) -> list[float]:
    return [figures[name] for name in names]


async def test_every_question_with_an_answer_is_searched() -> None:
    figures = await measure(DATA, HashedWords())
    counts = {unit: rows["all"]["questions"] for unit, rows in figures.items()}
    assert counts == {
        "sessions": 3,
        "sessions, user side": 2,
        "turns": 3,
        "turns, user side": 2,
    }
    assert set(figures["turns"]) == {
        "all",
        "single-session-user",
        "single-session-assistant",
        "multi-session",
    }
    assert figures["turns"]["all"]["any@5"] == 100
    assert figures["sessions"]["multi-session"]["all@5"] == 100


async def test_only_the_first_questions_are_searched() -> None:
    figures = await measure(DATA, HashedWords(), by_meaning=False, limit=1)
    assert [*figures["sessions"]] == ["all", "single-session-user"]
    assert figures["turns, user side"]["all"]["any@5"] == 100


def test_turns_have_the_times_of_their_sessions() -> None:
    first, *_, last = LESSON.dialogue.lines
    assert first.said_at.isoformat() == "2023-05-02T09:14:00+00:00"
    assert last.said_at.isoformat() == "2023-05-15T21:47:20+00:00"
    assert LESSON.dialogue.ended.isoformat() == "2023-05-20T12:00:00+00:00"


def test_a_session_is_found_by_any_of_its_turns() -> None:
    planets = find_line(LESSON, "Which planets")
    scales = find_line(LESSON, "Which scales")
    lesson = find_line(LESSON, "Thursday.")
    figures = measure_haystack(LESSON, [planets, scales, lesson])
    assert pick(figures["sessions"], "any@5", "all@5", "NDCG@5") == [1, 1, 1]
    assert figures["sessions"] == figures["sessions, user side"]
    # The third of three turns; its discount is log2 of its place.
    assert pick(figures["turns"], "any@5", "NDCG@5") == [1, 1 / log2(3)]
    assert figures["turns"]["1024t"] == 1


def test_answers_of_the_assistant_count_only_without_a_side() -> None:
    figures = measure_haystack(SOUP, [find_line(SOUP, "pumpkin")])
    assert [*figures] == ["sessions", "turns"]
    assert figures["turns"]["any@5"] == 1


def test_turns_of_the_assistant_take_no_place_on_the_users_side() -> None:
    order = [line.id for line in RUNS.dialogue.lines if line.author == "Assistant"]
    order += [find_line(RUNS, "five kilometres"), find_line(RUNS, "river")]
    figures = measure_haystack(RUNS, order)
    assert pick(figures["turns"], "any@5", "all@10", "coverage@10") == [0, 1, 1]
    assert pick(figures["turns, user side"], "all@5", "NDCG@5") == [1, 1]
    assert pick(figures["sessions"], "any@5", "all@5", "all@10") == [1, 0, 1]


def test_large_questions_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    questions = [{"text": letter * 1_500_000} for letter in "ab]"]
    path.write_text(json.dumps(questions, indent=2))
    assert list(read_array(path)) == questions
    path.write_text("[ ]\n")
    assert list(read_array(path)) == []


@pytest.mark.parametrize("text", ["", "{}", '[{"text": "a"}', '[{"text": '])
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011  # any parse error
        list(read_array(path))
