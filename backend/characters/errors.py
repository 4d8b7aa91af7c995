"""What can go wrong with characters and personas, beside what `cards` and `images` refuse."""

from __future__ import annotations

from backend.errors import NotFoundError


class CharacterNotFoundError(NotFoundError):
    """No such character, or someone else's."""

    slug, title = "character-not-found", "No such character"


class PersonaNotFoundError(NotFoundError):
    """No such persona, or someone else's."""

    slug, title = "persona-not-found", "No such persona"


class AvatarNotFoundError(NotFoundError):
    """The character or persona is there, but has no picture."""

    slug, title = "avatar-not-found", "There is no picture"
