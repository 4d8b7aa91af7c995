"""Measure how often a question about a scene finds the line that answers it, in seven languages.

The scenes are those of `tests/fixtures/questions/scenes`: a hundred lines and forty questions in
each language. They are searched by words alone, and with the vectors of any model folder.
Terms are chosen on these. Two more scenes, with 20 questions in three languages, check the choice
(`more_scenes`); their chat contains the others, too. `--missed` lists the questions with a line
that is not among the first five.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
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
MORE_SCENES = FIXTURES / "questions" / "more_scenes"
SCENE_LINES = 20
COUNTS = (1, 5, 10)
MISSED_PLACE = 5
CHOOSE, CHECK = 1, 2
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0018")
BEGINNING = datetime(2024, 3, 1, 18, tzinfo=UTC)


def read_scenes(language: str) -> Dialogue:
    """Return the scenes of a language as a chat: a scene a day, a line a minute.

    Questions have the category `CHOOSE`, those about `more_scenes` have `CHECK`.
    """
    chat_id = uuid5(IDS, language)
    files = {CHOOSE: SCENES / f"{language}.toml", CHECK: MORE_SCENES / f"{language}.toml"}
    data = {
        category: tomllib.loads(path.read_text(encoding="utf-8"))
        for category, path in files.items()
        if path.exists()
    }
    speakers = data[CHOOSE]["speakers"]
    raws = [(category, raw) for category, each in data.items() for raw in each["lines"]]
    lines: list[tuple[UUID, str, str, datetime]] = []
    questions: list[Question] = []
    for number, (category, raw) in enumerate(raws):
        text, *asked = [raw] if isinstance(raw, str) else raw
        day, minute = divmod(number, SCENE_LINES)
        line_id = uuid5(chat_id, str(number))
        said_at = BEGINNING + timedelta(days=day, minutes=minute)
        lines.append((line_id, speakers[number % 2], text, said_at))
        questions += [Question(each, category, frozenset({line_id})) for each in asked]
    return Dialogue(
        user_id=uuid5(IDS, f"user/{language}"),
        chat_id=chat_id,
        speakers=speakers,
        lines=make_lines(chat_id, lines),
        questions=questions,
        ended=lines[-1][3] + timedelta(days=1),
    )


class Result(NamedTuple):
    """The place from 0 of the line that answers a question; None if it is missing."""

    group: str
    question: str
    place: int | None


async def measure(model_path: Path) -> list[Result]:
    """Ask all questions in both ways. The group is the language, and the way of searching."""
    results: list[Result] = []
    async with open_bench(LocalEmbedder(model_path)) as bench:
        for path in sorted(SCENES.glob("*.toml")):
            scenes = read_scenes(path.stem)
            await bench.index_dialogue(scenes)
            for name, by_meaning in (("words", False), (model_path.name, True)):
                search = bench.make_search(by_meaning=by_meaning)
                places = await find_places(search, scenes, scenes.speakers)
                for question, place in zip(scenes.questions, places, strict=True):
                    check = ", check" if question.category == CHECK else ""
                    group = f"{path.stem}{check}, {name}"
                    results.append(Result(group, question.text, place))
    return results


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval scenes", __doc__)
    add_model_options(parser, stores_vectors=False)
    parser.add_argument("--missed", action="store_true", help="list the questions that failed")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    results = asyncio.run(measure(options.model_path))
    places: defaultdict[str, list[int | None]] = defaultdict(list)
    for group, _, place in results:
        places[group].append(place)
    figures = {
        group: {f"@{count}": measure_first(places[group], count) for count in COUNTS}
        for group in sorted(places, key=lambda group: group.rpartition(" ")[::-1])
    }
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_grid("language", figures, width=38)
    if options.missed:
        for group, question, place in results:
            if place is None or place >= MISSED_PLACE:
                where = "missing" if place is None else place + 1
                print(f"{group}, {where}: {question}", file=sys.stderr)
