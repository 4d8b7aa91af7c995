"""The lifecycle of the work behind the reply: load, propose, apply, record.

A job is a `Task`: the agent that reads what is new, a rebuild, the rolling summary, the glossary
of a campaign, one of its scenes, or a chapter of them. It goes on run by run until nothing is left.
Each run

1. loads what is to be read, in a transaction that only reads;
2. proposes: the model is asked, and no transaction is open. Turns come first: at a server that
   answers few requests at the same time, the run waits for them, and one that comes interrupts it;
3. applies what was proposed, if the chat is still as it was read, and records itself, in one
   transaction. What asked no model and wrote nothing leaves no record. What one run wrote stays,
   whatever becomes of the next.

A run that fails has written nothing, and is recorded with what it cost; then the task says what
comes next. A run that a turn interrupted begins again later. It is not a failure. `undo`
takes back what a run wrote.
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
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.campaigns.ledger.records import find_campaign
from backend.campaigns.state.snapshot import NameCache
from backend.campaigns.state.story_clock import StoryClock
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat
from backend.chats.repository import get_chat
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
    RunBudget,
    find_reader,
    naming_setting,
)
from backend.enrichment.runs.store import RunDetail, record_failure, record_success, seal_detail
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
from backend.llm.server_slots import ModelBusyError, ModelSlots, SlotTakenError
from backend.llm.slot_rules import Rank, SlotUse
from backend.llm.slot_rules import RunWork as SlotWork
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.prompts import PromptLibrary
from backend.quotas.ledgers import add_tokens_if_account
from backend.settings import Settings

log = get_logger(__name__)

SKIPPABLE_ERRORS = (
    ModelBlockedError,
    ModelDeclinedError,
    ModelEmptyReplyError,
    ModelMalformedAnswerError,
)
"""What lines may call forth for ever: nothing that comes after them would be read."""

MAX_BLOCKED_ATTEMPTS = 3
"""From this attempt on, lines at which the model fails like that are passed over."""

MIN_STRETCH_TOKENS = 250
"""With fewer tokens of lines a prompt that is too long is too long because of its instructions."""

_DROPPED = 3
"""Times in a row that a path may change while a model works on it, until the job waits."""
_WAIT_SECONDS = 30.0

_PATIENCE = 2.0
"""Seconds that a job waits for its model's server. Then others use its place among the workers."""
_AFTER_TURN = 4.0
"""Seconds until a job looks again whether the turns are over."""


class PathChangedError(AppError):
    """The lines are not as they were read any more: nothing of the run is written."""

    slug, title = "path-changed", "The chat went another way meanwhile"


class EventsChangedError(PathChangedError):
    """Other work has written events like those of the run, of the same lines: it begins again."""

    slug, title = "events-changed", "The same lines were written down at the same time"


@dataclass(frozen=True, kw_only=True)
class RunWork:
    """One run: what is read, by whom, and what that may cost.

    `ends_job`: nothing is left after it, so that the job ends in the transaction that it writes in.
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
    """What comes after a run that failed: the next one, unless something is raised, or it is over.

    `note` is for people.
    """

    raises: Exception | None = None
    is_over: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class EnrichmentRuntime:
    """What tasks work with. `draw` gives numbers from [0, 1), for the waits between tries."""

    database: Database
    user_models: UserModels
    settings: Settings
    prompts: PromptLibrary
    agent: Agent
    index: IndexOutbox
    outbox: EnrichmentOutbox
    slots: ModelSlots
    clock: StoryClock
    names: NameCache
    draw: Callable[[], float] = random.random


W = TypeVar("W", bound=RunWork)
P = TypeVar("P")
A = TypeVar("A", bound=msgspec.Struct)


class Task(ABC, Generic[W, P]):
    """One attempt at a job: `run` is the lifecycle, the rest is what kinds of work differ in."""

    kind: RunKind
    task: ClassVar[ModelTask] = "agent"
    json_task: ClassVar[ModelTask | None] = None
    """Whose model is asked for JSON, where it is not the task's."""
    use: ClassVar[SlotUse] = "campaign"
    """Names the task to a turn that waits for its model."""

    def __init__(self, runtime: EnrichmentRuntime, job: RunningJob) -> None:
        self.runtime = runtime
        self.job = job
        self.sealer = job.keys
        self.chat_id = UUID(job.payload["chat_id"])
        self._most_tokens = STRETCH_TOKENS

    @abstractmethod
    async def load(self, session: AsyncSession, chat: Chat) -> W | None:
        """What is to be read now; None where nothing is left.

        Raises `ChronicleNotEnabledError` and `OtherChronicleError` where it may not be read any
        more, and `RetryLaterError` where the user's tokens for the day are spent.
        """

    @abstractmethod
    async def propose(self, work: W) -> P:
        """Ask the model. Raises `UnknownModelError`, and `ModelError` as it left the model."""

    @abstractmethod
    async def apply(self, session: AsyncSession, chat: Chat, work: W, proposal: P) -> RunDetail:
        """Write what was proposed. `chat` is locked. Raises `PathChangedError`."""

    def output_tokens(self, work: W) -> int:  # noqa: ARG002  # for kinds of work that write more
        """Return the tokens that one answer may have, without thoughts."""
        return OUTPUT_TOKENS

    async def recover(
        self,
        session: AsyncSession,  # noqa: ARG002  # for kinds of work that write something
        work: W,  # noqa: ARG002  # for kinds of work that divide it
        error: Exception,
    ) -> RunRecovery:
        """What comes after a failure, in the transaction that records it.

        Another attempt, where that may help; else the work is over.
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
        """Fold what was changed of the chat's campaign while no key was at hand."""
        async with self.runtime.database.write() as session:
            chat = await session.get(Chat, self.chat_id)
            if chat is not None and chat.campaign_id is not None:
                await find_campaign(session, self.sealer, chat.campaign_id, lock=True)

    async def run(self) -> None:
        """Go on until nothing is left. What was written stays when it is broken off.

        Raises `RetryLaterError` where the user's tokens for the day are spent, the provider says
        when to come back, turns need the model, or the chat changes all the time; else what
        `recover` says.
        """
        changes = 0
        while not self.job.is_over and (work := await self._load()) is not None:
            try:
                proposal = await self._propose_in_turn(work)
            except ModelContextOverflowError as error:
                if self._reads_less(work):
                    continue
                if not await self._goes_on(work, error):
                    return
                continue
            except Exception as error:  # noqa: BLE001  # it is recorded; what then, `recover` says
                if not await self._goes_on(work, error):
                    return
                continue
            try:
                await self._write(work, proposal)
                changes = 0
            except PathChangedError as error:
                changes += 1
                if not await self._goes_on(work, error):
                    return
                if changes == _DROPPED:
                    raise RetryLaterError(
                        "The chat changes too fast.", after=_WAIT_SECONDS
                    ) from error

    async def reader(self, session: AsyncSession, chat: Chat) -> Reader:
        """Return the reader of the chat. It reads less at a time once a prompt was refused."""
        runtime = self.runtime
        reader = await find_reader(
            session, runtime.user_models, runtime.settings, self.sealer, chat, self.task
        )
        return replace(reader, stretch_tokens=min(reader.stretch_tokens, self._most_tokens))

    def _reads_less(self, work: W) -> bool:
        """Have the next run read half as much; False if that would be too little.

        The next reader knows the window that was learned from the refusal. That alone may not help,
        because the instructions do not get shorter with the window.
        """
        self._most_tokens = work.reader.stretch_tokens // 2
        return self._most_tokens >= MIN_STRETCH_TOKENS

    async def ask(self, work: W, prompt: Prompt, schema: Mapping[str, Any], answer: type[A]) -> A:
        """Return the model's answer as a struct, and count its tokens.

        Raises `ModelMalformedAnswerError` if it is none, and other errors of the model's.
        """
        model = work.reader.model
        try:
            sampling = work.reader.sampling_of(model, self.output_tokens(work))
            said = await model.structured(prompt, schema, sampling)
        except (ModelMalformedAnswerError, ModelDeclinedError):
            work.budget.take(None, prompt, "")
            raise
        work.budget.take(said.usage, prompt, str(said.value))
        try:
            return msgspec.convert(said.value, answer)
        except msgspec.ValidationError as error:
            raise ModelMalformedAnswerError(
                f"The model was asked for a {self.kind} and wrote something else."
            ) from error

    def note(self, work: RunWork) -> str:
        """What people are told of who wrote: that it was the demo model."""
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
        async with self.runtime.slots.hold(limits, asking, patience=_PATIENCE):
            return await self.propose(work)

    async def _note_interruption(self, work: W, error: AppError) -> None:
        """Record the cost of a run that was interrupted after the model had answered."""
        if not work.budget.calls:
            return
        async with self.job.step() as session:
            chat = await self.locked_chat(session)
            if chat is not None:
                detail = RunDetail(message_ids=list(work.message_ids))
                await record_failure(session, self.sealer, self._row(chat, work, detail, error))
            else:
                await self._note_tokens(session, work)

    async def _note_tokens(self, session: AsyncSession, work: W) -> None:
        """Note the tokens of a run whose chat was deleted while the model worked."""
        spent = work.budget.prompt_tokens + work.budget.completion_tokens
        await add_tokens_if_account(session, self.sealer.user_id, spent)

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
        """Have the job say why it is over, if its row is kept."""
        await session.execute(
            update(Job)
            .where(Job.id == self.job.id)
            .values(error=error.slug)
            .execution_options(synchronize_session=False)
        )

    async def _write(self, work: W, proposal: P) -> None:
        async with self.job.finish() if work.ends_job else self.job.step() as session:
            chat = await self.locked_chat(session)
            if chat is None:
                raise PathChangedError
            detail = await self.apply(session, chat, work, proposal)
            run = self._row(chat, work, detail)
            if run.calls or detail.effects:
                await record_success(session, run)
        self._log(work, run, count=len(detail.effects))

    async def _goes_on(self, work: W, error: Exception) -> bool:
        """Record a failure, the same one again in one row. False where the job is over.

        Raises `RetryLaterError` if turns need the model, which is not a failure.
        """
        if isinstance(error, ModelBusyError | SlotTakenError):
            await self._note_interruption(work, error)
            raise RetryLaterError(error.title, after=_AFTER_TURN) from error
        async with self.job.step() as session:
            chat = await self.locked_chat(session)
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
                run = self._row(chat, work, detail, error)
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
        """Return the part of a failure that the user may see; None for a fault of ours."""
        if not isinstance(error, AppError):
            return None
        user = await session.get_one(User, self.sealer.user_id)
        return ShownProblem.from_error(error, for_administrator=user.is_administrator)

    async def locked_chat(self, session: AsyncSession) -> Chat | None:
        """The chat, kept as it is for the length of the transaction; None when it is gone."""
        try:
            return await get_chat(session, self.chat_id, owner_id=self.sealer.user_id, lock=True)
        except ChatNotFoundError:
            return None

    def _row(
        self, chat: Chat, work: W, detail: RunDetail, error: Exception | None = None
    ) -> EnrichmentRun:
        delay_ms = round((now() - self.job.created_at).total_seconds() * 1000)
        slug = error.slug if isinstance(error, AppError) else UNEXPECTED_SLUG
        return EnrichmentRun(
            id=work.run_id,
            user_id=self.sealer.user_id,
            chat_id=self.chat_id,
            chronicle_id=work.chronicle_id,
            campaign_id=chat.campaign_id,
            job_id=self.job.id,
            kind=self.kind,
            state="failed" if error else "done",
            model=work.reader.model_id,
            from_position=work.from_position,
            to_position=work.to_position,
            **work.budget.columns(work.reader.model_id),
            duration_ms=round((time.monotonic() - work.begun) * 1000),
            delay_ms=min(delay_ms, MAX_INTEGER),  # a job may wait for its key for months
            error=slug if error else None,
            sealed_detail=seal_detail(self.sealer, work.run_id, detail),
        )

    def _log(self, work: W, run: EnrichmentRun, *, count: int) -> None:
        """A line for a run that is over; `count` is how much it wrote."""
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
