"""The tokens that lore may take, and who gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry


@dataclass(frozen=True, slots=True)
class _Paid:
    entry: CompiledEntry
    tokens: int


class Purse:
    """Hands out tokens, to entries in the order in which they ask.

    Constant entries and those with `ignore_budget` get theirs as long as there is room in the
    prompt at all, and what they take counts. The first other entry that finds too little ends it
    for all others (of its book, where the book's own budget is what ended); entries with
    `@@ignore_on_max_context` give theirs back before that, and end nothing.

    Args:
        budget: Tokens for lore.
        room: Tokens that are left in the prompt for lore at all; null for no bound.
        book_budgets: Tokens for the entries of a book, where it says.
    """

    def __init__(self, budget: int, room: int | None, book_budgets: Mapping[UUID, int]) -> None:
        self.used = 0
        self.is_over = False
        self._budget, self._room, self._book_budgets = budget, room, book_budgets
        self._used_of_book: dict[UUID, int] = {}
        self._books_over: set[UUID] = set()
        self._returnable: list[_Paid] = []

    def ask(self, entry: CompiledEntry, tokens: int) -> tuple[str | None, list[CompiledEntry]]:
        """Ask for tokens.

        Returns:
            Why there are none, null where they are handed out; and the entries that gave way.
        """
        if entry.entry.constant or entry.entry.ignore_budget:
            if self._room is not None and self.used + tokens > self._room:
                return "no room in the context", []
            self._pay(entry, tokens)
            return None, []
        gives_way = entry.says.ignore_on_max_context
        if self.is_over or entry.book.book_id in self._books_over:
            return self._reason(entry), []
        gone: list[CompiledEntry] = []
        if not self._fits(entry, tokens):
            if gives_way:
                return "budget, @@ignore_on_max_context", []
            gone = self._make_way(entry, tokens)
            if not gone:
                self._end(entry, tokens)
                return self._reason(entry), []
        self._pay(entry, tokens)
        if gives_way:
            self._returnable.append(_Paid(entry, tokens))
        return None, gone

    def _reason(self, entry: CompiledEntry) -> str:
        return "budget" if self.is_over else f'budget of the book "{entry.book.fields.name}"'

    def _left(self) -> int:
        return min(self._budget, self._budget if self._room is None else self._room) - self.used

    def _left_of_book(self, book: CompiledBook) -> int | None:
        budget = self._book_budgets.get(book.book_id)
        return None if budget is None else budget - self._used_of_book.get(book.book_id, 0)

    def _fits(self, entry: CompiledEntry, tokens: int) -> bool:
        of_book = self._left_of_book(entry.book)
        return tokens <= self._left() and (of_book is None or tokens <= of_book)

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
        if tokens > self._left():
            self.is_over = True
        else:
            self._books_over.add(entry.book.book_id)

    def _pay(self, entry: CompiledEntry, tokens: int) -> None:
        book_id = entry.book.book_id
        self.used += tokens
        self._used_of_book[book_id] = self._used_of_book.get(book_id, 0) + tokens
