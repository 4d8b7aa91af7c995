"""Measure the recall of memory's search on the dialogues of LoCoMo.

Each dialogue is a user's chat. The code of a server makes messages, scenes and points of it. The
questions go unchanged through the search of a turn. Gold are the turns that answer a question;
recall@k is the mean of |first k and gold| / |gold|. Budgets (`1024t`) count tokens of
`Speaker: text` in o200k_base.

The same rankings are also measured by chunks of six turns and by sessions, as others do. The best
turn decides the place of its chunk or session, which is a hit if it has a gold turn.

The peers use the same index: BM25 alone, dense alone, and their reciprocal rank fusion with k=60
and with Qdrant's default k=2 (prefetch 100).

The weights are the shipped ones; `retrieval fit` measures others. With `--vectors` the vectors are
stored, and times mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from backend.core.logs import configure_logging
from backend.memory.embedding.protocol import Embedder, Floats
from backend.memory.index.protocol import Point, ScopePart
from backend.memory.indexing.documents import speaker_id
from backend.memory.search import query as parsed_query
from backend.memory.search import ranking
from backend.memory.search.features import Candidate, SignalHits, scale_to_large_corpus
from backend.memory.search.ranking import (
    RankingThresholds,
    Weights,
    add_few,
    breadth,
    deepen_queries,
    drop_duplicates,
    find_nearest,
    lower_neighbours,
    merge_nearest,
    select_relevant,
    split_hits,
)
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.turns.prompt.retrieve import MAX_ITEMS, MAX_SHORT_ITEMS, ROOM_TOKENS
from scripts.bench.data import LOCOMO
from scripts.bench.retrieval.measures import (
    Figures,
    average,
    measure_hits,
    measure_ranking,
    rank_units,
)
from scripts.bench.retrieval.search import (
    IDS,
    Dialogue,
    Question,
    SearchBench,
    add_model_options,
    count_line_tokens,
    make_lines,
    make_sealer,
    make_user_id,
    open_bench,
    open_model,
)
from scripts.bench.tables import new_parser, print_grid, print_machine, print_markdown

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
CATEGORY_GROUPS = {"1-4": (1, 2, 3, 4), "1-5": (1, 2, 3, 4, 5)} | {
    title: (each,) for each, title in CATEGORIES.items()
}
RANKING, PROMPT = "Talekeeper", "in a prompt"
CHUNK_TURNS = 6
COMPARED_COLUMNS = ("any@5", "any@10", "all@5", "all@10", "coverage@5", "NDCG@10")
"""Columns of the comparison with others in `docs/explanation/retrieval.md`."""


@dataclass(frozen=True)
class SearchedQuestion:
    """A question with its hits in the index."""

    question: Question
    found: SignalHits
    deep: SignalHits
    speakers: Sequence[int]
    reading: parsed_query.ParsedQuery
    plain: SignalHits
    relevant: frozenset[UUID]
    vectors: Mapping[UUID, Floats]


@dataclass
class LocomoRun:
    """The hits of all questions by dialogue, and the costs. Times are in milliseconds."""

    dialogues: list[Dialogue] = field(default_factory=list[Dialogue])
    searched: list[list[SearchedQuestion]] = field(default_factory=list[list[SearchedQuestion]])
    tokens: dict[UUID, int] = field(default_factory=dict[UUID, int])
    points: int = 0
    vector_bytes: int = 0
    indexing_seconds: float = 0
    search_times: list[float] = field(default_factory=list[float])
    embedding_times: list[float] = field(default_factory=list[float])
    prompt_tokens: list[int] = field(default_factory=list[int])


def read_dialogues(path: Path) -> list[Dialogue]:
    """Return LoCoMo's dialogues. Malformed ids of evidence are repaired, or dropped."""
    return [_read_dialogue(raw) for raw in json.loads(path.read_text())]


def _read_dialogue(raw: Mapping[str, Any]) -> Dialogue:
    name, talk = str(raw["sample_id"]), raw["conversation"]
    chat_id = uuid5(IDS, name)
    texts: list[tuple[UUID, str, str, datetime]] = []
    sessions: dict[UUID, str] = {}
    numbers = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
    for number in numbers:
        began = datetime.strptime(
            talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y"
        ).replace(tzinfo=UTC)
        for place, turn in enumerate(talk[f"session_{number}"]):
            caption = turn.get("blip_caption")
            text = f"{turn['text']} [image: {caption}]" if caption else str(turn["text"])
            said_at = began + timedelta(seconds=20 * place)
            texts.append((uuid5(chat_id, turn["dia_id"]), turn["speaker"], text, said_at))
            sessions[texts[-1][0]] = str(number)
    return Dialogue(
        user_id=make_user_id(name),
        chat_id=chat_id,
        speakers=(talk["speaker_a"], talk["speaker_b"]),
        lines=make_lines(chat_id, texts),
        questions=[
            Question(asked["question"], asked["category"], gold)
            for asked in raw["qa"]
            if (gold := find_turns(chat_id, " ".join(asked.get("evidence", ()))) & set(sessions))
        ],
        ended=texts[-1][3],
        sessions=sessions,
    )


def find_turns(chat_id: UUID, text: str) -> frozenset[UUID]:
    """Return the ids of the turns that a text names, such as `D1:3`, `D:11:26` or `D30:05`."""
    found = re.findall(r"D:?(\d+):(\d+)", text)
    return frozenset(uuid5(chat_id, f"D{int(scene)}:{int(turn)}") for scene, turn in found)


def list_units(dialogue: Dialogue) -> dict[str, dict[UUID, str]]:
    """Return the unit of each turn: itself, its chunk of a session, and its session."""
    chunks: dict[UUID, str] = {}
    counts: Counter[str] = Counter()
    for line in dialogue.lines:
        session = dialogue.sessions[line.id]
        chunks[line.id] = f"{session}/{counts[session] // CHUNK_TURNS}"
        counts[session] += 1
    return {
        "turns": {each: str(each) for each in dialogue.sessions},
        f"chunks of {CHUNK_TURNS} turns": chunks,
        "sessions": dict(dialogue.sessions),
    }


def count_vector_bytes(point: Point) -> int:
    """Return the bytes of a point's vectors: 4 for a number, 8 for a term."""
    dense = sum(vector.nbytes for vector in point.dense.values())
    return dense + sum(each.ids.nbytes + each.weights.nbytes for each in point.sparse.values())


async def search_question(
    bench: SearchBench,
    service: MemorySearch,
    dialogue: Dialogue,
    question: Question,
    run: LocomoRun,
) -> SearchedQuestion:
    """Search with the service of turns, and then with its parts, whose hits weights are fitted on.

    Raises `SystemExit` if the two rank differently.
    """
    parts = [ScopePart(containers=[dialogue.chat_id])]
    sealer = make_sealer(dialogue.user_id)
    request = SearchRequest(
        text=question.text,
        names=dialogue.speakers,
        parts=parts,
        kinds=["message"],
        min_relevance=0.0,
        now=dialogue.ended,
    )
    began = time.perf_counter()
    findings = await service.find(sealer, request)
    seconds = time.perf_counter() - began
    embedding_seconds = bench.embedder.seconds if bench.embedder else 0.0
    run.embedding_times.append(embedding_seconds * 1000)
    run.search_times.append((seconds - embedding_seconds) * 1000)

    blinder = bench.blinders.get(sealer)
    reading = parsed_query.parse_query(question.text, cast=dialogue.speakers, now=dialogue.ended)
    plan = parsed_query.plan_queries(
        reading,
        owner_id=dialogue.user_id,
        parts=parts,
        kinds=["message"],
        dense=await bench.embed_query(sealer, reading.meaning),
        blinder=blinder,
    )
    hits, deep = split_hits(plan, await bench.index.search(deepen_queries(plan)))
    searched = SearchedQuestion(
        question=question,
        found=scale_to_large_corpus(hits, await bench.index.count(dialogue.user_id)),
        deep=deep,
        speakers=[speaker_id(name, blinder) for name in reading.names],
        reading=reading,
        plain=await bench.search_plainly(sealer, question.text, parts),
        relevant=frozenset(
            each.id for each in select_relevant(findings.candidates, RankingThresholds())
        ),
        vectors=await findings.vectors.wait(),
    )
    if rank(searched, Weights()) != list(findings.candidates):
        raise SystemExit("The search service and its parts rank differently.")
    return searched


def rank(searched: SearchedQuestion, weights: Weights) -> list[Candidate]:
    """Return the turns, best first."""
    return ranking.rank(
        searched.found,
        weights=weights,
        speakers=searched.speakers,
        spans=searched.reading.spans,
        wants_recent=searched.reading.wants_recent,
    )


def list_distinct(searched: SearchedQuestion, candidates: Sequence[Candidate]) -> list[UUID]:
    """Return the turns in the order of a search, without near duplicates among the first."""
    most = len(searched.vectors) or MAX_ITEMS
    first = lower_neighbours(candidates[:most], breadth(searched.reading.terms, candidates))
    chosen = drop_duplicates(first, searched.vectors, count=most)
    return [each.payload.source_id for each in [*chosen, *candidates[most:]]]


def fill_prompt(
    searched: SearchedQuestion, order: Sequence[Candidate], kept: Sequence[Candidate]
) -> list[UUID]:
    """Return the turns of a prompt: relevant ones, the nearest by meaning, and a few others."""
    kept = add_few(kept, order, RankingThresholds(), room=ROOM_TOKENS)
    kept = lower_neighbours(kept, breadth(searched.reading.terms, order))
    chosen = drop_duplicates(kept, searched.vectors, count=MAX_ITEMS)
    spans = searched.reading.spans
    near = find_nearest(searched.deep, RankingThresholds(), speakers=searched.speakers, spans=spans)
    taken = merge_nearest(chosen, near, room=ROOM_TOKENS, most=MAX_SHORT_ITEMS)
    return [each.payload.source_id for each in taken]


def fuse_by_rank(found: SignalHits, k: float) -> list[UUID]:
    """Fuse `dense` and `sparse` by reciprocal rank. Source: Cormack et al., SIGIR 2009."""
    scores: dict[UUID, float] = {}
    for signal in ("dense", "sparse"):
        for place, hit in enumerate(found.get(signal, ())):
            source = hit.payload.source_id
            scores[source] = scores.get(source, 0.0) + 1 / (k + place)
    return sorted(scores, key=lambda source: -scores[source])


@dataclass(frozen=True)
class LocomoScores:
    """(category, figures) of each question by method, also by unit."""

    recalls: defaultdict[str, list[tuple[int, Figures]]]
    hits: defaultdict[tuple[str, str], list[tuple[int, Figures]]]


def score(run: LocomoRun, weights: Sequence[Weights]) -> LocomoScores:
    """Rank the hits of all questions, and measure the rankings. Each dialogue has its weights."""
    scores = LocomoScores(defaultdict(list), defaultdict(list))
    run.prompt_tokens.clear()
    for number, part in enumerate(run.searched):
        units = list_units(run.dialogues[number])
        for searched in part:
            order = rank(searched, weights[number])
            kept = [each for each in order if each.id in searched.relevant]
            prompt = fill_prompt(searched, order, kept)
            run.prompt_tokens.append(sum(run.tokens[each] for each in prompt))
            orders = {
                "dense alone": [hit.payload.source_id for hit in searched.plain["dense"]],
                "BM25 alone": [hit.payload.source_id for hit in searched.plain["sparse"]],
                "RRF k=60": fuse_by_rank(searched.plain, 61),
                "Qdrant's default (RRF k=2)": fuse_by_rank(searched.plain, 2),
                RANKING: list_distinct(searched, order),
                "with its min_relevance": list_distinct(searched, kept),
                PROMPT: prompt,
            }
            for name, turns in orders.items():
                gold, category = searched.question.gold, searched.question.category
                recalls = measure_ranking(turns, gold, run.tokens)
                scores.recalls[name].append((category, recalls))
                for unit, members in units.items():
                    unit_gold = {members[each] for each in gold}
                    hits = measure_hits(rank_units(turns, members), unit_gold)
                    scores.hits[name, unit].append((category, hits))
    return scores


async def search_dialogues(
    dialogues: Sequence[Dialogue], model: Embedder, *, by_meaning: bool = True
) -> LocomoRun:
    """Index all dialogues and search for all questions."""
    run = LocomoRun([*dialogues])
    async with open_bench(model, by_meaning=by_meaning) as bench:
        service = bench.make_search()
        for dialogue in run.dialogues:
            began = time.perf_counter()
            points = await bench.index_dialogue(dialogue)
            run.indexing_seconds += time.perf_counter() - began
            run.points += len(points)
            run.vector_bytes += sum(map(count_vector_bytes, points))
            run.tokens |= count_line_tokens(dialogue)
            run.searched.append(
                [
                    await search_question(bench, service, dialogue, question, run)
                    for question in dialogue.questions
                ]
            )
    return run


def summarize(run: LocomoRun, weights: Sequence[Weights]) -> dict[str, Any]:
    """Return every figure of a run. Each dialogue has its weights."""
    scores = score(run, weights)
    turns = sum(len(dialogue.lines) for dialogue in run.dialogues)
    return {
        "recall": {name: average(some, CATEGORY_GROUPS) for name, some in scores.recalls.items()},
        "hits": {
            f"{name}, {unit}": average(some, CATEGORY_GROUPS)
            for (name, unit), some in scores.hits.items()
        },
        "weights": {f"{number}": asdict(each) for number, each in enumerate(weights, 1)},
        "costs": {
            "dialogues": len(run.dialogues),
            "turns": turns,
            "questions": sum(len(part) for part in run.searched),
            "points": run.points,
            "indexing_seconds": round(run.indexing_seconds, 1),
            "messages_a_second": round(turns / run.indexing_seconds),
            "vector_bytes_a_message": round(run.vector_bytes / turns),
            "tokens_a_prompt": round(statistics.fmean(run.prompt_tokens)),
            "embedding_ms_p50": round(statistics.median(run.embedding_times), 2),
            "search_ms_p50": round(statistics.median(run.search_times), 2),
            "search_ms_p95": round(statistics.quantiles(run.search_times, n=20)[-1], 2),
        },
    }


def print_figures(figures: Mapping[str, Any]) -> None:
    for name, rows in figures["recall"].items():
        print_grid(name, rows)
    for name, rows in figures["hits"].items():
        if name.startswith(f"{RANKING}, "):
            print_grid(name, rows)
    for group in ("1-5", "1-4"):
        hits = {
            name: {column: rows[group][column] for column in COMPARED_COLUMNS}
            for name, rows in figures["hits"].items()
        }
        print_markdown(f"categories {group}", hits)
    print_grid("weights of each dialogue", figures["weights"])
    print()
    for name, value in figures["costs"].items():
        print(f"{name:<28} {value:>10,}")


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval locomo", __doc__)
    parser.add_argument("--data", type=Path, default=LOCOMO, help="LoCoMo's file")
    add_model_options(parser)
    parser.set_defaults(vectors=None)
    parser.add_argument("--without-model", action="store_true", help="search by words alone")
    options: argparse.Namespace = parser.parse_args(arguments)
    configure_logging("error", "json")
    model, dialogues = open_model(options), read_dialogues(options.data)
    by_meaning = not options.without_model
    run = asyncio.run(search_dialogues(dialogues, model, by_meaning=by_meaning))
    figures = summarize(run, [Weights()] * len(dialogues))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_machine()
        print_figures(figures)
