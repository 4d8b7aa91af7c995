"""The choice of the next speaker by the task model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Identity
from backend.core.logs import get_logger
from backend.database.engine import Database
from backend.enrichment.cleaning import strip_tags
from backend.enrichment.reader import choose_model, limit_output, open_budget, safe_sampling
from backend.enrichment.runs.store import build_run, record_success
from backend.errors import AppError
from backend.generation.model import Prompt, PromptMessage
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.tools.calls import simplify_schema
from backend.jobs.errors import RetryLaterError
from backend.llm.answers import RunBudget, ask
from backend.llm.server_slots import ModelSlots
from backend.llm.slot_rules import Rank, SlotWork
from backend.llm.user_models import UserModels
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.turns.prompt.speaker_choice import ChainEndedError, SpeakerQuestion, TurnSpeaker
from backend.turns.speakers import GroupScene, SceneMember, find_named

log = get_logger(__name__)

TIMEOUT_SECONDS = 2.5
"""Time limit for the task model that chooses a speaker."""


class _SpeakerAnswer(msgspec.Struct, kw_only=True):
    speaker: str


SPEAKER_SCHEMA = simplify_schema(_SpeakerAnswer)


class SpeakerModel:
    """Lets the task model choose the next speaker, if the user wants that (`next_speaker`).

    It gets little time. Its tokens count towards the daily limit of background work, and each use
    is stored as a run. If it fails, the choice is made by mention.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        prompts: PromptLibrary,
        slots: ModelSlots,
        user_models: UserModels,
    ) -> None:
        self._database = database
        self._settings = settings
        self._prompts = prompts
        self._slots = slots
        self._user_models = user_models

    async def answer(
        self, identity: Identity, question: SpeakerQuestion, turn: TurnSpeaker
    ) -> None:
        """Ask the model, and keep its answer for the turn.

        Raises `ChainEndedError` if no one has anything to say in a reply that follows by itself.
        """
        turn.is_asked = True
        own, account = question.settings, identity.settings
        try:
            async with self._database.read() as session:
                models = await self._user_models.of(session, identity.user, identity.sealer)
                budget = await open_budget(session, self._settings, identity.user_id)
        except RetryLaterError:
            return
        usual = own.model or account.model or models.default_id
        chosen = choose_model(models, self._settings, "triage", own, account, usual)
        said, problem, began = None, None, time.monotonic()
        work = SlotWork(
            use="turn", rank=Rank.TURN, user_id=identity.user_id, chat_id=question.chat.id
        )
        try:
            limit = models.find_limit(chosen)
            async with asyncio.timeout(TIMEOUT_SECONDS), self._slots.hold([limit], work):
                said = await self._ask(models, chosen, budget, question, account.sampling)
        except (AppError, TimeoutError) as error:
            problem = error.slug if isinstance(error, AppError) else "too-slow"
            log.info("turn.speaker_not_chosen", problem=problem)
        if budget.calls:
            run = build_run(
                question.chat,
                "speaker",
                model=chosen,
                positions=(question.position, question.position),
                budget=budget,
                seconds=time.monotonic() - began,
                error=problem,
            )
            async with self._database.write() as session:
                await record_success(session, run)
        if said is None:
            return
        if not said.strip() and question.may_be_nobody:
            raise ChainEndedError
        turn.answer_id = _match_name(said, question.candidates)

    async def _ask(
        self,
        models: ModelRegistry,
        chosen: str,
        budget: RunBudget,
        question: SpeakerQuestion,
        sampling: Sampling,
    ) -> str | None:
        """Return the model's answer, None from the demo model. Raises `AppError`."""
        model = models.get(chosen)
        if model.spec.provider == "demo":
            return None
        safety = question.settings.sampling.safety or sampling.safety
        asked = self._prompts["assist/speaker"].render(
            candidates=[strip_tags(each) for each in question.candidates.values()],
            others=strip_tags(", ".join(question.others)),
            deaf=strip_tags(", ".join(question.deaf)),
            lines=strip_tags("\n".join(question.lines)),
            may_be_nobody=question.may_be_nobody,
        )
        prompt = Prompt([PromptMessage("user", asked)])
        try:
            value = await ask(
                model,
                prompt,
                SPEAKER_SCHEMA,
                sampling=limit_output(safe_sampling(model.spec, safety), model.spec),
                budget=budget,
            )
        except asyncio.CancelledError:
            budget.count_call(None, prompt)  # the model has read the prompt
            raise
        try:
            return msgspec.convert(value, _SpeakerAnswer).speaker
        except msgspec.ValidationError:
            return None


def _match_name(said: str, names: Mapping[UUID, str]) -> UUID | None:
    """Return the candidate that an answer means. None if it means no one or several."""
    scene = GroupScene(
        members=[SceneMember(id=each, name=name) for each, name in names.items()], last_line=said
    )
    exact = [each for each, name in names.items() if name.casefold() == said.strip().casefold()]
    found = exact or find_named(scene)
    return found[0] if len(found) == 1 else None
