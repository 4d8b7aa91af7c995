"""The tokens that lore may take, and who gets them."""

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
    """An entry that may come in: what for, and whether it is sticky."""

    entry: CompiledEntry
    reasons: list[Reason]
    is_sticky: bool


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What a group needs to know of the scan.

    Attributes:
        seed: For the draw.
        scoring: Whether entries that do not say are compared by how many of their keys occur.
        score: How many keys of an entry occur.
    """

    seed: int
    scoring: bool
    score: Callable[[CompiledEntry], int]


def find_losers(
    found: Sequence[GroupCandidate], taken: Mapping[str, CompiledEntry], rules: GroupRules
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
        winners, winner = _find_winners(name, members, taken.get(name), rules)
        for one in members:
            if one.entry not in winners:
                lost[one.entry.entry_id] = Reason("group", name=name, winner=winner.title)
    return lost


def _find_winners(
    name: str, members: Sequence[GroupCandidate], taken: CompiledEntry | None, rules: GroupRules
) -> tuple[Sequence[CompiledEntry], CompiledEntry]:
    """Who stays, and the one to name to the others. Sticky entries all stay."""
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


def _draw_winner(name: str, entries: Sequence[CompiledEntry], seed: int) -> CompiledEntry:
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


NO_ROOM: Final = Reason("no_room")

GAVE_WAY: Final = Reason("gave_way")

TOO_LONG: Final = Reason("too_long")
"""Why an entry is out that was not read any more."""

MAX_CHARACTERS_PER_TOKEN: Final = 8
"""More than any language needs: English has 4 to 5."""

MIN_READ_CHARACTERS: Final = 500_000
"""Characters that are read of a scan's entries, however little room there is."""


class LoreBudget:
    """Hands out tokens, to entries in the order in which they ask.

    What entries take together stays below the budget, as in World Info: one that would fill it to
    the last token finds too little. Constant entries and those with `ignore_budget` get theirs as
    long as there is room in the prompt at all, and what they take counts. The first other entry
    that finds too little ends it for all others (of its book, where the book's own budget is what
    ended); entries with `@@ignore_on_max_context` give theirs back before that, and end nothing.

    Counting tokens takes time, too. Where all entries together have more characters than the prompt
    has room for, the rest is left out uncounted.

    Args:
        budget: Tokens for lore.
        room: Tokens that are left in the prompt for lore at all; null for no bound.
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
        """Why an entry gets no tokens, if that is known before its text is expanded and counted."""
        if self._unread is not None and self._unread < 0:
            return TOO_LONG
        if _ignores_budget(entry):
            return NO_ROOM if self._is_beyond_room(entry.least_tokens) else None
        if self._is_closed_to(entry):
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
        """Take so many characters of what may be counted; false, and the end, if that is spent."""
        if self._unread is None:
            return True
        self._unread -= characters
        if self._unread < 0:
            self.is_over = True
        return self._unread >= 0

    def ask(
        self, entry: CompiledEntry, tokens: int
    ) -> tuple[Reason | None, Sequence[CompiledEntry]]:
        """Ask for tokens.

        Returns:
            Why there are none, null where they are handed out; and the entries that gave way.
        """
        if _ignores_budget(entry):
            if self._is_beyond_room(tokens):
                return NO_ROOM, ()
            self._pay(entry, tokens)
            return None, ()
        if self._is_closed_to(entry):
            return self._reason(entry), ()
        gives_way = entry.says.ignore_on_max_context
        gone: Sequence[CompiledEntry] = ()
        if not self._fits(entry, tokens):
            if gives_way:
                return GAVE_WAY, ()
            gone = self._make_way(entry, tokens)
            if not gone:
                self._end(entry, tokens)
                return self._reason(entry), ()
        self._pay(entry, tokens)
        if gives_way:
            self._returnable.append((entry, tokens))
        return None, gone

    def _is_beyond_room(self, tokens: int) -> bool:
        return self._room is not None and self.used + tokens > self._room

    def _is_closed_to(self, entry: CompiledEntry) -> bool:
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
        """Take back from those that give way, the last first; from none if it is not enough."""
        for kept in reversed(range(len(self._returnable))):
            self._pay(self._returnable[kept][0], -self._returnable[kept][1])
            if self._fits(entry, tokens):
                gone = [one for one, _ in reversed(self._returnable[kept:])]
                del self._returnable[kept:]
                return gone
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
