"""Which model works behind the reply, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.models import KeyMode, User
from backend.accounts.profile.settings import UserSettings, find_first_set
from backend.campaigns.state.viewpoints import Player, find_player
from backend.characters import repository as characters
from backend.chats.models import Chat
from backend.chats.schemas import ChatSettings
from backend.chats.service import read_settings
from backend.generation.model import ChatModel, ModelSpec, ModelWritesNoJsonError
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import HarmCategory, SafetyThreshold, Sampling
from backend.generation.servers.limits import ServerLimit
from backend.llm.user_models import UserModels, choose_task_model
from backend.settings import Settings
from backend.vault.sealing import Sealer

ModelTask = Literal["triage", "agent", "summary", "suggestions", "compaction"]
"""Work that may have a model of its own: the members of `TaskModels`."""

STRETCH_TOKENS = 12_000
"""Most tokens of new lines in one run, in the chat's unit; one line is always read."""

OUTPUT_TOKENS = 1_024
"""Tokens that an answer may have where its task needs no more."""

THINKING_TOKENS = 4_096
"""Extra tokens for models that may think before they answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a chat for its user: which model, under which settings, and how much at a time.

    It has the user's key at hand, for the index's jobs that follow. `asked_ids` are the models that
    the task may ask. `stretch_tokens` is in the chat's unit. `writes_questions`: also what lines
    answer, which the demo model can't tell. `player` is the character that the user is in
    the chat's campaign without a persona.
    """

    sealer: Sealer = field(repr=False)
    key_mode: KeyMode
    may_edit_lore: bool
    models: ModelRegistry
    model_id: str
    triage_id: str
    asked_ids: frozenset[str]
    safety: Mapping[HarmCategory, SafetyThreshold] | None
    stretch_tokens: int
    writes_questions: bool = False
    player: Player | None = None

    @property
    def model(self) -> ChatModel:
        """The model. Raises `UnknownModelError`."""
        return self.models.get(self.model_id)

    @property
    def triage_model(self) -> ChatModel:
        """The model that says whether there is anything to keep. Raises `UnknownModelError`."""
        return self.models.get(self.triage_id)

    @property
    def limits(self) -> list[ServerLimit | None]:
        """The limits of the servers of its models."""
        return [self.models.find_limit(each) for each in self.asked_ids]

    def sampling_of(self, model: ChatModel, tokens: int = OUTPUT_TOKENS) -> Sampling:
        """Return the sampling for one of the two, for an answer of at most so many tokens."""
        return limit_output(safe_sampling(model.spec, self.safety), model.spec, tokens)


async def find_reader(
    session: AsyncSession,
    user_models: UserModels,
    settings: Settings,
    sealer: Sealer,
    chat: Chat,
    task: ModelTask = "agent",
) -> Reader:
    """Who would read a chat of the sealer's user now, for a task."""
    owner = await session.get_one(User, sealer.user_id)
    models = await user_models.of(session, owner, sealer)
    account, own = open_user_settings(sealer, owner.sealed_settings), read_settings(sealer, chat)
    usual = own.model or account.model or models.default_id
    model_id = choose_model(models, settings, task, own, account, usual)
    triage_id = choose_model(models, settings, "triage", own, account, usual)
    asked = {model_id, triage_id} if task == "agent" else {model_id}
    specs = [spec for each in sorted(asked) if (spec := _spec(models, each)) is not None]
    # Of small models a quarter of their window is for new lines.
    most = min([STRETCH_TOKENS, *(spec.context_window // 4 for spec in specs)])
    return Reader(
        sealer=sealer,
        key_mode=owner.key_mode,
        may_edit_lore=find_first_set((own.enrichment, account.enrichment), "may_edit_lore", False),  # noqa: FBT003  # a setting
        models=models,
        model_id=model_id,
        triage_id=triage_id,
        asked_ids=frozenset(asked),
        safety=find_first_set((own.sampling, account.sampling), "safety", None),
        stretch_tokens=most,
        writes_questions=find_first_set((own.memory, account.memory), "questions", default=False)
        and all(spec.provider != "demo" for spec in specs if spec.id == model_id),
        player=await _find_player(session, sealer, chat, account),
    )


async def _find_player(
    session: AsyncSession, sealer: Sealer, chat: Chat, account: UserSettings
) -> Player | None:
    persona_id = chat.persona_id or account.persona_id
    if persona_id and await characters.find_persona(
        session, persona_id, owner_id=sealer.user_id, sealer=sealer
    ):
        return None
    return await find_player(session, sealer, chat.campaign_id)


def choose_model(
    models: ModelRegistry,
    settings: Settings,
    task: ModelTask,
    chat: ChatSettings,
    account: UserSettings,
    default_id: str,
) -> str:
    """The model for a task of one chat, by its id: the chat's, the account's, the server's.

    What `task_models` names comes before `enrichment.model`, and that before `choose_task_model`.
    `default_id` is the model that the chat itself is played with, which also writes suggestions.
    Nothing checks that it is there: `ModelRegistry.get` does, so that no other model reads a story
    because one was deleted.
    """
    named: str | None = find_first_set((chat.task_models, account.task_models), task, None)
    if named or task == "suggestions":
        return named or default_id
    chosen = chat.enrichment.model or account.enrichment.model
    return chosen or choose_task_model(models, settings, default_id)


def safe_sampling(
    spec: ModelSpec, safety: Mapping[HarmCategory, SafetyThreshold] | None
) -> Sampling:
    """A story that may be told may be read: the filter that a user chose for replies, no more."""
    return Sampling(safety=dict(safety)) if safety and "safety" in spec.accepts else Sampling()


NAME_SETTING = (
    "Choose another one for this task: task_models.{task} in the settings of the account or the "
    "chat."
)


def limit_output(sampling: Sampling, spec: ModelSpec, tokens: int = OUTPUT_TOKENS) -> Sampling:
    """Limit the output to an answer of so many tokens, and thoughts.

    Background work never gets the model's own limit, because a small model that repeats itself
    would write on to the end of its window.
    """
    if "max_output_tokens" not in spec.accepts:
        return sampling
    if spec.accepts & {"thinking_budget", "reasoning_effort"}:
        tokens += max(THINKING_TOKENS, sampling.thinking_budget or 0)
    # The prompt may take three quarters of a small window.
    limit = min(spec.max_output_tokens, tokens, max(1, spec.usable_window // 4))
    return msgspec.structs.replace(sampling, max_output_tokens=limit)


def naming_setting(error: ModelWritesNoJsonError, task: ModelTask) -> ModelWritesNoJsonError:
    """The same error, with the setting to change."""
    return ModelWritesNoJsonError(f"{error.detail} {NAME_SETTING.format(task=task)}")


def _spec(models: ModelRegistry, model_id: str) -> ModelSpec | None:
    try:
        return models.spec(model_id)
    except UnknownModelError:
        return None
