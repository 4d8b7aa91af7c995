"""Measure the recall of memory's search for questions that ask for lists.

`list_questions.toml` has 40 questions about two episodes of CRD3, whose lines become a chat, and 20
about a lorebook. Each is answered by 2 to 8 lines or entries. They go through the search of a turn,
with its thresholds. Half of the questions are for choosing constants, half for reporting.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.core.logs import configure_logging
from backend.memory.embedding.protocol import Embedder
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.documents import build_lore_documents
from scripts.bench.data import CRD3
from scripts.bench.retrieval.measures import average, measure_ranking
from scripts.bench.retrieval.search import (
    AllRows,
    Dialogue,
    Question,
    add_model_options,
    count_line_tokens,
    count_tokens,
    make_lines,
    make_sealer,
    open_bench,
    open_model,
    search_as_turn,
)
from scripts.bench.tables import new_parser, print_grid

QUESTIONS = Path(__file__).with_name("list_questions.toml")
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0017")
EPISODES = (1, 2)
CHARACTERS = {
    "ASHLEY": "Yasha", "LAURA": "Jester", "LIAM": "Caleb", "MARISHA": "Beau",
    "MATT": "Narrator", "SAM": "Nott", "TALIESIN": "Molly", "TRAVIS": "Fjord",
}  # fmt: skip
"""Characters by their players, because characters speak in a chat."""

CHOOSING, REPORTING = 1, 2
HALVES = {
    "choosing": (CHOOSING,),
    "reporting": (REPORTING,),
    "all": (CHOOSING, REPORTING),
}


@dataclass(frozen=True)
class ListQuestions:
    """The chat with its questions, and the lorebook with its questions."""

    story: Dialogue
    book_id: UUID
    entries: Mapping[UUID, Sequence[Any]]
    lore: Sequence[Question]


def read_questions(folder: Path) -> ListQuestions:
    """Read the questions. Raises `SystemExit` if a line of the transcripts has changed."""
    data = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    chat_id, book_id = uuid5(IDS, "story"), uuid5(IDS, "lore")
    texts: dict[str, tuple[UUID, str, str, datetime]] = {}
    for episode in EPISODES:
        began = datetime(2018, 1, 4, 19, tzinfo=UTC) + timedelta(weeks=episode)
        turns = json.loads((folder / f"C2E{episode:03}.json").read_text())["TURNS"]
        for number, turn in enumerate(turns):
            name = f"{episode}.{number}"
            author = " and ".join(CHARACTERS.get(each, each) for each in map(str, turn["NAMES"]))
            said_at = began + timedelta(seconds=8 * number)
            texts[name] = (uuid5(chat_id, name), author, " ".join(turn["UTTERANCES"]), said_at)
    questions: list[Question] = []
    for number, (text, references, digest) in enumerate(data["story"]):
        answer = "\n".join(texts[each][2] for each in references)
        if hashlib.sha256(answer.encode()).hexdigest()[:12] != digest:
            raise SystemExit(f"The lines that answer this have changed: {text}")
        gold = frozenset(texts[each][0] for each in references)
        questions.append(Question(text, number % 2 + 1, gold))
    lines = make_lines(chat_id, texts.values())
    return ListQuestions(
        story=Dialogue(
            user_id=uuid5(IDS, "user/story"),
            chat_id=chat_id,
            speakers=tuple(CHARACTERS.values()),
            lines=lines,
            questions=questions,
            ended=lines[-1].said_at,
        ),
        book_id=book_id,
        entries={uuid5(book_id, each[0]): each for each in data["entries"]},
        lore=[
            Question(text, number % 2 + 1, frozenset(uuid5(book_id, title) for title in titles))
            for number, (text, titles) in enumerate(data["lore"])
        ],
    )


async def measure(data: Path, model: Embedder) -> dict[str, dict[str, float]]:
    """Return the mean recalls of the chat and of the lorebook, by half."""
    lists = read_questions(data)
    story = lists.story
    tokens = count_line_tokens(story)
    tokens |= {
        each: count_tokens(f"{title}: {text}") for each, (title, _, text) in lists.entries.items()
    }
    figures: dict[str, dict[str, float]] = {}
    async with open_bench(model) as bench:
        await bench.index_dialogue(story)
        documents = [
            document
            for entry_id, (title, keys, content) in lists.entries.items()
            for document in build_lore_documents(
                entry_id, lists.book_id, title=title, keys=keys, content=content, version=1
            )
        ]
        await bench.index_documents(make_sealer(story.user_id), documents)
        service = bench.make_search(AllRows("message"), AllRows("lore"))
        sets: list[tuple[str, Kind, UUID, Sequence[Question]]] = [
            ("story", "message", story.chat_id, story.questions),
            ("lorebook", "lore", lists.book_id, lists.lore),
        ]
        for name, kind, container_id, questions in sets:
            parts = [ScopePart(containers=[container_id])]
            scores: list[tuple[int, dict[str, float]]] = []
            for question in questions:
                found = await search_as_turn(service, story, question.text, parts, [kind])
                order = [source_id for _, source_id in found]
                values = measure_ranking(order, question.gold, tokens)
                scores.append((question.category, values))
            rows = average(scores, HALVES)
            figures |= {f"{name}, {half}": row for half, row in rows.items()}
    return figures


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval lists", __doc__)
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    figures = asyncio.run(measure(options.data, open_model(options)))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_grid("questions", figures)
