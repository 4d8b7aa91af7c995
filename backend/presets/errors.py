"""Errors of prompt presets."""

from __future__ import annotations

from backend.errors import AppError, ConflictError, NotFoundError


class PresetNotFoundError(NotFoundError):
    """The preset does not exist, or belongs to another user."""

    slug, title = "preset-not-found", "Preset not found"


class PresetsFullError(ConflictError):
    """The account has the maximum number of presets."""

    slug, title = "presets-full", "Preset limit reached"


class PresetFileError(AppError):
    """The file is damaged, too large, or not a chat-completion preset."""

    status, slug, title = 422, "unreadable-preset", "The preset file could not be read"
