"""Measure memory's search on a file in LongMemEval's format, such as `longmemeval_s_cleaned.json`.

The data is not part of the repository (https://github.com/xiaowu0162/LongMemEval). Each question
has one chat, its haystack, in one index, which contains nothing else. The file is read question by
question. Questions go unchanged through the search of a turn, with the question's date as the
present. Abstention questions (`_abs`) have no place that answers them, and are skipped.

The rankings are measured by four units:

- sessions: gold are the `answer_session_ids`.
- sessions, user side: gold are only those with a user's turn that has the answer, as in the
  official evaluation. Questions without such a turn are skipped.
- turns: gold are all turns with `has_answer`. `1024t` is their recall within 1,024 tokens of
  `Speaker: text` in o200k_base.
- turns, user side: as in the official evaluation, only user's turns are ranked.

The best turn decides the place of its session. NDCG follows the official evaluation: the first two
places are not discounted. Unlike there, assistants' turns are in the index.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.core.logs import configure_logging
from backend.memory.embedding.protocol import Embedder
from scripts.bench.retrieval.measures import (
    Figures,
    average,
    measure_budgets,
    measure_hits,
    rank_units,
)
from scripts.bench.retrieval.search import (
    Dialogue,
    add_model_options,
    count_line_tokens,
    make_lines,
    make_user_id,
    open_bench,
    open_index,
    open_model,
    rank_lines,
)
from scripts.bench.tables import new_parser, print_grid, print_machine

IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0019")
USER, ASSISTANT = "User", "Assistant"
SESSION_COUNTS, TURN_COUNTS = (5, 10), (5, 10, 50)
READ_SIZE = 1 << 20


@dataclass(frozen=True)
class Haystack:
    """A question with its chat, and the turns and sessions that answer it."""

    question: str
    question_type: str
    dialogue: Dialogue
    gold: frozenset[UUID]
    answer_sessions: frozenset[str]


def read_haystacks(path: Path) -> Iterator[Haystack]:
    """Yield the questions that have an answer, one at a time."""
    for raw in read_array(path):
        if not raw["question_id"].endswith("_abs"):
            yield make_haystack(raw)


def read_array(path: Path) -> Iterator[Any]:
    """Yield the objects of a JSON array without loading all of them.

    Raises `ValueError` if the file is no JSON array.
    """
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as file:
        text = file.read(READ_SIZE).lstrip()
        if not text.startswith("["):
            raise ValueError(f"{path} has no list of questions.")
        text = text[1:].lstrip()
        while not text.startswith("]"):
            try:
                value, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                # Reading as much again as there is keeps the work linear for large objects.
                more = file.read(max(READ_SIZE, len(text)))
                if not more:
                    raise
                text = (text + more).lstrip()
                continue
            yield value
            text = text[end:].lstrip() or file.read(READ_SIZE).lstrip()
            text = text.removeprefix(",").lstrip()


def make_haystack(raw: Mapping[str, Any]) -> Haystack:
    """Return a question with its sessions, oldest first."""
    chat_id = uuid5(IDS, raw["question_id"])
    found = zip(
        map(parse_date, raw["haystack_dates"]),
        raw["haystack_session_ids"],
        raw["haystack_sessions"],
        strict=True,
    )
    texts: list[tuple[UUID, str, str, datetime]] = []
    sessions: dict[UUID, str] = {}
    gold: set[UUID] = set()
    for number, (began, session_id, turns) in enumerate(sorted(found, key=lambda each: each[0])):
        for place, turn in enumerate(turns):
            line_id = uuid5(chat_id, f"{number}/{place}")
            author = USER if turn["role"] == "user" else ASSISTANT
            said_at = began + timedelta(seconds=20 * place)
            texts.append((line_id, author, turn["content"], said_at))
            sessions[line_id] = session_id
            if turn.get("has_answer"):
                gold.add(line_id)
    dialogue = Dialogue(
        # All haystacks belong to one user. They are never in the same index.
        user_id=make_user_id("longmemeval"),
        chat_id=chat_id,
        speakers=(USER, ASSISTANT),
        lines=make_lines(chat_id, texts),
        questions=(),
        ended=parse_date(raw["question_date"]),
        sessions=sessions,
    )
    return Haystack(
        question=raw["question"],
        question_type=raw["question_type"],
        dialogue=dialogue,
        gold=frozenset(gold),
        answer_sessions=frozenset(raw["answer_session_ids"]),
    )


def parse_date(text: str) -> datetime:
    """Return the time of a date such as `2023/05/20 (Sat) 02:21`."""
    plain = re.sub(r"\(\w+\)", "", text)
    return datetime.strptime(" ".join(plain.split()), "%Y/%m/%d %H:%M").replace(tzinfo=UTC)


def measure_haystack(haystack: Haystack, order: Sequence[UUID]) -> dict[str, Figures]:
    """Return the figures of one question by unit, without units that have no gold."""
    dialogue, gold = haystack.dialogue, haystack.gold
    user_lines = {line.id for line in dialogue.lines if line.author == USER}
    sessions, user_gold = dialogue.sessions, gold & user_lines
    by_session = rank_units(order, sessions)
    user_order = [each for each in order if each in user_lines]
    user_sessions = {sessions[each] for each in user_gold}
    ranked: dict[str, tuple[Sequence[Hashable], Collection[Hashable], Sequence[int]]] = {
        "sessions": (by_session, haystack.answer_sessions, SESSION_COUNTS),
        "sessions, user side": (by_session, user_sessions, SESSION_COUNTS),
        "turns": (order, gold, TURN_COUNTS),
        "turns, user side": (user_order, user_gold, TURN_COUNTS),
    }
    figures: dict[str, Figures] = {
        unit: measure_hits(some, answers, counts=counts, shift=0)
        for unit, (some, answers, counts) in ranked.items()
        if answers
    }
    if gold:
        budgets = measure_budgets(order, gold, count_line_tokens(dialogue))
        figures["turns"] = {**figures["turns"], **budgets}
    return figures


async def measure(
    data: Path, model: Embedder, *, by_meaning: bool = True, limit: int | None = None
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean figures by unit and type of question, for the first `limit` questions."""
    scores: dict[str, list[tuple[str, Figures]]] = {}
    async with open_bench(model, by_meaning=by_meaning) as bench:
        for number, haystack in enumerate(islice(read_haystacks(data), limit), 1):
            async with open_index(model.spec.dimension) as index:
                single = replace(bench, index=index)
                await single.index_dialogue(haystack.dialogue)
                order = await rank_lines(
                    single.make_search(), haystack.dialogue, haystack.question, (USER, ASSISTANT)
                )
            for unit, figures in measure_haystack(haystack, order).items():
                scores.setdefault(unit, []).append((haystack.question_type, figures))
            if number % 10 == 0:
                print(f"{number} questions", file=sys.stderr)
    return {unit: summarize(some) for unit, some in scores.items()}


def summarize(scores: Sequence[tuple[str, Figures]]) -> dict[str, dict[str, float]]:
    """Return the number of questions and their mean figures, for all and by type."""
    types = [question_type for question_type, _ in scores]
    groups: Mapping[str, Collection[str]] = {"all": set(types)} | {each: {each} for each in types}
    counts = {"all": len(types), **Counter(types)}
    rows = average(scores, groups)
    return {title: {"questions": counts[title], **row} for title, row in rows.items()}


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval longmemeval", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="file in LongMemEval's format")
    add_model_options(parser)
    parser.set_defaults(vectors=None)
    parser.add_argument("--without-model", action="store_true", help="search by words alone")
    parser.add_argument("--limit", type=int, help="number of questions")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    by_meaning = not options.without_model
    figures = asyncio.run(
        measure(options.data, open_model(options), by_meaning=by_meaning, limit=options.limit)
    )
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_machine()
    for unit, rows in figures.items():
        print_grid(unit, rows)
