"""Which model does a chat's background tasks if none is chosen for them."""

from __future__ import annotations

from backend.generation.registry import ModelRegistry
from backend.settings import Settings

_SMALL = "lite"


def usual_task_model(models: ModelRegistry, settings: Settings, reply_id: str) -> str:
    """The model for background tasks of chats in which another replies, by its id.

    It is the server's own choice, else the smallest of Gemini's, else the one that replies. Who
    plays with a provider of their own may not want others to read the story: there the smallest is
    looked for among that provider's alone.
    """
    if settings.enrichment_model:
        return settings.enrichment_model
    home = models.providers.get(reply_id.partition("/")[0])
    asked = [home] if home is not None and home.is_own else models.providers.values()
    small = (
        f"{provider.slug}/{name}"
        for provider in asked
        for name in provider.model_names
        if name.startswith("gemini") and _SMALL in name
    )
    return next(small, reply_id)
