"""Searching memory: by meaning and by words, in one batch, ranked, with texts from SQL.

A search goes like this:

    parsed = parsed_query.read(text, cast=names, now=now)     # what is asked for
    plan = parsed_query.plan(parsed, dense=..., blinder=...)  # the queries, one a signal
    found, deep = split(plan, await index.search(deeper(plan)))
    matches = read_words(parsed, ...).match(term vectors)     # a young world, and lore
    ranked = ranking.rank(apply_matches(found, ...), ...)     # the best first
    kept = add_few(relevant(ranked, thresholds), ...)         # nothing rather than noise
    recalled = await source.recall(...)                       # SQL: drop what is not active
    active = diversified(joined(...), ...)                    # lines of events; several places
    chosen = mmr.select(...)                                  # drop what says the same
    chosen = with_nearest(chosen, nearest(deep, ...), ...)    # what is near by meaning alone

The index knows no text and may be behind; SQL is asked for what was found, and what does not count
at this moment is dropped. A part that fails makes the search poorer, never the turn impossible.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy.ext.asyncio import AsyncSession

from backend.core.audience import GM, Viewpoint, find_required_keywords
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.core.reasons import Reason, ReasonKind
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.errors import AppError
from backend.memory.embedding.own_models import OwnModels
from backend.memory.embedding.protocol import MINILM, QueryEmbedder
from backend.memory.index.protocol import Floats, IndexUnavailableError, Kind, Payload, VectorIndex
from backend.memory.indexing.collections import Collections
from backend.memory.indexing.points import Blinders, speaker_id
from backend.memory.indexing.sources import Recalled, Source
from backend.memory.search import query as parsed_query
from backend.memory.search import ranking
from backend.memory.search import ranking as mmr
from backend.memory.search.features import Candidate, Found
from backend.memory.search.line_words import (
    WordMatch,
    apply_matches,
    find_aboutness,
    read_words,
    scale_to_large_corpus,
)
from backend.memory.search.query import embedded, query_embedder
from backend.memory.search.ranking import (
    MANY,
    SAME,
    breadth,
    diversified,
    over_scenes,
    relevant,
    thresholds,
)
from backend.memory.search.recall import add_few, deeper, joined, nearest, split, with_nearest
from backend.memory.search.request import (
    HitVectors,
    MatchScale,
    Memory,
    SearchRequest,
    SearchResult,
    scene_strengths,
)
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

MOST = 10
CLOSE = 0.5
"""How much of what is enough by itself something has at least that came close, if all is let in."""

MOST_ALIKE = 4
"""So many of them for one reason: a reply that was regenerated often leaves a line each time."""


_NONE: Floats = np.empty(0, np.float32)


class NearMiss(NamedTuple):
    """A row that was found, by what the index knows of it, and why it was not brought up."""

    payload: Payload
    reason: Reason


def near_misses(result: SearchResult, memories: Sequence[Memory]) -> list[NearMiss]:
    """The best of what was found that is not among the memories brought up, at most `MOST`.

    Reads no text: of a line that is not near enough nobody knows yet whether it counts at all.
    """
    taken = {memory.recalled.source_id.int: memory.rank for memory in memories}
    near = {id(each) for each in result.candidates}
    far = (
        each
        for each in result.ranked
        if id(each) not in near and each.payload.source_id.int not in taken
    )
    found = _not_brought_up(result, taken)
    found += [NearMiss(each.payload, _not_near(each, result)) for each in islice(far, MOST_ALIKE)]
    return found[:MOST]


def _not_brought_up(result: SearchResult, taken: Mapping[int, int]) -> list[NearMiss]:
    """What is near enough and stayed out all the same; `taken` are ranks by the number of a row."""
    vectors = result.vectors.there
    chosen = [
        each
        for each in result.candidates
        if each.payload.source_id.int in taken and each.id in vectors
    ]
    table = np.array([vectors[each.id] for each in chosen])
    is_full = result.request is not None and len(taken) >= result.request.limit
    usual: ReasonKind = "max_items" if is_full else "not_current"
    counts = Counter[str]()
    found: list[NearMiss] = []
    left = len(vectors)
    for each in result.candidates:
        # Those without a vector have the usual reason: hundreds, of which a few are told.
        is_enough = counts[usual] >= MOST_ALIKE
        if len(found) == MOST or (is_enough and not left):
            break
        vector = vectors.get(each.id) if left else None
        if vector is not None:
            left -= 1
        if (vector is None and is_enough) or each.payload.source_id.int in taken:
            continue
        if sum(result.scale.enough.shares(each)) < CLOSE:
            continue
        cosines = table @ vector if vector is not None and chosen else _NONE
        if cosines.max(initial=0.0) >= SAME:
            other = chosen[int(cosines.argmax())]
            reason = Reason("repeats", rank=taken[other.payload.source_id.int])
        else:
            reason = Reason(usual)
        counts[reason.kind] += 1
        if counts[reason.kind] <= MOST_ALIKE:
            found.append(NearMiss(each.payload, reason))
    return found


class RowReader:
    """Reads rows that the index named, by their kinds."""

    def __init__(self, database: Database, sources: Sequence[Source]) -> None:
        self._database = database
        self._sources = sources

    async def texts(
        self, sealer: Sealer, wanted: Mapping[UUID, Kind], *, viewpoint: Viewpoint = GM
    ) -> dict[UUID, Recalled]:
        """Of these rows the ones that count at this moment and that the viewpoint may know."""
        found: dict[UUID, Recalled] = {}
        if wanted:
            async with self._database.read() as session:
                for source in self._sources:
                    ids = [each for each, kind in wanted.items() if kind == source.kind]
                    if ids:
                        found |= await source.recall(session, sealer, ids, viewpoint=viewpoint)
        return found


def _not_near(candidate: Candidate, result: SearchResult) -> Reason:
    """How much a candidate has of what it takes, from 0 to 1."""
    least = result.least
    if least.lore is not None and candidate.payload.kind == "lore":
        share = max(0.0, least.lore_share(candidate))
    else:
        share = sum(least.shares(candidate))
        if not result.by_meaning:  # words have to do alone what they do half of otherwise
            share *= 2
        # Enough by itself, where nothing reaches what one at least must.
        share = share / least.best if share >= 1 else share
    return Reason("not_near", score=round(min(share, 0.99), 2))


log = get_logger(__name__)

SPARE = 3
"""So many times the memories that are asked for are looked up: some are not active any more."""

MAX_COUNTED = 1_000
"""Users of whom it is kept that they have many points. For more, the first of them go."""

DEEPER = 8
"""Multiplier for the hits of each signal when most of the usual ones belong to branches left."""


class Searching:
    """A search that may be under way."""

    def __init__(self, search: MemorySearch, sealer: Sealer) -> None:
        self._search = search
        self._sealer = sealer
        self._task: asyncio.Task[SearchResult] | None = None

    async def begin(self, request: SearchRequest | None) -> None:
        """Start looking; None looks for nothing."""
        if request is not None:
            self._task = asyncio.create_task(self._search.find(self._sealer, request))
            await asyncio.sleep(0)  # it begins now: on SQLite the caller may read on for long

    async def result(self) -> SearchResult:
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
        pool: CpuPool,
        own: OwnModels | None = None,
    ) -> None:
        self._own = own
        self._pool = pool
        self._collections = collections
        self._sources = sources
        self.embedder = embedder
        self._blinders = blinders
        self._many: dict[tuple[str, UUID], None] = {}

    @contextlib.asynccontextmanager
    async def searching(self, sealer: Sealer) -> AsyncGenerator[Searching]:
        """A search beside other work; given up where the block ends without it."""
        search = Searching(self, sealer)
        try:
            yield search
        finally:
            await search.give_up()

    async def find(self, sealer: Sealer, request: SearchRequest) -> SearchResult:
        """Search the index. Never fails: the notes say what did not work."""
        notes: list[str] = []
        try:
            return await self._find(sealer, request, notes)
        except AppError as error:
            notes.append(f"memory was not searched: {error.title.lower()}")
            log.warning("memory.not_searched", problem=error.slug)
            return SearchResult(request=request, notes=notes)

    async def _find(self, sealer: Sealer, request: SearchRequest, notes: list[str]) -> SearchResult:
        user_id, size = sealer.user_id, len(request.text) + len(request.context)
        index, place = await self._collections.place_to_search(user_id)
        read = partial(
            parsed_query.read,
            request.text,
            context=request.context,
            cast=request.names,
            now=request.now,
        )
        parsed = await self._pool.run(user_id, read, size=size)
        embedder = await query_embedder(self.embedder, self._own, sealer, place, notes)
        vector = await embedded(embedder, sealer, parsed.meaning, notes)
        if vector is None:
            embedder = None
        cosines = await embedder.cosines() if embedder is not None else MINILM
        blinder = self._blinders.get(sealer)
        plan = partial(
            parsed_query.plan,
            parsed,
            owner_id=user_id,
            parts=request.parts,
            kinds=request.kinds,
            dense=None if vector is None else blinder.turn(vector),
            blinder=blinder,
            limit=parsed_query.LIMIT * request.depth,
            audience=find_required_keywords(request.viewpoint),
        )
        queries = await self._pool.run(user_id, plan, size=size)
        asked = deeper(queries) if request.room else [query for _, query in queries]
        found, deep = split(queries, await index.search(asked))
        if any(found.values()):
            found = scale_to_large_corpus(found, await self._points(index, user_id))
        matches = await self._match_words(index, user_id, parsed, blinder, found, size=size)
        found = apply_matches(found, matches)
        speakers = {speaker_id(name, blinder): name for name in parsed.names}
        ranked = ranking.rank(
            found,
            speakers=speakers,
            spans=parsed.spans,
            wants_recent=parsed.wants_recent,
            aboutness=find_aboutness(found, matches),
        )
        broad = breadth(parsed.terms, ranked)
        ranked = ranking.weighed(over_scenes(ranked, broad), request.weights)
        least = thresholds(
            request.min_relevance, activates_lore=request.activates_lore, cosines=cosines
        )
        enough = thresholds(None, activates_lore=request.activates_lore, cosines=cosines)
        kept = add_few(relevant(ranked, least), ranked, least, room=request.room)
        vectors = HitVectors()
        if vector is not None:
            vectors.ask(index, [each.id for each in kept[: request.limit]])
            await asyncio.sleep(0)  # the index is at it while this goes on
        lines: list[Candidate] = []
        if request.room:
            lines = nearest(
                deep,
                least,
                ranked=ranked,
                speakers=speakers,
                spans=parsed.spans,
                most=request.most,
            )
        scale = MatchScale(
            enough=enough, speakers=speakers, spans=parsed.spans, scenes=scene_strengths(found)
        )
        return SearchResult(
            request=request,
            candidates=kept,
            near=lines,
            vectors=vectors,
            notes=notes,
            by_meaning=vector is not None,
            ranked=ranked,
            least=least,
            scale=scale,
            breadth=broad,
        )

    async def _match_words(
        self,
        index: VectorIndex,
        user_id: UUID,
        parsed: parsed_query.ParsedQuery,
        blinder: Blinder,
        found: Found,
        *,
        size: int,
    ) -> Mapping[UUID, WordMatch]:
        """Compare the words of a line with the points that are no lines of a chat."""
        ids = [hit.id for hit in found.get("sparse", ()) if hit.payload.kind != "message"]
        if not ids:
            return {}
        try:
            texts = await index.term_vectors(ids)
        except IndexUnavailableError as error:  # the scores of the index count then
            log.warning("memory.no_term_vectors", problem=error.slug)
            return {}

        def match() -> Mapping[UUID, WordMatch]:
            return read_words(parsed, blinder).match(texts)

        return await self._pool.run(user_id, match, size=size)

    async def _points(self, index: VectorIndex, owner_id: UUID) -> int:
        """How many points a user has; once they are many nobody counts them again."""
        key = index.name, owner_id
        if key in self._many:
            return MANY
        count = await index.count(owner_id)
        if count >= MANY:
            if len(self._many) >= MAX_COUNTED:
                del self._many[next(iter(self._many))]
            self._many[key] = None
        return count

    def user_signed_out(self, user_id: UUID) -> None:
        """Count a user's points again: they may have deleted most of them since."""
        for key in [each for each in self._many if each[1] == user_id]:
            del self._many[key]

    async def recall(
        self,
        database: Database,
        sealer: Sealer,
        result: SearchResult,
        *,
        known: Collection[Kind] = (),
        instead: Sequence[Source] = (),
        then: Callable[[AsyncSession, Sequence[Memory]], Awaitable[None]] | None = None,
    ) -> list[Memory]:
        """The texts of what was found and counts at this moment, best first, none twice.

        Looks deeper where most of it does not count: of a reply that was regenerated a hundred
        times one is active. Kinds that are `known` to the caller are taken as they were found,
        without their texts. Sources given `instead` recall the rows of their kinds. What is to be
        read `then` is, if anything was found, in the same view of the database.
        """
        request = result.request
        if request is None or not (result.candidates or result.near):
            return []
        replaced = {each.kind: each for each in instead}
        sources = [replaced.get(each.kind, each) for each in self._sources]
        async with database.read() as session:
            recalled = partial(_recalled, session, sealer, sources=sources, known=known)
            found, looked_at = await recalled(request, result.candidates)
            if request.depth > 1 or 2 * len(found) >= min(looked_at, request.limit):
                memories = await _brought_up(request, result, found, recalled)
                if then is not None:
                    await then(session, memories)
                return memories
        result = await self.find(sealer, replace(request, depth=DEEPER))
        return await self.recall(database, sealer, result, known=known, instead=instead, then=then)


_Recall = Callable[
    [SearchRequest, Sequence[Candidate]], Awaitable[tuple[dict[UUID, Recalled], int]]
]


async def _recalled(
    session: AsyncSession,
    sealer: Sealer,
    request: SearchRequest,
    candidates: Sequence[Candidate],
    *,
    sources: Sequence[Source],
    known: Collection[Kind],
) -> tuple[dict[UUID, Recalled], int]:
    """What counts of the best candidates, by row, and how many were looked at for it."""
    found: dict[UUID, Recalled] = {}
    looked_at, limit, viewpoint = 0, request.limit, request.viewpoint
    for part in split_chunks(candidates[: limit * SPARE * request.depth], limit):
        if len(found) >= limit:
            break
        looked_at += len(part)
        for source in sources:
            payloads = [each.payload for each in part if each.payload.kind == source.kind]
            if source.kind in known:
                found |= {each.source_id: Recalled.unread(each) for each in payloads}
            elif payloads:
                ids = [each.source_id for each in payloads]
                found |= await source.recall(session, sealer, ids, viewpoint=viewpoint)
    return found, looked_at


async def _brought_up(
    request: SearchRequest, result: SearchResult, found: dict[UUID, Recalled], recalled: _Recall
) -> list[Memory]:
    """The memories of a search whose first candidates are `found`; the rest are `recalled`."""
    candidates = joined(result.candidates, found, parts=request.parts, kinds=request.kinds)
    lines = [each for each in candidates if each.joined and each.payload.source_id not in found]
    if lines:
        found |= (await recalled(request, lines))[0]
    there = {row_id.int for row_id in found}  # a UUID computes its hash in Python
    active = [each for each in candidates if each.payload.source_id.int in there]
    active = diversified(active, result.breadth)
    chosen = mmr.select(active, await result.vectors.arrived(), count=request.limit)
    near, wider = result.near, replace(request, limit=request.most)
    while near:
        merged = with_nearest(chosen, near, room=request.room, most=request.most)
        unread = [each for each in merged if each.payload.source_id not in found]
        if not unread:
            chosen = merged
            break
        found |= (await recalled(wider, unread))[0]
        gone = {each.id.int for each in unread if each.payload.source_id not in found}
        near = [each for each in near if each.id.int not in gone]
    return [
        Memory(
            recalled=found[each.payload.source_id],
            rank=rank,
            score=each.score,
            signals=each.signals,
            reason=result.scale.reason(each, rank),
        )
        for rank, each in enumerate(chosen, start=1)
    ]
