"""Errors of lorebooks."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class LorebookNotFoundError(NotFoundError):
    """The lorebook does not exist or belongs to another user."""

    slug, title = "lorebook-not-found", "No such lorebook"


class LoreEntryNotFoundError(NotFoundError):
    """The lorebook does not contain this entry."""

    slug, title = "lore-entry-not-found", "No such entry in this lorebook"


class LorebookNotLinkedError(NotFoundError):
    """The lorebook exists, but is not linked here."""

    slug, title = "lorebook-not-linked", "The lorebook is not linked here"


class LorebookFullError(ConflictError):
    """A book or an account has reached its limit."""

    slug, title = "lorebook-full", "There is no more room"


class LoreFileError(AppError):
    """The file is broken or is not a lorebook."""

    status, slug, title = 422, "unreadable-lorebook", "The lorebook could not be read"


class LoreLimitError(LoreFileError):
    """The lorebook exceeds a limit. `limit` is its name, `allowed` and `found` are counts."""

    slug, title = "lorebook-limit", "The lorebook is over a limit"

    def __init__(self, detail: str, *, limit: str, allowed: int, found: int) -> None:
        super().__init__(detail, extra={"limit": limit, "allowed": allowed, "found": found})
        self.limit, self.allowed, self.found = limit, allowed, found
