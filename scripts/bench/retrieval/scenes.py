"""Measure how often a question about a played scene finds its line, in seven languages.

The scenes are those of `tests/fixtures/questions/scenes`: a hundred lines and forty questions in
each language. They are searched by words alone, and with the vectors of any model folder.
`--missed` lists the questions whose line is not among the first five.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid5

from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
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

SCENES = FIXTURES / "questions" / "scenes"
SCENE_LINES = 20
COUNTS = (1, 5, 10)
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0018")
BEGINNING = datetime(2024, 3, 1, 18, tzinfo=UTC)


def read_scenes(path: Path) -> Dialogue:
    """Return the scenes of a language as a chat: a scene a day, a line a minute."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    chat_id = uuid5(IDS, path.stem)
    lines: list[tuple[UUID, str, str, datetime]] = []
    questions: list[Question] = []
    for number, raw in enumerate(data["lines"]):
        text, *asked = [raw] if isinstance(raw, str) else raw
        day, minute = divmod(number, SCENE_LINES)
        line_id = uuid5(chat_id, str(number))
        author = data["speakers"][number % 2]
        lines.append((line_id, author, text, BEGINNING + timedelta(days=day, minutes=minute)))
        questions += [Question(each, 1, frozenset({line_id})) for each in asked]
    return Dialogue(
        user_id=uuid5(IDS, f"user/{path.stem}"),
        chat_id=chat_id,
        speakers=data["speakers"],
        lines=make_lines(chat_id, lines),
        questions=questions,
        ended=lines[-1][3] + timedelta(days=1),
    )


async def measure(model_path: Path) -> dict[str, dict[str, list[int | None]]]:
    """Return the places of the lines by way of searching and language."""
    places: dict[str, dict[str, list[int | None]]] = {"words": {}, model_path.name: {}}
    async with open_bench(LocalEmbedder(model_path)) as bench:
        for path in sorted(SCENES.glob("*.toml")):
            scenes = read_scenes(path)
            await bench.index_dialogue(scenes)
            for name, by_meaning in zip(places, (False, True), strict=True):
                search = bench.make_search(by_meaning=by_meaning)
                places[name][path.stem] = await find_places(search, scenes, scenes.speakers)
    return places


def list_missed(places: dict[str, dict[str, list[int | None]]]) -> list[str]:
    return [
        f"{name}, {language}, {'missing' if place is None else place + 1}: {question.text}"
        for name, by_language in places.items()
        for language, some in by_language.items()
        for place, question in zip(
            some, read_scenes(SCENES / f"{language}.toml").questions, strict=True
        )
        if place is None or place >= 5
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval scenes", __doc__)
    add_model_options(parser, stores_vectors=False)
    parser.add_argument("--missed", action="store_true", help="list the questions that failed")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    places = asyncio.run(measure(options.model_path))
    figures = {
        f"{language}, {name}": {f"@{count}": measure_first(some, count) for count in COUNTS}
        for name, by_language in places.items()
        for language, some in by_language.items()
    }
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_grid("language", figures, width=38)
    if options.missed:
        print(*list_missed(places), sep="\n", file=sys.stderr)
