"""Errors of chronicles."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class ChronicleNotFoundError(NotFoundError):
    """The chronicle does not exist or belongs to another user."""

    slug, title = "chronicle-not-found", "No such chronicle"


class EventNotFoundError(NotFoundError):
    """The chronicle does not contain this event."""

    slug, title = "event-not-found", "No such event in this chronicle"


class ChronicleFullError(ConflictError):
    """A chronicle or an account has reached its limit."""

    slug, title = "chronicle-full", "There is no more room"


class ChronicleFileError(AppError):
    """The file is broken or is not a chronicle."""

    status, slug, title = 422, "unreadable-chronicle", "The chronicle could not be read"
