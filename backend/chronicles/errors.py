"""What can go wrong with chronicles."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class ChronicleNotFoundError(NotFoundError):
    """No such chronicle, or someone else's."""

    slug, title = "chronicle-not-found", "No such chronicle"


class EventNotFoundError(NotFoundError):
    """No such event in this chronicle."""

    slug, title = "event-not-found", "No such event in this chronicle"


class ChronicleFullError(ConflictError):
    """A chronicle, or an account, holds as much as it may."""

    slug, title = "chronicle-full", "There is no more room"


class ChronicleFileError(AppError):
    """The file is broken, or is something else than a chronicle."""

    status, slug, title = 422, "unreadable-chronicle", "The chronicle could not be read"
