"""Measure whether memory's search finds a line that is asked for in other words.

There are 150 questions (`paraphrase_probes.jsonl`), each for one line of CRD3's transcripts. A
question shares no word stem with its line except stop words. The transcripts are chats of 300 and
of 1,500 messages. Each question goes through the search of a turn, and the results fill a prompt as
in a turn. The last 40 messages of a chat are not searched. Even questions are for choosing
constants, odd ones for reporting. Rewritten questions were written by a person who knew the lines.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.context.budget import fill
from backend.core.logs import configure_logging
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.memory.index.protocol import ScopePart
from backend.memory.search.features import Candidate
from backend.memory.search.ranking import drop_duplicates, lower_neighbours, merge_nearest
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.memory.search.terms import query_terms
from backend.turns.prompt.retrieve import MAX_SHORT_ITEMS
from backend.vault.sealing import Sealer
from scripts.bench.data import CRD3
from scripts.bench.retrieval.measures import average, measure_ndcg, measure_recall
from scripts.bench.retrieval.search import (
    Dialogue,
    SearchBench,
    add_model_options,
    make_lines,
    make_request,
    make_sealer,
    open_bench,
    open_model,
)
from scripts.bench.tables import new_parser, print_grid, print_machine

PROBES = Path(__file__).with_name("paraphrase_probes.jsonl")
CHAT_SIZES = (300, 1500)
RECENT_MESSAGES = 40
"""Messages at the end of a chat that are in its history and therefore not searched."""

FIRST_COUNTS = (5, 10, 40)
ROOM_TOKENS = (1024, 2048, 4000)
IDS = UUID("b7a0b9c8-50e5-5a6f-9d3b-0f3d0c8e0000")
BEGAN = datetime(2026, 3, 1, 19, tzinfo=UTC)

Transcript = Sequence[tuple[str, int, str, str]]
"""(episode, number of the turn, speaker, text) of each line."""


@dataclass(frozen=True)
class ParaphraseProbe:
    """A question, and the place of the line that answers it."""

    number: int
    place: int
    question: str
    rewritten: str

    @property
    def half(self) -> str:
        return "reporting" if self.number % 2 else "choosing"


@dataclass(frozen=True)
class SizedLine:
    """A line as an item of a prompt."""

    id: UUID
    tokens: int


@dataclass
class ProbeResult:
    """The results of one probe by method, and the milliseconds of the search."""

    gold: UUID
    orders: dict[str, list[UUID]]
    milliseconds: float


@dataclass
class ChatResults:
    """The results of all chats of one size."""

    results: list[ProbeResult] = field(default_factory=list[ProbeResult])
    sized: dict[UUID, SizedLine] = field(default_factory=dict[UUID, SizedLine])


def read_transcript(folder: Path) -> list[tuple[str, int, str, str]]:
    """Return the lines of all transcripts in order."""
    return [
        (file.stem, turn["NUMBER"], " and ".join(turn["NAMES"]), " ".join(turn["UTTERANCES"]))
        for file in sorted(folder.glob("*.json"))
        for turn in json.loads(file.read_text())["TURNS"]
    ]


def read_probes(lines: Transcript) -> list[ParaphraseProbe]:
    """Read the probes.

    Raises `SystemExit` if a line has changed, or shares a word with its question.
    """
    places = {(episode, turn): place for place, (episode, turn, _, _) in enumerate(lines)}
    probes: list[ParaphraseProbe] = []
    for number, raw in enumerate(PROBES.read_text().splitlines()):
        row = json.loads(raw)
        place = places.get((row["episode"], row["turn"]))
        text = "" if place is None else lines[place][3]
        if place is None or hashlib.sha256(text.encode()).hexdigest()[:8] != row["digest"]:
            raise SystemExit(f"Turn {row['turn']} of {row['episode']} has changed.")
        if shared := set(query_terms(row["question"])) & set(query_terms(text)):
            raise SystemExit(f"Probe {number} and its line share {', '.join(sorted(shared))}.")
        probes.append(ParaphraseProbe(number, place, row["question"], row["rewritten"]))
    return probes


def split_chats(lines: Transcript, size: int) -> Iterator[Dialogue]:
    """Yield the transcripts as chats of `size` messages, each of a different user."""
    cast = [name for _, _, name, _ in lines if " and " not in name]
    cast = sorted({name for name in cast if name != "ALL"}, key=lambda name: -cast.count(name))[:8]
    for start in range(0, len(lines) - size + 1, size):
        chat_id = uuid5(IDS, f"{size}/{start}")
        texts = [
            (make_line_id(size, start + place), author, text, BEGAN + timedelta(seconds=20 * place))
            for place, (_, _, author, text) in enumerate(lines[start : start + size])
        ]
        yield Dialogue(
            user_id=uuid5(IDS, f"user/{size}/{start}"),
            chat_id=chat_id,
            speakers=cast,
            lines=make_lines(chat_id, texts),
            questions=(),
            ended=texts[-1][3] + timedelta(days=1),
        )


def make_line_id(size: int, place: int) -> UUID:
    return uuid5(IDS, f"{size}/{place}")


async def select(
    service: MemorySearch, sealer: Sealer, request: SearchRequest
) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """Return the candidates above the thresholds, and all that a turn would take."""
    findings = await service.find(sealer, request)
    vectors = await findings.vectors.wait()
    active = lower_neighbours(findings.candidates, findings.breadth)
    strict = drop_duplicates(active, vectors, count=request.limit)
    return strict, merge_nearest(strict, findings.near, room=request.room, most=request.most)


async def search_probe(
    bench: SearchBench, dialogue: Dialogue, probe: ParaphraseProbe, size: int
) -> ProbeResult:
    """Search for one probe by each method."""
    service, sealer = bench.make_search(), make_sealer(dialogue.user_id)
    part = ScopePart(
        containers=[dialogue.chat_id],
        before_position=len(dialogue.lines) - RECENT_MESSAGES,
        kinds=("message",),
    )
    request = make_request(dialogue, probe.question, [part], ["message"])
    began = time.perf_counter()
    strict, chosen = await select(service, sealer, request)
    seconds = time.perf_counter() - began - (bench.embedder.seconds if bench.embedder else 0.0)
    both = f"{probe.question}\n{probe.rewritten}"
    _, with_both = await select(service, sealer, replace(request, text=both))
    _, rewritten = await select(service, sealer, replace(request, text=probe.rewritten))
    everything = await service.find(sealer, replace(request, min_relevance=0.0, limit=1000))
    plain = await bench.search_plainly(sealer, probe.question, request.parts)
    return ProbeResult(
        gold=make_line_id(size, probe.place),
        orders={
            "vectors alone": _list_sources(plain["dense"]),
            "words alone": _list_sources(plain["sparse"]),
            "all signals, no thresholds": _list_sources(everything.candidates),
            "thresholds alone": _list_sources(strict),
            "as a turn searches": _list_sources(chosen),
            "the question rewritten": _list_sources(rewritten),
            "question and rewriting": _list_sources(with_both),
        },
        milliseconds=seconds * 1000,
    )


def _list_sources(found: Sequence[Any]) -> list[UUID]:
    return list(dict.fromkeys(each.payload.source_id for each in found))


async def search_chats(options: argparse.Namespace, size: int) -> ChatResults:
    """Index the chats of one size, and search for all probes."""
    lines = read_transcript(options.data)
    probes = read_probes(lines)
    probes = [each for each in probes if options.half in {"both", each.half}]
    count = get_tokenizer("o200k_base").count
    found = ChatResults()
    async with open_bench(open_model(options)) as bench:
        for number, dialogue in enumerate(split_chats(lines, size)):
            of_chat = [each for each in probes if each.place // size == number]
            if not of_chat:
                continue
            await bench.index_dialogue(dialogue)
            for line in dialogue.lines:
                text = f"[{line.said_at.day} {line.said_at:%B %Y}] {line.author}: {line.text}"
                found.sized[line.id] = SizedLine(line.id, count(text) + MESSAGE_OVERHEAD)
            found.results += [await search_probe(bench, dialogue, probe, size) for probe in of_chat]
    return found


def summarize(chats: ChatResults) -> dict[str, dict[str, float]]:
    """Return the shares of lines among the first and within a room, in per cent, by method.

    Each question has one line, so that `@5` is also any@5 and all@5.
    """
    figures: dict[str, dict[str, float]] = {}
    for method in chats.results[0].orders:
        scores: list[tuple[str, dict[str, float]]] = []
        tokens: list[int] = []
        for result in chats.results:
            order, gold = result.orders[method], {result.gold}
            row = {f"@{count}": measure_recall(order, gold, count) for count in FIRST_COUNTS}
            row["NDCG@10"] = measure_ndcg(order, gold, 10)
            taken: list[SizedLine] = []
            for room in ROOM_TOKENS:
                taken, _ = fill([chats.sized[each] for each in order[:MAX_SHORT_ITEMS]], room)
                row[f"{room}t"] = measure_recall([each.id for each in taken], gold, len(taken))
            scores.append((method, row))
            tokens.append(sum(each.tokens for each in taken))
        figures |= average(scores, {method: {method}})
        figures[method]["tokens"] = round(statistics.fmean(tokens), 1)
    return figures


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval paraphrase", __doc__)
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    add_model_options(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=CHAT_SIZES, help="of the chats")
    parser.add_argument("--half", choices=("choosing", "reporting", "both"), default="both")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    chats = {size: asyncio.run(search_chats(options, size)) for size in options.sizes}
    figures = {size: summarize(each) for size, each in chats.items()}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_machine()
    for size, each in chats.items():
        milliseconds = statistics.median(result.milliseconds for result in each.results)
        print(
            f"\n{len(each.results)} questions ({options.half}), chats of {size} messages, "
            f"search {milliseconds:.1f} ms without the embedding"
        )
        print_grid("", figures[size])
