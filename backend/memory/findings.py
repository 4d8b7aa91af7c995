"""What memory is asked for, and what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from backend.audience import GM, Viewpoint
from backend.errors import AppError
from backend.logs import get_logger
from backend.memory.index.protocol import Floats, Kind, ScopePart, VectorIndex
from backend.memory.matches import MatchScale
from backend.memory.signals import Candidate, Scores
from backend.memory.sources import Recalled
from backend.memory.thresholds import RankingThresholds
from backend.reasons import Reason

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
