"""The tokens that lore may take, and who gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.reasons import Reason

NO_ROOM: Final = Reason("no_room")

GAVE_WAY: Final = Reason("gave_way")

TOO_LONG: Final = Reason("too_long")
"""Why an entry is out that was not read any more."""

CHARACTERS_A_TOKEN: Final = 8
"""More than any language needs: English has 4 to 5."""

ALWAYS_READ: Final = 500_000
"""Characters that are read of a scan's entries, however little room there is."""


@dataclass(frozen=True, slots=True)
class _Paid:
    entry: CompiledEntry
    tokens: int


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
        book_budgets: Tokens for the entries of a book, where it says.
    """

    def __init__(self, budget: int, room: int | None, book_budgets: Mapping[UUID, int]) -> None:
        self.used = 0
        self.is_over = False
        self._budget, self._room, self._book_budgets = budget, room, book_budgets
        self._unread = None if room is None else max(CHARACTERS_A_TOKEN * room, ALWAYS_READ)
        self._used_of_book: dict[UUID, int] = {}
        self._books_over: set[UUID] = set()
        self._returnable: list[_Paid] = []

    def refusal(self, entry: CompiledEntry) -> Reason | None:
        """Why an entry gets no tokens, if that is known before its text is expanded and counted."""
        if self._unread is not None and self._unread < 0:
            return TOO_LONG
        if _ignores_budget(entry):
            return NO_ROOM if self._is_beyond_room(entry.least_tokens) else None
        if self._is_closed_to(entry):
            return self._reason(entry)
        if entry.least_tokens < self._left():
            return None
        return self._refusal_of_longer(entry)

    def _refusal_of_longer(self, entry: CompiledEntry) -> Reason | None:
        """The same for an entry that is longer than what is left."""
        if entry.says.ignore_on_max_context:
            return GAVE_WAY
        if self._returnable:
            return None
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

    def ask(self, entry: CompiledEntry, tokens: int) -> tuple[Reason | None, list[CompiledEntry]]:
        """Ask for tokens.

        Returns:
            Why there are none, null where they are handed out; and the entries that gave way.
        """
        if _ignores_budget(entry):
            if self._is_beyond_room(tokens):
                return NO_ROOM, []
            self._pay(entry, tokens)
            return None, []
        gives_way = entry.says.ignore_on_max_context
        if self._is_closed_to(entry):
            return self._reason(entry), []
        gone: list[CompiledEntry] = []
        if not self._fits(entry, tokens):
            if gives_way:
                return GAVE_WAY, []
            gone = self._make_way(entry, tokens)
            if not gone:
                self._end(entry, tokens)
                return self._reason(entry), []
        self._pay(entry, tokens)
        if gives_way:
            self._returnable.append(_Paid(entry, tokens))
        return None, gone

    def _is_beyond_room(self, tokens: int) -> bool:
        return self._room is not None and self.used + tokens > self._room

    def _is_closed_to(self, entry: CompiledEntry) -> bool:
        return self.is_over or entry.book.book_id in self._books_over

    def _reason(self, entry: CompiledEntry) -> Reason:
        if self.is_over:
            return Reason("budget")
        return Reason("book_budget", name=entry.book.fields.name)

    def _left(self) -> int:
        return min(self._budget, self._budget if self._room is None else self._room) - self.used

    def _left_of_book(self, book: CompiledBook) -> int | None:
        budget = self._book_budgets.get(book.book_id)
        return None if budget is None else budget - self._used_of_book.get(book.book_id, 0)

    def _fits(self, entry: CompiledEntry, tokens: int) -> bool:
        of_book = self._left_of_book(entry.book)
        return tokens < self._left() and (of_book is None or tokens <= of_book)

    def _make_way(self, entry: CompiledEntry, tokens: int) -> list[CompiledEntry]:
        """Take back from those that give way, the last first. Nobody, where it is not enough."""
        taken: list[_Paid] = []
        for paid in reversed(self._returnable):
            self._pay(paid.entry, -paid.tokens)
            taken.append(paid)
            if self._fits(entry, tokens):
                self._returnable = [one for one in self._returnable if one not in taken]
                return [one.entry for one in taken]
        for paid in taken:
            self._pay(paid.entry, paid.tokens)
        return []

    def _end(self, entry: CompiledEntry, tokens: int) -> None:
        if tokens >= self._left():
            self.is_over = True
        else:
            self._books_over.add(entry.book.book_id)

    def _pay(self, entry: CompiledEntry, tokens: int) -> None:
        book_id = entry.book.book_id
        self.used += tokens
        self._used_of_book[book_id] = self._used_of_book.get(book_id, 0) + tokens


def _ignores_budget(entry: CompiledEntry) -> bool:
    return entry.entry.constant or entry.entry.ignore_budget
