"""Distribution of the lore tokens among entries, and the choice within groups."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from backend.core.reasons import Reason
from backend.lorebooks.activation.compiled import CompiledEntry


@dataclass(slots=True)
class GroupCandidate:
    """An entry that may activate, with its reasons."""

    entry: CompiledEntry
    reasons: list[Reason]
    is_sticky: bool


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Settings of a scan that group selection needs.

    Attributes:
        seed: The seed of random draws.
        scoring: The default of group scoring for entries that do not set it.
        score: Returns the number of matching keys of an entry.
    """

    seed: int
    scoring: bool
    score: Callable[[CompiledEntry], int]


def find_losers(
    found: Sequence[GroupCandidate], taken: Mapping[str, CompiledEntry], rules: GroupRules
) -> dict[UUID, Reason]:
    """Return the entries of `found` that lose in a group, with the reason.

    `found` is in order of precedence. `taken` maps groups to the entry activated in an earlier
    step.
    """
    lost: dict[UUID, Reason] = {}
    names = dict.fromkeys(name for one in found for name in one.entry.groups)
    for name in names:
        members = [
            one for one in found if name in one.entry.groups and one.entry.entry_id not in lost
        ]
        if not members:
            continue
        winners, winner = _find_winners(name, members, taken.get(name), rules)
        for one in members:
            if one.entry not in winners:
                lost[one.entry.entry_id] = Reason("group", name=name, winner=winner.title)
    return lost


def _find_winners(
    name: str, members: Sequence[GroupCandidate], taken: CompiledEntry | None, rules: GroupRules
) -> tuple[Sequence[CompiledEntry], CompiledEntry]:
    """Return the winners and the one to name in reasons. All sticky entries win."""
    sticky = [one.entry for one in members if one.is_sticky]
    if sticky:
        return sticky, sticky[0]
    if taken is not None:
        return (), taken
    entries = [one.entry for one in members]
    if len(entries) > 1:
        entries = _keep_best_scores(entries, rules)
    preferred = [entry for entry in entries if entry.entry.group_override]
    winner = (
        max(preferred, key=lambda entry: entry.entry.order)
        if preferred
        else _draw_winner(name, entries, rules.seed)
    )
    return [winner], winner


def _keep_best_scores(entries: list[CompiledEntry], rules: GroupRules) -> list[CompiledEntry]:
    """Remove entries with group scoring that have fewer matching keys than the best."""
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


def _draw_winner(name: str, entries: Sequence[CompiledEntry], seed: int) -> CompiledEntry:
    has_weights = any(entry.entry.group_weight > 0 for entry in entries)

    def draw_time(entry: CompiledEntry) -> tuple[float, bytes]:
        weight = entry.entry.group_weight if has_weights else 1.0
        return waiting_time(seed, f"group {name}", entry.entry_id, weight), entry.entry_id.bytes

    return min(entries, key=draw_time)


def fraction(seed: int, purpose: str, entry_id: UUID) -> float:
    """Return a number in (0, 1), uniform over entries. The same arguments give the same number."""
    digest = hashlib.blake2b(
        f"{seed}\n{purpose}".encode(errors="replace"), key=entry_id.bytes, digest_size=8
    ).digest()
    return ((int.from_bytes(digest) >> 11) + 0.5) / (1 << 53)


def percentage(seed: int, entry_id: UUID) -> float:
    """Return the percentage drawn for an entry. It activates if this is below its probability."""
    return fraction(seed, "probability", entry_id) * 100


def waiting_time(seed: int, purpose: str, entry_id: UUID, weight: float) -> float:
    """Return the entry's time in a race that it wins with probability `weight` / sum of weights.

    An exponential clock of rate `weight`. The minimum of several clocks is a weighted draw, and
    each clock depends only on its own entry. Weight 0 never wins against a positive weight.

    Source: Efraimidis & Spirakis, Information Processing Letters 97, 2006.
    """
    if weight <= 0:
        return math.inf
    return -math.log(fraction(seed, purpose, entry_id)) / weight


NO_ROOM: Final = Reason("no_room")

GAVE_WAY: Final = Reason("gave_way")

TOO_LONG: Final = Reason("too_long")
"""The entry was not read because the character limit was reached."""

MAX_CHARACTERS_PER_TOKEN: Final = 8
"""Upper bound for all languages: English has 4 to 5 characters per token."""

MIN_READ_CHARACTERS: Final = 500_000
"""Characters of entries that a scan may always read, regardless of the room."""


class LoreBudget:
    """Hand out tokens to entries in the order of the requests.

    As in World Info, the total stays below the budget: an entry that would use the last token is
    rejected. Constant entries and entries with `ignore_budget` are limited only by the room of the
    prompt, but count against the budget. The first other entry that does not fit ends the budget
    for all others, or only for its book if the book's budget is exhausted. Entries with
    `@@ignore_on_max_context` return their tokens before that and never end the budget.

    Counting tokens takes time. If the entries have more characters than the prompt has room for,
    the rest is left out uncounted.

    Args:
        budget: Tokens for lore.
        room: Tokens for lore that are left in the prompt, or None if unlimited.
    """

    def __init__(self, budget: int, room: int | None) -> None:
        self.used = 0
        self.is_over = False
        self._room = room
        self._most = budget if room is None else min(budget, room)
        self._unread = (
            None if room is None else max(MAX_CHARACTERS_PER_TOKEN * room, MIN_READ_CHARACTERS)
        )
        self._used_of_book: Counter[UUID] = Counter()
        self._books_over: set[UUID] = set()
        self._returnable: list[tuple[CompiledEntry, int]] = []

    def refusal(self, entry: CompiledEntry) -> Reason | None:
        """Return the reason for a rejection if known before the text is expanded and counted."""
        if self._unread is not None and self._unread < 0:
            return TOO_LONG
        if _ignores_budget(entry):
            return NO_ROOM if self._is_beyond_room(entry.least_tokens) else None
        if self._is_closed(entry):
            return self._reason(entry)
        gives_way = entry.says.ignore_on_max_context
        is_short = entry.least_tokens < self._most - self.used
        if is_short or (self._returnable and not gives_way):
            return None
        if gives_way:
            return GAVE_WAY
        self.is_over = True
        return self._reason(entry)

    def may_read(self, characters: int) -> bool:
        """Reserve characters to read. Return False and end the budget if the limit is reached."""
        if self._unread is None:
            return True
        self._unread -= characters
        if self._unread < 0:
            self.is_over = True
        return self._unread >= 0

    def ask(
        self, entry: CompiledEntry, tokens: int
    ) -> tuple[Reason | None, Sequence[CompiledEntry]]:
        """Request tokens.

        Returns:
            The reason for a rejection, or None; and the entries that returned their tokens.
        """
        if _ignores_budget(entry):
            if self._is_beyond_room(tokens):
                return NO_ROOM, ()
            self._pay(entry, tokens)
            return None, ()
        if self._is_closed(entry):
            return self._reason(entry), ()
        gives_way = entry.says.ignore_on_max_context
        returned: Sequence[CompiledEntry] = ()
        if not self._fits(entry, tokens):
            if gives_way:
                return GAVE_WAY, ()
            returned = self._make_way(entry, tokens)
            if not returned:
                self._end(entry, tokens)
                return self._reason(entry), ()
        self._pay(entry, tokens)
        if gives_way:
            self._returnable.append((entry, tokens))
        return None, returned

    def _is_beyond_room(self, tokens: int) -> bool:
        return self._room is not None and self.used + tokens > self._room

    def _is_closed(self, entry: CompiledEntry) -> bool:
        return self.is_over or entry.book.book_id in self._books_over

    def _reason(self, entry: CompiledEntry) -> Reason:
        if self.is_over:
            return Reason("budget")
        return Reason("book_budget", name=entry.book.fields.name)

    def _fits(self, entry: CompiledEntry, tokens: int) -> bool:
        of_book = entry.book.fields.token_budget
        return self.used + tokens < self._most and (
            of_book is None or self._used_of_book[entry.book.book_id] + tokens <= of_book
        )

    def _make_way(self, entry: CompiledEntry, tokens: int) -> list[CompiledEntry]:
        """Reclaim tokens from entries that give way, the last first. Reclaim none if too few."""
        for kept in reversed(range(len(self._returnable))):
            self._pay(self._returnable[kept][0], -self._returnable[kept][1])
            if self._fits(entry, tokens):
                returned = [one for one, _ in reversed(self._returnable[kept:])]
                del self._returnable[kept:]
                return returned
        for one, paid in self._returnable:
            self._pay(one, paid)
        return []

    def _end(self, entry: CompiledEntry, tokens: int) -> None:
        if self.used + tokens >= self._most:
            self.is_over = True
        else:
            self._books_over.add(entry.book.book_id)

    def _pay(self, entry: CompiledEntry, tokens: int) -> None:
        self.used += tokens
        self._used_of_book[entry.book.book_id] += tokens


def _ignores_budget(entry: CompiledEntry) -> bool:
    return entry.entry.constant or entry.entry.ignore_budget
