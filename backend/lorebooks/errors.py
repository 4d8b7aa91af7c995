"""Errors of lorebooks."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class LorebookNotFoundError(NotFoundError):
    """The lorebook does not exist or belongs to another user."""

    slug, title = "lorebook-not-found", "Lorebook not found"


class LoreEntryNotFoundError(NotFoundError):
    """The lorebook has no such entry."""

    slug, title = "lore-entry-not-found", "Lorebook entry not found"


class LorebookNotLinkedError(NotFoundError):
    """The lorebook exists, but is not linked to the named resource."""

    slug, title = "lorebook-not-linked", "The lorebook is not linked"


class LorebookFullError(ConflictError):
    """The lorebook or the account has reached its limit."""

    slug, title = "lorebook-full", "Lorebook limit reached"


class LoreFileError(AppError):
    """The file is damaged, or is not a lorebook."""

    status, slug, title = 422, "unreadable-lorebook", "The lorebook file could not be read"


class LoreLimitError(LoreFileError):
    """The lorebook exceeds a limit: `limit` is its name, `allowed` and `found` are counts."""

    slug, title = "lorebook-limit", "The lorebook exceeds a limit"

    def __init__(self, detail: str, *, limit: str, allowed: int, found: int) -> None:
        super().__init__(detail, extra={"limit": limit, "allowed": allowed, "found": found})
        self.limit, self.allowed, self.found = limit, allowed, found
