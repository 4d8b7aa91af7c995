"""What memory is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from backend.memory.embedding.protocol import Floats
from backend.memory.index.protocol import Kind, Part
from backend.memory.ranking import Candidate
from backend.memory.sources import Recalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
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
    """

    text: str
    context: str = ""
    names: Sequence[str] = ()
    parts: Sequence[Part] = ()
    kinds: Sequence[Kind] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    limit: int = 40
    min_relevance: float | None = None
    now: datetime
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the index brought back, best first, and what there is to say about it."""

    ask: Ask | None = None
    candidates: Sequence[Candidate] = ()
    below: int = 0
    vectors: Mapping[UUID, Floats] = field(default_factory=dict[UUID, Floats])
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A memory that was found and counts: its text, its rank from 1, and what each signal said."""

    recalled: Recalled
    rank: int
    score: float
    signals: Mapping[str, float]

    @property
    def reason(self) -> str:
        """Why it is there, for people."""
        return f"semantic {self.score:.2f}, rank {self.rank}"
