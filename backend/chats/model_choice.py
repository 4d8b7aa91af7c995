"""The model that a chat asks, and with which sampling."""

from __future__ import annotations

import msgspec

from backend.accounts.auth.identity import Identity
from backend.chats.schemas import ChatSettings
from backend.generation.model import ModelSpec
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import Sampling
from backend.http.schemas import merge_patch


def effective_model(
    models: ModelRegistry,
    identity: Identity,
    settings: ChatSettings,
    *,
    beneath: Sampling | None = None,
) -> tuple[ModelSpec, Sampling]:
    """The model of the user's that a chat's next turn asks, and with which sampling.

    The account's sampling goes with the account's model; a chat's own settings come on top.
    What a preset says is `beneath` both, as far as the model takes it.
    Raises `UnknownModelError`, `SettingNotTakenError`.
    """
    account = identity.settings
    spec = models.spec(settings.model or account.model or models.default_id)
    sampling = settings.sampling
    if settings.model is None:
        sampling = merge_patch(account.sampling, msgspec.to_builtins(settings.sampling))
    spec.check_sampling(sampling)
    if beneath is not None:
        names = [name for name in beneath.set_fields() if name in spec.accepts]
        usual = Sampling(**{name: getattr(beneath, name) for name in names})
        sampling = merge_patch(usual, msgspec.to_builtins(sampling))
    return spec, sampling


def counting_spec(models: ModelRegistry, identity: Identity) -> ModelSpec:
    """The model whose tokens a new chat is counted in: the account's, or any where that is gone.

    No model is asked for it, so that chats can be opened while none is there.
    """
    try:
        return models.spec(identity.settings.model or models.default_id)
    except UnknownModelError:
        return models.specs()[0]
