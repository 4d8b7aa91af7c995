"""Events and facts that were found, joined with the lines that they were made from.

An event says in other words what its lines say, and a question may be near to either. So the lines
of what was found stand higher, and those that were not found themselves come in, too.
What it brings: docs/explanation/quality.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from uuid import UUID

from msgspec import structs

from backend.memory.index.protocol import Kind, Payload, ScopePart, point_id
from backend.memory.signals import Candidate
from backend.memory.sources import Origin, Recalled

LIFT = 0.3
"""What the best event adds to the scores of its lines. Fused scores are at most about 1.3. The
largest of four that were tried, on the dialogues that `scripts/bench_events.py` reports."""

MOST = 12
"""Lines of an event that count: what many lines made says little about any of them."""


def joined(
    candidates: Sequence[Candidate],
    recalled: Mapping[UUID, Recalled],
    *,
    parts: Sequence[ScopePart],
    kinds: Sequence[Kind],
) -> list[Candidate]:
    """What was found, and the lines of its events and facts.

    Args:
        candidates: n of them, best first.
        recalled: Those of them that count, by their rows.
        parts: Where lines may come from.
        kinds: What is looked for; none is everything. Nothing moves where lines are not.

    Returns:
        Best first, each row once. Of a line that was not found nothing is known yet but its place.

    O(n log n) time and memory.
    """
    # Rows by the numbers of their ids: a UUID computes its hash in Python.
    origins = {
        row_id.int: [origin for origin in row.origins if _is_in(origin, parts)]
        for row_id, row in recalled.items()
        if row.origins
    }
    best = max((each.score for each in candidates), default=0.0)
    if not origins or best <= 0 or (kinds and "message" not in kinds):
        return list(candidates)
    lowest = min(each.score for each in candidates)
    rows = {each.payload.source_id.int for each in candidates}
    shares: dict[int, float] = {}
    lines: dict[int, Candidate] = {}
    for each in candidates:
        own = origins.get(each.payload.source_id.int, ())
        if len(own) > MOST:
            continue
        share = max(0.0, each.score / best)
        for origin in own:
            number = origin.message_id.int
            if number in rows:
                shares.setdefault(number, share)
            else:
                lines.setdefault(number, _line(origin, each, lowest, share))
    lifted = [
        structs.replace(each, score=each.score + LIFT * share, joined=share)
        if (share := shares.get(each.payload.source_id.int, 0.0))
        else each
        for each in candidates
    ]
    return sorted([*lifted, *lines.values()], key=attrgetter("score"), reverse=True)


def _is_in(origin: Origin, parts: Sequence[ScopePart]) -> bool:
    return any(
        origin.chat_id in part.containers
        and (not part.kinds or "message" in part.kinds)
        and (part.before_position is None or origin.position < part.before_position)
        for part in parts
    )


def _line(origin: Origin, event: Candidate, lowest: float, share: float) -> Candidate:
    """A line that was not found: behind its event, and lifted from behind what was found."""
    payload = Payload(
        owner_id=event.payload.owner_id,
        kind="message",
        container_id=origin.chat_id,
        source_id=origin.message_id,
        position=origin.position,
    )
    return Candidate(
        id=point_id("message", origin.message_id),
        payload=payload,
        score=min(lowest + LIFT * share, event.score),
        joined=share,
    )
