"""Chats in an index of Qdrant Edge, searched by the code of a server, and the recall of results."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from uuid import UUID, uuid5

from tokenizers import Tokenizer

from backend.chats.drafts import place_in_scene
from backend.chats.models import Message
from backend.core.audience import Viewpoint
from backend.core.cpu_pool import CpuPool
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import (
    Embedder,
    Floats,
    ModelCosines,
    find_cosines,
    measure_cosines,
)
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import (
    Kind,
    Point,
    Query,
    Scope,
    ScopePart,
    Sparse,
    VectorIndex,
    VectorName,
)
from backend.memory.indexing.collections import Collections, Placement, UserEmbedders
from backend.memory.indexing.documents import (
    WINDOW,
    Blinders,
    IndexDocument,
    IndexedMessage,
    IndexRun,
    PointMaker,
    VectorSource,
    build_message_documents,
    build_scene_document,
)
from backend.memory.indexing.sources import MemoryItem, OriginMessage
from backend.memory.search import query as parsed_query
from backend.memory.search.features import SignalHits
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.memory.search.terms import blind_terms, query_terms
from backend.turns.prompt.retrieve import MAX_ITEMS, MAX_SHORT_ITEMS, ROOM_TOKENS
from backend.vault.sealing import Sealer
from scripts.bench.data import MINILM
from scripts.bench.vectors import StoredVectors

IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0000")
RECALL_COUNTS = (5, 10, 20, 50)
RECALL_BUDGETS = (256, 512, 1024, 2048, 4096)
RECALL_HEADS = [f"@{count}" for count in RECALL_COUNTS] + [f"{each}t" for each in RECALL_BUDGETS]

ScoredQuestions = Sequence[tuple[int, list[float]]]
"""(category, figures) of each question."""


@dataclass(frozen=True)
class Question:
    """A question, and the ids of the texts that answer it."""

    text: str
    category: int
    gold: frozenset[UUID]


@dataclass(frozen=True)
class Dialogue:
    """A dialogue as a chat of one user."""

    user_id: UUID
    chat_id: UUID
    speakers: Sequence[str]
    lines: Sequence[IndexedMessage]
    questions: Sequence[Question]
    ended: datetime


def make_lines(
    chat_id: UUID, texts: Iterable[tuple[UUID, str, str, datetime]]
) -> list[IndexedMessage]:
    """Return the lines of a chat from (id, author, text, time), placed in scenes by the server."""
    lines: list[IndexedMessage] = []
    before: Message | None = None
    for position, (line_id, author, text, said_at) in enumerate(texts):
        row = Message(id=line_id, position=position, created_at=said_at)
        place_in_scene(row, before)
        before = row
        lines.append(
            IndexedMessage(
                id=line_id,
                container_id=chat_id,
                author=author,
                text=text,
                said_at=said_at,
                position=position,
                scene_id=row.scene_id,
                version=1,
            )
        )
    return lines


class UncachedEmbedder:
    """A model without the cache of vectors. `seconds` is the time of the last query."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.spec = embedder.spec
        self.seconds = 0.0

    async def cosines(self) -> ModelCosines:
        return find_cosines(self.spec.model) or await measure_cosines(self._embedder.embed)

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is stored
        return await self._embedder.embed(texts, "document")

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:  # noqa: ARG002  # nothing is stored
        began = time.perf_counter()
        vector: Floats = (await self._embedder.embed([text], "query"))[0]
        self.seconds = time.perf_counter() - began
        return vector


class OneIndex(Collections):
    """Collections with one index for all users."""

    def __init__(self, index: VectorIndex) -> None:
        self.current = index

    async def place_to_search(
        self,
        user_id: UUID,  # noqa: ARG002  # all users share the index
    ) -> tuple[VectorIndex, Placement]:
        name = self.current.name
        return self.current, Placement(target=name, searched=name)


@dataclass(frozen=True)
class AllRows:
    """A source and its database, in which every row of the index exists."""

    kind: Kind
    origins: Mapping[UUID, Sequence[OriginMessage]] = field(
        default_factory=dict[UUID, Sequence[OriginMessage]]
    )
    texts: Mapping[UUID, str] = field(default_factory=dict[UUID, str])

    def read(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def recall(
        self, _session: Any, _sealer: Sealer, ids: Collection[UUID], *, viewpoint: Viewpoint
    ) -> dict[UUID, MemoryItem]:
        _ = viewpoint
        return {
            each: MemoryItem(
                kind=self.kind,
                source_id=each,
                container_id=each,
                title="",
                text=self.texts.get(each, ""),
                origins=self.origins.get(each, ()),
            )
            for each in ids
        }


@dataclass(frozen=True)
class SearchBench:
    """An index with everything that indexing and searching need."""

    index: VectorIndex
    maker: PointMaker
    blinders: Blinders
    pool: CpuPool
    embedder: UncachedEmbedder | None

    def make_search(self, *sources: AllRows, by_meaning: bool = True) -> MemorySearch:
        """Return a search with the embedder of the bench, or by words only."""
        rows: list[Any] = list(sources)
        return MemorySearch(
            OneIndex(self.index),
            rows,
            embedders=UserEmbedders(self.embedder if by_meaning else None),
            blinders=self.blinders,
            pool=self.pool,
        )

    async def index_documents(
        self, sealer: Sealer, documents: Sequence[IndexDocument]
    ) -> list[Point]:
        """Index documents as a server does; return their points."""
        attempt = IndexRun(sealer)
        vectors = VectorSource(self.embedder)
        points = await self.maker.make(attempt, documents, vectors=vectors)
        if attempt.failure:
            raise attempt.failure
        await self.index.upsert(points)
        return points

    async def index_dialogue(self, dialogue: Dialogue) -> list[Point]:
        """Index a dialogue."""
        lines = dialogue.lines
        documents = [
            document
            for at, line in enumerate(lines)
            for document in build_message_documents(
                line, before=lines[max(0, at - WINDOW) : at], after=lines[at + 1 : at + 1 + WINDOW]
            )
        ]
        scenes: dict[UUID, list[IndexedMessage]] = {}
        for line in lines:
            if line.scene_id is not None:
                scenes.setdefault(line.scene_id, []).append(line)
        documents += [build_scene_document(scene_id, some) for scene_id, some in scenes.items()]
        return await self.index_documents(make_sealer(dialogue.user_id), documents)

    async def embed_query(self, sealer: Sealer, text: str) -> Floats | None:
        """Return the blinded vector of a text, shape (d,), or None without an embedder."""
        if self.embedder is None:
            return None
        vector = await self.embedder.embed_query(sealer, text)
        return self.blinders.get(sealer).turn(vector)

    async def search_plainly(
        self, sealer: Sealer, text: str, parts: Sequence[ScopePart]
    ) -> SignalHits:
        """Search messages by the vector and by the terms of a text, for the baselines."""
        scope = Scope(owner_id=sealer.user_id, parts=parts, kinds=["message"])
        near: dict[VectorName, Floats | Sparse] = {
            "sparse": blind_terms(query_terms(text), self.blinders.get(sealer))
        }
        if (vector := await self.embed_query(sealer, text)) is not None:
            near["dense"] = vector
        hits = await self.index.search(
            [
                Query(vector=name, near=each, scope=scope, limit=parsed_query.HITS_PER_SIGNAL)
                for name, each in near.items()
            ]
        )
        return {"dense": [], **dict(zip(near, hits, strict=True))}


def make_sealer(user_id: UUID) -> Sealer:
    return Sealer(user_id, {1: bytes(32)}, user_key=user_id.bytes * 2)


@asynccontextmanager
async def open_bench(model: Embedder, *, by_meaning: bool = True) -> AsyncGenerator[SearchBench]:
    """Yield a bench with an empty index in a temporary folder; `by_meaning` uses the model."""
    await model.ready()
    embedder = UncachedEmbedder(model) if by_meaning else None
    blinders, pool = Blinders(), CpuPool()
    with TemporaryDirectory(prefix="bench-") as folder:
        index = await open_edge(Path(folder), "bench", model.spec.dimension)
        maker = PointMaker(blinders=blinders, pool=pool)
        yield SearchBench(index, maker, blinders, pool, embedder)
        await index.aclose()
    await pool.aclose()
    await model.aclose()


async def search_as_turn(
    search: MemorySearch,
    dialogue: Dialogue,
    text: str,
    parts: Sequence[ScopePart],
    kinds: Sequence[Kind],
) -> list[tuple[Kind, UUID]]:
    """Return (kind, id) of the items that a turn would take, best first."""
    sealer = make_sealer(dialogue.user_id)
    findings = await search.find(sealer, make_request(dialogue, text, parts, kinds))
    database: Any = AllRows("message")
    memories = await search.recall(database, sealer, findings)
    return [(each.recalled.kind, each.recalled.source_id) for each in memories]


async def find_places(
    search: MemorySearch, dialogue: Dialogue, names: Sequence[str]
) -> list[int | None]:
    """Return the place from 0 of the line that answers each question; None if it is missing."""
    places: list[int | None] = []
    for question in dialogue.questions:
        request = SearchRequest(
            text=question.text,
            names=names,
            parts=[ScopePart(containers=[dialogue.chat_id])],
            kinds=["message"],
            min_relevance=0.0,
            now=dialogue.ended,
        )
        findings = await search.find(make_sealer(dialogue.user_id), request)
        order = [each.payload.source_id for each in findings.candidates]
        [gold] = question.gold
        places.append(order.index(gold) if gold in order else None)
    return places


def measure_first(places: Sequence[int | None], count: int) -> int:
    """Return the share of lines among the first `count`, in per cent."""
    found = sum(place is not None and place < count for place in places)
    return round(100 * found / len(places))


def make_request(
    dialogue: Dialogue, text: str, parts: Sequence[ScopePart], kinds: Sequence[Kind]
) -> SearchRequest:
    """Return the request of a turn, with its limits and its thresholds."""
    return SearchRequest(
        text=text,
        names=dialogue.speakers,
        parts=parts,
        kinds=kinds,
        limit=MAX_ITEMS,
        room=ROOM_TOKENS,
        most=MAX_SHORT_ITEMS,
        now=dialogue.ended,
        activates_lore=True,
        joins_evidence=True,
    )


def load_piece_counter(model_path: Path) -> Callable[[str], int]:
    """Return a function that counts the word pieces of a text, without special tokens."""
    tokenizer: Any = Tokenizer.from_file(str(model_path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def count_line_pieces(dialogue: Dialogue, count: Callable[[str], int]) -> dict[UUID, int]:
    """Return the word pieces of each line, with its author."""
    return {line.id: count(f"{line.author}: {line.text}") for line in dialogue.lines}


def measure_recall(
    order: Sequence[UUID], gold: frozenset[UUID], pieces: Mapping[UUID, int]
) -> list[float]:
    """Return the recall of the first texts: `RECALL_COUNTS` of them, or within a budget.

    The budgets `RECALL_BUDGETS` are in word pieces. A budget ends before the first text that
    exceeds it.
    """
    values = [len(gold.intersection(order[:count])) / len(gold) for count in RECALL_COUNTS]
    for budget in RECALL_BUDGETS:
        spent, kept = 0, 0
        for each in order:
            spent += pieces[each]
            if spent > budget:
                break
            kept += 1
        values.append(len(gold.intersection(order[:kept])) / len(gold))
    return values


def average(
    scores: ScoredQuestions, groups: Mapping[str, Collection[int]], heads: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return mean figures in per cent of each group of categories that has questions."""
    rows: dict[str, dict[str, float]] = {}
    for title, categories in groups.items():
        values = [figures for category, figures in scores if category in categories]
        if values:
            columns = zip(heads, zip(*values, strict=True), strict=True)
            rows[title] = {
                head: round(100 * statistics.fmean(column), 1) for head, column in columns
            }
    return rows


def add_model_options(parser: argparse.ArgumentParser, *, stores_vectors: bool = True) -> None:
    """Add the options that `open_model` reads."""
    parser.add_argument("--model-path", type=Path, default=MINILM, help="embedding model (ONNX)")
    if stores_vectors:
        parser.add_argument(
            "--vectors",
            type=Path,
            default=Path(gettempdir()) / "bench-vectors",
            help="folder that stores vectors between runs",
        )


def open_model(options: argparse.Namespace) -> Embedder:
    """Return the model of the options. Times mean nothing if it stores vectors."""
    model = LocalEmbedder(options.model_path, workers=2)
    return StoredVectors(model, options.vectors) if options.vectors else model


def make_user_id(name: str) -> UUID:
    return uuid5(IDS, f"user/{name}")
