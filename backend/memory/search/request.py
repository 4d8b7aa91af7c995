"""Requests and results of memory search, and the reasons for its hits."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from msgspec import structs

from backend.core.audience import GM, Viewpoint, find_required_keywords
from backend.core.logs import get_logger
from backend.core.reasons import Match, MatchKind, Reason, ReasonKind
from backend.errors import AppError
from backend.memory.index.protocol import Floats, Kind, Payload, ScopePart, VectorIndex
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.evidence import Preference
from backend.memory.search.features import Candidate, Scores
from backend.memory.search.query import Signal, Span
from backend.memory.search.ranking import RankingThresholds
from backend.memory.search.terms import find_shared_words, query_terms

MIN_STRENGTH = 0.5
"""Minimum strength of a signal in a reason. Two signals of this strength are enough together."""

_MATCH_KINDS: tuple[tuple[Signal, MatchKind], ...] = (
    ("dense", "meaning"),
    ("sparse", "words"),
    ("dense_window", "meaning_around"),
    ("sparse_window", "words_around"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchScale:
    """The data that is needed to explain the hits of a search.

    `enough` are the default thresholds. `speakers` are those that the query names, by keyed id.
    """

    enough: RankingThresholds = field(default_factory=RankingThresholds)
    speakers: Mapping[int, str] = field(default_factory=dict[int, str])
    spans: Sequence[Span] = ()

    def explain(self, candidate: Candidate, rank: int) -> Reason:
        """Return the reason why a candidate was found: its meaning or its words."""
        dense, sparse = self.enough.shares(candidate)
        if candidate.payload.kind == "lore" and self.enough.lore is not None:
            is_near = (candidate.signals.dense or 0.0) >= self.enough.lore
        else:
            is_near = dense > 0 and dense >= sparse
        kind: ReasonKind = "semantic" if is_near else "words"
        score = round(candidate.score, 4)
        return Reason(kind, score=score, rank=rank, signals=self._list_matches(candidate))

    def _list_matches(self, candidate: Candidate) -> tuple[Match, ...]:
        payload, signals, enough = candidate.payload, candidate.signals, self.enough
        found: list[Match] = []
        for signal, kind in _MATCH_KINDS:
            score: float | None = getattr(signals, signal)
            if score is None:
                continue
            if signal.startswith("dense"):
                strength = (score - enough.unrelated) / (enough.dense - enough.unrelated)
            else:
                strength = score / enough.sparse
            if strength >= MIN_STRENGTH:
                found.append(Match(kind, round(strength, 2)))
        if candidate.joined >= MIN_STRENGTH:
            found.append(Match("event", round(candidate.joined, 2)))
        if payload.speaker in self.speakers:
            found.append(Match("speaker", name=self.speakers[payload.speaker]))
        if any(start <= payload.said_at < end for start, end in self.spans):
            found.append(Match("time"))
        return tuple(found)


class SharedWords:
    """Adds the words that a text shares with the query to the reason of a hit.

    The index does not know words, so they are compared when texts are shown.
    """

    def __init__(self, query: str) -> None:
        self._terms = query_terms(query)

    def add_words(self, reason: Reason, text: str) -> Reason:
        """Return the reason with the words in its signal. O(n) for n characters of the text."""
        if not any(match.kind == "words" for match in reason.signals):
            return reason
        words = find_shared_words(self._terms, text)
        signals = tuple(
            structs.replace(match, words=words) if match.kind == "words" else match
            for match in reason.signals
        )
        return structs.replace(reason, signals=signals)


log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A request to search memory.

    Attributes:
        text: The user's message, or words to search for.
        context: The last exchange before it, which has less weight.
        names: Names of speakers and things. A query with such a name is about them.
        weights: Weights of kinds; 0 drops a kind.
        min_relevance: From 0 (everything that was found) to 1; None for the default.
        room: Tokens up to which messages are added by their meaning alone; 0 for none.
        most: Maximum number of memories including these; `limit` is that without them.
        depth: Factor for the number of hits.
        activates_lore: True if found lore will be part of a prompt. It must then be relevant by its
            meaning, or by more than shared words.
        limits: Viewpoints for the rows of some containers, which replace `viewpoint`.
        joins_evidence: True if rows that say the same share one place. See `evidence`.
        shown: Rows that the prompt contains anyway. They keep their place.
    """

    text: str
    context: str = ""
    names: Sequence[str] = ()
    parts: Sequence[ScopePart] = ()
    kinds: Sequence[Kind] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    limit: int = 40
    min_relevance: float | None = None
    room: int = 0
    most: int = 0
    now: datetime
    depth: int = 1
    activates_lore: bool = False
    viewpoint: Viewpoint = GM
    limits: Mapping[UUID, Viewpoint] = field(default_factory=dict[UUID, Viewpoint])
    joins_evidence: bool = False
    shown: Collection[UUID] = ()

    @property
    def keywords(self) -> tuple[str, ...]:
        """The keywords of which an index point needs one; empty without a limit."""
        if self.viewpoint == GM:
            return ()
        views: list[Viewpoint] = [self.viewpoint, *self.limits.values()]
        return tuple(dict.fromkeys(each for view in views for each in find_required_keywords(view)))

    def split_by_viewpoint(
        self, payloads: Iterable[Payload]
    ) -> list[tuple[Viewpoint, Sequence[UUID]]]:
        """Return the rows of points by the viewpoint that must know them."""
        usual: list[UUID] = []
        limited: dict[UUID, list[UUID]] = {}
        for each in payloads:
            is_limited = each.container_id in self.limits
            ids = limited.setdefault(each.container_id, []) if is_limited else usual
            ids.append(each.source_id)
        found: list[tuple[Viewpoint, Sequence[UUID]]] = [(self.viewpoint, usual)] if usual else []
        return [*found, *((self.limits[key], ids) for key, ids in limited.items())]


class HitVectors:
    """The `dense` vectors of hits (`there`), which are loaded while their texts are read."""

    def __init__(self) -> None:
        self.there: Mapping[UUID, Floats] = {}
        self._loading: asyncio.Task[dict[UUID, Floats]] | None = None

    def start(self, index: VectorIndex, ids: Sequence[UUID]) -> None:
        if ids:
            self._loading = asyncio.create_task(_load_vectors(index, ids))

    async def wait(self) -> Mapping[UUID, Floats]:
        """Return all vectors; none if the index failed."""
        if self._loading is not None:
            self.there = await self._loading
        return self.there


async def _load_vectors(index: VectorIndex, ids: Sequence[UUID]) -> dict[UUID, Floats]:
    try:
        return await index.dense_vectors(ids)
    except AppError as error:  # duplicates are then not dropped
        log.warning("memory.no_vectors", problem=error.slug)
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The hits of a search, before their texts are read, best first.

    Attributes:
        near: Messages that are relevant by their meaning alone.
        vectors: The vectors of the best candidates.
        notes: Problems of the search.
        breadth: The probability from 0 to 1 that the query asks for several things.
        ranked: All hits, including those below the thresholds `least`.
    """

    request: SearchRequest | None = None
    candidates: Sequence[Candidate] = ()
    near: Sequence[Candidate] = ()
    vectors: HitVectors = field(default_factory=HitVectors)
    notes: Sequence[str] = ()
    by_meaning: bool = False
    scale: MatchScale = field(default_factory=MatchScale)
    breadth: float = 0.0
    ranked: Sequence[Candidate] = ()
    least: RankingThresholds = field(default_factory=RankingThresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """An active memory that was found: its text, its rank from 1, its scores and the reason.

    `repeated` are other rows that were found and say the same.
    """

    recalled: MemoryItem
    rank: int
    score: float
    signals: Scores
    reason: Reason
    repeated: Sequence[Preference] = ()

    @property
    def rows(self) -> list[MemoryItem]:
        """The row and those that say the same."""
        return [self.recalled, *(each.left for each in self.repeated)]
