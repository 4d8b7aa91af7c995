#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How often the line that answers a question comes first, or among the first five, by language.

    scripts/bench_languages.py [--model-path DIR] [--json]

The lines and questions of `tests/fixtures/questions` go through the code that a server runs, by
words alone and with the model's vectors, each with the words of questions and times of all
languages and with those of English alone. Half of the questions name a time, which alone tells
their line from others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid5

from backend.chats.drafts import place_in_scene
from backend.chats.models import Message
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import ScopePart
from backend.memory.indexing.documents import Line
from backend.memory.indexing.points import Blinders, PointMaker
from backend.memory.search import words as query_words
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.vault.sealing import Sealer
from scripts.bench_locomo import (
    SHARED,
    Desk,
    Dialogue,
    OneIndex,
    Question,
    WithoutCache,
    index_dialogue,
)

QUESTIONS = Path(__file__).resolve().parents[1] / "tests/fixtures/questions/questions.toml"
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0017")
PLAIN_DAY = datetime(2022, 6, 1, 12, tzinfo=UTC)
TIMED, PLAIN = 1, 2


def read_stories(path: Path = QUESTIONS) -> dict[str, Dialogue]:
    """A chat of its own for each language; questions of two categories."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    days = [datetime.combine(day, time(12), UTC) for day in data.pop("said")]
    asked = datetime.combine(data.pop("asked_on"), time(18), UTC)
    return {language: _story(language, told, days, asked) for language, told in data.items()}


def _story(
    language: str, told: Mapping[str, Any], days: list[datetime], asked: datetime
) -> Dialogue:
    plain = [line for line, _ in told["plain"]] + told["others"]
    texts = [
        *zip(days, (line for line, _ in told["timed"]), strict=True),
        *((PLAIN_DAY + timedelta(minutes=at), line) for at, line in enumerate(plain)),
    ]
    chat_id = uuid5(IDS, language)
    lines: list[Line] = []
    before: Message | None = None
    for position, (said_at, text) in enumerate(sorted(texts)):
        row = Message(id=uuid5(chat_id, text), position=position, created_at=said_at)
        place_in_scene(row, before)
        before = row
        lines.append(
            Line(
                id=row.id,
                container_id=chat_id,
                author="Ada",
                text=text,
                said_at=said_at,
                position=position,
                scene_id=row.scene_id,
                version=1,
            )
        )
    questions = [
        Question(question, category, frozenset({uuid5(chat_id, line)}))
        for category, pairs in ((TIMED, told["timed"]), (PLAIN, told["plain"]))
        for line, question in pairs
    ]
    return Dialogue(
        user_id=uuid5(IDS, f"user/{language}"),
        chat_id=chat_id,
        speakers=("Ada", "Ben"),
        lines=lines,
        questions=questions,
        ended=asked,
    )


@contextmanager
def english_alone() -> Generator[None]:
    """As if there were words of questions and times in English alone."""
    english = {"english": query_words.words_of("english")}
    with patch.object(query_words, "languages", lambda: english):
        yield


async def ranks(desk: Desk) -> dict[int, list[int]]:
    """The place of the line that answers each question, from 1, by category; 99 for none."""
    found: dict[int, list[int]] = {TIMED: [], PLAIN: []}
    for question in desk.dialogue.questions:
        ask = SearchRequest(
            text=question.text,
            names=[*desk.dialogue.speakers, "Mira"],
            parts=[ScopePart(containers=[desk.dialogue.chat_id])],
            kinds=["message"],
            min_relevance=0.0,
            now=desk.dialogue.ended,
        )
        result = await desk.service.find(desk.sealer, ask)
        order = [each.payload.source_id for each in result.candidates]
        [gold] = question.gold
        found[question.category].append(order.index(gold) + 1 if gold in order else 99)
    return found


async def measure(model_path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """In per cent, by language, by what searched, by figure."""
    embedder = WithoutCache(LocalEmbedder(model_path))
    blinders, pool = Blinders(), CpuPool()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        index = await open_edge(Path(folder), "bench", embedder.spec.dimension)
        maker = PointMaker(embedder, blinders=blinders, pool=pool)
        for language, story in read_stories().items():
            sealer = Sealer(story.user_id, {1: bytes(32)}, user_key=story.user_id.bytes * 2)
            for name, model in (("words", None), ("MiniLM", embedder)):
                service = MemorySearch(
                    OneIndex(index), [], embedder=model, blinders=blinders, pool=pool
                )
                desk = Desk(story, sealer, blinders, index, embedder, service)
                if model is None:
                    await index_dialogue(desk, maker)
                with english_alone():
                    before = await ranks(desk)
                rows = figures.setdefault(language, {})
                rows[f"{name}, English"] = _recall(before)
                rows[name] = _recall(await ranks(desk))
        await index.aclose()
    await pool.aclose()
    return figures


def _recall(places: Mapping[int, list[int]]) -> dict[str, float]:
    return {
        f"{title} @{k}": round(100 * sum(each <= k for each in places[kind]) / len(places[kind]))
        for kind, title in ((TIMED, "time"), (PLAIN, "plain"))
        for k in (1, 5)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model-path", type=Path, default=SHARED / "minilm-l6-v2-int8")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    figures = asyncio.run(measure(options.model_path))
    if options.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    for language, rows in figures.items():
        for name, values in rows.items():
            cells = "".join(f"{figure:>10} {value:3.0f}" for figure, value in values.items())
            sys.stdout.write(f"{language:12}{name:18}{cells}\n")


if __name__ == "__main__":
    main()
