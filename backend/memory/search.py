"""Searching memory: by meaning and by words, in one batch, ranked, with texts from SQL.

The index knows no text and may be behind; SQL is asked for what was found, and what does not count
at this moment is dropped. A part that fails makes the search poorer, never the turn impossible.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.errors import AppError
from backend.logs import get_logger
from backend.memory import mmr, parsed_query, ranking
from backend.memory.collections import Collections
from backend.memory.embedding.protocol import EmbedderError, Floats
from backend.memory.index.protocol import Kind, VectorIndex
from backend.memory.parsed_query import ParsedQuery
from backend.memory.points import Blinders, speaker_id
from backend.memory.ranking import Candidate, RankingThresholds
from backend.memory.search_request import Memory, SearchRequest, SearchResult
from backend.memory.sources import Recalled, Source
from backend.memory.terms import TermCounter
from backend.vault.sealing import Sealer

log = get_logger(__name__)

SPARE = 3
"""So many times the memories that are asked for are looked up: some are not active any more."""

DEEPER = 8
"""So many times the usual hits are looked at where most of those are of branches left behind."""


class QueryEmbedder(Protocol):
    """Turns what is looked for into a vector, quickly or not at all."""

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:
        """The vector, shape (d,), of unit length. Raises `EmbedderError`."""
        ...


class Searching:
    """A search that may be under way."""

    def __init__(self, search: MemorySearch, sealer: Sealer) -> None:
        self._search = search
        self._sealer = sealer
        self._task: asyncio.Task[SearchResult] | None = None

    def begin(self, ask: SearchRequest | None) -> None:
        """Start looking; None looks for nothing."""
        if ask is not None:
            self._task = asyncio.create_task(self._search.find(self._sealer, ask))

    async def findings(self) -> SearchResult:
        """What came of it."""
        return await self._task if self._task else SearchResult()

    async def give_up(self) -> None:
        """Stop looking, where nobody waits for it any more."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class MemorySearch:
    """Finds memories of one user."""

    def __init__(
        self,
        collections: Collections,
        sources: Sequence[Source],
        *,
        embedder: QueryEmbedder | None,
        blinders: Blinders,
        terms: TermCounter,
        pool: CpuPool,
    ) -> None:
        self._pool = pool
        self._collections = collections
        self._sources: Mapping[Kind, Source] = {source.kind: source for source in sources}
        self._embedder = embedder
        self._blinders = blinders
        self._terms = terms
        self._many: set[tuple[str, UUID]] = set()

    @contextlib.asynccontextmanager
    async def searching(self, sealer: Sealer) -> AsyncGenerator[Searching]:
        """A search beside other work; given up where the block ends without it."""
        search = Searching(self, sealer)
        try:
            yield search
        finally:
            await search.give_up()

    async def find(self, sealer: Sealer, ask: SearchRequest) -> SearchResult:
        """Search the index. Never fails: the notes say what did not work."""
        notes: list[str] = []
        try:
            index = await self._collections.searched(sealer.user_id)
            reading = await self._pool.run(
                sealer.user_id,
                partial(
                    parsed_query.read, ask.text, context=ask.context, cast=ask.names, now=ask.now
                ),
                size=_size(ask),
            )
            vector = await self._embed(sealer, reading.meaning, index, notes)
            return await self._rank(sealer, ask, reading, index, vector, notes)
        except AppError as error:
            notes.append(f"nothing was looked up in memory: {error.title.lower()}")
            log.warning("memory.not_searched", problem=error.slug)
        return SearchResult(ask=ask, notes=notes)

    async def recall(
        self,
        database: Database,
        sealer: Sealer,
        findings: SearchResult,
        *,
        known: Collection[Kind] = (),
    ) -> list[Memory]:
        """The texts of what was found and counts at this moment, best first, none twice.

        Looks deeper where most of it does not count: a reply that was regenerated a hundred times
        leaves a hundred lines that are all near to what is asked, and of which one is active. Kinds
        that are `known` to the caller are taken as they were found, without their texts.
        """
        ask = findings.ask
        if ask is None or not findings.candidates:
            return []
        active, found, looked_at = await self._active(database, sealer, findings, known)
        if ask.depth == 1 and 2 * len(active) < min(looked_at, ask.limit):
            findings = await self.find(sealer, replace(ask, depth=DEEPER))
            active, found, _ = await self._active(database, sealer, findings, known)
        chosen = mmr.select(active, findings.vectors, count=ask.limit)
        return [
            Memory(
                recalled=found[each.payload.source_id],
                rank=rank,
                score=each.score,
                signals=each.signals,
            )
            for rank, each in enumerate(chosen, start=1)
        ]

    async def _active(
        self,
        database: Database,
        sealer: Sealer,
        findings: SearchResult,
        known: Collection[Kind],
    ) -> tuple[list[Candidate], dict[UUID, Recalled], int]:
        """(candidates that count, what they are by row, how many were looked at for them)."""
        ask = findings.ask
        active: list[Candidate] = []
        found: dict[UUID, Recalled] = {}
        looked_at = 0
        if ask is None:
            return active, found, looked_at
        async with database.read() as session:
            for start in range(0, ask.limit * SPARE * ask.depth, ask.limit):
                part = findings.candidates[start : start + ask.limit]
                if not part or len(active) >= ask.limit:
                    break
                looked_at += len(part)
                found |= await self._recalled(session, sealer, part, known)
                active += [each for each in part if each.payload.source_id in found]
        return active, found, looked_at

    async def _recalled(
        self,
        session: AsyncSession,
        sealer: Sealer,
        candidates: Sequence[Candidate],
        known: Collection[Kind],
    ) -> dict[UUID, Recalled]:
        found: dict[UUID, Recalled] = {}
        for kind, source in self._sources.items():
            payloads = [each.payload for each in candidates if each.payload.kind == kind]
            if kind in known:
                found |= {
                    each.source_id: Recalled(
                        kind=kind,
                        source_id=each.source_id,
                        container_id=each.container_id,
                        title="",
                        text="",
                    )
                    for each in payloads
                }
            elif payloads:
                wanted = [each.source_id for each in payloads]
                found |= await source.recall(session, sealer, wanted)
        return found

    async def _embed(
        self, sealer: Sealer, meaning: str, index: VectorIndex, notes: list[str]
    ) -> Floats | None:
        if self._embedder is None:
            return None
        if index is not self._collections.current:
            notes.append("memory is moving to another embedding model: looked up by words alone")
            return None
        try:
            return await self._embedder.embed_query(sealer, meaning)
        except EmbedderError as error:
            notes.append("looked up by words alone: the embedding model did not answer")
            log.warning("memory.not_embedded", problem=error.slug)
            return None

    async def _rank(
        self,
        sealer: Sealer,
        ask: SearchRequest,
        reading: ParsedQuery,
        index: VectorIndex,
        vector: Floats | None,
        notes: list[str],
    ) -> SearchResult:
        blinder = self._blinders.get(sealer)
        plan = await self._pool.run(
            sealer.user_id,
            partial(
                parsed_query.plan,
                reading,
                owner_id=sealer.user_id,
                parts=ask.parts,
                kinds=ask.kinds,
                dense=None if vector is None else blinder.turn(vector),
                terms=self._terms,
                blinder=blinder,
                limit=parsed_query.LIMIT * ask.depth,
            ),
            size=_size(ask),
        )
        hits = await index.search([query for _, query in plan])
        found = ranking.gather([signal for signal, _ in plan], hits)
        everything = ranking.rank(
            found,
            speakers={speaker_id(name, blinder) for name in reading.names},
            spans=reading.spans,
            wants_recent=reading.wants_recent,
        )
        weighed = _weighed(everything, ask.weights)
        least = _thresholds(ask)
        if weighed:
            least = ranking.for_corpus(least, await self._points(index, sealer.user_id))
        kept = ranking.relevant(weighed, least)
        near = [each.id for each in kept[: ask.limit]]
        vectors = await index.dense_vectors(near) if vector is not None and near else {}
        return SearchResult(
            ask=ask,
            candidates=kept,
            below=len(weighed) - len(kept),
            vectors=vectors,
            notes=notes,
            by_meaning=vector is not None,
        )

    async def _points(self, index: VectorIndex, owner_id: UUID) -> int:
        """How many points a user has; once they are many nobody counts them again."""
        key = index.name, owner_id
        if key in self._many:
            return ranking.MANY
        count = await index.count(owner_id)
        if count >= ranking.MANY:
            self._many.add(key)
        return count


def _size(ask: SearchRequest) -> int:
    """Characters that are read to know what is looked for."""
    return len(ask.text) + len(ask.context)


def _weighed(candidates: Sequence[Candidate], weights: Mapping[str, float]) -> list[Candidate]:
    """In the order of their scores times the weight of their kind; a weight of 0 leaves out."""
    if all(weight == 1 for weight in weights.values()):
        return list(candidates)
    weighed = [
        replace(each, score=each.score * weights.get(each.payload.kind, 1.0))
        for each in candidates
        if weights.get(each.payload.kind, 1.0) > 0
    ]
    return sorted(weighed, key=lambda each: -each.score)


def _thresholds(ask: SearchRequest) -> RankingThresholds:
    """What must be reached: 0 is nothing, 1 what no text but the query's own reaches."""
    relevance = ask.min_relevance
    lore = max(ranking.LORE_COSINE, relevance or 0) if ask.activates_lore else None
    if relevance is None:
        return RankingThresholds(lore=lore)
    return RankingThresholds(dense=relevance, sparse=relevance * MOST_TERMS, lore=lore)


MOST_TERMS = 30.0
"""BM25 of a text that says everything which is asked for, and little else."""
