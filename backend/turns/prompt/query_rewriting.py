"""What a turn looks for, put in other words by the task model: the words that an answer may have.

Where a user wants it (`memory.rephrase`), one call comes before a second search. It gets little
time, and a turn that it fails searches by its own words alone: the record says so. What it takes
is of the same tokens a day as the work behind the reply, and a run among its runs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import first_set
from backend.core.logs import get_logger
from backend.database.base import new_id
from backend.database.engine import Database
from backend.enrichment.cleaning import strip_tags
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.reader import (
    RunBudget,
    choose_model,
    limit_output,
    open_budget,
    safe_sampling,
)
from backend.enrichment.runs.store import record_success
from backend.errors import AppError
from backend.generation.model import (
    ModelDeclinedError,
    ModelMalformedAnswerError,
    Prompt,
    PromptMessage,
)
from backend.generation.tools.arguments import plain_schema
from backend.jobs.errors import RetryLaterError
from backend.llm.server_slots import ModelSlots
from backend.llm.slot_rules import Rank, Work
from backend.memory.search.request import SearchResult
from backend.memory.search.search import MemorySearch
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.turns.prompt.context import LoadedChat, PromptWindow

log = get_logger(__name__)

SECONDS = 2.5
"""How long a turn waits for the task model at most."""

MOST_READ, MOST_WRITTEN = 4_000, 400
"""Characters of the line, and of what was said before it; and of what the model writes."""


class _Answer(msgspec.Struct, kw_only=True):
    words: str


SCHEMA = plain_schema(_Answer)


class Rephraser:
    """Searches again in other words, for users who want that."""

    def __init__(
        self,
        database: Database,
        search: MemorySearch,
        settings: Settings,
        prompts: PromptLibrary,
        slots: ModelSlots,
    ) -> None:
        self._slots = slots
        self._database = database
        self._search = search
        self._settings = settings
        self._prompts = prompts

    async def search_again(
        self,
        identity: Identity,
        loaded: LoadedChat,
        window: PromptWindow,
        found: SearchResult,
        rank: Rank,
    ) -> SearchResult:
        """What is found by the model's words, too; what was found where there are none.

        `rank` is that of what the prompt is for: the task model is asked as a part of it.
        Its notes say what the words are, or that there are none and why.
        """
        chain = (loaded.settings.memory, identity.settings.memory)
        request = found.request
        if request is None or not first_set(chain, "rephrase", default=False):
            return found
        own, account = loaded.settings, identity.settings
        chosen = choose_model(window.models, self._settings, "triage", own, account, window.spec.id)
        try:
            async with self._database.read() as session:
                budget = await open_budget(session, self._settings, identity.user_id)
        except RetryLaterError:
            note = "not looked up in other words: the tokens for the day are spent"
            return replace(found, notes=[*found.notes, note])
        words, problem, began = "", None, time.monotonic()
        work = Work(
            use="turn" if rank == Rank.TURN else "suggestions",
            rank=rank,
            user_id=identity.user_id,
            chat_id=loaded.chat.id,
        )
        limit = window.models.find_limit(chosen)
        try:
            async with asyncio.timeout(SECONDS), self._slots.hold([limit], work):
                words = await self._rephrase(chosen, budget, loaded, window, request.text)
        except (AppError, TimeoutError) as error:
            problem = error.slug if isinstance(error, AppError) else "too-slow"
            log.info("memory.not_rephrased", problem=problem)
        if budget.calls:
            position = loaded.target.leaf.position if loaded.target.leaf else 0
            run = EnrichmentRun(
                id=new_id(),
                user_id=identity.user_id,
                chat_id=loaded.chat.id,
                campaign_id=loaded.chat.campaign_id,
                kind="rephrasing",
                state="failed" if problem else "done",
                model=chosen,
                from_position=position,
                to_position=position,
                calls=budget.calls,
                prompt_tokens=budget.prompt_tokens,
                completion_tokens=budget.completion_tokens,
                duration_ms=round((time.monotonic() - began) * 1000),
                error=problem,
            )
            async with self._database.write() as session:
                await record_success(session, run)
        if problem:
            note = "not looked up in other words: the task model gave no answer"
            return replace(found, notes=[*found.notes, note])
        if not words:
            return found
        text = f"{request.text}\n{words}"
        again = await self._search.find(identity.sealer, replace(request, text=text))
        return replace(again, notes=[*again.notes, f"looked up in other words as well: {words}"])

    async def _rephrase(
        self,
        chosen: str,
        budget: RunBudget,
        loaded: LoadedChat,
        window: PromptWindow,
        line: str,
    ) -> str:
        """Other words for a line; none of the demo model's. Raises `ModelError` and the like."""
        model = window.models.get(chosen)
        if model.spec.provider == "demo":
            return ""
        recent = "\n".join(f"{each.author}: {each.text}" for each in loaded.recent[-2:])
        asked = self._prompts["assist/rephrase"].render(
            line=strip_tags(line[:MOST_READ]), recent=strip_tags(recent[-MOST_READ:])
        )
        sampling = limit_output(safe_sampling(model.spec, window.sampling.safety), model.spec)
        prompt = Prompt([PromptMessage("user", asked)])
        try:
            said = await model.structured(prompt, SCHEMA, sampling)
        except (ModelMalformedAnswerError, ModelDeclinedError, asyncio.CancelledError):
            budget.take(None, prompt, "")  # the model has read it all the same
            raise
        budget.take(said.usage, prompt, str(said.value))
        try:
            words = msgspec.convert(said.value, _Answer).words
        except msgspec.ValidationError:
            return ""
        return " ".join(words[:MOST_WRITTEN].split())
