"""The job behind the reply that keeps a chat's rolling summary ahead of what history loses."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import USER_SETTINGS, User
from backend.accounts.settings import UserSettings
from backend.chats import repository as chats
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat, Message
from backend.chats.service import read_settings
from backend.chats.settings import ChatSettings
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.cleaning import without_tags
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.models_choice import choose_model, filter_alone
from backend.enrichment.outbox import SUMMARY
from backend.enrichment.purse import seconds_to_wait
from backend.enrichment.summaries import (
    MAX_SUMMARY_CHARS,
    StoredSummary,
    current_summary,
    store_summary,
)
from backend.enrichment.summary_parts import Part, find_goal, read_part
from backend.enrichment.summary_runs import Said, note_failure, run_row
from backend.enrichment.text import plain
from backend.generation.model import (
    ChatModel,
    ModelEmptyReplyError,
    ModelError,
    ModelRateLimitError,
    ModelSpec,
    Prompt,
    PromptMessage,
    TextPiece,
    Usage,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import JobKind, RunningJob
from backend.prompts import PromptLibrary
from backend.settings import Settings

STEP_TOKENS = 12_000
"""Stored tokens of lines that one call of the model brings in, at most."""

LEAST_STEP = 500
"""Of a model with a tiny window."""

CHARS_PER_WORD = 7
"""Of long words, with the blank behind them."""

TOKENS_PER_WORD = 2

OVERLONG = 3
"""How many times as many words as were asked for are kept."""

THINKING = 4_096
"""Tokens left to models that think before they write."""

PATH_CHANGED = "path-changed"
"""`error` of a run whose lines were left, or whose summary was edited, while the model wrote."""

DROPPED = 3
"""Times that a path may change while the model writes, until the job waits for a while."""

WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One step: a part of the path, and who is asked to take it in."""

    chat_id: UUID
    part: Part
    words: int
    model: ChatModel
    sampling: Sampling


class Summarizer:
    """Writes rolling summaries: in steps, each a row of its own that builds on the one before."""

    def __init__(
        self,
        database: Database,
        registry: ModelRegistry,
        settings: Settings,
        prompts: PromptLibrary,
    ) -> None:
        self._database = database
        self._registry = registry
        self._settings = settings
        self._prompts = prompts

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {SUMMARY: JobKind(self.summarise)}

    async def summarise(self, job: RunningJob) -> None:
        """Bring a chat's summary as far as its history will need it.

        What is stored stays when it is broken off: the next attempt goes on behind it. Raises
        `RetryLaterError` where the user's tokens for the day are spent, and `ModelError` where
        trying again may help; what else goes wrong is noted in the run, and is left to the job
        behind the next reply.
        """
        is_begun, dropped = False, 0
        while (work := await self._next(job, is_begun=is_begun)) is not None:
            try:
                is_stored = await self._step(job, work)
            except ModelError as error:
                if error.retryable:
                    raise
                return
            is_begun = is_begun or is_stored
            dropped += not is_stored
            if dropped == DROPPED:
                raise RetryLaterError("The chat changes too fast.", after=WAIT_SECONDS)

    async def _next(self, job: RunningJob, *, is_begun: bool) -> _Work | None:
        """What is to be done now; None when there is nothing."""
        chat_id, sealer = UUID(job.payload["chat_id"]), job.keys
        async with self._database.read() as session:
            try:
                chat = await chats.get_chat(session, chat_id, owner_id=sealer.user_id)
            except ChatNotFoundError:
                return None
            settings = read_settings(sealer, chat)
            wanted = settings.summary
            if not wanted.enabled:
                return None
            current = await current_summary(session, sealer, chat)
            goal = await find_goal(
                session,
                chat_id,
                current,
                history_budget=job.payload["history_budget"],
                interval=wanted.interval,
                is_begun=is_begun,
            )
            if goal is None:
                return None
            await self._check_purse(session, sealer.user_id)
            account = await _account(session, job)
            model, sampling = self._model(settings, account)
            part = await read_part(
                session, sealer, chat, current, goal=goal, most=_step_tokens(model.spec)
            )
        if part is None:
            return None
        return _Work(
            chat_id=chat_id,
            part=part,
            words=wanted.words,
            model=model,
            sampling=_sampling(sampling, model.spec, wanted.words),
        )

    async def _check_purse(self, session: AsyncSession, user_id: UUID) -> None:
        allowed = self._settings.enrichment_tokens_per_day
        after = await seconds_to_wait(session, user_id, now(), allowed=allowed)
        if after:
            raise RetryLaterError("The user's tokens for the day are spent.", after=after)

    def _model(self, settings: ChatSettings, account: UserSettings) -> tuple[ChatModel, Sampling]:
        """Who is asked, and how. Raises `UnknownModelError`."""
        model_id = choose_model(
            self._registry,
            self._settings,
            settings.enrichment,
            account.enrichment,
            settings.model or account.model or self._registry.default_id,
        )
        model = self._registry.get(model_id)
        return model, filter_alone((settings.sampling, account.sampling), model.spec)

    async def _step(self, job: RunningJob, work: _Work) -> bool:
        """One call of the model, stored. False where the path it is about was left meanwhile."""
        said = Said()
        try:
            await self._ask(work, said)
            text = plain(said.text, min(MAX_SUMMARY_CHARS, _most_chars(work.words)))
            if not text:
                raise ModelEmptyReplyError
        except ModelError as error:
            async with job.step() as session:
                if await _locked(session, job, work) is not None:
                    run = _run(job, work, said, problem=error.slug)
                    await note_failure(session, run)
            if isinstance(error, ModelRateLimitError) and error.retry_after is not None:
                raise RetryLaterError(error.detail, after=max(1.0, error.retry_after)) from error
            raise
        async with job.step() as session:
            chat = await _locked(session, job, work)
            if chat is None:
                return False
            message = await self._last_line(session, job, chat, work.part)
            if message is None:
                run = _run(job, work, said, problem=PATH_CHANGED)
                await note_failure(session, run)
                return False
            session.add(_run(job, work, said))
            await session.flush()
            await store_summary(session, job.keys, message, text, run_id=said.run_id)
            await job.progress(work.part.last_position + 1, work.part.goal + 1)
        return True

    async def _last_line(
        self, session: AsyncSession, job: RunningJob, chat: Chat, part: Part
    ) -> Message | None:
        """The line that the new summary ends with; None where nobody wants it any more.

        That is so when its path was left, or the summary that it builds on is another one by now.
        """
        message = await session.get(Message, part.last_id, populate_existing=True)
        current = await current_summary(session, job.keys, chat)
        is_wanted = read_settings(job.keys, chat).summary.enabled
        if message is None or not message.is_active or not is_wanted:
            return None
        return message if _version(current) == _version(part.previous) else None

    async def _ask(self, work: _Work, said: Said) -> None:
        """Have the model write. `said` is filled in as it goes, so that nothing spent is lost."""
        previous = work.part.previous
        system = self._prompts["enrichment/summary"].render(words=work.words)
        lines = self._prompts["enrichment/summary_lines"].render(
            previous=without_tags(previous.text) if previous else "",
            lines=work.part.lines,
            words=work.words,
        )
        prompt = Prompt([PromptMessage("system", system), PromptMessage("user", lines)])
        async with aclosing(work.model.stream(prompt, work.sampling)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextPiece):
                    said.text += piece.text
                elif isinstance(piece, Usage):
                    said.prompt_tokens = piece.prompt_tokens
                    said.completion_tokens = piece.completion_tokens


def _version(summary: StoredSummary | None) -> tuple[UUID, int] | None:
    return (summary.message_id, summary.revision) if summary else None


async def _locked(session: AsyncSession, job: RunningJob, work: _Work) -> Chat | None:
    """The chat, kept as it is for the length of the transaction; None when it is gone."""
    try:
        return await chats.get_chat(session, work.chat_id, owner_id=job.keys.user_id, lock=True)
    except ChatNotFoundError:
        return None


async def _account(session: AsyncSession, job: RunningJob) -> UserSettings:
    """The settings of the job's user."""
    sealer = job.keys
    blob = await session.scalar(select(User.sealed_settings).where(User.id == sealer.user_id))
    if blob is None:
        return UserSettings()
    data = sealer.open_bytes(USER_SETTINGS, sealer.user_id, blob)
    return msgspec.json.decode(data, type=UserSettings)


def _run(job: RunningJob, work: _Work, said: Said, *, problem: str | None = None) -> EnrichmentRun:
    return run_row(job, work.chat_id, work.part, said, model_id=work.model.spec.id, problem=problem)


def _most_chars(words: int) -> int:
    return words * OVERLONG * CHARS_PER_WORD


def _step_tokens(spec: ModelSpec) -> int:
    """Tokens of lines that a model takes at once, beside the summary so far and its answer."""
    return min(STEP_TOKENS, max(LEAST_STEP, spec.context_window // 2))


def _sampling(own: Sampling, spec: ModelSpec, words: int) -> Sampling:
    """Room for the answer, beside what the user chose."""
    if "max_output_tokens" not in spec.accepts:
        return own
    room = words * OVERLONG * TOKENS_PER_WORD
    if spec.accepts & {"thinking_budget", "reasoning_effort"}:
        room += THINKING
    return msgspec.structs.replace(own, max_output_tokens=min(spec.max_output_tokens, room))
