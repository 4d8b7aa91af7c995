"""Measure memory's search when a chronicle has events in addition to the messages.

LoCoMo's observations, which a model wrote about its dialogues, are the events of a chronicle. Each
names the turns that it comes from. Questions go through the search of a turn, with thresholds: with
messages only, with events, and with events that are joined to their messages.

Recall counts messages. Messages and events share the budgets. In `with events` an event also counts
for its messages, among the first items of both kinds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.core.logs import configure_logging
from backend.memory.embedding.protocol import Embedder
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.documents import IndexDocument, build_event_document
from backend.memory.indexing.sources import OriginMessage
from scripts.bench.data import LOCOMO
from scripts.bench.retrieval.locomo import CATEGORY_GROUPS, find_turns, read_dialogues
from scripts.bench.retrieval.measures import (
    RECALL_COUNTS,
    average,
    measure_budgets,
    measure_ranking,
    measure_recall,
)
from scripts.bench.retrieval.search import (
    AllRows,
    Dialogue,
    add_model_options,
    count_line_tokens,
    count_tokens,
    make_sealer,
    open_bench,
    open_model,
    search_as_turn,
)
from scripts.bench.tables import new_parser, print_grid

MESSAGES_ONLY, WITH_EVENTS, WITH_JOINED_EVENTS = (
    "messages only",
    "with events",
    "events joined to messages",
)


@dataclass(frozen=True)
class Observation:
    """An event: a person, a summary, and the messages that it comes from."""

    id: UUID
    who: str
    text: str
    said_at: datetime
    origins: Sequence[OriginMessage]


def read_observations(path: Path, dialogues: Sequence[Dialogue]) -> list[list[Observation]]:
    """Return the events of each dialogue, without those that name no turn of it."""
    return [
        [event for event in _list_events(raw, dialogue) if event.origins]
        for raw, dialogue in zip(json.loads(path.read_text()), dialogues, strict=True)
    ]


def _list_events(raw: Mapping[str, Any], dialogue: Dialogue) -> list[Observation]:
    events: list[Observation] = []
    for session in raw["observation"].values():
        for who, observations in session.items():
            for text, turns in observations:
                ids = find_turns(dialogue.chat_id, str(turns))
                lines = [line for line in dialogue.lines if line.id in ids]
                events.append(
                    Observation(
                        id=uuid5(dialogue.chat_id, f"event/{len(events)}"),
                        who=who,
                        text=text,
                        said_at=lines[0].said_at if lines else dialogue.ended,
                        origins=[
                            OriginMessage(each.id, dialogue.chat_id, each.position)
                            for each in lines
                        ],
                    )
                )
    return events


def _make_document(event: Observation, chronicle_id: UUID) -> IndexDocument:
    return build_event_document(
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


def measure_events(
    found: Sequence[tuple[Kind, UUID]],
    gold: frozenset[UUID],
    tokens: Mapping[UUID, int],
    origins: Mapping[UUID, Sequence[OriginMessage]],
) -> dict[str, float]:
    """Return the figures of one question."""
    messages = [source_id for kind, source_id in found if kind == "message"]
    everything = [source_id for _, source_id in found]
    figures = measure_ranking(messages, gold, tokens) | measure_budgets(everything, gold, tokens)
    for count in RECALL_COUNTS:
        first = everything[:count]
        first += [origin.message_id for each in first for origin in origins.get(each, ())]
        figures[f"with events @{count}"] = measure_recall(first, gold, len(first))
    return figures


async def measure(data: Path, model: Embedder) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean figures by way of searching and by category."""
    dialogues = read_dialogues(data)
    scores: dict[str, list[tuple[int, dict[str, float]]]] = {
        way: [] for way in (MESSAGES_ONLY, WITH_EVENTS, WITH_JOINED_EVENTS)
    }
    async with open_bench(model) as bench:
        for dialogue, events in zip(dialogues, read_observations(data, dialogues), strict=True):
            chronicle_id = uuid5(dialogue.chat_id, "chronicle")
            origins = {event.id: event.origins for event in events}
            lines = {line.id: f"{line.author}: {line.text}" for line in dialogue.lines}
            told = {event.id: f"{event.who}: {event.text}" for event in events}
            tokens = count_line_tokens(dialogue)
            tokens |= {event_id: count_tokens(text) for event_id, text in told.items()}
            await bench.index_dialogue(dialogue)
            for way, some in scores.items():
                parts = [ScopePart(containers=[dialogue.chat_id], kinds=("message",))]
                kinds: list[Kind] = ["message"]
                if way != MESSAGES_ONLY:
                    parts.append(ScopePart(containers=[chronicle_id], kinds=("event",)))
                    kinds.append("event")
                if way == WITH_EVENTS:
                    documents = [_make_document(event, chronicle_id) for event in events]
                    await bench.index_documents(make_sealer(dialogue.user_id), documents)
                joined = origins if way == WITH_JOINED_EVENTS else {}
                service = bench.make_search(
                    AllRows("message", texts=lines), AllRows("event", joined, told)
                )
                for question in dialogue.questions:
                    found = await search_as_turn(service, dialogue, question.text, parts, kinds)
                    values = measure_events(found, question.gold, tokens, origins)
                    some.append((question.category, values))
    return {way: average(some, CATEGORY_GROUPS) for way, some in scores.items()}


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval events", __doc__)
    parser.add_argument("--data", type=Path, default=LOCOMO, help="LoCoMo's file")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    figures = asyncio.run(measure(options.data, open_model(options)))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for way, rows in figures.items():
        print_grid(way, rows)
