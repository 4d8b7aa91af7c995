"""Which model works behind the reply, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import open_settings
from backend.accounts.models import KeyMode, User
from backend.accounts.settings import EnrichmentSettings, first_set
from backend.chats.models import Chat
from backend.chats.service import read_settings
from backend.generation.model import ChatModel
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import Sampling
from backend.llm.user_models import UserModels
from backend.settings import Settings
from backend.vault.sealing import Sealer

_SMALL = "lite"

STRETCH_TOKENS = 12_000
"""Most tokens of new lines in one run, in the chat's unit; one line is always read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a chat for its user: which model, under which settings, and how much at a time.

    It has the user's key at hand, for the index's jobs that follow. `stretch_tokens` is in the
    chat's unit. `writes_questions`: also what lines answer, which the demo model can't tell.
    """

    sealer: Sealer = field(repr=False)
    key_mode: KeyMode
    may_edit_lore: bool
    models: ModelRegistry
    model_id: str
    sampling: Sampling
    stretch_tokens: int
    writes_questions: bool = False

    @property
    def model(self) -> ChatModel:
        """The model. Raises `UnknownModelError`."""
        return self.models.get(self.model_id)


async def find_reader(
    session: AsyncSession, user_models: UserModels, settings: Settings, sealer: Sealer, chat: Chat
) -> Reader:
    """Who would read a chat of the sealer's user now."""
    owner = await session.get_one(User, sealer.user_id)
    models = await user_models.of(session, owner, sealer)
    account, own = open_settings(sealer, owner.sealed_settings), read_settings(sealer, chat)
    model_id = choose_model(
        models,
        settings,
        own.enrichment,
        account.enrichment,
        own.model or account.model or models.default_id,
    )
    try:
        spec = models.spec(model_id)
    except UnknownModelError:
        spec = None
    # Of small models a quarter of their window is for new lines.
    most = min(STRETCH_TOKENS, spec.context_window // 4) if spec else STRETCH_TOKENS
    # A story that may be told may be read: the filter that a user chose for replies, nothing else.
    safety = first_set((own.sampling, account.sampling), "safety", None)
    is_filtered = spec is not None and "safety" in spec.accepts
    return Reader(
        sealer=sealer,
        key_mode=owner.key_mode,
        may_edit_lore=first_set((own.enrichment, account.enrichment), "may_edit_lore", False),  # noqa: FBT003  # a setting
        models=models,
        model_id=model_id,
        sampling=Sampling(safety=safety) if is_filtered else Sampling(),
        stretch_tokens=most,
        writes_questions=first_set((own.memory, account.memory), "questions", default=False)
        and (spec is None or spec.provider != "demo"),
    )


def choose_model(
    models: ModelRegistry,
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
    home = models.providers.get(default_id.partition("/")[0])
    # Who plays with a provider of their own may not want others to read the story.
    asked = [home] if home is not None and home.is_own else models.providers.values()
    small = (
        f"{provider.slug}/{name}"
        for provider in asked
        for name in provider.model_names
        if name.startswith("gemini") and _SMALL in name
    )
    return next(small, default_id)
