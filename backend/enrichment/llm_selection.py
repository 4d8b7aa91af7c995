"""Which model works behind the reply, and how it is asked."""

from __future__ import annotations

from backend.accounts.settings import EnrichmentSettings
from backend.generation.model import ModelSpec
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.settings import Settings

_SMALL = "lite"


def choose_model(
    registry: ModelRegistry,
    settings: Settings,
    chat: EnrichmentSettings,
    account: EnrichmentSettings,
    default_id: str,
) -> str:
    """The id of the model for one chat's work: the chat's, else the account's, else the server's.

    Where none of them says, it is the smallest of Gemini's, and where there is none, the model that
    the chat itself is played with. Nothing checks that it is there: `ModelRegistry.get` does.
    """
    chosen = chat.model or account.model or settings.enrichment_model
    if chosen:
        return chosen
    small = (
        spec.id for spec in registry.specs() if spec.provider == "gemini" and _SMALL in spec.name
    )
    return next(small, default_id)


def filter_alone(chain: tuple[Sampling, ...], spec: ModelSpec) -> Sampling:
    """The filter that a user chose for their replies, the nearest of `chain`; nothing else.

    A story that may be told may be read. The rest of what is set is for replies.
    """
    if "safety" not in spec.accepts:
        return Sampling()
    return Sampling(safety=next((each.safety for each in chain if each.safety is not None), None))
