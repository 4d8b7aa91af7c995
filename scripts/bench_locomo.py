#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How much of what answers a question memory's search brings back, on the dialogues of LoCoMo.

    scripts/bench_locomo.py [--data FILE] [--model-path DIR] [--weights loo|default]
        [--without-model] [--vectors DIR] [--json]

Each dialogue is a user's chat: its turns become messages, scenes and points by the code that a
server runs, in an index of Qdrant Edge in a temporary folder, and its questions, word for word, go
through the search that a turn goes through. A unit is one turn; recall@k is the mean over the
questions of |first k and gold| / |gold|; what stands before the first that does not fit counts
within a budget of word pieces (of `Speaker: text`, by the model's own tokenizer).

Beside it, in the same run and from the same index: BM25 alone, dense alone, their reciprocal rank
fusion with k=60 and with Qdrant's default k=2 (prefetch 100).

With `--without-model` words alone are searched for; the folder of the model still counts pieces.

With `--vectors` they are kept in that folder and not made again: times then say nothing.

With `--weights loo` a dialogue is scored with weights that were chosen on the others; with
`--weights default` with the shipped ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from backend.chats.drafts import place_in_scene
from backend.chats.models import Message
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import (
    Embedder,
    Floats,
    ModelCosines,
    cosines_of,
    measured_cosines,
)
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import (
    Point,
    Query,
    Scope,
    ScopePart,
    Sparse,
    VectorIndex,
    VectorName,
)
from backend.memory.indexing.collections import Collections, Placement
from backend.memory.indexing.documents import (
    WINDOW,
    Line,
    message_documents,
    question_documents,
    scene_document,
)
from backend.memory.indexing.points import Attempt, Blinders, PointMaker, speaker_id
from backend.memory.search import features, ranking
from backend.memory.search import features as signals
from backend.memory.search import query as parsed_query
from backend.memory.search import ranking as mmr
from backend.memory.search.features import Candidate, Found
from backend.memory.search.line_words import scale_to_large_corpus
from backend.memory.search.ranking import (
    SCENE,
    RankingThresholds,
    Weights,
    breadth,
    diversified,
    over_scenes,
    relevant,
)
from backend.memory.search.recall import add_few, deeper, nearest, split, with_nearest
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.memory.search.terms import blinded, query_terms
from backend.turns.prompt.retrieve import MAX_ITEMS, MAX_SHORT_ITEMS, ROOM_TOKENS
from backend.vault.sealing import Sealer
from scripts._vectors import KeptVectors

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
KS = (5, 10, 20, 50)
BUDGETS = (256, 512, 1024, 2048, 4096)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
FILLED = "as a prompt is filled"
ADVERSARIAL = 0.6
"""How much an adversarial question counts against another where weights are fitted."""

IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0000")


@dataclass(frozen=True)
class Question:
    """A question, and the turns that answer it."""

    text: str
    category: int
    gold: frozenset[UUID]


@dataclass(frozen=True)
class Dialogue:
    """A dialogue as a chat of one user's."""

    user_id: UUID
    chat_id: UUID
    speakers: Sequence[str]
    lines: Sequence[Line]
    questions: Sequence[Question]
    ended: datetime


@dataclass(frozen=True)
class Searched:
    """A question with what the index brought back for it."""

    question: Question
    found: Found
    deep: Found
    speakers: Sequence[int]
    reading: parsed_query.ParsedQuery
    plain: Found
    relevant: frozenset[UUID]
    vectors: Mapping[UUID, Floats]


@dataclass
class Bench:
    """What was done and what it cost."""

    dialogues: list[Dialogue] = field(default_factory=list[Dialogue])
    searched: list[list[Searched]] = field(default_factory=list[list[Searched]])
    pieces: dict[UUID, int] = field(default_factory=dict[UUID, int])
    points: int = 0
    size: int = 0
    indexing: float = 0
    searching: list[float] = field(default_factory=list[float])
    embedding: list[float] = field(default_factory=list[float])
    filled: list[int] = field(default_factory=list[int])


class WithoutCache:
    """What is asked for vectors: the model itself, and a watch beside it."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.spec = embedder.spec
        self.seconds = 0.0

    async def cosines(self) -> ModelCosines:
        """What its cosines say."""
        return cosines_of(self.spec.model) or await measured_cosines(self._embedder.embed)

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is kept
        """Vectors, shape (n, d)."""
        return await self._embedder.embed(texts, "document")

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:  # noqa: ARG002  # nothing is kept
        """The vector, shape (d,)."""
        begun = time.perf_counter()
        vector: Floats = (await self._embedder.embed([text], "query"))[0]
        self.seconds = time.perf_counter() - begun
        return vector


class OneIndex(Collections):
    """The only collection there is."""

    def __init__(self, index: VectorIndex) -> None:
        self.current = index

    async def place_to_search(
        self,
        user_id: UUID,  # noqa: ARG002  # everybody's
    ) -> tuple[VectorIndex, Placement]:
        """Where texts are found."""
        name = self.current.name
        return self.current, Placement(target=name, searched=name)


@dataclass(frozen=True)
class Desk:
    """What a search needs, for one dialogue."""

    dialogue: Dialogue
    sealer: Sealer
    blinders: Blinders
    index: VectorIndex
    embedder: WithoutCache | None
    service: MemorySearch


def read_dialogues(path: Path) -> list[Dialogue]:
    """LoCoMo's dialogues. Ids of evidence are mended as far as they can be, else dropped."""
    return [_dialogue(raw) for raw in json.loads(path.read_text())]


def _dialogue(raw: Mapping[str, Any]) -> Dialogue:
    name, talk = str(raw["sample_id"]), raw["conversation"]
    chat_id = uuid5(IDS, name)
    rows: list[Message] = []
    lines: dict[str, Line] = {}
    numbers = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
    for number in numbers:
        began = datetime.strptime(
            talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y"
        ).replace(tzinfo=UTC)
        for place, turn in enumerate(talk[f"session_{number}"]):
            caption = turn.get("blip_caption")
            text = f"{turn['text']} [image: {caption}]" if caption else str(turn["text"])
            row = Message(
                id=uuid5(chat_id, turn["dia_id"]),
                position=len(rows),
                created_at=began + timedelta(seconds=20 * place),
            )
            place_in_scene(row, rows[-1] if rows else None)
            rows.append(row)
            lines[turn["dia_id"]] = Line(
                id=row.id,
                container_id=chat_id,
                author=turn["speaker"],
                text=text,
                said_at=row.created_at,
                position=row.position,
                scene_id=row.scene_id,
                version=1,
            )
    questions = [
        Question(asked["question"], asked["category"], gold)
        for asked in raw["qa"]
        if (gold := frozenset(lines[each].id for each in _mended(asked) if each in lines))
    ]
    return Dialogue(
        user_id=uuid5(IDS, f"user/{name}"),
        chat_id=chat_id,
        speakers=(talk["speaker_a"], talk["speaker_b"]),
        lines=list(lines.values()),
        questions=questions,
        ended=rows[-1].created_at,
    )


def _mended(asked: Mapping[str, Any]) -> list[str]:
    """`D:11:26` and `D30:05` are `D11:26` and `D30:5`; several may stand in one text."""
    found = re.findall(r"D:?(\d+):(\d+)", " ".join(asked.get("evidence", ())))
    return [f"D{int(scene)}:{int(turn)}" for scene, turn in found]


async def index_dialogue(
    desk: Desk, maker: PointMaker, questions: Mapping[UUID, Sequence[str]] | None = None
) -> tuple[int, int]:
    """Index a dialogue as a server would; gives back how many points, and bytes of vectors.

    `questions` are those that lines answer, by their ids.
    """
    lines = desk.dialogue.lines
    documents = [
        document
        for at, line in enumerate(lines)
        for document in message_documents(
            line, before=lines[max(0, at - WINDOW) : at], after=lines[at + 1 : at + 1 + WINDOW]
        )
    ]
    scenes: dict[UUID, list[Line]] = {}
    for line in lines:
        if line.scene_id is not None:
            scenes.setdefault(line.scene_id, []).append(line)
    firsts = {each.source_id: each for each in reversed(documents)}
    for line_id, asked in (questions or {}).items():
        documents += question_documents(firsts[line_id], asked)
    documents += [scene_document(scene_id, some) for scene_id, some in scenes.items()]
    attempt = Attempt(desk.sealer)
    points = await maker.make(attempt, documents)
    if attempt.failure:
        raise attempt.failure
    await desk.index.upsert(points)
    return len(points), sum(map(vector_bytes, points))


def vector_bytes(point: Point) -> int:
    """What a point's vectors take: 4 bytes a number, 8 a term."""
    dense = sum(vector.nbytes for vector in point.dense.values())
    return dense + sum(each.ids.nbytes + each.weights.nbytes for each in point.sparse.values())


async def search(desk: Desk, question: Question, bench: Bench) -> Searched:
    """Ask the service that turns ask, then its parts, for the hits that weights are chosen on.

    Raises `SystemExit` when the two do not agree.
    """
    dialogue = desk.dialogue
    where = [ScopePart(containers=[dialogue.chat_id])]
    ask = SearchRequest(
        text=question.text,
        names=dialogue.speakers,
        parts=where,
        kinds=["message"],
        min_relevance=0.0,
        now=dialogue.ended,
    )
    begun = time.perf_counter()
    findings = await desk.service.find(desk.sealer, ask)
    taken = time.perf_counter() - begun
    embedding = desk.embedder.seconds if desk.embedder else 0.0
    bench.embedding.append(embedding * 1000)
    bench.searching.append((taken - embedding) * 1000)

    blinder = desk.blinders.get(desk.sealer)
    reading = parsed_query.read(question.text, cast=dialogue.speakers, now=dialogue.ended)
    vector = await embedded(desk, reading.meaning)
    plan = parsed_query.plan(
        reading,
        owner_id=dialogue.user_id,
        parts=where,
        kinds=["message"],
        dense=vector,
        blinder=blinder,
    )
    hits, deep = split(plan, await desk.index.search(deeper(plan)))
    found = scale_to_large_corpus(hits, await desk.index.count(dialogue.user_id))
    searched = Searched(
        question=question,
        found=found,
        deep=deep,
        speakers=[speaker_id(name, blinder) for name in reading.names],
        reading=reading,
        plain=await verbatim(desk, question, where),
        relevant=frozenset(each.id for each in relevant(findings.candidates, RankingThresholds())),
        vectors=await findings.vectors.arrived(),
    )
    if ranked(searched, Weights())[0] != list(findings.candidates):
        raise SystemExit("The search service ranks otherwise than its parts do.")
    return searched


async def embedded(desk: Desk, text: str) -> Floats | None:
    """The blinded vector of a text, shape (d,); None without a model."""
    if desk.embedder is None:
        return None
    return desk.blinders.get(desk.sealer).turn(await desk.embedder.embed_query(desk.sealer, text))


async def verbatim(desk: Desk, question: Question, where: Sequence[ScopePart]) -> Found:
    """What the question finds as it stands, by its vector and by its terms: for the baselines."""
    blinder = desk.blinders.get(desk.sealer)
    scope = Scope(owner_id=desk.dialogue.user_id, parts=where, kinds=["message"])
    vector = await embedded(desk, question.text)
    near: dict[VectorName, Floats | Sparse] = {
        "sparse": blinded(query_terms(question.text), blinder)
    }
    if vector is not None:
        near["dense"] = vector
    hits = await desk.index.search(
        [
            Query(vector=name, near=each, scope=scope, limit=parsed_query.LIMIT)
            for name, each in near.items()
        ]
    )
    return {"dense": [], **dict(zip(near, hits, strict=True))}


def ranked(
    searched: Searched, weights: Weights, *, share: float = SCENE
) -> tuple[list[Candidate], float]:
    """Turns, best first; and how broad the question is."""
    order = ranking.rank(
        searched.found,
        weights=weights,
        speakers=searched.speakers,
        spans=searched.reading.spans,
        wants_recent=searched.reading.wants_recent,
    )
    broad = breadth(searched.reading.terms, order)
    return over_scenes(order, broad, share=share), broad


def listed(searched: Searched, candidates: Sequence[Candidate], broad: float) -> list[UUID]:
    """Turns as they are brought up: the first ones without what says the same."""
    most = len(searched.vectors) or MAX_ITEMS
    first = diversified(candidates[:most], broad)
    chosen = mmr.select(first, searched.vectors, count=most)
    return [each.payload.source_id for each in [*chosen, *candidates[most:]]]


def filled(
    searched: Searched, order: Sequence[Candidate], kept: Sequence[Candidate], broad: float
) -> list[UUID]:
    """Turns as a prompt takes them: those that are near enough, and the nearest by meaning.

    If they leave the room almost empty, the best few of the others as well.
    """
    kept = add_few(kept, order, RankingThresholds(), room=ROOM_TOKENS)
    chosen = mmr.select(diversified(kept, broad), searched.vectors, count=MAX_ITEMS)
    spans = searched.reading.spans
    near = nearest(searched.deep, RankingThresholds(), speakers=searched.speakers, spans=spans)
    taken = with_nearest(chosen, near, room=ROOM_TOKENS, most=MAX_SHORT_ITEMS)
    return [each.payload.source_id for each in taken]


def fused_by_rank(found: Found, k: float) -> list[UUID]:
    """Reciprocal rank fusion of `dense` and `sparse`. Source: Cormack et al., SIGIR 2009."""
    scores: dict[UUID, float] = {}
    for signal in ("dense", "sparse"):
        for rank, hit in enumerate(found.get(signal, ())):
            source = hit.payload.source_id
            scores[source] = scores.get(source, 0.0) + 1 / (k + rank)
    return sorted(scores, key=lambda source: -scores[source])


def fit(training: Sequence[Searched], *, steps: int = 400, ridge: float = 1e-3) -> Weights:
    """Weights under which gold stands highest, on average over the questions.

    Softmax over the candidates of a question, maximum likelihood of its gold, by gradient (Adam).
    Source of the loss: Cao et al., ICML 2007 (ListNet). Adversarial questions count for
    `ADVERSARIAL`: they name the wrong speaker, which is rare where people ask what they mean.
    """
    tables = [
        (*_table(searched), ADVERSARIAL if searched.question.category == 5 else 1.0)
        for searched in training
    ]
    tables = [each for each in tables if each[1].any()]
    most = max(len(table) for table, _, _ in tables)
    counts = np.array([says for _, _, says in tables])
    count = len(features.FEATURES)
    values = np.zeros((len(tables), most, count))
    is_there = np.zeros((len(tables), most), dtype=bool)
    target = np.zeros((len(tables), most))
    for row, (table, gold, _) in enumerate(tables):
        values[row, : len(table)] = table
        is_there[row, : len(table)] = True
        target[row, : len(table)] = gold / gold.sum()
    weights, mean, square = np.full(count, 0.5), np.zeros(count), np.zeros(count)
    for step in range(1, steps + 1):
        scores = np.where(is_there, values @ weights, -np.inf)
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


def _table(searched: Searched) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    table = features.FeatureTable(
        searched.found, speakers=searched.speakers, spans=searched.reading.spans
    )
    gold = searched.question.gold
    return ranking.curved(table.values), np.array([line.source_id in gold for line in table.lines])


def recalls(
    order: Sequence[UUID], gold: frozenset[UUID], pieces: Mapping[UUID, int]
) -> list[float]:
    """Recall at each of KS, then within each of BUDGETS."""
    values = [len(gold.intersection(order[:k])) / len(gold) for k in KS]
    for budget in BUDGETS:
        spent, kept = 0, 0
        for each in order:
            spent += pieces[each]
            if spent > budget:
                break
            kept += 1
        values.append(len(gold.intersection(order[:kept])) / len(gold))
    return values


def score(
    bench: Bench, mode: str
) -> tuple[dict[str, list[tuple[int, list[float]]]], list[Weights]]:
    """(category, recalls) of each question, by method; and the weights of each dialogue."""
    rows: dict[str, list[tuple[int, list[float]]]] = {}
    used: list[Weights] = []
    for held_out, part in enumerate(bench.searched):
        weights = Weights()
        if mode == "loo":
            others = [some for at, some in enumerate(bench.searched) if at != held_out]
            weights = fit([searched for some in others for searched in some])
        used.append(weights)
        for searched in part:
            plain = searched.plain
            order, broad = ranked(searched, weights)
            kept = [each for each in order if each.id in searched.relevant]
            orders = {
                "dense alone": [hit.payload.source_id for hit in plain["dense"]],
                "BM25 alone": [hit.payload.source_id for hit in plain["sparse"]],
                "RRF k=60": fused_by_rank(plain, 61),
                "Qdrant's default (RRF k=2)": fused_by_rank(plain, 2),
                "Talekeeper": listed(searched, order, broad),
                "with its min_relevance": listed(searched, kept, broad),
                FILLED: filled(searched, order, kept, broad),
            }
            bench.filled.append(sum(bench.pieces[each] for each in orders[FILLED]))
            for name, turns in orders.items():
                gold = searched.question.gold
                values = recalls(list(dict.fromkeys(turns)), gold, bench.pieces)
                rows.setdefault(name, []).append((searched.question.category, values))
    return rows, used


async def run(
    data: Path, model_path: Path, model: Embedder | None = None, *, by_meaning: bool = True
) -> Bench:
    """Index all dialogues and ask all questions; by words alone unless `by_meaning`."""
    bench = Bench(read_dialogues(data))
    embedder = None
    if by_meaning:
        embedder = WithoutCache(model or LocalEmbedder(model_path, workers=2))
    count = word_pieces(model_path)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        spec = LocalEmbedder(model_path).spec
        index = await open_edge(Path(folder), "bench", spec.dimension)
        blinders = Blinders()
        pool = CpuPool()
        maker = PointMaker(embedder, blinders=blinders, pool=pool)
        service = MemorySearch(OneIndex(index), [], embedder=embedder, blinders=blinders, pool=pool)
        for dialogue in bench.dialogues:
            sealer = Sealer(dialogue.user_id, {1: bytes(32)}, user_key=dialogue.user_id.bytes * 2)
            desk = Desk(dialogue, sealer, blinders, index, embedder, service)
            begun = time.perf_counter()
            points, size = await index_dialogue(desk, maker)
            bench.points += points
            bench.size += size
            bench.indexing += time.perf_counter() - begun
            bench.pieces |= {
                line.id: count(f"{line.author}: {line.text}") for line in dialogue.lines
            }
            found = [await search(desk, question, bench) for question in dialogue.questions]
            bench.searched.append(found)
        await index.aclose()
        await pool.aclose()
    if model is not None:
        await model.aclose()
    return bench


def word_pieces(model_path: Path) -> Callable[[str], int]:
    """Counts a text in the model's own word pieces, without what it puts around them."""
    tokenizer: Any = Tokenizer.from_file(str(model_path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def summary(bench: Bench, mode: str) -> dict[str, Any]:
    """Every figure of the run, in per cent, milliseconds and bytes."""
    rows, used = score(bench, mode)
    names = [f"@{k}" for k in KS] + [f"{budget}t" for budget in BUDGETS]
    methods: dict[str, Any] = {}
    for name, results in rows.items():
        groups = {"1-4": [values for category, values in results if category != 5]}
        for category, title in CATEGORIES.items():
            groups[title] = [values for each, values in results if each == category]
        methods[name] = {
            title: {
                head: round(100 * statistics.fmean(column), 1)
                for head, column in zip(names, zip(*values, strict=True), strict=True)
            }
            for title, values in groups.items()
            if values
        }
    turns = sum(len(dialogue.lines) for dialogue in bench.dialogues)
    return {
        "weights": mode,
        "dialogues": len(bench.dialogues),
        "turns": turns,
        "questions": sum(len(part) for part in bench.searched),
        "recall": methods,
        "weights_used": [asdict(weights) for weights in used],
        "points": bench.points,
        "indexing_seconds": round(bench.indexing, 1),
        "messages_a_second": round(turns / bench.indexing),
        "vector_bytes_a_message": round(bench.size / turns),
        "pieces_a_prompt": round(statistics.fmean(bench.filled)),
        "embedding_ms_p50": round(statistics.median(bench.embedding), 2),
        "search_ms_p50": round(statistics.median(bench.searching), 2),
        "search_ms_p95": round(statistics.quantiles(bench.searching, n=20)[-1], 2),
    }


def show(figures: Mapping[str, Any]) -> None:
    """Print the tables."""
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        f"{figures['dialogues']} dialogues, {figures['turns']:,} turns, "
        f"{figures['questions']:,} questions, weights: {figures['weights']}"
    )
    for name, groups in figures["recall"].items():
        heads = list(next(iter(groups.values())))
        print(f"\n{name:<28}" + "".join(f"{head:>8}" for head in heads))
        for title, values in groups.items():
            print(f"  {title:<26}" + "".join(f"{values[head]:>8}" for head in heads))
    print(f"\n{'weights':<15}" + "".join(f"{at + 1:>8}" for at in range(figures["dialogues"])))
    for name in figures["weights_used"][0]:
        print(f"{name:<15}" + "".join(f"{each[name]:>8}" for each in figures["weights_used"]))
    print()
    for name in list(figures)[6:]:
        print(f"{name:<20} {figures[name]:>10,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--data", type=Path, default=SHARED / "locomo" / "locomo_first5.json", help="LoCoMo's file"
    )
    parser.add_argument(
        "--model-path",
        type=Path,
        default=SHARED / "minilm-l6-v2-int8",
        help="folder of the embedding model (ONNX)",
    )
    parser.add_argument("--weights", choices=("loo", "default"), default="loo")
    parser.add_argument("--without-model", action="store_true", help="search by words alone")
    parser.add_argument("--vectors", type=Path, help="folder to keep vectors in between runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    model = None
    if options.vectors:
        model = KeptVectors(LocalEmbedder(options.model_path, workers=2), options.vectors)
    bench = asyncio.run(
        run(options.data, options.model_path, model, by_meaning=not options.without_model)
    )
    figures = summary(bench, options.weights)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
