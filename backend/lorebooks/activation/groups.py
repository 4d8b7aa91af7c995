"""Inclusion groups: of the entries of one group a single one comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from backend.lorebooks.activation.compiled import CompiledEntry
from backend.lorebooks.activation.draws import waiting_time
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

    Args:
        found: Entries that came up in this step.
        taken: Groups of which an entry is in from an earlier step, and which that is.
        rules: See there.
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
            if one.entry.entry_id not in winners:
                lost[one.entry.entry_id] = Reason("group", name=name, winner=winner.title)
    return lost


def _winners(
    name: str, members: Sequence[GroupCandidate], taken: CompiledEntry | None, rules: Rules
) -> tuple[set[UUID], CompiledEntry]:
    """Who stays, and the one to name to the others. Sticky entries all stay."""
    sticky = [one.entry for one in members if one.is_sticky]
    if sticky:
        return {entry.entry_id for entry in sticky}, sticky[0]
    if taken is not None:
        return set(), taken
    entries = [one.entry for one in members]
    if len(entries) == 1:
        return {entries[0].entry_id}, entries[0]
    entries = _best_scored(entries, rules)
    preferred = [entry for entry in entries if entry.entry.group_override]
    winner = (
        max(preferred, key=lambda entry: entry.entry.order)
        if preferred
        else _drawn(name, entries, rules.seed)
    )
    return {winner.entry_id}, winner


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
