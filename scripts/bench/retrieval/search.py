"""Chats in an index of Qdrant Edge, searched by the code of a server."""

from __future__ import annotations

import argparse
import time
from collections.abc import (
    AsyncGenerator,
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

from backend.chats.drafts import place_in_scene
from backend.chats.models import Message
from backend.core.audience import Viewpoint
from backend.core.cpu_pool import CpuPool
from backend.generation.tokens import FALLBACK_TOKENIZER, get_tokenizer
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
    sessions: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    """The session of each line, if the data has sessions."""


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


@asynccontextmanager
async def open_index(dimension: int) -> AsyncGenerator[VectorIndex]:
    """Yield an empty index in a temporary folder."""
    with TemporaryDirectory(prefix="bench-") as folder:
        index = await open_edge(Path(folder), "bench", dimension)
        yield index
        await index.aclose()


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
    async with open_index(model.spec.dimension) as index:
        maker = PointMaker(blinders=blinders, pool=pool)
        yield SearchBench(index, maker, blinders, pool, embedder)
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


async def rank_lines(
    search: MemorySearch, dialogue: Dialogue, text: str, names: Sequence[str]
) -> list[UUID]:
    """Return the ids of all lines that a search finds, best first."""
    request = SearchRequest(
        text=text,
        names=names,
        parts=[ScopePart(containers=[dialogue.chat_id])],
        kinds=["message"],
        min_relevance=0.0,
        now=dialogue.ended,
    )
    findings = await search.find(make_sealer(dialogue.user_id), request)
    return [each.payload.source_id for each in findings.candidates]


async def find_places(
    search: MemorySearch, dialogue: Dialogue, names: Sequence[str]
) -> list[int | None]:
    """Return the place from 0 of the line that answers each question; None if it is missing."""
    places: list[int | None] = []
    for question in dialogue.questions:
        order = await rank_lines(search, dialogue, question.text, names)
        [gold] = question.gold
        places.append(order.index(gold) if gold in order else None)
    return places


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


def count_tokens(text: str) -> int:
    """Return the tokens of a text, counted with o200k_base."""
    return get_tokenizer(FALLBACK_TOKENIZER).count(text)


def count_line_tokens(dialogue: Dialogue) -> dict[UUID, int]:
    """Return the tokens of each line with its author."""
    return {line.id: count_tokens(f"{line.author}: {line.text}") for line in dialogue.lines}


def add_model_options(parser: argparse.ArgumentParser, *, stores_vectors: bool = True) -> None:
    """Add the options that `open_model` reads."""
    parser.add_argument(
        "--model-path", type=Path, default=MINILM, help="folder of the embedding model"
    )
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
