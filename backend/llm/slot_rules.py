"""Rules for sharing a server with limited concurrency. They use no clock and no database.

All work that uses such a server has a claim. Turns come first, in the order of their claims. Work
that a user waits for comes next, and background work last. A claim of a lower rank gives up its
place when claims of a higher rank need it. A turn never does.

A turn may need a summary before its prompt is built, and a job writes the summary. The turn then
has a claim for the summary, and the job uses the turn's place: the job's claim is *carried*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal
from uuid import UUID

SlotUse = Literal["turn", "request", "suggestions", "chronicle", "summary", "campaign", "title"]
"""A `request` is one of a client to a model, without a turn."""

Occupation = Literal[
    "turn", "request", "suggestions", "chronicle", "summary", "campaign", "title", "other"
]
"""The work that a claim waits for, as shown to its user. `other` is another user's work."""


class Rank(IntEnum):
    """The order of claims: lower values come first."""

    TURN = 0
    ASKED = 1
    BACKGROUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWork:
    """The work of a claim. `chat_id` is any id if it belongs to no chat."""

    use: SlotUse
    rank: Rank
    user_id: UUID
    chat_id: UUID


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim to a server. Later claims have greater ids."""

    id: UUID
    work: SlotWork
    is_granted: bool


def may_start(claim: Claim, others: Iterable[Claim], *, concurrency: int) -> bool:
    """True if a waiting claim may use the server now. `others` are all other claims to it."""
    others = list(others)
    if _is_carried(claim, others):
        return True
    place = claim.work.rank, claim.id
    ahead = [
        other
        for other in _without_carried(others)
        if (other.is_granted and not _may_carry(claim, other))
        or (other.work.rank, other.id) < place
    ]
    return len(ahead) < concurrency


def must_yield(claim: Claim, others: Iterable[Claim], *, concurrency: int) -> bool:
    """True if a claim that uses the server has to yield to claims of a higher rank."""
    others = list(others)
    if claim.work.rank == Rank.TURN or _is_carried(claim, others):
        return False
    rank = claim.work.rank
    ahead = [
        other
        for other in _without_carried(others)
        if (other.work.rank < rank and not _may_carry(other, claim))
        or (other.work.rank == rank and other.is_granted and other.id < claim.id)
    ]
    return len(ahead) >= concurrency


def find_occupation(claim: Claim, others: Iterable[Claim]) -> Occupation:
    """Name the work that a claim waits for; of another user's work, only that it is a turn."""
    in_use = [other.work for other in _without_carried(list(others)) if other.is_granted]
    own = (work for work in in_use if work.user_id == claim.work.user_id)
    if (work := next(own, None)) is not None:
        return work.use
    # If no claim is granted, a turn that came earlier is about to start.
    return "turn" if any(work.rank == Rank.TURN for work in in_use) or not in_use else "other"


def _without_carried(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if not _is_carried(claim, claims)]


def _is_carried(claim: Claim, others: Sequence[Claim]) -> bool:
    """True if a claim of a higher rank holds a place for the same work of the same chat."""
    return any(other.is_granted and _may_carry(other, claim) for other in others)


def _may_carry(upper: Claim, lower: Claim) -> bool:
    one, other = upper.work, lower.work
    return one.rank < other.rank and (one.use, one.chat_id) == (other.use, other.chat_id)
