"""The job behind the reply that keeps a chat's rolling summary ahead of what history loses."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats import repository as chats
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat, Message
from backend.chats.service import read_settings
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.cleaning import without_tags
from backend.enrichment.daily_budget import check_daily_budget
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.outbox import SUMMARY
from backend.enrichment.run_work import (
    BLOCKED_ATTEMPTS,
    PATH_CHANGED,
    Dropped,
    find_reader,
    locked_chat,
)
from backend.enrichment.runs import note_done, note_failed
from backend.enrichment.study import CHARACTERS_A_TOKEN, estimate
from backend.enrichment.summary.parts import SummaryPart, find_goal, is_as_read, read_part
from backend.enrichment.summary.runs import OVERLONG, Said, run_row, sampling_for
from backend.enrichment.summary.stored import (
    MAX_SUMMARY_CHARS,
    StoredSummary,
    current_summary,
    store_summary,
)
from backend.errors import AppError
from backend.generation.model import (
    ModelBlockedError,
    ModelEmptyReplyError,
    ModelError,
    ModelRateLimitError,
    Prompt,
    PromptMessage,
    TextPiece,
    TokenUsage,
)
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import Sampling
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import JobKind, RunningJob
from backend.prompts import PromptLibrary
from backend.settings import Settings

_SENTENCE_ENDS = ".!?…。\n"


def plain(text: str, limit: int) -> str:
    """A model's text as it may stand in a prompt: no tags, no blank lines, `limit` characters.

    Sections of a prompt stand in tags or between blank lines: what has neither can't end the one
    that it stands in. What is longer ends with a sentence, where there is one, or with a word.
    """
    lines = (line.strip() for line in without_tags(text).split("\n"))
    whole = "\n".join(line for line in lines if line)
    return whole if len(whole) <= limit else _cut(whole, limit)


def _cut(text: str, limit: int) -> str:
    head = text[: max(0, limit - 1)]
    end = max(head.rfind(mark) for mark in _SENTENCE_ENDS)
    if end >= limit // 2:
        return head[: end + 1].rstrip()
    words = head.rsplit(None, 1)
    return (words[0] if len(words) > 1 else head) + "…" if head else ""


LEAST_STEP = 500
"""Stored tokens of lines that one call of the model brings in, of a model with a tiny window."""

CHARS_PER_WORD = 7
"""Of long words, with the blank behind them."""

PASSED_OVER = "Nothing came back for these lines: the summary goes on behind them, without them."

REFUSED = (ModelBlockedError, ModelEmptyReplyError)
"""Some providers' filters say that they are at work, others only let nothing through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One step: a part of the path, and who is asked to take it in."""

    chat_id: UUID
    part: SummaryPart
    words: int
    model_id: str
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
        return {SUMMARY: JobKind(self.summarise, stoppable=True)}

    async def summarise(self, job: RunningJob) -> None:
        """Bring a chat's summary as far as its history will need it.

        What is stored stays when it is broken off: the next attempt goes on behind it. Raises
        `RetryLaterError` where the user's tokens for the day are spent, and `ModelError` where
        trying again may help. Lines for which nothing comes back are passed over in the end; what
        else goes wrong is noted in the run. The rest is left to the job behind the next reply.
        """
        is_begun, dropped = False, Dropped()
        while (work := await self._next(job, is_begun=is_begun)) is not None:
            try:
                is_stored = await self._step(job, work)
            except REFUSED:
                if job.attempt < BLOCKED_ATTEMPTS:
                    raise
                return
            except UnknownModelError:
                return
            except ModelError as error:
                if error.retryable:
                    raise
                return
            if not is_stored:
                dropped.once_more()
                continue
            is_begun = True
            dropped.begin_anew()

    async def _next(self, job: RunningJob, *, is_begun: bool) -> _Work | None:
        """What is to be done now; None when there is nothing.

        Nor is there where the chat's tokens are counted in another unit by now: the budget of the
        job says nothing then, that of the next reply's will.
        """
        chat_id, sealer = UUID(job.payload["chat_id"]), job.keys
        async with self._database.read() as session:
            try:
                chat = await chats.get_chat(session, chat_id, owner_id=sealer.user_id)
            except ChatNotFoundError:
                return None
            settings = read_settings(sealer, chat)
            wanted = settings.summary
            if not wanted.enabled or chat.count_unit != job.payload["count_unit"]:
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
            allowed = self._settings.enrichment_tokens_per_day
            await check_daily_budget(session, sealer.user_id, now(), allowed=allowed)
            reader = await find_reader(session, self._registry, self._settings, sealer, chat)
            most = max(LEAST_STEP, reader.stretch_tokens)
            part = await read_part(session, sealer, chat, current, goal=goal, most=most)
        if part is None:
            return None
        return _Work(
            chat_id=chat_id,
            part=part,
            words=wanted.words,
            model_id=reader.model_id,
            sampling=reader.sampling,
        )

    async def _step(self, job: RunningJob, work: _Work) -> bool:
        """One call of the model, stored. False where the path it is about was left meanwhile."""
        said = Said()
        try:
            await self._ask(work, said)
            text = plain(said.text, min(MAX_SUMMARY_CHARS, work.words * OVERLONG * CHARS_PER_WORD))
            if not text:
                raise ModelEmptyReplyError
        except REFUSED as error:
            if job.attempt < BLOCKED_ATTEMPTS:
                await self._note_failure(job, work, said, error)
            else:
                # It would be so for ever, and nothing behind these lines would be summed up.
                await self._store(job, work, said, self._passed_over(work.part), error=error)
            raise
        except AppError as error:
            await self._note_failure(job, work, said, error)
            if isinstance(error, ModelRateLimitError) and error.retry_after is not None:
                raise RetryLaterError(error.detail, after=max(1.0, error.retry_after)) from error
            raise
        return await self._store(job, work, said, text)

    async def _note_failure(
        self, job: RunningJob, work: _Work, said: Said, error: AppError
    ) -> None:
        async with job.step() as session:
            if await locked_chat(session, job.keys.user_id, work.chat_id) is not None:
                await note_failed(session, job.keys, _run(job, work, said, problem=error.slug))

    async def _store(
        self, job: RunningJob, work: _Work, said: Said, text: str, *, error: AppError | None = None
    ) -> bool:
        """Keep a text as the summary through a part; with an `error` it stands in for one.

        False where the path was left meanwhile.
        """
        async with job.step() as session:
            chat = await locked_chat(session, job.keys.user_id, work.chat_id)
            if chat is None:
                return False
            message = await self._last_line(session, job, chat, work.part)
            if message is None:
                await note_failed(session, job.keys, _run(job, work, said, problem=PATH_CHANGED))
                return False
            if error is None:
                await note_done(session, _run(job, work, said))
            else:
                run = _run(job, work, said, problem=error.slug, note=PASSED_OVER)
                await note_failed(session, job.keys, run)
            await session.flush()
            run_id = None if error else said.run_id
            await store_summary(session, job.keys, message, text, run_id=run_id)
            await job.progress(work.part.last_position + 1, work.part.goal + 1)
        return True

    def _passed_over(self, part: SummaryPart) -> str:
        """The summary so far, and that something is missing behind it."""
        before = part.previous.text if part.previous else ""
        missing = self._prompts["sections/omitted"].render(count=len(part.lines))
        whole = f"{before}\n{missing}".strip()
        return whole if len(whole) <= MAX_SUMMARY_CHARS else before

    async def _last_line(
        self, session: AsyncSession, job: RunningJob, chat: Chat, part: SummaryPart
    ) -> Message | None:
        """The line that the new summary ends with; None where nobody wants it any more.

        That is so when its path was left, when a line of the part went on (`continue`), was hidden
        or shown, or when the summary that it builds on is another one by now.
        """
        current = await current_summary(session, job.keys, chat)
        if (
            not read_settings(job.keys, chat).summary.enabled
            or _version(current) != _version(part.previous)
            or not await is_as_read(session, chat.id, part)
        ):
            return None
        return await session.get(Message, part.message_ids[-1])

    async def _ask(self, work: _Work, said: Said) -> None:
        """Have the model write. `said` is filled in as it goes, so that nothing spent is lost.

        Raises `UnknownModelError` and `ModelError`.
        """
        model = self._registry.get(work.model_id)
        previous = work.part.previous
        system = self._prompts["enrichment/summary"].render(words=work.words)
        lines = self._prompts["enrichment/summary_lines"].render(
            previous=without_tags(previous.text) if previous else "",
            lines=work.part.lines,
            words=work.words,
        )
        prompt = Prompt([PromptMessage("system", system), PromptMessage("user", lines)])
        said.calls += 1
        sampling = sampling_for(work.words, model.spec, work.sampling)
        async with aclosing(model.stream(prompt, sampling)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextPiece):
                    said.text += piece.text
                elif isinstance(piece, TokenUsage):
                    said.prompt_tokens = piece.prompt_tokens
                    said.completion_tokens = piece.completion_tokens
        if not said.prompt_tokens:
            # Not every server says what was used.
            said.prompt_tokens = estimate(prompt)
            said.completion_tokens = len(said.text) // CHARACTERS_A_TOKEN + 1


def _version(summary: StoredSummary | None) -> tuple[UUID, int] | None:
    return (summary.message_id, summary.revision) if summary else None


def _run(
    job: RunningJob, work: _Work, said: Said, *, problem: str | None = None, note: str = ""
) -> EnrichmentRun:
    return run_row(
        job, work.chat_id, work.part, said, model_id=work.model_id, problem=problem, note=note
    )
