"""Measure how often the line that answers a question is found first, or among five, by language.

The lines and questions are those of `tests/fixtures/questions`. They are searched by words alone
and with the model's vectors, each with the question words and times of all languages, and with
those of English alone. Half of the questions name a time, which alone distinguishes their line.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid5

from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.search import query as query_words
from backend.memory.search.search import MemorySearch
from scripts.bench.data import FIXTURES
from scripts.bench.retrieval.measures import measure_first
from scripts.bench.retrieval.search import (
    Dialogue,
    Question,
    add_model_options,
    find_places,
    make_lines,
    open_bench,
)
from scripts.bench.tables import new_parser, print_grid

QUESTIONS = FIXTURES / "questions" / "questions.toml"
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0017")
PLAIN_DAY = datetime(2022, 6, 1, 12, tzinfo=UTC)
TIMED, PLAIN = 1, 2


def read_stories(path: Path = QUESTIONS) -> dict[str, Dialogue]:
    """Return a chat for each language, with questions of the categories `TIMED` and `PLAIN`."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    days = [datetime.combine(day, time(12), UTC) for day in data.pop("said")]
    asked_at = datetime.combine(data.pop("asked_on"), time(18), UTC)
    return {language: _read_story(language, raw, days, asked_at) for language, raw in data.items()}


def _read_story(
    language: str, raw: Mapping[str, Any], days: list[datetime], asked_at: datetime
) -> Dialogue:
    plain = [line for line, _ in raw["plain"]] + raw["others"]
    texts = [
        *zip(days, (line for line, _ in raw["timed"]), strict=True),
        *((PLAIN_DAY + timedelta(minutes=at), line) for at, line in enumerate(plain)),
    ]
    chat_id = uuid5(IDS, language)
    lines = [(uuid5(chat_id, text), "Ada", text, said_at) for said_at, text in sorted(texts)]
    return Dialogue(
        user_id=uuid5(IDS, f"user/{language}"),
        chat_id=chat_id,
        speakers=("Ada", "Ben"),
        lines=make_lines(chat_id, lines),
        questions=[
            Question(question, category, frozenset({uuid5(chat_id, line)}))
            for category, pairs in ((TIMED, raw["timed"]), (PLAIN, raw["plain"]))
            for line, question in pairs
        ],
        ended=asked_at,
    )


@contextmanager
def use_english_only() -> Generator[None]:
    """Ignore question words and times of all languages except English."""
    english = {"english": query_words.load_words("english")}
    with patch.object(query_words, "list_languages", lambda: english):
        yield


async def measure_story(service: MemorySearch, story: Dialogue) -> dict[str, int]:
    """Return the shares of questions whose line is found first, or among five, in per cent."""
    found = await find_places(service, story, [*story.speakers, "Mira"])
    places = {
        title: [
            place
            for place, question in zip(found, story.questions, strict=True)
            if question.category == category
        ]
        for title, category in (("time", TIMED), ("plain", PLAIN))
    }
    return {
        f"{title} @{count}": measure_first(some, count)
        for title, some in places.items()
        for count in (1, 5)
    }


async def measure(model_path: Path) -> dict[str, dict[str, int]]:
    """Return the figures by language and by way of searching."""
    figures: dict[str, dict[str, int]] = {}
    async with open_bench(LocalEmbedder(model_path)) as bench:
        for language, story in read_stories().items():
            await bench.index_dialogue(story)
            services = {"words": bench.make_search(by_meaning=False), "MiniLM": bench.make_search()}
            for name, service in services.items():
                with use_english_only():
                    row = await measure_story(service, story)
                figures[f"{language}, {name}, English words"] = row
                figures[f"{language}, {name}"] = await measure_story(service, story)
    return figures


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval languages", __doc__)
    add_model_options(parser, stores_vectors=False)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    figures = asyncio.run(measure(options.model_path))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_grid("language", figures, width=38)
