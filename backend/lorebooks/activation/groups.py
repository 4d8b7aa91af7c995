"""What is left to chance: probabilities, and which entry of an inclusion group comes in.

Draws are the same again: each is made from a seed, what is drawn for, and the entry's id. None
depends on how many came before it, so the order of books and the presence of other entries change
nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from backend.lorebooks.activation.compiled import CompiledEntry
from backend.reasons import Reason


@dataclass(slots=True)
class GroupCandidate:
    """An entry that may come in: what for, and whether it is sticky."""

    entry: CompiledEntry
    reasons: list[Reason]
    is_sticky: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What a group needs to know of the scan.

    Attributes:
        seed: For the draw.
        scoring: Whether entries that do not say are compared by how many of their keys occur.
        score: How many keys of an entry occur.
    """

    seed: int
    scoring: bool
    score: Callable[[CompiledEntry], int]


def losers(
    found: Sequence[GroupCandidate], taken: Mapping[str, CompiledEntry], rules: Rules
) -> dict[UUID, Reason]:
    """Who of `found`, in the order of their turns, gives way in a group, and why.

    `taken` are groups of which an entry is in from an earlier step, and which that is.
    """
    lost: dict[UUID, Reason] = {}
    names = dict.fromkeys(name for one in found for name in one.entry.groups)
    for name in names:
        members = [
            one for one in found if name in one.entry.groups and one.entry.entry_id not in lost
        ]
        if not members:
            continue
        winners, winner = _winners(name, members, taken.get(name), rules)
        for one in members:
            if one.entry not in winners:
                lost[one.entry.entry_id] = Reason("group", name=name, winner=winner.title)
    return lost


def _winners(
    name: str, members: Sequence[GroupCandidate], taken: CompiledEntry | None, rules: Rules
) -> tuple[Sequence[CompiledEntry], CompiledEntry]:
    """Who stays, and the one to name to the others. Sticky entries all stay."""
    sticky = [one.entry for one in members if one.is_sticky]
    if sticky:
        return sticky, sticky[0]
    if taken is not None:
        return (), taken
    entries = [one.entry for one in members]
    if len(entries) > 1:
        entries = _best_scored(entries, rules)
    preferred = [entry for entry in entries if entry.entry.group_override]
    winner = (
        max(preferred, key=lambda entry: entry.entry.order)
        if preferred
        else _drawn(name, entries, rules.seed)
    )
    return [winner], winner


def _best_scored(entries: list[CompiledEntry], rules: Rules) -> list[CompiledEntry]:
    """Without those that are compared and have fewer keys in the texts than the best."""
    compared = [rules.scoring if entry.scoring is None else entry.scoring for entry in entries]
    if not any(compared):
        return entries
    scores = [rules.score(entry) for entry in entries]
    best = max(scores)
    return [
        entry
        for entry, is_compared, score in zip(entries, compared, scores, strict=True)
        if not is_compared or score == best
    ]


def _drawn(name: str, entries: Sequence[CompiledEntry], seed: int) -> CompiledEntry:
    has_weights = any(entry.entry.group_weight > 0 for entry in entries)

    def time_of(entry: CompiledEntry) -> tuple[float, bytes]:
        weight = entry.entry.group_weight if has_weights else 1.0
        return waiting_time(seed, f"group {name}", entry.entry_id, weight), entry.entry_id.bytes

    return min(entries, key=time_of)


def fraction(seed: int, purpose: str, entry_id: UUID) -> float:
    """A number in (0, 1), uniform over entries, the same for the same arguments."""
    digest = hashlib.blake2b(
        f"{seed}\n{purpose}".encode(errors="replace"), key=entry_id.bytes, digest_size=8
    ).digest()
    return ((int.from_bytes(digest) >> 11) + 0.5) / (1 << 53)


def percentage(seed: int, entry_id: UUID) -> float:
    """What is drawn for an entry, in per cent: it comes in below its probability."""
    return fraction(seed, "probability", entry_id) * 100


def waiting_time(seed: int, purpose: str, entry_id: UUID, weight: float) -> float:
    """The entry's time in a race that it wins with probability `weight` / sum of all weights.

    An exponential clock of rate `weight`: the least of several is a weighted draw, and each clock
    depends on its own entry alone. Weight 0 never wins against one that has some.

    Source: Efraimidis & Spirakis, Information Processing Letters 97, 2006.
    """
    if weight <= 0:
        return math.inf
    return -math.log(fraction(seed, purpose, entry_id)) / weight
