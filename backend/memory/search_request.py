"""What memory is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from backend.memory.embedding.protocol import Floats
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.ranking import Candidate, Signal, is_meant
from backend.memory.sources import Recalled
from backend.reasons import Reason, ReasonKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What is looked for, and where.

    Attributes:
        text: The user's line, or words to search for.
        context: What was said just before, which counts for less.
        names: Who takes part, and names of things: a query that names them means them.
        parts: Where to look.
        weights: How much each kind counts against the others.
        limit: How many memories are wanted.
        min_relevance: From 0 (all that was found) to 1; None is the default.
        now: For queries such as "last week".
        depth: So many times the usual hits are looked at.
        activates_lore: Lore that is found will stand in a prompt: only what the text is about by
            its meaning, never what just shares its words.
    """

    text: str
    context: str = ""
    names: Sequence[str] = ()
    parts: Sequence[ScopePart] = ()
    kinds: Sequence[Kind] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    limit: int = 40
    min_relevance: float | None = None
    now: datetime
    depth: int = 1
    activates_lore: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What the index brought back, best first, and what there is to say about it.

    `by_meaning` says whether it was looked for by meaning, and not by words alone.
    """

    ask: SearchRequest | None = None
    candidates: Sequence[Candidate] = ()
    below: int = 0
    vectors: Mapping[UUID, Floats] = field(default_factory=dict[UUID, Floats])
    notes: Sequence[str] = ()
    by_meaning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A memory that was found and counts: its text, its rank from 1, and what each signal said."""

    recalled: Recalled
    rank: int
    score: float
    signals: Mapping[Signal, float]

    @property
    def reason(self) -> Reason:
        """Why it is there: its meaning is near, or it has the words."""
        kind: ReasonKind = "semantic" if is_meant(self.signals) else "words"
        return Reason(kind, score=round(self.score, 4), rank=self.rank)
