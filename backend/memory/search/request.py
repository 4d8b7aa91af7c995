"""What memory is asked for, and what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from msgspec import structs

from backend.core.audience import GM, Viewpoint
from backend.core.logs import get_logger
from backend.core.reasons import Match, MatchKind, Reason, ReasonKind
from backend.errors import AppError
from backend.memory.index.protocol import Floats, Kind, ScopePart, VectorIndex
from backend.memory.indexing.sources import Recalled
from backend.memory.search.features import Candidate, Found, Scores, Signal
from backend.memory.search.ranking import RankingThresholds
from backend.memory.search.terms import query_terms, shared_words
from backend.memory.search.words import Span

WEAK = 0.5
"""Strength below which a signal is not worth telling: two halves are just enough."""

_KINDS: tuple[tuple[Signal, MatchKind], ...] = (
    ("dense", "meaning"),
    ("sparse", "words"),
    ("dense_window", "meaning_around"),
    ("sparse_window", "words_around"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchScale:
    """What the signals of one search are measured by.

    Attributes:
        enough: What is enough by itself, by meaning and by words.
        speakers: Those whom the query names, by their keyed ids.
        spans: Times that it names.
        scenes: How near scenes are, by the number of their id; the best one's is 1.
    """

    enough: RankingThresholds = field(default_factory=RankingThresholds)
    speakers: Mapping[int, str] = field(default_factory=dict[int, str])
    spans: Sequence[Span] = ()
    scenes: Mapping[int, float] = field(default_factory=dict[int, float])

    def reason(self, candidate: Candidate, rank: int) -> Reason:
        """Why a candidate was found: its meaning is near, or it has the words."""
        dense, sparse = self.enough.shares(candidate)
        if candidate.payload.kind == "lore" and self.enough.lore is not None:
            is_near = (candidate.signals.dense or 0.0) >= self.enough.lore
        else:
            is_near = dense > 0 and dense >= sparse
        kind: ReasonKind = "semantic" if is_near else "words"
        score = round(candidate.score, 4)
        return Reason(kind, score=score, rank=rank, signals=self._matches(candidate))

    def _matches(self, candidate: Candidate) -> tuple[Match, ...]:
        payload, signals, enough = candidate.payload, candidate.signals, self.enough
        found: list[Match] = []
        for signal, kind in _KINDS:
            score: float | None = getattr(signals, signal)
            if score is None:
                continue
            if signal.startswith("dense"):
                strength = (score - enough.unrelated) / (enough.dense - enough.unrelated)
            else:
                strength = score / enough.sparse
            if strength >= WEAK:
                found.append(Match(kind, round(strength, 2)))
        scene = self.scenes.get(payload.scene_id.int, 0.0) if payload.scene_id else 0.0
        places: tuple[tuple[MatchKind, float], ...] = (
            ("scene", scene),
            ("event", candidate.joined),
        )
        found += [Match(kind, round(share, 2)) for kind, share in places if share >= WEAK]
        if payload.speaker in self.speakers:
            found.append(Match("speaker", name=self.speakers[payload.speaker]))
        if any(start <= payload.said_at < end for start, end in self.spans):
            found.append(Match("time"))
        return tuple(found)


def scene_strengths(found: Found) -> dict[int, float]:
    """How near each scene is that was found, against the best one, by the number of its id."""
    hits = found.get("scene", ())
    best = max((hit.score for hit in hits), default=0.0)
    return {
        hit.payload.scene_id.int: hit.score / best
        for hit in hits
        if hit.payload.scene_id is not None and best > 0
    }


class SharedWords:
    """Says which words a text shares with what was asked, where a search found it by words.

    The index knows no words: they are compared where texts are shown.
    """

    def __init__(self, asked: str) -> None:
        self._terms = query_terms(asked)

    def told(self, reason: Reason, text: str) -> Reason:
        """The reason, with those words in its signal. O(n) for n characters of the text."""
        if not any(match.kind == "words" for match in reason.signals):
            return reason
        words = shared_words(self._terms, text)
        signals = tuple(
            structs.replace(match, words=words) if match.kind == "words" else match
            for match in reason.signals
        )
        return structs.replace(reason, signals=signals)


log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What is looked for, and where.

    Attributes:
        text: The user's line, or words to search for.
        context: What was said just before, which counts for less.
        names: Who takes part, and names of things: a query that names them means them.
        parts: Where to look.
        weights: How much each kind counts against the others; 0 leaves it out.
        limit: How many memories are wanted.
        min_relevance: From 0 (all that was found) to 1; None is the default.
        room: Tokens up to which lines come in that are near by their meaning alone; 0 for none.
        most: How many memories may come back with these.
        now: For queries such as "last week".
        depth: So many times the usual hits are looked at.
        activates_lore: Lore that is found will stand in a prompt: only what the text is about by
            its meaning, never what just shares its words.
        viewpoint: Whose knowledge may be found.
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


class HitVectors:
    """The `dense` vectors of hits, which are on their way while their texts are read.

    Attributes:
        there: By point, those that have arrived.
    """

    def __init__(self) -> None:
        self.there: Mapping[UUID, Floats] = {}
        self._asking: asyncio.Task[dict[UUID, Floats]] | None = None

    def ask(self, index: VectorIndex, ids: Sequence[UUID]) -> None:
        """Have the index look for those of these points."""
        if ids:
            self._asking = asyncio.create_task(_asked(index, ids))

    async def arrived(self) -> Mapping[UUID, Floats]:
        """All that were asked for; none where the index failed."""
        if self._asking is not None:
            self.there = await self._asking
        return self.there


async def _asked(index: VectorIndex, ids: Sequence[UUID]) -> dict[UUID, Floats]:
    try:
        return await index.dense_vectors(ids)
    except AppError as error:  # what says the same is told twice then
        log.warning("memory.no_vectors", problem=error.slug)
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What the index brought back, best first, and what there is to say about it.

    `near` are lines that are near by their meaning alone, the nearest first; `by_meaning` says
    whether meaning was looked for; `scale` is what the signals are measured by; `breadth`, from 0
    to 1, how much several things were asked for; `ranked` is all that was found, also what does
    not reach the thresholds `least`.
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
    """A memory that was found and counts: its text, its rank from 1, and what each signal said.

    `signals` are scores as they come from the index; `reason` says which of them speak for it.
    """

    recalled: Recalled
    rank: int
    score: float
    signals: Scores
    reason: Reason
