"""What can go wrong with prompt presets."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class PresetNotFoundError(NotFoundError):
    """No such preset, or someone else's."""

    slug, title = "preset-not-found", "No such preset"


class PresetsFullError(ConflictError):
    """The account has as many presets as it may."""

    slug, title = "presets-full", "There is no more room"


class PresetFileError(AppError):
    """The file is broken, too large, or is something else than a chat-completion preset."""

    status, slug, title = 422, "unreadable-preset", "The preset could not be read"
