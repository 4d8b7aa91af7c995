"""The lifecycle of a background job: load, propose, apply, record.

A job is a `Task`: the agent that reads new messages, a rebuild, the rolling summary, the glossary
of a campaign, a scene, or a chapter. It works run by run until nothing is left. Each run

1. loads its messages, in a transaction that only reads; 2. proposes: asks the model, without an
open transaction. Turns come first: at a server that
   answers few requests at the same time, the run waits for them, and a new turn interrupts it;
3. applies its proposal and records itself in one transaction, if the chat is unchanged. A run that
   asked no model and wrote nothing is not recorded. Later runs do not affect it.

A run that fails writes nothing. Its cost is recorded, and the task decides how to continue. A run
that a turn interrupted begins again later and does not count as a failure. `runs.undo` undoes a
run.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.campaigns.ledger.records import find_campaign
from backend.campaigns.state.snapshot import SnapshotCache
from backend.campaigns.state.story_clock import StoryClock
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles.models import Chronicle
from backend.core.logs import get_logger
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.enrichment.agent.agent import DEMO_NOTE, Agent
from backend.enrichment.errors import ChronicleNotEnabledError, OtherChronicleError
from backend.enrichment.models import EnrichmentRun, RunKind
from backend.enrichment.outbox import EnrichmentOutbox
from backend.enrichment.reader import (
    OUTPUT_TOKENS,
    STRETCH_TOKENS,
    ModelTask,
    Reader,
    find_reader,
    naming_setting,
)
from backend.enrichment.runs.store import (
    RunDetail,
    build_run,
    record_failure,
    record_success,
    record_unlisted,
    seal_detail,
)
from backend.errors import AppError
from backend.generation.model import (
    ModelBlockedError,
    ModelContextOverflowError,
    ModelDeclinedError,
    ModelEmptyReplyError,
    ModelError,
    ModelMalformedAnswerError,
    ModelRateLimitError,
    ModelWritesNoJsonError,
    Prompt,
)
from backend.generation.registry import UnknownModelError
from backend.http.schemas import MAX_INTEGER, ShownProblem
from backend.jobs.errors import RetryLaterError
from backend.jobs.models import Job
from backend.jobs.running import UNEXPECTED_SLUG, RunningJob
from backend.llm.answers import RunBudget, ask
from backend.llm.server_slots import ModelBusyError, ModelSlots, SlotTakenError
from backend.llm.slot_rules import Rank, SlotUse, SlotWork
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.prompts import PromptLibrary
from backend.settings import Settings

log = get_logger(__name__)

SKIPPABLE_ERRORS = (
    ModelBlockedError,
    ModelDeclinedError,
    ModelEmptyReplyError,
    ModelMalformedAnswerError,
)
"""Errors that some messages may cause every time. Without an exception, the task could never read
any later message."""

MAX_BLOCKED_ATTEMPTS = 3
"""From this attempt on, messages that cause one of `SKIPPABLE_ERRORS` are skipped."""

MIN_STRETCH_TOKENS = 250
"""Below this, a prompt that is too long is too long because of its instructions."""

_MAX_PATH_CHANGES = 3
"""The job waits if the path has changed so often in a row while a model was working."""
_WAIT_SECONDS = 30.0

_PATIENCE_SECONDS = 2.0
"""Seconds that a job waits for the model's server before it frees its worker."""
_RETRY_SECONDS = 4.0
"""Seconds until a job that a turn has interrupted is tried again."""


class PathChangedError(AppError):
    """The messages have changed since they were read, so the run writes nothing."""

    slug, title = "path-changed", "The chat has changed"


class EventsChangedError(PathChangedError):
    """Another job has recorded similar events of the same messages, so the run begins again."""

    slug, title = "events-changed", "The same messages were recorded at the same time"


@dataclass(frozen=True, kw_only=True)
class RunWork:
    """The messages, the reader and the token budget of one run.

    `ends_job` says that nothing is left after the run. The job then ends in the same transaction.
    """

    reader: Reader
    budget: RunBudget
    message_ids: Sequence[UUID]
    from_position: int
    to_position: int
    chronicle_id: UUID | None = None
    ends_job: bool = False
    run_id: UUID = field(default_factory=new_id)
    begun: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class RunRecovery:
    """The way on after a failed run: the next run, an error, or the end of the job.

    `note` is shown to the user.
    """

    raises: Exception | None = None
    is_over: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class EnrichmentRuntime:
    """The services of tasks. `draw` returns numbers from [0, 1) for the waits between attempts."""

    database: Database
    user_models: UserModels
    settings: Settings
    prompts: PromptLibrary
    agent: Agent
    index: IndexOutbox
    outbox: EnrichmentOutbox
    slots: ModelSlots
    clock: StoryClock
    names: SnapshotCache
    draw: Callable[[], float] = random.random


W = TypeVar("W", bound=RunWork)
P = TypeVar("P")
A = TypeVar("A", bound=msgspec.Struct)


class Task(ABC, Generic[W, P]):
    """One attempt at a job. `run` is the lifecycle; subclasses implement its steps."""

    kind: RunKind
    task: ClassVar[ModelTask] = "agent"
    json_task: ClassVar[ModelTask | None] = None
    """The model task that is asked for JSON, if it differs from `task`."""
    use: ClassVar[SlotUse] = "campaign"
    """The name of the work for a turn that waits for its model."""

    def __init__(self, runtime: EnrichmentRuntime, job: RunningJob) -> None:
        self.runtime = runtime
        self.job = job
        self.sealer = job.keys
        self.chat_id = UUID(job.payload["chat_id"])
        self._most_tokens = STRETCH_TOKENS

    @abstractmethod
    async def load(self, session: AsyncSession, chat: Chat) -> W | None:
        """Load the next run. Return None if nothing is left.

        Raises `ChronicleNotEnabledError` and `OtherChronicleError` if the chat may no longer be
        read, and `RetryLaterError` if the user's daily tokens are used up.
        """

    @abstractmethod
    async def propose(self, work: W) -> P:
        """Ask the model. Raises `UnknownModelError` and `ModelError`."""

    @abstractmethod
    async def apply(self, session: AsyncSession, chat: Chat, work: W, proposal: P) -> RunDetail:
        """Write the proposal. `chat` is locked. Raises `PathChangedError`."""

    def output_tokens(self, work: W) -> int:  # noqa: ARG002  # for kinds of work that write more
        """Return the limit of tokens for one answer, without thinking."""
        return OUTPUT_TOKENS

    async def recover(
        self,
        session: AsyncSession,  # noqa: ARG002  # for kinds of work that write something
        work: W,  # noqa: ARG002  # for kinds of work that divide it
        error: Exception,
    ) -> RunRecovery:
        """Decide how to continue after a failure, in the transaction that records it.

        By default the job is retried if that may help, and ends otherwise.
        """
        match error:
            case PathChangedError():
                return RunRecovery()
            case UnknownModelError() | ModelError(retryable=False):
                return RunRecovery(is_over=True)
            case _ if (
                isinstance(error, SKIPPABLE_ERRORS) and self.job.attempt >= MAX_BLOCKED_ATTEMPTS
            ):
                return RunRecovery(is_over=True)
            case _:
                return RunRecovery(raises=error)

    async def fold_campaign(self) -> None:
        """Fold campaign changes that were stored while the user's key was not available."""
        async with self.runtime.database.write() as session:
            chat = await session.get(Chat, self.chat_id)
            if chat is not None and chat.campaign_id is not None:
                await find_campaign(session, self.sealer, chat.campaign_id, lock=True)

    async def run(self) -> None:
        """Execute runs until nothing is left. Earlier runs are kept if a later one fails.

        Raises `RetryLaterError` if the user's daily tokens are used up, the provider names a time,
        turns need the model, or the chat changes too often. Raises the error that `recover`
        returns.
        """
        changes = 0
        while not self.job.is_over and (work := await self._load()) is not None:
            try:
                proposal = await self._propose_in_turn(work)
            except ModelContextOverflowError as error:
                if self._reduce_stretch(work):
                    continue
                if not await self._handle_failure(work, error):
                    return
                continue
            except Exception as error:  # noqa: BLE001  # it is recorded; what then, `recover` says
                if not await self._handle_failure(work, error):
                    return
                continue
            try:
                await self._write(work, proposal)
                changes = 0
            except PathChangedError as error:
                changes += 1
                if not await self._handle_failure(work, error):
                    return
                if changes == _MAX_PATH_CHANGES:
                    raise RetryLaterError(
                        "The chat changes too often.", after=_WAIT_SECONDS
                    ) from error

    async def load_reader(self, session: AsyncSession, chat: Chat) -> Reader:
        """Return the reader of the chat. It reads less at a time after a prompt was refused."""
        runtime = self.runtime
        reader = await find_reader(
            session, runtime.user_models, runtime.settings, self.sealer, chat, self.task
        )
        return replace(reader, stretch_tokens=min(reader.stretch_tokens, self._most_tokens))

    def _reduce_stretch(self, work: W) -> bool:
        """Halve the messages of the next run. Return False if that would be too little.

        The next reader also knows the window size that the refusal revealed. That alone may not
        help, because the instructions do not get shorter with the window.
        """
        self._most_tokens = work.reader.stretch_tokens // 2
        return self._most_tokens >= MIN_STRETCH_TOKENS

    async def ask(self, work: W, prompt: Prompt, schema: Mapping[str, Any], answer: type[A]) -> A:
        """Return the model's answer as a struct, and count its tokens.

        Raises `ModelMalformedAnswerError` if the answer does not fit, and other errors of the
        model.
        """
        model = work.reader.model
        sampling = work.reader.build_sampling(model, self.output_tokens(work))
        value = await ask(model, prompt, schema, sampling=sampling, budget=work.budget)
        try:
            return msgspec.convert(value, answer)
        except msgspec.ValidationError as error:
            raise ModelMalformedAnswerError(
                f"The model did not return a {self.kind} in the requested format."
            ) from error

    def build_note(self, work: RunWork) -> str:
        """Return the note for the user that the demo model did the work; empty for other models."""
        model = work.reader.model
        return DEMO_NOTE if model.spec.provider == "demo" else ""

    async def _propose_in_turn(self, work: W) -> P:
        asking = SlotWork(
            use=self.use,
            rank=Rank.BACKGROUND,
            user_id=self.sealer.user_id,
            chat_id=self.chat_id,
        )
        limits = work.reader.limits
        async with self.runtime.slots.hold(limits, asking, patience=_PATIENCE_SECONDS):
            return await self.propose(work)

    async def _note_interruption(self, work: W, error: AppError) -> None:
        """Record the cost of a run that was interrupted after the model had answered."""
        if not work.budget.calls:
            return
        async with self.job.step() as session:
            chat = await self.lock_chat(session)
            if chat is not None:
                detail = RunDetail(message_ids=list(work.message_ids))
                run = await self._build_run(session, chat, work, detail, error)
                await record_failure(session, self.sealer, run)
            else:
                await self._note_tokens(session, work)

    async def _note_tokens(self, session: AsyncSession, work: W) -> None:
        """Count the tokens of a run if its chat was deleted while the model worked."""
        model = work.reader.model_id
        await record_unlisted(session, self.sealer.user_id, model, work.budget)

    async def _load(self) -> W | None:
        try:
            async with self.runtime.database.read() as session:
                chat = await get_chat(session, self.chat_id, owner_id=self.sealer.user_id)
                return await self.load(session, chat)
        except (ChatNotFoundError, ChronicleNotEnabledError, OtherChronicleError) as error:
            async with self.job.finish() as session:
                await self._note_reason(session, error)
            return None

    async def _note_reason(self, session: AsyncSession, error: AppError) -> None:
        """Store the error in the job, if its row is kept."""
        await session.execute(
            update(Job)
            .where(Job.id == self.job.id)
            .values(error=error.slug)
            .execution_options(synchronize_session=False)
        )

    async def _write(self, work: W, proposal: P) -> None:
        async with self.job.finish() if work.ends_job else self.job.step() as session:
            chat = await self.lock_chat(session)
            if chat is None:
                raise PathChangedError
            detail = await self.apply(session, chat, work, proposal)
            run = await self._build_run(session, chat, work, detail)
            if run.calls or detail.effects:
                await record_success(session, run)
        self._log(work, run, count=len(detail.effects))

    async def _handle_failure(self, work: W, error: Exception) -> bool:
        """Record a failure. Return False if the job is over.

        A repeated failure updates its row. Raises `RetryLaterError` if turns need the model, which
        is not a failure.
        """
        if isinstance(error, ModelBusyError | SlotTakenError):
            await self._note_interruption(work, error)
            raise RetryLaterError(error.title, after=_RETRY_SECONDS) from error
        async with self.job.step() as session:
            chat = await self.lock_chat(session)
            recovery = await self.recover(session, work, error)
            if recovery.is_over and isinstance(error, AppError):
                await self._note_reason(session, error)
            if chat is not None:
                note = recovery.note
                if isinstance(error, ModelWritesNoJsonError):
                    note = naming_setting(error, self.json_task or self.task).detail or ""
                detail = RunDetail(
                    message_ids=list(work.message_ids),
                    note=note,
                    problem=await self._show_problem(session, error),
                )
                run = await self._build_run(session, chat, work, detail, error)
                self._log(work, await record_failure(session, self.sealer, run), count=0)
            else:
                await self._note_tokens(session, work)
        if isinstance(error, ModelRateLimitError) and error.retry_after is not None:
            raise RetryLaterError(error.detail, after=max(1.0, error.retry_after)) from error
        if recovery.raises is error:
            raise error
        if recovery.raises is not None:
            raise recovery.raises from error
        return not recovery.is_over

    async def _show_problem(self, session: AsyncSession, error: Exception) -> ShownProblem | None:
        """Return the error as the user may see it; None for an internal error."""
        if not isinstance(error, AppError):
            return None
        user = await session.get_one(User, self.sealer.user_id)
        return ShownProblem.from_error(error, for_administrator=user.is_administrator)

    async def lock_chat(self, session: AsyncSession) -> Chat | None:
        """Return the chat, locked until the end of the transaction; None if it was deleted."""
        try:
            return await get_chat(session, self.chat_id, owner_id=self.sealer.user_id, lock=True)
        except ChatNotFoundError:
            return None

    async def _build_run(
        self,
        session: AsyncSession,
        chat: Chat,
        work: W,
        detail: RunDetail,
        error: Exception | None = None,
    ) -> EnrichmentRun:
        """Return the row of a run. If its chronicle is being deleted, it belongs to its chat only.

        Otherwise its tokens would be lost, because those of the chronicle are counted already.
        """
        kept = select(Chronicle.id).where(
            Chronicle.id == work.chronicle_id, Chronicle.match_owner(self.sealer.user_id)
        )
        chronicle_id = await session.scalar(kept.with_for_update(read=True, key_share=True))
        delay_ms = round((now() - self.job.created_at).total_seconds() * 1000)
        slug = error.slug if isinstance(error, AppError) else UNEXPECTED_SLUG
        return build_run(
            chat,
            self.kind,
            model=work.reader.model_id,
            positions=(work.from_position, work.to_position),
            budget=work.budget,
            seconds=time.monotonic() - work.begun,
            error=slug if error else None,
            id=work.run_id,
            chronicle_id=chronicle_id,
            job_id=self.job.id,
            delay_ms=min(delay_ms, MAX_INTEGER),  # a job can wait months for its key
            sealed_detail=seal_detail(self.sealer, work.run_id, detail),
        )

    def _log(self, work: W, run: EnrichmentRun, *, count: int) -> None:
        log.info(
            "enrichment.finished",
            job_kind=self.job.kind,
            job_id=self.job.id,
            run_id=run.id,
            chat_id=self.chat_id,
            chronicle_id=run.chronicle_id,
            model=run.model,
            state=run.state,
            problem=run.error,
            attempt=self.job.attempt,
            count=count,
            prompt_tokens=work.budget.prompt_tokens,
            completion_tokens=work.budget.completion_tokens,
            duration_ms=run.duration_ms,
        )
