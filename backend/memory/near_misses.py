"""What a search found and did not bring up: the first of it, and why it stayed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import numpy as np

from backend.audience import GM, Viewpoint
from backend.database.engine import Database
from backend.memory.findings import Memory, SearchResult
from backend.memory.index.protocol import Floats, Kind, Payload
from backend.memory.mmr import SAME
from backend.memory.signals import Candidate
from backend.memory.sources import Recalled, Source
from backend.reasons import Reason, ReasonKind
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
