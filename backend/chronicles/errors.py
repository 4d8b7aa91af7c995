"""Errors of chronicles."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class ChronicleNotFoundError(NotFoundError):
    """The chronicle does not exist or belongs to another user."""

    slug, title = "chronicle-not-found", "Chronicle not found"


class EventNotFoundError(NotFoundError):
    """The chronicle has no such event."""

    slug, title = "event-not-found", "Event not found"


class ChronicleFullError(ConflictError):
    """The chronicle or the account has reached its limit."""

    slug, title = "chronicle-full", "Chronicle limit reached"


class ChronicleFileError(AppError):
    """The file is damaged, or is not a chronicle."""

    status, slug, title = 422, "unreadable-chronicle", "The chronicle file could not be read"
