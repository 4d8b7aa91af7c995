"""Errors of characters, personas and card files.

CardError               broken, or not a card ├── NoCardError         a valid picture without a card
└── CardLimitError      over one of the limits in `cards.model` ImageError              an
unreadable picture

A file over the size limit is a `TooLargeError` (413) for every upload.
"""

from __future__ import annotations

from backend.errors import AppError, NotFoundError


class CharacterNotFoundError(NotFoundError):
    """The character does not exist or belongs to another user."""

    slug, title = "character-not-found", "Character not found"


class PersonaNotFoundError(NotFoundError):
    """The persona does not exist or belongs to another user."""

    slug, title = "persona-not-found", "Persona not found"


class AvatarNotFoundError(NotFoundError):
    """The character or persona exists, but has no picture."""

    slug, title = "avatar-not-found", "No picture"


class CardError(AppError):
    """The file is damaged, or is not a character card."""

    status, slug, title = 422, "unreadable-card", "The character card could not be read"


class NoCardError(CardError):
    """The picture is valid but contains no card. It can be used as an avatar."""

    slug, title = "no-card-in-image", "No character card in this picture"


class CardLimitError(CardError):
    """The card exceeds a limit. `limit` is its name; `allowed` and `found` are counts.

    If reading stopped at the limit, `found` is the count at that point.
    """

    slug, title = "card-limit", "The character card exceeds a limit"

    def __init__(self, detail: str, *, limit: str, allowed: int, found: int) -> None:
        super().__init__(detail, extra={"limit": limit, "allowed": allowed, "found": found})
        self.limit, self.allowed, self.found = limit, allowed, found


class ImageError(AppError):
    """The picture is damaged, has an unsupported format, or is too large to decode.

    For too many pixels, the problem has `limit`, `allowed` and, below Pillow's own limit, `found`.
    """

    status, slug, title = 422, "unreadable-image", "The picture could not be read"
