#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""What memory's search brings back where a chronicle has events beside the lines.

    scripts/bench_events.py [--data FILE] [--model-path DIR] [--vectors DIR] [--json]

LoCoMo's observations, which a model wrote of its dialogues, stand for the events of a chronicle:
each names the turns that it was made from. Dialogues are indexed and asked as by `bench_locomo.py`,
and what is found goes the way that it goes in a turn, with thresholds and lines that are near by
meaning alone. Without events; with events that know nothing of their lines; with events joined to
them.

Recall counts the first lines, and the lines within a budget of word pieces that events share. In
`told` an event counts for its lines too, among the first memories of either kind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.core.audience import Viewpoint
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.documents import Document, event_document
from backend.memory.indexing.points import Attempt, Blinders, PointMaker
from backend.memory.indexing.sources import Origin, Recalled
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.turns.prompt.retrieve import MAX_ITEMS, MAX_SHORT_ITEMS, ROOM_TOKENS
from backend.vault.sealing import Sealer
from scripts._vectors import KeptVectors
from scripts.bench_locomo import (
    BUDGETS,
    CATEGORIES,
    KS,
    SHARED,
    Desk,
    Dialogue,
    OneIndex,
    Question,
    WithoutCache,
    index_dialogue,
    read_dialogues,
    recalls,
    word_pieces,
)

WAYS = ("lines alone", "with events", "events joined to their lines")


@dataclass(frozen=True)
class Observation:
    """An event: who it is about, what happened, and the lines that it was made from."""

    id: UUID
    who: str
    text: str
    said_at: datetime
    origins: Sequence[Origin]


@dataclass(frozen=True)
class EveryRow:
    """A source whose rows all count, and a database that nobody asks."""

    kind: Kind
    origins: Mapping[UUID, Sequence[Origin]]

    def read(self) -> AbstractAsyncContextManager[None]:
        """No session."""
        return nullcontext()

    async def recall(
        self, _session: Any, _sealer: Sealer, ids: Collection[UUID], *, viewpoint: Viewpoint
    ) -> dict[UUID, Recalled]:
        """See `Source`; without texts."""
        _ = viewpoint
        return {
            each: Recalled(
                kind=self.kind,
                source_id=each,
                container_id=each,
                title="",
                text="",
                origins=self.origins.get(each, ()),
            )
            for each in ids
        }


def read_observations(path: Path, dialogues: Sequence[Dialogue]) -> list[list[Observation]]:
    """The events of each dialogue; those whose turns are not in it are left out."""
    return [
        [event for event in _events(raw, dialogue) if event.origins]
        for raw, dialogue in zip(json.loads(path.read_text()), dialogues, strict=True)
    ]


def _events(raw: Mapping[str, Any], dialogue: Dialogue) -> list[Observation]:
    lines = {line.id: line for line in dialogue.lines}
    events: list[Observation] = []
    for said in raw["observation"].values():
        for who, observed in said.items():
            for text, turns in observed:
                named = re.findall(r"D:?(\d+):(\d+)", str(turns))
                ids = [uuid5(dialogue.chat_id, f"D{int(a)}:{int(b)}") for a, b in named]
                made = [lines[each] for each in dict.fromkeys(ids) if each in lines]
                events.append(
                    Observation(
                        id=uuid5(dialogue.chat_id, f"event/{len(events)}"),
                        who=who,
                        text=text,
                        said_at=made[0].said_at if made else dialogue.ended,
                        origins=[Origin(line.id, dialogue.chat_id, line.position) for line in made],
                    )
                )
    return events


def _document(event: Observation, chronicle_id: UUID) -> Document:
    return event_document(
        event.id,
        chronicle_id,
        summary=event.text,
        when="",
        where="",
        who=[event.who],
        keywords=[],
        said_at=event.said_at,
        version=1,
    )


async def asked(
    desk: Desk, question: Question, chronicle_id: UUID, way: str
) -> list[tuple[Kind, UUID]]:
    """What a turn's search brings up, best first."""
    dialogue = desk.dialogue
    parts = [ScopePart(containers=[dialogue.chat_id], kinds=("message", "scene"))]
    kinds: list[Kind] = ["message"]
    if way != WAYS[0]:
        parts.append(ScopePart(containers=[chronicle_id], kinds=("event",)))
        kinds.append("event")
    request = SearchRequest(
        text=question.text,
        names=dialogue.speakers,
        parts=parts,
        kinds=kinds,
        limit=MAX_ITEMS,
        room=ROOM_TOKENS,
        most=MAX_SHORT_ITEMS,
        now=dialogue.ended,
        activates_lore=True,
    )
    result = await desk.service.find(desk.sealer, request)
    database: Any = EveryRow("message", {})
    memories = await desk.service.recall(database, desk.sealer, result)
    return [(each.recalled.kind, each.recalled.source_id) for each in memories]


def figures_of(
    found: Sequence[tuple[Kind, UUID]],
    gold: frozenset[UUID],
    pieces: Mapping[UUID, int],
    made: Mapping[UUID, Sequence[Origin]],
) -> list[float]:
    """Recall of the first lines at `KS`, within `BUDGETS`, and at `KS` where events count, too."""
    lines = [row for kind, row in found if kind == "message"]
    values = recalls(lines, gold, pieces)[: len(KS)]
    values += recalls([row for _, row in found], gold, pieces)[len(KS) :]
    for k in KS:
        told = {row for _, row in found[:k]}
        told |= {origin.message_id for row in [*told] for origin in made.get(row, ())}
        values.append(len(gold & told) / len(gold))
    return values


async def run(
    data: Path, model_path: Path, vectors: Path
) -> dict[str, list[tuple[int, list[float]]]]:
    """(category, figures) of each question, by way."""
    dialogues = read_dialogues(data)
    model = KeptVectors(LocalEmbedder(model_path, workers=2), vectors)
    embedder, blinders, pool = WithoutCache(model), Blinders(), CpuPool()
    count = word_pieces(model_path)
    rows: dict[str, list[tuple[int, list[float]]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        index = await open_edge(Path(folder), "bench", model.spec.dimension)
        maker = PointMaker(embedder, blinders=blinders, pool=pool)
        for dialogue, events in zip(dialogues, read_observations(data, dialogues), strict=True):
            sealer = Sealer(dialogue.user_id, {1: bytes(32)}, user_key=dialogue.user_id.bytes * 2)
            chronicle_id = uuid5(dialogue.chat_id, "chronicle")
            made = {event.id: event.origins for event in events}
            pieces = {line.id: count(f"{line.author}: {line.text}") for line in dialogue.lines}
            pieces |= {event.id: count(f"{event.who}: {event.text}") for event in events}
            services = {
                way: MemorySearch(
                    OneIndex(index),
                    _sources(made if way == WAYS[2] else {}),
                    embedder=embedder,
                    blinders=blinders,
                    pool=pool,
                )
                for way in WAYS
            }
            desk = Desk(dialogue, sealer, blinders, index, embedder, services[WAYS[0]])
            await index_dialogue(desk, maker)
            for way in WAYS:
                if way == WAYS[1]:
                    attempt = Attempt(sealer)
                    documents = [_document(event, chronicle_id) for event in events]
                    await index.upsert(await maker.make(attempt, documents))
                for question in dialogue.questions:
                    here = replace(desk, service=services[way])
                    found = await asked(here, question, chronicle_id, way)
                    values = figures_of(found, question.gold, pieces, made)
                    rows[way].append((question.category, values))
        await index.aclose()
        await pool.aclose()
        await model.aclose()
    return rows


def _sources(made: Mapping[UUID, Sequence[Origin]]) -> list[Any]:
    return [EveryRow("message", {}), EveryRow("event", made)]


def summary(rows: Mapping[str, Sequence[tuple[int, list[float]]]]) -> dict[str, dict[str, Any]]:
    """Means in per cent, of the categories 1 to 4 and of each."""
    heads = [f"@{k}" for k in KS] + [f"{size}t" for size in BUDGETS] + [f"told @{k}" for k in KS]
    groups = {"1-4": {1, 2, 3, 4}} | {title: {each} for each, title in CATEGORIES.items()}
    return {
        way: {
            title: {
                head: round(100 * statistics.fmean(column), 1)
                for head, column in zip(
                    heads,
                    zip(*(values for each, values in some if each in group), strict=True),
                    strict=True,
                )
            }
            for title, group in groups.items()
        }
        for way, some in rows.items()
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=SHARED / "locomo" / "locomo_first5.json")
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
    for way, groups in figures.items():
        heads = list(next(iter(groups.values())))
        sys.stdout.write(f"\n{way:<30}" + "".join(f"{head:>9}" for head in heads) + "\n")
        for title, row in groups.items():
            sys.stdout.write(f"  {title:<28}" + "".join(f"{row[head]:>9}" for head in heads) + "\n")


if __name__ == "__main__":
    main()
