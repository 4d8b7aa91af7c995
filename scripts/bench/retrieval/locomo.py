"""Measure the recall of memory's search on the dialogues of LoCoMo.

Each dialogue is a user's chat. The code of a server makes messages, scenes and points of it. The
questions go unchanged through the search of a turn. Gold are the turns that answer a question;
recall@k is the mean of |first k and gold| / |gold|. Budgets (`1024t`) count tokens of
`Speaker: text` in o200k_base.

The same rankings are also measured by chunks of six turns and by sessions, as others do. The best
turn decides the place of its chunk or session, which is a hit if it has a gold turn.

The peers use the same index: BM25 alone, dense alone, and their reciprocal rank fusion with k=60
and with Qdrant's default k=2 (prefetch 100).

`--weights loo` scores a dialogue with weights that were fitted on the others, `--weights default`
with the shipped ones. With `--vectors` the vectors are stored, and times mean nothing.
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
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray

from backend.core.logs import configure_logging
from backend.memory.embedding.protocol import Embedder, Floats
from backend.memory.index.protocol import Point, ScopePart
from backend.memory.indexing.documents import speaker_id
from backend.memory.search import features, ranking
from backend.memory.search import features as signals
from backend.memory.search import query as parsed_query
from backend.memory.search import ranking as mmr
from backend.memory.search.features import Candidate, SignalHits, scale_to_large_corpus
from backend.memory.search.ranking import (
    SCENE_DISCOUNT,
    RankingThresholds,
    Weights,
    add_few,
    breadth,
    deepen_queries,
    find_nearest,
    lower_neighbours,
    lower_scene_scores,
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

ADVERSARIAL_WEIGHT = 0.6
"""Weight of adversarial questions while ranking weights are fitted. They name the wrong speaker,
which is rare in real questions."""


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
    if rank(searched, Weights())[0] != list(findings.candidates):
        raise SystemExit("The search service and its parts rank differently.")
    return searched


def rank(
    searched: SearchedQuestion, weights: Weights, *, share: float = SCENE_DISCOUNT
) -> tuple[list[Candidate], float]:
    """Return the turns, best first, and the breadth of the question."""
    order = ranking.rank(
        searched.found,
        weights=weights,
        speakers=searched.speakers,
        spans=searched.reading.spans,
        wants_recent=searched.reading.wants_recent,
    )
    broad = breadth(searched.reading.terms, order)
    return lower_scene_scores(order, broad, share=share), broad


def diversify(
    searched: SearchedQuestion, candidates: Sequence[Candidate], broad: float
) -> list[UUID]:
    """Return the turns in the order of a search, without near duplicates among the first."""
    most = len(searched.vectors) or MAX_ITEMS
    first = lower_neighbours(candidates[:most], broad)
    chosen = mmr.select_diverse(first, searched.vectors, count=most)
    return [each.payload.source_id for each in [*chosen, *candidates[most:]]]


def fill_prompt(
    searched: SearchedQuestion, order: Sequence[Candidate], kept: Sequence[Candidate], broad: float
) -> list[UUID]:
    """Return the turns of a prompt: relevant ones, the nearest by meaning, and a few others."""
    kept = add_few(kept, order, RankingThresholds(), room=ROOM_TOKENS)
    chosen = mmr.select_diverse(lower_neighbours(kept, broad), searched.vectors, count=MAX_ITEMS)
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


def fit_weights(
    training: Sequence[SearchedQuestion], *, steps: int = 400, ridge: float = 1e-3
) -> Weights:
    """Return the weights that rank gold highest on average.

    Softmax over the candidates of a question, maximum likelihood of its gold, by gradient (Adam).
    Source of the loss: Cao et al., ICML 2007 (ListNet).
    """
    tables = [
        (*_make_table(searched), ADVERSARIAL_WEIGHT if searched.question.category == 5 else 1.0)
        for searched in training
    ]
    tables = [each for each in tables if each[1].any()]
    most = max(len(table) for table, _, _ in tables)
    counts = np.array([count for _, _, count in tables])
    count = len(features.FEATURES)
    values = np.zeros((len(tables), most, count))
    is_candidate = np.zeros((len(tables), most), dtype=bool)
    target = np.zeros((len(tables), most))
    for row, (table, gold, _) in enumerate(tables):
        values[row, : len(table)] = table
        is_candidate[row, : len(table)] = True
        target[row, : len(table)] = gold / gold.sum()
    weights, mean, square = np.full(count, 0.5), np.zeros(count), np.zeros(count)
    for step in range(1, steps + 1):
        scores = np.where(is_candidate, values @ weights, -np.inf)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        pull = (share - target) * counts[:, None]
        gradient = np.einsum("qc,qcf->f", pull, values) / counts.sum() + ridge * weights
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        rate = np.sqrt(square / (1 - 0.99**step)) + 1e-8
        weights -= 0.05 * (mean / (1 - 0.9**step)) / rate
    weights /= weights[: len(signals.SIGNALS) + 1].sum()
    chosen = {name: round(float(w), 3) for name, w in zip(features.FEATURES, weights, strict=True)}
    return replace(Weights(), **chosen)


def _make_table(searched: SearchedQuestion) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    table = features.FeatureTable(
        searched.found, speakers=searched.speakers, spans=searched.reading.spans
    )
    gold = searched.question.gold
    return ranking.apply_curve(table.values), np.array(
        [line.source_id in gold for line in table.lines]
    )


def fit_without(run: LocomoRun, dialogue: int) -> Weights:
    """Return weights that are fitted on all dialogues except one."""
    others = [part for at, part in enumerate(run.searched) if at != dialogue]
    return fit_weights([searched for part in others for searched in part])


@dataclass(frozen=True)
class LocomoScores:
    """(category, figures) of each question by method, also by unit, and the dialogues' weights."""

    recalls: defaultdict[str, list[tuple[int, Figures]]]
    hits: defaultdict[tuple[str, str], list[tuple[int, Figures]]]
    weights: list[Weights]


def score(run: LocomoRun, *, fits: bool) -> LocomoScores:
    """Rank the hits of all questions, and measure the rankings."""
    scores = LocomoScores(defaultdict(list), defaultdict(list), [])
    run.prompt_tokens.clear()
    for number, part in enumerate(run.searched):
        units = list_units(run.dialogues[number])
        weights = fit_without(run, number) if fits else Weights()
        scores.weights.append(weights)
        for searched in part:
            order, broad = rank(searched, weights)
            kept = [each for each in order if each.id in searched.relevant]
            prompt = fill_prompt(searched, order, kept, broad)
            run.prompt_tokens.append(sum(run.tokens[each] for each in prompt))
            orders = {
                "dense alone": [hit.payload.source_id for hit in searched.plain["dense"]],
                "BM25 alone": [hit.payload.source_id for hit in searched.plain["sparse"]],
                "RRF k=60": fuse_by_rank(searched.plain, 61),
                "Qdrant's default (RRF k=2)": fuse_by_rank(searched.plain, 2),
                RANKING: diversify(searched, order, broad),
                "with its min_relevance": diversify(searched, kept, broad),
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


async def search_dialogues(data: Path, model: Embedder, *, by_meaning: bool = True) -> LocomoRun:
    """Index all dialogues and search for all questions."""
    run = LocomoRun(read_dialogues(data))
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


def summarize(run: LocomoRun, *, fits: bool) -> dict[str, Any]:
    """Return every figure of a run."""
    scores = score(run, fits=fits)
    turns = sum(len(dialogue.lines) for dialogue in run.dialogues)
    return {
        "recall": {name: average(some, CATEGORY_GROUPS) for name, some in scores.recalls.items()},
        "hits": {
            f"{name}, {unit}": average(some, CATEGORY_GROUPS)
            for (name, unit), some in scores.hits.items()
        },
        "weights": {f"{number}": asdict(each) for number, each in enumerate(scores.weights, 1)},
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
    parser.add_argument("--weights", choices=("loo", "default"), nargs="+", default=["loo"])
    parser.add_argument("--without-model", action="store_true", help="search by words alone")
    options: argparse.Namespace = parser.parse_args(arguments)
    configure_logging("error", "json")
    run = asyncio.run(
        search_dialogues(
            options.data,
            open_model(options),
            by_meaning=not options.without_model,
        )
    )
    figures = {each: summarize(run, fits=each == "loo") for each in options.weights}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_machine()
    for each, some in figures.items():
        print(f"\nWeights: {each}")
        print_figures(some)
