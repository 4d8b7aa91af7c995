"""The model of a background task: its choice, its settings and its token budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.models import KeyMode, User
from backend.accounts.profile.settings import UserSettings, find_first_set
from backend.campaigns.state.viewpoints import Player, find_player
from backend.characters import repository as characters
from backend.chats.models import Chat
from backend.chats.schemas import ChatSettings
from backend.chats.service import read_settings
from backend.database.base import now
from backend.enrichment.models import EnrichmentRun
from backend.generation.model import (
    ChatModel,
    ModelSpec,
    ModelWritesNoJsonError,
)
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import HarmCategory, SafetyThreshold, Sampling
from backend.generation.servers.abilities import ServerLimit
from backend.jobs.errors import RetryLaterError
from backend.llm.answers import RunBudget
from backend.llm.user_models import UserModels, choose_task_model
from backend.settings import Settings
from backend.vault.sealing import Sealer

DAY = timedelta(hours=24)

_TOKENS = EnrichmentRun.prompt_tokens + EnrichmentRun.completion_tokens
_COUNTS = EnrichmentRun.kind.not_in(("suggestions", "briefing"))
"""Suggestions and briefings are excluded. The user requests them, so they count as turns."""


async def open_budget(session: AsyncSession, settings: Settings, user_id: UUID) -> RunBudget:
    """Return the budget of one run, out of the user's daily tokens.

    Raises `RetryLaterError` if none are left.
    """
    allowed, at = settings.enrichment_tokens_per_day, now()
    after = await seconds_to_wait(session, user_id, at, allowed=allowed)
    if after:
        raise RetryLaterError("The user's tokens for the day are spent.", after=after)
    left = allowed - await spent_today(session, user_id, at)
    return RunBudget(min(settings.enrichment_tokens_per_run, left))


async def spent_today(session: AsyncSession, user_id: UUID, at: datetime) -> int:
    """Return the tokens that the user's runs took in the 24 hours before `at`."""
    spent = await session.scalar(
        select(func.coalesce(func.sum(_TOKENS), 0)).where(
            EnrichmentRun.user_id == user_id, EnrichmentRun.created_at > at - DAY, _COUNTS
        )
    )
    return int(spent or 0)


async def seconds_to_wait(
    session: AsyncSession, user_id: UUID, at: datetime, *, allowed: int
) -> float:
    """Return the seconds until a user has used less than `allowed` tokens in 24 hours; 0 if so now.

    If nothing is allowed, it is always a day.
    """
    if allowed <= 0:
        return DAY.total_seconds()
    if await spent_today(session, user_id, at) < allowed:
        return 0.0
    rows = await session.execute(
        select(EnrichmentRun.created_at, _TOKENS)
        .where(EnrichmentRun.user_id == user_id, EnrichmentRun.created_at > at - DAY, _COUNTS)
        .order_by(EnrichmentRun.created_at.desc())
    )
    total = 0
    for created_at, tokens in rows:
        total += tokens
        if total >= allowed:
            # When this run is a day old, the later ones are below the limit.
            return max(1.0, (created_at + DAY - at).total_seconds())
    return 0.0


ModelTask = Literal["triage", "agent", "summary", "suggestions", "compaction"]
"""A task that may have its own model: a member of `TaskModels`."""

STRETCH_TOKENS = 12_000
"""Maximum tokens of new lines in one run, in the chat's unit. One line is always read."""

OUTPUT_TOKENS = 1_024
"""Default token limit of an answer."""

THINKING_TOKENS = 4_096
"""Additional tokens for models that may think before they answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The model and the settings with which a task reads a chat for its user.

    It also carries the user's key for index jobs. `asked_ids` are the models that the task may ask.
    `stretch_tokens` is in the chat's unit. `player` is the character that the user plays in the
    campaign without a persona.
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
    player: Player | None = None

    @property
    def model(self) -> ChatModel:
        """The task's model. Raises `UnknownModelError`."""
        return self.models.get(self.model_id)

    @property
    def triage_model(self) -> ChatModel:
        """The model that decides if anything is worth recording. Raises `UnknownModelError`."""
        return self.models.get(self.triage_id)

    @property
    def limits(self) -> list[ServerLimit | None]:
        """The limits of the servers of all models of the task."""
        return [self.models.find_limit(each) for each in self.asked_ids]

    def build_sampling(self, model: ChatModel, tokens: int = OUTPUT_TOKENS) -> Sampling:
        """Return the sampling settings for an answer of at most so many tokens."""
        return limit_output(safe_sampling(model.spec, self.safety), model.spec, tokens)


async def find_reader(
    session: AsyncSession,
    user_models: UserModels,
    settings: Settings,
    sealer: Sealer,
    chat: Chat,
    task: ModelTask = "agent",
) -> Reader:
    owner = await session.get_one(User, sealer.user_id)
    models = await user_models.of(session, owner, sealer)
    account, own = open_user_settings(sealer, owner.sealed_settings), read_settings(sealer, chat)
    usual = own.model or account.model or models.default_id
    model_id = choose_model(models, settings, task, own, account, usual)
    triage_id = choose_model(models, settings, "triage", own, account, usual)
    asked = {model_id, triage_id} if task == "agent" else {model_id}
    specs = [spec for each in sorted(asked) if (spec := _spec(models, each)) is not None]
    # Small models get at most a quarter of their window as new lines.
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
    """Return the id of the model for a task of a chat.

    A task model of the chat or the account comes first, then `enrichment.model` of either, then
    `choose_task_model`. Suggestions fall back to `default_id`, the model of the chat itself. The id
    may not exist: `ModelRegistry.get` then raises, so that no other model reads the story.
    """
    named: str | None = find_first_set((chat.task_models, account.task_models), task, None)
    if named or task == "suggestions":
        return named or default_id
    chosen = chat.enrichment.model or account.enrichment.model
    return chosen or choose_task_model(models, settings, default_id)


def safe_sampling(
    spec: ModelSpec, safety: Mapping[HarmCategory, SafetyThreshold] | None
) -> Sampling:
    """Return the safety filter that the user chose for replies, and no other settings."""
    return Sampling(safety=dict(safety)) if safety and "safety" in spec.accepts else Sampling()


NAME_SETTING = (
    "Choose another one for this task: task_models.{task} in the settings of the account or the "
    "chat."
)


def limit_output(sampling: Sampling, spec: ModelSpec, tokens: int = OUTPUT_TOKENS) -> Sampling:
    """Limit the output to an answer of so many tokens, plus thinking.

    Background work never gets the model's own limit, because a small model that repeats itself
    would write to the end of its window.
    """
    if "max_output_tokens" not in spec.accepts:
        return sampling
    if spec.accepts & {"thinking_budget", "reasoning_effort"}:
        tokens += max(THINKING_TOKENS, sampling.thinking_budget or 0)
    # The prompt may take three quarters of a small window.
    limit = min(spec.max_output_tokens, tokens, max(1, spec.usable_window // 4))
    return msgspec.structs.replace(sampling, max_output_tokens=limit)


def naming_setting(error: ModelWritesNoJsonError, task: ModelTask) -> ModelWritesNoJsonError:
    return ModelWritesNoJsonError(f"{error.detail} {NAME_SETTING.format(task=task)}")


def _spec(models: ModelRegistry, model_id: str) -> ModelSpec | None:
    try:
        return models.spec(model_id)
    except UnknownModelError:
        return None
