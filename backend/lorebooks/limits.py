"""How much a user's lorebooks may hold, beside the sizes that `entries` states."""

from __future__ import annotations

from backend.lorebooks.errors import LorebookFullError, LoreLimitError

MAX_ENTRIES = 20_000
"""Entries in one book."""

MAX_BOOKS = 10_000
"""Books of one user, those of cards among them."""


def check_entries(found: int) -> None:
    """Raise `LoreLimitError` for a file of more entries than a book may hold."""
    if found > MAX_ENTRIES:
        raise LoreLimitError(
            f"The lorebook has {found:,} entries; {MAX_ENTRIES:,} are allowed. Split it.",
            limit="lorebook_entries",
            allowed=MAX_ENTRIES,
            found=found,
        )


def check_room(found: int) -> None:
    """Raise `LorebookFullError` when no entry can be added to a book that has `found`."""
    if found >= MAX_ENTRIES:
        raise LorebookFullError(
            f"A lorebook can have {MAX_ENTRIES:,} entries. Delete some, or start another book.",
            extra={"limit": "lorebook_entries", "allowed": MAX_ENTRIES},
        )


def check_books(found: int) -> None:
    """Raise `LorebookFullError` when no book can be added to `found` of a user's."""
    if found >= MAX_BOOKS:
        raise LorebookFullError(
            f"An account can have {MAX_BOOKS:,} lorebooks. Delete some first.",
            extra={"limit": "lorebooks", "allowed": MAX_BOOKS},
        )
