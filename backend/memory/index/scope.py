"""Where a query looks, and the names of what an engine keeps. Standard library alone.

The process of Qdrant Edge imports this, and not `protocol`, which needs numpy: that would be half
of its start, and 20 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from backend.errors import UnavailableError

DenseName = Literal["dense", "dense_window"]
SparseName = Literal["sparse", "sparse_window"]
VectorName = DenseName | SparseName
DENSE: tuple[DenseName, ...] = ("dense", "dense_window")
SPARSE: tuple[SparseName, ...] = ("sparse", "sparse_window")
Kind = Literal["lore", "message", "scene", "question", "event", "campaign"]
"""The kind of row that a point belongs to. `campaign` is an item of a campaign.

A scene has only a sparse vector, and is never in a prompt: it leads to messages. A `question` is a
leftover of a removed feature. No query asks for it, and the next indexing of its message deletes
it; until then the index must be able to read it."""

OWNER, KIND, CONTAINER, SOURCE, POSITION, AUDIENCE = "o", "k", "c", "s", "p", "u"
"""Names of the fields that points are found by, as an engine keeps them: each has an index."""


class IndexUnavailableError(UnavailableError):
    """The index does not respond. Turns continue without it, and report this."""

    slug, title = "index-unavailable", "The memory index is unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePart:
    """Points of some containers; `before_position` keeps to those at lower positions.

    `kinds` are what these containers hold: a query for other kinds leaves them out. Empty: unknown.
    """

    containers: Sequence[UUID]
    before_position: int | None = None
    kinds: Sequence[Kind] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where a query looks: one owner's points of these kinds, in any of these parts.

    The owner's points are also the corpus over which terms are weighted (IDF). With an `audience`
    only points that have one of its words are found, and none that has no audience.
    """

    owner_id: UUID
    parts: Sequence[ScopePart]
    kinds: Sequence[Kind]
    audience: Sequence[str] = ()
