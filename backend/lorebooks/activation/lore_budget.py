"""The tokens that lore may take, and who gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from backend.lorebooks.activation.compiled import CompiledEntry
from backend.reasons import Reason

NO_ROOM: Final = Reason("no_room")

GAVE_WAY: Final = Reason("gave_way")

TOO_LONG: Final = Reason("too_long")
"""Why an entry is out that was not read any more."""

CHARACTERS_A_TOKEN: Final = 8
"""More than any language needs: English has 4 to 5."""

ALWAYS_READ: Final = 500_000
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
        self._unread = None if room is None else max(CHARACTERS_A_TOKEN * room, ALWAYS_READ)
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
