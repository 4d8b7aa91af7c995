#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How much of what answers a question for a list memory's search brings back.

    scripts/bench_lists.py [--data DIR] [--model-path DIR] [--vectors DIR] [--json]

`_list_questions.toml` has 40 questions about two episodes of CRD3, whose lines become a chat, and
20 about a lorebook of its own; 2 to 8 lines or entries answer each. They are indexed as a server
indexes them and go through the search that a turn goes through, with its thresholds. Half of the
questions are for choosing, half for reporting. Recall is counted as in `bench_locomo.py`.

Embeddings are kept in `--vectors`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.chats.drafts import place_in_scene
from backend.chats.models import Message
from backend.core.audience import Viewpoint
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.documents import Line, lore_documents
from backend.memory.indexing.points import Attempt, Blinders, PointMaker
from backend.memory.indexing.sources import Recalled
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.turns.prompt.retrieve import MAX_ITEMS, MAX_SHORT_ITEMS, ROOM_TOKENS
from backend.vault.sealing import Sealer
from scripts._vectors import KeptVectors
from scripts.bench_locomo import (
    BUDGETS,
    KS,
    SHARED,
    Desk,
    Dialogue,
    OneIndex,
    Question,
    WithoutCache,
    index_dialogue,
    recalls,
    word_pieces,
)

QUESTIONS = Path(__file__).with_name("_list_questions.toml")
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0017")
EPISODES = (1, 2)
CAST = {
    "ASHLEY": "Yasha", "LAURA": "Jester", "LIAM": "Caleb", "MARISHA": "Beau",
    "MATT": "Narrator", "SAM": "Nott", "TALIESIN": "Molly", "TRAVIS": "Fjord",
}  # fmt: skip
"""Characters by their players: in a chat of Talekeeper's the characters speak."""


@dataclass(frozen=True)
class Lists:
    """The chat with its questions, and the lorebook with its."""

    story: Dialogue
    book_id: UUID
    entries: Mapping[UUID, Sequence[Any]]
    lore: Sequence[Question]


def read_lists(folder: Path) -> Lists:
    """Questions with what answers them; `category` is 1 for choosing and 2 for reporting.

    Raises `SystemExit` where a line of the transcripts is not the one that is meant.
    """
    data = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    chat_id, book_id = uuid5(IDS, "story"), uuid5(IDS, "lore")
    rows: list[Message] = []
    lines: dict[str, Line] = {}
    for episode in EPISODES:
        began = datetime(2018, 1, 4, 19, tzinfo=UTC) + timedelta(weeks=episode)
        turns = json.loads((folder / f"C2E{episode:03}.json").read_text())["TURNS"]
        for number, turn in enumerate(turns):
            row = Message(
                id=uuid5(chat_id, f"{episode}.{number}"),
                position=len(rows),
                created_at=began + timedelta(seconds=8 * number),
            )
            place_in_scene(row, rows[-1] if rows else None)
            rows.append(row)
            lines[f"{episode}.{number}"] = Line(
                id=row.id,
                container_id=chat_id,
                author=" and ".join(CAST.get(name, name) for name in map(str, turn["NAMES"])),
                text=" ".join(turn["UTTERANCES"]),
                said_at=row.created_at,
                position=row.position,
                scene_id=row.scene_id,
                version=1,
            )
    asked: list[Question] = []
    for at, (text, refs, digest) in enumerate(data["story"]):
        found = "\n".join(lines[ref].text for ref in refs)
        if hashlib.sha256(found.encode()).hexdigest()[:12] != digest:
            raise SystemExit(f"Other lines than those meant answer here: {text}")
        asked.append(Question(text, at % 2 + 1, frozenset(lines[ref].id for ref in refs)))
    return Lists(
        story=Dialogue(
            user_id=uuid5(IDS, "user/story"),
            chat_id=chat_id,
            speakers=tuple(CAST.values()),
            lines=list(lines.values()),
            questions=asked,
            ended=rows[-1].created_at,
        ),
        book_id=book_id,
        entries={uuid5(book_id, each[0]): each for each in data["entries"]},
        lore=[
            Question(text, at % 2 + 1, frozenset(uuid5(book_id, title) for title in titles))
            for at, (text, titles) in enumerate(data["lore"])
        ],
    )


async def index_book(desk: Desk, maker: PointMaker, lists: Lists) -> None:
    """Index the lorebook as a server would."""
    documents = [
        document
        for entry_id, (title, keys, content) in lists.entries.items()
        for document in lore_documents(
            entry_id, lists.book_id, title=title, keys=keys, content=content, version=1
        )
    ]
    attempt = Attempt(desk.sealer)
    points = await maker.make(attempt, documents)
    if attempt.failure:
        raise attempt.failure
    await desk.index.upsert(points)


class EveryRow:
    """A source whose rows all count, and a database that nobody asks."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind

    def read(self) -> AbstractAsyncContextManager[None]:
        """No session."""
        return nullcontext()

    async def recall(
        self, _session: Any, _sealer: Sealer, ids: Collection[UUID], *, viewpoint: Viewpoint
    ) -> dict[UUID, Recalled]:
        """See `Source`; without texts."""
        _ = viewpoint
        return {
            each: Recalled(kind=self.kind, source_id=each, container_id=IDS, title="", text="")
            for each in ids
        }


async def found(desk: Desk, question: Question, kind: Kind, container: UUID) -> list[UUID]:
    """What a turn's search brings up, best first."""
    request = SearchRequest(
        text=question.text,
        names=desk.dialogue.speakers,
        parts=[ScopePart(containers=[container])],
        kinds=[kind],
        limit=MAX_ITEMS,
        room=ROOM_TOKENS,
        most=MAX_SHORT_ITEMS,
        now=desk.dialogue.ended,
        activates_lore=True,
    )
    result = await desk.service.find(desk.sealer, request)
    database: Any = EveryRow(kind)
    memories = await desk.service.recall(database, desk.sealer, result)
    return [each.recalled.source_id for each in memories]


async def run(
    data: Path, model_path: Path, vectors: Path
) -> dict[str, list[tuple[int, list[float]]]]:
    """(1 for choosing or 2 for reporting, recalls) of each question, by what it is about."""
    lists = read_lists(data)
    model = KeptVectors(LocalEmbedder(model_path, workers=2), vectors)
    embedder, blinders, pool = WithoutCache(model), Blinders(), CpuPool()
    count = word_pieces(model_path)
    pieces = {each.id: count(f"{each.author}: {each.text}") for each in lists.story.lines}
    pieces |= {each: count(f"{title}: {text}") for each, (title, _, text) in lists.entries.items()}
    results: dict[str, list[tuple[int, list[float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        index = await open_edge(Path(folder), "bench", model.spec.dimension)
        user_id = lists.story.user_id
        sealer = Sealer(user_id, {1: bytes(32)}, user_key=user_id.bytes * 2)
        sources: list[Any] = [EveryRow("message"), EveryRow("lore")]
        service = MemorySearch(
            OneIndex(index), sources, embedder=embedder, blinders=blinders, pool=pool
        )
        desk = Desk(lists.story, sealer, blinders, index, embedder, service)
        maker = PointMaker(embedder, blinders=blinders, pool=pool)
        await index_dialogue(desk, maker)
        await index_book(desk, maker, lists)
        asked: list[tuple[str, Kind, UUID, Sequence[Question]]] = [
            ("story", "message", lists.story.chat_id, lists.story.questions),
            ("lorebook", "lore", lists.book_id, lists.lore),
        ]
        for name, kind, container, questions in asked:
            for question in questions:
                order = await found(desk, question, kind, container)
                values = recalls(order, question.gold, pieces)
                results.setdefault(name, []).append((question.category, values))
        await index.aclose()
        await pool.aclose()
        await model.aclose()
    return results


def summary(
    results: Mapping[str, Sequence[tuple[int, list[float]]]],
) -> dict[str, dict[str, float]]:
    """Mean recalls in per cent, of either half and of both."""
    heads = [f"@{k}" for k in KS] + [f"{budget}t" for budget in BUDGETS]
    halves: dict[str, Callable[[int], bool]] = {
        "choosing": lambda half: half == 1,
        "reporting": lambda half: half == 2,
        "all": lambda _: True,
    }
    return {
        f"{name}, {half}": {
            head: round(100 * statistics.fmean(column), 1)
            for head, column in zip(
                heads, zip(*(values for at, values in rows if is_in(at)), strict=True), strict=True
            )
        }
        for name, rows in results.items()
        for half, is_in in halves.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=SHARED / "crd3", help="folder of CRD3")
    parser.add_argument("--model-path", type=Path, default=SHARED / "minilm-l6-v2-int8")
    parser.add_argument(
        "--vectors", type=Path, default=Path(tempfile.gettempdir()) / "bench-vectors"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    figures = summary(asyncio.run(run(options.data, options.model_path, options.vectors)))
    if options.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    heads = list(next(iter(figures.values())))
    sys.stdout.write(" " * 24 + "".join(f"{head:>8}" for head in heads) + "\n")
    for name, row in figures.items():
        sys.stdout.write(f"{name:<24}" + "".join(f"{row[head]:>8}" for head in heads) + "\n")


if __name__ == "__main__":
    main()
