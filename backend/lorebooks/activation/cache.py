"""Compiled books, kept for as long as somebody plays with them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from backend.lorebooks.activation.compiled import CompiledBook


class _Kept(NamedTuple):
    user_id: UUID
    book: CompiledBook
    used_at: float


class BookCache:
    """The most recently used books, by id and revision. Thread-safe.

    They hold users' texts in plain, so they go when they were not used for a while, when the user
    signs out (`forget`), and when a newer revision comes.

    Args:
        clock: Seconds, monotonic.
        max_entries: Entries of all kept books together; a book without any counts as one. A book
            with more is not kept.
        seconds: After how long without use a book goes.

    Attributes:
        entries: How many entries are kept.
    """

    def __init__(
        self, *, clock: Callable[[], float], max_entries: int = 50_000, seconds: float = 600.0
    ) -> None:
        self._clock, self._max_entries, self._seconds = clock, max_entries, seconds
        self._lock = threading.Lock()
        self._books: OrderedDict[UUID, _Kept] = OrderedDict()  # used longest ago, first
        self.entries = 0

    def get(self, user_id: UUID, book_id: UUID, revision: int) -> CompiledBook | None:
        """The book as compiled for that revision, if it is kept and the user's."""
        with self._lock:
            self._sweep()
            kept = self._books.get(book_id)
            if kept is None or kept.user_id != user_id or kept.book.revision != revision:
                return None
            self._books[book_id] = kept._replace(used_at=self._clock())
            self._books.move_to_end(book_id)
            return kept.book

    def put(self, user_id: UUID, book: CompiledBook) -> None:
        """Keep a book, in place of its other revision."""
        with self._lock:
            self._drop(book.book_id)
            if len(book.entries) > self._max_entries:
                return
            self._books[book.book_id] = _Kept(user_id, book, self._clock())
            self.entries += max(1, len(book.entries))
            self._sweep()
            while self.entries > self._max_entries:
                self._drop(next(iter(self._books)))

    def forget(self, user_id: UUID) -> None:
        """Drop all that is the user's."""
        with self._lock:
            for book_id in [key for key, kept in self._books.items() if kept.user_id == user_id]:
                self._drop(book_id)

    def sweep(self) -> None:
        """Drop what was not used for a while, as `get` and `put` do: for a server that is quiet."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        oldest = self._clock() - self._seconds
        while self._books and next(iter(self._books.values())).used_at < oldest:
            self._drop(next(iter(self._books)))

    def _drop(self, book_id: UUID) -> None:
        kept = self._books.pop(book_id, None)
        if kept:
            self.entries -= max(1, len(kept.book.entries))
