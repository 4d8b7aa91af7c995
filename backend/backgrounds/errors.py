from __future__ import annotations

from backend.errors import NotFoundError


class BackgroundNotFoundError(NotFoundError):
    """The chat or character exists, but has no background of its own."""

    slug, title = "background-not-found", "No background"
