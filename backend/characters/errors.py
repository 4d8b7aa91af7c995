"""What can go wrong with characters, personas and card files.

CardError               broken, or not a card
├── NoCardError         a sound picture without a card in it
└── CardLimitError      over one of the limits of `cards.limits`
ImageError              a picture that can't be read

A file over the size limit is a `TooLargeError` (413), for any upload.
"""

from __future__ import annotations

from backend.errors import AppError, NotFoundError


class CharacterNotFoundError(NotFoundError):
    """No such character, or someone else's."""

    slug, title = "character-not-found", "No such character"


class PersonaNotFoundError(NotFoundError):
    """No such persona, or someone else's."""

    slug, title = "persona-not-found", "No such persona"


class AvatarNotFoundError(NotFoundError):
    """The character or persona is there, but has no picture."""

    slug, title = "avatar-not-found", "There is no picture"


class CardError(AppError):
    """The file is broken, or is something else than a character card."""

    status, slug, title = 422, "unreadable-card", "The character card could not be read"


class NoCardError(CardError):
    """The picture is sound, but no card is embedded in it: it may still serve as an avatar."""

    slug, title = "no-card-in-image", "There is no character card in this picture"


class CardLimitError(CardError):
    """The card is over a limit: `limit` is its name, `allowed` and `found` are counts.

    Where reading stopped at the limit, `found` is what had been counted by then.
    """

    slug, title = "card-limit", "The character card is over a limit"

    def __init__(self, detail: str, *, limit: str, allowed: int, found: int) -> None:
        super().__init__(detail, extra={"limit": limit, "allowed": allowed, "found": found})
        self.limit, self.allowed, self.found = limit, allowed, found


class ImageError(AppError):
    """The picture is broken, of another format than those that are read, or too large to decode.

    Where the pixels were too many, the problem has `limit`, `allowed` and, below Pillow's own
    limit, `found`.
    """

    status, slug, title = 422, "unreadable-image", "The picture could not be read"
