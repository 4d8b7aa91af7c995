"""Memory search: by meaning and by words, in one batch of queries, with texts from SQL.

The sequence of a search:

    parsed = parse_query(text, cast=names, now=now)            # names, questions and times
    plan = plan_queries(parsed, dense=..., blinder=...)        # one query for each signal
    found, deep = split_hits(plan, await index.search(deepen_queries(plan)))
    matches = read_words(parsed, ...).match(term vectors)      # for lore and small corpora
    ranked = rank(apply_matches(found, ...), ...)              # best first
    kept = add_few(select_relevant(ranked, thresholds), ...)   # drop noise
    recalled = await source.recall(...)                        # drop inactive rows
    active = add_origin_lines(...)                             # messages of events
    given = find_preferences(list_relatives(rows), ...)        # rows that say the same
    chosen, given = choose_best(active, given, ...)            # lists, repetitions
    chosen = merge_nearest(chosen, find_nearest(deep, ...))    # messages by meaning alone

The index contains no text and may be out of date. So the rows of hits are read from SQL, and
inactive ones are dropped. If one part fails, the search continues without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy.ext.asyncio import AsyncSession

from backend.core.audience import GM, Viewpoint, Witness
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.core.reasons import Reason, ReasonKind
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.errors import AppError
from backend.memory.embedding.protocol import MINILM, EmbedderError, TextEmbedder
from backend.memory.index.protocol import (
    INDEX_SECONDS,
    Floats,
    IndexUnavailableError,
    Kind,
    Payload,
    VectorIndex,
)
from backend.memory.indexing.collections import Collections, Placement, UserEmbedders
from backend.memory.indexing.documents import Blinders, speaker_id
from backend.memory.indexing.sources import MemoryItem, Source
from backend.memory.search.evidence import Preference, find_preferences, join_places, list_relatives
from backend.memory.search.features import (
    LARGE_CORPUS_POINTS,
    Candidate,
    SignalHits,
    WordMatch,
    apply_matches,
    find_aboutness,
    read_words,
    scale_to_large_corpus,
)
from backend.memory.search.query import (
    HITS_PER_SIGNAL,
    OTHER_HITS_PER_SIGNAL,
    HitLimits,
    ParsedQuery,
    parse_query,
    plan_queries,
)
from backend.memory.search.ranking import (
    add_few,
    add_origin_lines,
    breadth,
    compute_thresholds,
    deepen_queries,
    drop_duplicates,
    find_nearest,
    lower_neighbours,
    merge_nearest,
    rank,
    select_relevant,
    split_hits,
    weigh_by_kind,
)
from backend.memory.search.request import (
    HitVectors,
    MatchScale,
    Memory,
    SearchRequest,
    SearchResult,
)
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

MAX_NEAR_MISSES = 10
MIN_CLOSE_SHARE = 0.5
"""Minimum share of the thresholds of a near miss, if the search includes everything."""

MAX_SAME_REASON = 4
"""Near misses with the same reason. Otherwise the swipes of one reply could fill the list."""


_NONE: Floats = np.empty(0, np.float32)


class NearMiss(NamedTuple):
    payload: Payload
    reason: Reason


def near_misses(result: SearchResult, memories: Sequence[Memory]) -> list[NearMiss]:
    """Return the best hits that are not among the memories, at most `MAX_NEAR_MISSES`.

    It reads no rows, so it is unknown whether they are active.
    """
    taken = {row.source_id.int: memory.rank for memory in memories for row in memory.rows}
    near = {id(each) for each in result.candidates}
    far = (
        each
        for each in result.ranked
        if id(each) not in near and each.payload.source_id.int not in taken
    )
    found = _list_left_out(result, taken)
    found += [
        NearMiss(each.payload, _explain_distance(each, result))
        for each in islice(far, MAX_SAME_REASON)
    ]
    return found[:MAX_NEAR_MISSES]


def _list_left_out(result: SearchResult, taken: Mapping[int, int]) -> list[NearMiss]:
    """Return relevant hits that were dropped. `taken` has ranks by the integers of rows' ids."""
    vectors = result.vectors.there
    chosen = [
        each
        for each in result.candidates
        if each.payload.source_id.int in taken and each.id in vectors
    ]
    table = np.array([vectors[each.id] for each in chosen])
    is_full = result.request is not None and len(set(taken.values())) >= result.request.limit
    usual: ReasonKind = "max_items" if is_full else "not_current"
    counts = Counter[str]()
    found: list[NearMiss] = []
    left = len(vectors)
    for each in result.candidates:
        # Hits without a vector have the usual reason. There are hundreds, and a few are enough.
        is_enough = counts[usual] >= MAX_SAME_REASON
        if len(found) == MAX_NEAR_MISSES or (is_enough and not left):
            break
        vector = vectors.get(each.id) if left else None
        if vector is not None:
            left -= 1
        if (vector is None and is_enough) or each.payload.source_id.int in taken:
            continue
        if sum(result.scale.enough.shares(each)) < MIN_CLOSE_SHARE:
            continue
        cosines = table @ vector if vector is not None and chosen else _NONE
        if cosines.max(initial=0.0) >= result.scale.enough.duplicate:
            other = chosen[int(cosines.argmax())]
            reason = Reason("repeats", rank=taken[other.payload.source_id.int])
        else:
            reason = Reason(usual)
        counts[reason.kind] += 1
        if counts[reason.kind] <= MAX_SAME_REASON:
            found.append(NearMiss(each.payload, reason))
    return found


class RowReader:
    def __init__(self, database: Database, sources: Sequence[Source]) -> None:
        self._database = database
        self._sources = sources

    async def texts(
        self, sealer: Sealer, wanted: Mapping[UUID, Kind], *, viewpoint: Viewpoint = GM
    ) -> dict[UUID, MemoryItem]:
        """Return the active ones of these rows that the viewpoint may know."""
        found: dict[UUID, MemoryItem] = {}
        if wanted:
            async with self._database.read() as session:
                for source in self._sources:
                    ids = [each for each, kind in wanted.items() if kind == source.kind]
                    if ids:
                        found |= await source.recall(session, sealer, ids, viewpoint=viewpoint)
        return found


def _explain_distance(candidate: Candidate, result: SearchResult) -> Reason:
    """Return the share of the thresholds that a candidate reaches, from 0 to 1."""
    least = result.least
    if least.lore is not None and candidate.payload.kind == "lore":
        share = max(0.0, least.lore_share(candidate))
    else:
        share = sum(least.shares(candidate))
        if not result.by_meaning:  # without an embedder, words count twice
            share *= 2
        # It is relevant, but nothing reaches `best`.
        share = share / least.best if share >= 1 else share
    return Reason("not_near", score=round(min(share, 0.99), 2))


log = get_logger(__name__)

CANDIDATE_LIMIT_FACTOR = 3
"""Factor for the candidates whose rows are read, because some are no longer active."""

MAX_COUNTED_USERS = 1_000
"""Users who are known to have many points. The oldest are dropped first."""

DEEP_SEARCH_FACTOR = 8
"""Factor for the hits of each signal if most hits belong to inactive branches, or if the viewpoint
does not know them."""


def _find_limits(request: SearchRequest) -> HitLimits:
    """Return the limits of a search. The index does not know which events a character missed."""
    is_absent = isinstance(request.viewpoint, Witness) and bool(request.viewpoint.absences)
    other_depth = DEEP_SEARCH_FACTOR if is_absent else request.depth
    return HitLimits(HITS_PER_SIGNAL * request.depth, OTHER_HITS_PER_SIGNAL * other_depth)


class SearchSession:
    def __init__(self, search: MemorySearch, sealer: Sealer) -> None:
        self._search = search
        self._sealer = sealer
        self._task: asyncio.Task[SearchResult] | None = None

    async def start(self, request: SearchRequest | None) -> None:
        if request is not None:
            self._task = asyncio.create_task(self._search.find(self._sealer, request))
            # Yield, so that the search starts before a long read of the caller on SQLite.
            await asyncio.sleep(0)

    async def result(self) -> SearchResult:
        return await self._task if self._task else SearchResult()

    async def cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class MemorySearch:
    def __init__(
        self,
        collections: Collections,
        sources: Sequence[Source],
        *,
        embedders: UserEmbedders,
        blinders: Blinders,
        pool: CpuPool,
    ) -> None:
        self._pool = pool
        self._collections = collections
        self._sources = sources
        self._embedders = embedders
        self._blinders = blinders
        self._many: dict[tuple[str, UUID], None] = {}

    @contextlib.asynccontextmanager
    async def session(self, sealer: Sealer) -> AsyncGenerator[SearchSession]:
        """Yield a session for one search, which is cancelled at the end of the block."""
        search = SearchSession(self, sealer)
        try:
            yield search
        finally:
            await search.cancel()

    async def find(self, sealer: Sealer, request: SearchRequest) -> SearchResult:
        """Search the index. It never fails: the notes of the result contain the problems."""
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
            parse_query,
            request.text,
            context=request.context,
            cast=request.names,
            now=request.now,
        )
        parsed = await self._pool.run(user_id, read, size=size)
        embedder = await self._find_embedder(sealer, place, notes)
        vector = await embed_query_text(embedder, sealer, parsed.meaning, notes)
        if vector is None:
            embedder = None
        cosines = await embedder.cosines() if embedder is not None else MINILM
        blinder = self._blinders.get(sealer)
        plan = partial(
            plan_queries,
            parsed,
            owner_id=user_id,
            parts=request.parts,
            kinds=request.kinds,
            dense=None if vector is None else blinder.turn(vector),
            blinder=blinder,
            limits=_find_limits(request),
            audience=request.keywords,
        )
        queries = await self._pool.run(user_id, plan, size=size)
        asked = deepen_queries(queries) if request.room else [query for _, query in queries]
        with INDEX_SECONDS.labels(operation="search").time():
            hits = await index.search(asked)
        found, deep = split_hits(queries, hits)
        if any(found.values()):
            found = scale_to_large_corpus(found, await self.count_points(index, user_id))
        matches = await self._match_words(index, user_id, parsed, blinder, found, size=size)
        found = apply_matches(found, matches)
        speakers = {speaker_id(name, blinder): name for name in parsed.names}
        ranked = rank(
            found,
            speakers=speakers,
            spans=parsed.spans,
            wants_recent=parsed.wants_recent,
            aboutness=find_aboutness(found, matches),
        )
        broad = breadth(parsed.terms, ranked)
        ranked = weigh_by_kind(ranked, request.weights)
        least = compute_thresholds(
            request.min_relevance, activates_lore=request.activates_lore, cosines=cosines
        )
        enough = compute_thresholds(None, activates_lore=request.activates_lore, cosines=cosines)
        kept = add_few(select_relevant(ranked, least), ranked, least, room=request.room)
        vectors = HitVectors()
        if vector is not None:
            vectors.start(index, [each.id for each in kept[: request.limit]])
            await asyncio.sleep(0)  # so that the index works on it concurrently
        lines: list[Candidate] = []
        if request.room:
            lines = find_nearest(
                deep,
                least,
                ranked=ranked,
                speakers=speakers,
                spans=parsed.spans,
                most=request.most,
            )
        scale = MatchScale(enough=enough, speakers=speakers, spans=parsed.spans)
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
        parsed: ParsedQuery,
        blinder: Blinder,
        found: SignalHits,
        *,
        size: int,
    ) -> Mapping[UUID, WordMatch]:
        """Compare the words of the query with the points that are not messages."""
        ids = [hit.id for hit in found.get("sparse", ()) if hit.payload.kind != "message"]
        if not ids:
            return {}
        try:
            texts = await index.term_vectors(ids)
        except IndexUnavailableError as error:  # the scores of the index are then used
            log.warning("memory.no_term_vectors", problem=error.slug)
            return {}

        def match() -> Mapping[UUID, WordMatch]:
            return read_words(parsed, blinder).match(texts)

        return await self._pool.run(user_id, match, size=size)

    async def _find_embedder(
        self, sealer: Sealer, place: Placement, notes: list[str]
    ) -> TextEmbedder | None:
        """Return the model of the vectors in `place`; None with a note if it is not available."""
        if place.is_moving:
            notes.append("memory is moving to another embedding model: searched by words only")
            return None
        embedder = (await self._embedders.find(sealer, place)).embedder
        if embedder is None and place.is_chosen:
            notes.append("searched by words only: the account's embedding model does not exist")
        return embedder

    async def count_points(self, index: VectorIndex, owner_id: UUID) -> int:
        key = index.name, owner_id
        if key in self._many:
            return LARGE_CORPUS_POINTS
        count = await index.count(owner_id)
        if count >= LARGE_CORPUS_POINTS:
            if len(self._many) >= MAX_COUNTED_USERS:
                del self._many[next(iter(self._many))]
            self._many[key] = None
        return count

    def user_signed_out(self, user_id: UUID) -> None:
        """Forget that a user has many points. They may be deleted before the next sign-in."""
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
        """Return the active memories of a search with their texts, best first.

        If most hits are inactive, it searches again with more hits: a reply with a hundred swipes
        has one active message.

        Args:
            database: The database to read from.
            sealer: The user's.
            result: The hits.
            known: Kinds whose texts the caller has. They are returned without texts.
            instead: Sources that replace those of the same kinds.
            then: Called in the same snapshot of the database if anything was found.
        """
        request = result.request
        if request is None or not (result.candidates or result.near):
            return []
        replaced = {each.kind: each for each in instead}
        sources = [replaced.get(each.kind, each) for each in self._sources]
        async with database.read() as session:
            recalled = partial(_recall_candidates, session, sealer, sources=sources, known=known)
            found, looked_at = await recalled(request, result.candidates)
            if request.depth > 1 or 2 * len(found) >= min(looked_at, request.limit):
                memories = await self._select(sealer, request, result, found, recalled)
                if then is not None:
                    await then(session, memories)
                return memories
        result = await self.find(sealer, replace(request, depth=DEEP_SEARCH_FACTOR))
        return await self.recall(database, sealer, result, known=known, instead=instead, then=then)

    async def _select(
        self,
        sealer: Sealer,
        request: SearchRequest,
        result: SearchResult,
        found: dict[UUID, MemoryItem],
        recalled: _Recall,
    ) -> list[Memory]:
        """Return the memories of a search. `found` are the first rows; `recalled` reads others."""
        candidates = add_origin_lines(
            result.candidates, found, parts=request.parts, kinds=request.kinds
        )
        lines = [each for each in candidates if each.joined and each.payload.source_id not in found]
        if lines:
            found |= (await recalled(request, lines))[0]
        there = {row_id.int for row_id in found}  # integers hash ten times as fast as UUIDs
        active = [each for each in candidates if each.payload.source_id.int in there]
        given: Mapping[UUID, Preference] = {}
        if request.joins_evidence:
            pairs = list_relatives([found[each.payload.source_id] for each in active])
            if pairs:
                size = sum(len(row.text) for pair in pairs for row in pair)
                prefer = partial(find_preferences, pairs, request.text, shown=request.shown)
                given = await self._pool.run(sealer.user_id, prefer, size=size)
        chosen, given = choose_best(
            active,
            given,
            breadth=result.breadth,
            vectors=await result.vectors.wait(),
            count=request.limit,
            duplicate=result.scale.enough.duplicate,
        )
        taken = {each.payload.source_id for each in chosen}
        near = [each for each in result.near if not _is_told(each, given, taken)]
        wider = replace(request, limit=request.most)
        while near:
            merged = merge_nearest(chosen, near, room=request.room, most=request.most)
            unread = [each for each in merged if each.payload.source_id not in found]
            if not unread:
                chosen = merged
                break
            found |= (await recalled(wider, unread))[0]
            gone = {each.id.int for each in unread if each.payload.source_id not in found}
            near = [each for each in near if each.id.int not in gone]
        repeated: dict[UUID, list[Preference]] = {}
        for each in given.values():
            repeated.setdefault(each.kept.source_id, []).append(each)
        return [
            Memory(
                recalled=found[each.payload.source_id],
                rank=rank,
                score=each.score,
                signals=each.signals,
                reason=result.scale.explain(each, rank),
                repeated=repeated.get(each.payload.source_id, ()),
            )
            for rank, each in enumerate(chosen, start=1)
        ]


_Recall = Callable[
    [SearchRequest, Sequence[Candidate]], Awaitable[tuple[dict[UUID, MemoryItem], int]]
]


async def _recall_candidates(
    session: AsyncSession,
    sealer: Sealer,
    request: SearchRequest,
    candidates: Sequence[Candidate],
    *,
    sources: Sequence[Source],
    known: Collection[Kind],
) -> tuple[dict[UUID, MemoryItem], int]:
    """Return active rows of the best candidates, and the number of candidates that were read."""
    found: dict[UUID, MemoryItem] = {}
    looked_at, limit = 0, request.limit
    for part in split_chunks(candidates[: limit * CANDIDATE_LIMIT_FACTOR * request.depth], limit):
        if len(found) >= limit:
            break
        looked_at += len(part)
        for source in sources:
            payloads = [each.payload for each in part if each.payload.kind == source.kind]
            if source.kind in known:
                found |= {each.source_id: MemoryItem.unread(each) for each in payloads}
            else:
                for viewpoint, ids in request.split_by_viewpoint(payloads):
                    found |= await source.recall(session, sealer, ids, viewpoint=viewpoint)
    return found, looked_at


MAX_CHOICES = 4
"""Attempts of a choice, each with fewer preferences. The last one has none."""


def choose_best(
    active: Sequence[Candidate],
    given: Mapping[UUID, Preference],
    *,
    breadth: float,
    vectors: Mapping[UUID, Floats],
    count: int,
    duplicate: float,
) -> tuple[list[Candidate], Mapping[UUID, Preference]]:
    """Return the best `count` candidates, and the preferences that still hold.

    Candidates with a cosine of at least `duplicate` are repetitions. A preferred row may be dropped
    as a repetition of a third one, or lowered next to a better message. Then the row that it
    replaces keeps its place.
    """
    scores = {each.payload.source_id: each.score for each in active}
    attempts = MAX_CHOICES
    while True:
        attempts -= 1
        ranked = lower_neighbours(join_places(active, given), breadth)
        chosen = drop_duplicates(ranked, vectors, count=count, cosine=duplicate)
        taken = {each.payload.source_id for each in chosen}
        least = chosen[-1].score if len(chosen) == count else -math.inf
        alone = {
            left
            for left, preference in given.items()
            if preference.kept.source_id not in taken and scores[left] > least
        }
        if not alone:
            return chosen, given
        if attempts == 1:
            alone |= given.keys()
        given = {left: each for left, each in given.items() if left not in alone}


def _is_told(
    candidate: Candidate, given: Mapping[UUID, Preference], taken: Collection[UUID]
) -> bool:
    """True if a row that was taken is preferred to a candidate."""
    preference = given.get(candidate.payload.source_id)
    return preference is not None and preference.kept.source_id in taken


async def embed_query_text(
    embedder: TextEmbedder | None, sealer: Sealer, meaning: str, notes: list[str]
) -> Floats | None:
    """Return the vector of a query, shape (d,); None with a note if the model fails."""
    if embedder is None:
        return None
    try:
        return await embedder.embed_query(sealer, meaning)
    except EmbedderError as error:
        notes.append("searched by words only: the embedding model did not respond")
        log.warning("memory.not_embedded", problem=error.slug)
        return None
