#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Whether memory's search brings back a line that is asked for in other words.

    scripts/bench_paraphrase.py [--sizes N...] [--half choosing|reporting|both]
                                [--questions FILE] [--data DIR] [--model-path DIR]
                                [--vectors DIR] [--json]

150 questions (`_paraphrase_probes.jsonl`), each for one line of CRD3's transcripts with which it
shares no word but stop words, stems compared. The transcripts are played as chats of 300 and of
1,500 messages; each question goes through the search that a turn goes through, with its thresholds,
and what is found fills a prompt's room as a turn fills it. Lines of the last 40 messages are not
looked through. Even questions are for choosing, odd ones for reporting. For a task model that puts
a question in other words stand rewritings by hand, of somebody who had seen the lines.

With `--questions` the index also has questions that lines answer. `_paraphrase_questions.txt` has
some for the lines that are asked for, by hand, of somebody who had not seen what is asked; a file
of a model's has {"place", "q"} in each line. All other lines get two by a rule, as noise.

The file of probes names lines by episode and turn; a digest notices a transcript that is another.
Vectors are kept in `--vectors`, so that a run after the first takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.chats.drafts import place_in_scene
from backend.chats.models import Message
from backend.context.budget import fill
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import ScopePart
from backend.memory.indexing.documents import Line
from backend.memory.indexing.points import Blinders, PointMaker
from backend.memory.search import ranking as mmr
from backend.memory.search.features import Candidate
from backend.memory.search.recall import with_nearest
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.memory.search.terms import query_terms
from backend.turns.prompt.retrieve import MAX_ITEMS, MAX_SHORT_ITEMS, ROOM_TOKENS
from backend.vault.sealing import Sealer
from scripts._vectors import KeptVectors
from scripts.bench_locomo import (
    SHARED,
    Desk,
    Dialogue,
    OneIndex,
    Question,
    WithoutCache,
    index_dialogue,
    verbatim,
)

PROBES = Path(__file__).with_name("_paraphrase_probes.jsonl")
SIZES = (300, 1500)
KEPT = 40
"""Messages at the end of a chat that its history holds: they are not looked through."""
KS = (10, 40)
ROOMS = (1024, 4000)
IDS = UUID("b7a0b9c8-50e5-5a6f-9d3b-0f3d0c8e0000")
BEGAN = datetime(2026, 3, 1, 19, tzinfo=UTC)


@dataclass(frozen=True)
class Probe:
    """A question, and where the line is that answers it."""

    number: int
    place: int
    question: str
    rewritten: str

    @property
    def half(self) -> str:
        """What it is for."""
        return "reporting" if self.number % 2 else "choosing"


@dataclass(frozen=True)
class Sized:
    """A line as an item of a prompt."""

    id: UUID
    tokens: int


@dataclass
class Asked:
    """What came of one probe: its lines in order, by method; milliseconds of the search."""

    probe: Probe
    gold: UUID
    orders: dict[str, list[UUID]]
    milliseconds: float


@dataclass
class Chats:
    """All chats of one size."""

    size: int
    asked: list[Asked] = field(default_factory=list[Asked])
    sized: dict[UUID, Sized] = field(default_factory=dict[UUID, Sized])


def spoken(folder: Path) -> list[tuple[str, int, str, str]]:
    """(episode, number of the turn, speaker, text) of all transcripts, in order."""
    return [
        (file.stem, turn["NUMBER"], " and ".join(turn["NAMES"]), " ".join(turn["UTTERANCES"]))
        for file in sorted(folder.glob("*.json"))
        for turn in json.loads(file.read_text())["TURNS"]
    ]


def read_probes(lines: Sequence[tuple[str, int, str, str]]) -> list[Probe]:
    """The probes. Raises `SystemExit` where a line is another, or has a word of its question."""
    places = {(episode, turn): at for at, (episode, turn, _, _) in enumerate(lines)}
    probes: list[Probe] = []
    for number, raw in enumerate(PROBES.read_text().splitlines()):
        row = json.loads(raw)
        place = places.get((row["episode"], row["turn"]))
        text = "" if place is None else lines[place][3]
        if place is None or hashlib.sha256(text.encode()).hexdigest()[:8] != row["digest"]:
            raise SystemExit(f"{row['episode']} has another turn {row['turn']}.")
        if shared := set(query_terms(row["question"])) & set(query_terms(text)):
            raise SystemExit(f"Probe {number} and its line share {', '.join(sorted(shared))}.")
        probes.append(Probe(number, place, row["question"], row["rewritten"]))
    return probes


def chats_of(lines: Sequence[tuple[str, int, str, str]], size: int) -> Iterator[Dialogue]:
    """The transcripts as chats of so many messages, each a user's of its own."""
    cast = [name for _, _, name, _ in lines if " and " not in name]
    cast = sorted({name for name in cast if name != "ALL"}, key=lambda name: -cast.count(name))[:8]
    for start in range(0, len(lines) - size + 1, size):
        chat_id = uuid5(IDS, f"{size}/{start}")
        rows: list[Message] = []
        said: list[Line] = []
        for place, (_, _, author, text) in enumerate(lines[start : start + size]):
            row = Message(
                id=uuid5(IDS, f"{size}/{start + place}"),
                position=place,
                created_at=BEGAN + timedelta(seconds=20 * place),
            )
            place_in_scene(row, rows[-1] if rows else None)
            rows.append(row)
            said.append(
                Line(
                    id=row.id,
                    container_id=chat_id,
                    author=author,
                    text=text,
                    said_at=row.created_at,
                    position=place,
                    scene_id=row.scene_id,
                    version=1,
                )
            )
        yield Dialogue(
            user_id=uuid5(IDS, f"user/{size}/{start}"),
            chat_id=chat_id,
            speakers=cast,
            lines=said,
            questions=(),
            ended=rows[-1].created_at + timedelta(days=1),
        )


def written(
    file: Path | None,
    lines: Sequence[tuple[str, int, str, str]],
    probes: Sequence[Probe],
) -> dict[int, list[str]]:
    """The questions that lines answer, by their places; none without a file."""
    if file is None:
        return {}
    found = {place: noise(who, text) for place, (_, _, who, text) in enumerate(lines)}
    rows = file.read_text().splitlines()
    if file.suffix == ".txt":
        asked = zip((probe.place for probe in probes), rows, strict=True)
        return found | {place: [each.strip() for each in row.split("|")] for place, row in asked}
    return found | {row["place"]: row["q"] for row in map(json.loads, rows)}


def noise(who: str, text: str) -> list[str]:
    """Two questions by a rule, of the rarest-looking words of a line; none for a short one."""
    words = [word.strip('.,!?"()-').lower() for word in text.split()]
    telling = sorted({word for word in words if query_terms(word)}, key=lambda word: -len(word))[:4]
    if len(telling) < 4:
        return []
    first, second, third, fourth = telling
    return [f"What happened with the {first} and {second}?", f"Why did {who} {third} {fourth}?"]


def ask_for(dialogue: Dialogue, question: str, **changes: Any) -> SearchRequest:
    """What a turn would look for."""
    wanted: dict[str, Any] = {
        "text": question,
        "names": dialogue.speakers,
        "parts": [
            ScopePart(
                containers=[dialogue.chat_id],
                before_position=len(dialogue.lines) - KEPT,
                kinds=("message", "scene", "question"),
            )
        ],
        "kinds": ["message", "question"],
        "limit": MAX_ITEMS,
        "room": ROOM_TOKENS,
        "most": MAX_SHORT_ITEMS,
        "now": dialogue.ended,
        "activates_lore": True,
    }
    return SearchRequest(**(wanted | changes))


async def searched(
    desk: Desk, request: SearchRequest
) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """What reaches the thresholds, and all that a turn would take."""
    result = await desk.service.find(desk.sealer, request)
    vectors = await result.vectors.arrived()
    strict = mmr.select(result.candidates, vectors, count=request.limit)
    return strict, with_nearest(strict, result.near, room=request.room, most=request.most)


async def ask(desk: Desk, probe: Probe, size: int) -> Asked:
    """One probe, by each method."""
    request = ask_for(desk.dialogue, probe.question)
    begun = time.perf_counter()
    strict, chosen = await searched(desk, request)
    taken = time.perf_counter() - begun - (desk.embedder.seconds if desk.embedder else 0.0)
    both = f"{probe.question}\n{probe.rewritten}"
    _, with_both = await searched(desk, replace(request, text=both))
    _, rewritten = await searched(desk, replace(request, text=probe.rewritten))
    everything = await desk.service.find(
        desk.sealer, ask_for(desk.dialogue, probe.question, min_relevance=0.0, limit=1000)
    )
    plain = await verbatim(desk, Question(probe.question, 0, frozenset()), request.parts)
    return Asked(
        probe=probe,
        gold=uuid5(IDS, f"{size}/{probe.place}"),
        orders={
            "vectors alone": _rows(plain["dense"]),
            "words alone": _rows(plain["sparse"]),
            "all signals, no thresholds": _rows(everything.candidates),
            "thresholds alone": _rows(strict),
            "as a turn searches": _rows(chosen),
            "the question rewritten": _rows(rewritten),
            "question and rewriting": _rows(with_both),
        },
        milliseconds=taken * 1000,
    )


def _rows(found: Sequence[Any]) -> list[UUID]:
    return list(dict.fromkeys(each.payload.source_id for each in found))


async def run(options: argparse.Namespace) -> list[Chats]:
    """Play the chats and ask for what was said."""
    lines = spoken(options.data)
    probes = read_probes(lines)
    asked = written(options.questions, lines, probes)
    probes = [each for each in probes if options.half in {"both", each.half}]
    local = KeptVectors(LocalEmbedder(options.model_path, workers=2), options.vectors)
    await local.ready()
    embedder = WithoutCache(local)
    count = get_tokenizer("o200k_base").count
    done: list[Chats] = []
    pool, blinders = CpuPool(), Blinders()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for size in options.sizes:
            chats = Chats(size)
            index = await open_edge(Path(folder), f"bench-{size}", local.spec.dimension)
            maker = PointMaker(embedder, blinders=blinders, pool=pool)
            service = MemorySearch(
                OneIndex(index), [], embedder=embedder, blinders=blinders, pool=pool
            )
            for number, dialogue in enumerate(chats_of(lines, size)):
                here = [each for each in probes if each.place // size == number]
                if not here:
                    continue
                sealer = Sealer(
                    dialogue.user_id, {1: bytes(32)}, user_key=dialogue.user_id.bytes * 2
                )
                desk = Desk(dialogue, sealer, blinders, index, embedder, service)
                start = number * size
                answers = {
                    line.id: asked[start + line.position]
                    for line in dialogue.lines
                    if start + line.position in asked
                }
                await index_dialogue(desk, maker, answers)
                for line in dialogue.lines:
                    text = f"[{line.said_at.day} {line.said_at:%B %Y}] {line.author}: {line.text}"
                    chats.sized[line.id] = Sized(line.id, count(text) + MESSAGE_OVERHEAD)
                chats.asked += [await ask(desk, probe, size) for probe in here]
            await index.aclose()
            done.append(chats)
    await local.aclose()
    await pool.aclose()
    return done


def shares(chats: Chats) -> dict[str, dict[str, float]]:
    """By method: how many of the lines are among the first, and within a room, in per cent."""
    figures: dict[str, dict[str, float]] = {}
    for method in chats.asked[0].orders:
        found: dict[str, list[bool]] = {}
        tokens: list[int] = []
        for asked in chats.asked:
            order = asked.orders[method]
            for k in KS:
                found.setdefault(f"@{k}", []).append(asked.gold in order[:k])
            taken: list[Sized] = []
            for room in ROOMS:
                taken, _ = fill([chats.sized[each] for each in order[:MAX_SHORT_ITEMS]], room)
                found.setdefault(f"{room}t", []).append(asked.gold in {each.id for each in taken})
            tokens.append(sum(each.tokens for each in taken))
        figures[method] = {name: 100 * statistics.fmean(hits) for name, hits in found.items()}
        figures[method]["tokens"] = statistics.fmean(tokens)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=SHARED / "crd3", help="folder of CRD3")
    parser.add_argument("--model-path", type=Path, default=SHARED / "minilm-l6-v2-int8")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="messages of a chat")
    parser.add_argument("--half", choices=("choosing", "reporting", "both"), default="both")
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path(tempfile.gettempdir()) / "bench-vectors",
        help="folder to keep vectors in between runs",
    )
    parser.add_argument("--questions", type=Path, help="questions that lines answer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    done = asyncio.run(run(options))
    figures = {chats.size: shares(chats) for chats in done}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for chats in done:
        times = statistics.median(each.milliseconds for each in chats.asked)
        print(
            f"\n{len(chats.asked)} questions ({options.half}), chats of {chats.size} messages, "
            f"search {times:.1f} ms without the embedding"
        )
        methods = figures[chats.size]
        heads = list(next(iter(methods.values())))
        print(f"{'':<28}" + "".join(f"{head:>8}" for head in heads))
        for method, values in methods.items():
            print(f"{method:<28}" + "".join(f"{values[head]:>8.1f}" for head in heads))


if __name__ == "__main__":
    main()
