from __future__ import annotations

from backend.errors import NotFoundError


class BackgroundNotFoundError(NotFoundError):
    """The chat or character exists, but it has no background."""

    slug, title = "background-not-found", "No background"
