"""The scope of a query, and the names of vectors and fields in the index.

The process of Qdrant Edge imports this module instead of `protocol`. Numpy, which `protocol` needs,
would take half of its start time and 20 MiB.
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
"""Names of the payload fields that queries filter by. Each has an index in the engine."""


class IndexUnavailableError(UnavailableError):
    """The index does not respond. Turns continue without it, and report this."""

    slug, title = "index-unavailable", "The memory index is unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePart:
    """Points of some containers, only those below `before_position` if it is given.

    `kinds` are the kinds in these containers. Queries for other kinds skip them. Empty means
    unknown.
    """

    containers: Sequence[UUID]
    before_position: int | None = None
    kinds: Sequence[Kind] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The points that a query searches: one owner's points of these kinds in any of these parts.

    The owner's points are also the corpus that terms are weighted by (IDF). With an `audience`, a
    query finds only points with one of its words, and no points without an audience.
    """

    owner_id: UUID
    parts: Sequence[ScopePart]
    kinds: Sequence[Kind]
    audience: Sequence[str] = ()
