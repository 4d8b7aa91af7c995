"""The job behind the reply: the agent reads what is new, and what it found is written down.

Each stretch is a run; with the last one the job ends, in the same transaction.
"""

from __future__ import annotations

from uuid import UUID

from backend.chats.errors import ChatNotFoundError
from backend.chats.repository import get_chat
from backend.database.engine import Database
from backend.enrichment.agent.agent import Agent
from backend.enrichment.effects import apply
from backend.enrichment.outbox import TURN
from backend.enrichment.run_work import (
    BLOCKED_ATTEMPTS,
    PASSED_OVER,
    Dropped,
    PathChangedError,
    RunWork,
    Work,
    is_wanted,
    log_run,
    run_row,
    set_mark,
)
from backend.enrichment.runs import note_done, sealed_detail
from backend.enrichment.story import behind_mark, is_unchanged, read_unread
from backend.enrichment.study import AgentResult
from backend.generation.model import ModelRateLimitError
from backend.generation.registry import ModelRegistry
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import JobKind, RunningJob
from backend.memory.outbox import IndexOutbox
from backend.settings import Settings


class TurnEnricher:
    """Has the agent read what a chat said since it read last, until nothing is left."""

    def __init__(
        self,
        database: Database,
        agent: Agent,
        registry: ModelRegistry,
        settings: Settings,
        index: IndexOutbox,
    ) -> None:
        self._database = database
        self._runs = RunWork(agent, registry, settings)
        self._index = index

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {TURN: JobKind(self.enrich)}

    async def enrich(self, job: RunningJob) -> None:
        """Read stretch by stretch. What was written stays when it is broken off.

        Raises `RetryLaterError` where the user's tokens for the day are spent, the provider says
        when to come back, or the chat changes all the time; else what the model raised. The next
        attempt, or the job behind the next reply, goes on behind the watermark.
        """
        dropped = Dropped()
        while (work := await self._next(job)) is not None:
            try:
                study = await self._studied(job, work)
                await self._write(job, work, study)
            except PathChangedError as error:
                await self._note_failure(job, work, error)
                dropped.once_more()
                continue
            dropped.begin_anew()
            if work.stretch.is_last:
                return

    async def _next(self, job: RunningJob) -> Work | None:
        """What is to be read now; None without consent, without a chat, or without news."""
        sealer, chat_id = job.keys, UUID(job.payload["chat_id"])
        async with self._database.read() as session:
            try:
                chat = await get_chat(session, chat_id, owner_id=sealer.user_id)
            except ChatNotFoundError:
                return None
            if not chat.chronicle_enabled:
                return None
            reader = await self._runs.reader(session, sealer, chat)
            stretch = await read_unread(
                session, sealer, chat, reader.settings, most_tokens=reader.stretch_tokens
            )
            if stretch is None:
                return None
            purse = await self._runs.purse(session, sealer.user_id)
        return Work(kind="turn", reader=reader, stretch=stretch, purse=purse)

    async def _studied(self, job: RunningJob, work: Work) -> AgentResult:
        """What the agent makes of a stretch. What goes wrong is noted, with what it cost."""
        try:
            return await self._runs.study(work)
        except PASSED_OVER as error:
            passes_over = job.attempt >= BLOCKED_ATTEMPTS
            await self._note_failure(job, work, error, passes_over=passes_over)
            raise
        except ModelRateLimitError as error:
            await self._note_failure(job, work, error)
            if error.retry_after is None:
                raise
            raise RetryLaterError(error.detail, after=max(1.0, error.retry_after)) from error
        except Exception as error:
            await self._note_failure(job, work, error)
            raise

    async def _write(self, job: RunningJob, work: Work, study: AgentResult) -> None:
        """Everything that a run leaves, in one transaction. Raises `PathChangedError`."""
        writing = job.finish() if work.stretch.is_last else job.step()
        async with writing as session:
            # Where the chat went over to another chronicle, two of its jobs may have read this.
            first, chat_id = work.stretch.lines[0].position, work.stretch.chat_id
            if not await is_wanted(session, work) or await behind_mark(session, chat_id) > first:
                raise PathChangedError
            run = run_row(job, work, "done")
            await note_done(session, run)
            written = await apply(
                session, work.reader.holder, self._index, work.stretch, study, run_id=work.run_id
            )
            detail = study.detail(written.effects, written.refused)
            run.sealed_detail = sealed_detail(job.keys, run.id, detail)
            await set_mark(session, work)
        log_run(job, work, run, count=len(written.effects))

    async def _note_failure(
        self, job: RunningJob, work: Work, error: Exception, *, passes_over: bool = False
    ) -> None:
        """A run that failed, in a transaction of its own.

        `passes_over` moves the watermark behind the lines that it failed at.
        """
        async with job.step() as session:
            is_noted = await self._runs.note_failure(session, job, work, error)
            if is_noted and passes_over and await is_unchanged(session, work.stretch):
                await set_mark(session, work)
