"""What runs of the agent have in common, whatever stretch they read and why.

A run is one transaction: effects, watermark, index notes, and the row that tells about it. One
whose lines were left while the model read writes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import open_settings
from backend.accounts.models import KeyMode, User
from backend.accounts.settings import EnrichmentSettings, first_set
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chats.service import read_settings
from backend.database.base import new_id, now, upsert
from backend.enrichment.agent.agent import Agent
from backend.enrichment.daily_budget import check_daily_budget, spent_today
from backend.enrichment.detail import RunDetail
from backend.enrichment.llm_selection import choose_model, filter_alone
from backend.enrichment.models import EnrichmentMark, EnrichmentRun, RunKind, RunState
from backend.enrichment.runs import note_failed, sealed_detail
from backend.enrichment.story import STRETCH_TOKENS, TranscriptSlice, is_unchanged
from backend.enrichment.study import AgentResult, RunBudget
from backend.errors import AppError
from backend.generation.model import (
    ModelBlockedError,
    ModelEmptyReplyError,
    ModelMalformedAnswerError,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import UNEXPECTED, RunningJob
from backend.logs import get_logger
from backend.settings import Settings
from backend.vault.sealing import Sealer

log = get_logger(__name__)

PASSED_OVER = ModelBlockedError, ModelEmptyReplyError, ModelMalformedAnswerError
"""What lines may call forth for ever: nothing that comes after them would be read."""

BLOCKED_ATTEMPTS = 3
"""From this attempt on, lines at which the model fails like that are passed over."""

PATH_CHANGED = "path-changed"
"""`error` of a run whose lines were swiped away, edited or hidden while the model read them."""


_DROPPED = 3
"""Times in a row that a path may change while a model works on it, until the job waits."""
_WAIT_SECONDS = 30.0


class PathChangedError(AppError):
    """The lines are not as they were read any more: nothing of the run is written."""

    slug, title = PATH_CHANGED, "The chat went another way meanwhile"


@dataclass(slots=True)
class Dropped:
    """How often in a row what a model made of a path was dropped, for that had changed."""

    times: int = 0

    def once_more(self) -> None:
        """Raises `RetryLaterError` where the chat is to be left alone for a while."""
        self.times += 1
        if self.times == _DROPPED:
            raise RetryLaterError("The chat changes too fast.", after=_WAIT_SECONDS)

    def begin_anew(self) -> None:
        """Something was written."""
        self.times = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """The user of a job, for the index's jobs that follow it."""

    sealer: Sealer = field(repr=False)
    key_mode: KeyMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a chat: which model, under which settings, and how much at a time.

    `stretch_tokens` is in the chat's unit.
    """

    holder: Holder
    settings: EnrichmentSettings
    model_id: str
    sampling: Sampling
    stretch_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One run: what is read, by whom, and what that may cost."""

    kind: RunKind
    reader: Reader
    stretch: TranscriptSlice
    purse: RunBudget
    run_id: UUID = field(default_factory=new_id)
    begun: float = field(default_factory=time.monotonic)


class RunWork:
    """Prepares runs, has the agent study, and keeps account of what came of it."""

    def __init__(self, agent: Agent, registry: ModelRegistry, settings: Settings) -> None:
        self._agent = agent
        self._registry = registry
        self._settings = settings

    async def reader(self, session: AsyncSession, sealer: Sealer, chat: Chat) -> Reader:
        """Who would read a chat now."""
        return await find_reader(session, self._registry, self._settings, sealer, chat)

    async def purse(self, session: AsyncSession, user_id: UUID) -> RunBudget:
        """What one run may take of what is left for the day. Raises `RetryLaterError`."""
        allowed, at = self._settings.enrichment_tokens_per_day, now()
        await check_daily_budget(session, user_id, at, allowed=allowed)
        left = allowed - await spent_today(session, user_id, at)
        return RunBudget(min(self._settings.enrichment_tokens_per_run, left))

    async def study(self, work: Work) -> AgentResult:
        """What the agent makes of a stretch. Raises what `Agent.study` does."""
        return await self._agent.study(
            work.reader.holder.sealer,
            work.stretch,
            model_id=work.reader.model_id,
            purse=work.purse,
            sampling=work.reader.sampling,
        )

    async def note_failure(
        self, session: AsyncSession, job: RunningJob, work: Work, error: Exception
    ) -> bool:
        """A run that failed; the same failure again is one row. False where the chat is gone."""
        if await locked_chat(session, job.keys.user_id, work.stretch.chat_id) is None:
            return False
        run = run_row(job, work, "failed", error=error)
        detail = RunDetail(message_ids=[line.id for line in work.stretch.lines])
        run.sealed_detail = sealed_detail(job.keys, run.id, detail)
        run = await note_failed(session, job.keys, run)
        log_run(job, work, run, count=0)
        return True


async def find_reader(
    session: AsyncSession, registry: ModelRegistry, settings: Settings, sealer: Sealer, chat: Chat
) -> Reader:
    """Who would read a chat of the sealer's user now."""
    owner = await session.get_one(User, sealer.user_id)
    account, own = open_settings(sealer, owner.sealed_settings), read_settings(sealer, chat)
    model_id = choose_model(
        registry,
        settings,
        own.enrichment,
        account.enrichment,
        own.model or account.model or registry.default_id,
    )
    spec = next((each for each in registry.specs() if each.id == model_id), None)
    filters = own.sampling, account.sampling
    return Reader(
        holder=Holder(sealer, owner.key_mode),
        settings=merged(own.enrichment, account.enrichment),
        model_id=model_id,
        sampling=filter_alone(filters, spec) if spec else Sampling(),
        stretch_tokens=stretch_tokens(spec.context_window if spec else None),
    )


def merged(chat: EnrichmentSettings, account: EnrichmentSettings) -> EnrichmentSettings:
    """A chat's settings over its account's."""
    chain = chat, account
    return EnrichmentSettings(
        model=first_set(chain, "model", None),
        may_edit_lore=first_set(chain, "may_edit_lore", None),
    )


def stretch_tokens(window: int | None) -> int:
    """Stored tokens of new lines in one run: of small models a quarter of their window."""
    return STRETCH_TOKENS if window is None else min(STRETCH_TOKENS, window // 4)


async def locked_chat(session: AsyncSession, owner_id: UUID, chat_id: UUID) -> Chat | None:
    """The chat of a run, kept as it is for the length of the transaction; None when it is gone."""
    try:
        return await get_chat(session, chat_id, owner_id=owner_id, lock=True)
    except ChatNotFoundError:
        return None


async def is_wanted(session: AsyncSession, work: Work) -> bool:
    """Whether what was read is still what the chat says, and its owner still agrees.

    Locks the chat.
    """
    owner_id = work.reader.holder.sealer.user_id
    chat = await locked_chat(session, owner_id, work.stretch.chat_id)
    return (
        chat is not None
        and chat.chronicle_enabled
        and chat.chronicle_id == work.stretch.chronicle_id
        and work.stretch.since in {None, chat.chronicle_since}
        and await is_unchanged(session, work.stretch)
    )


async def set_mark(session: AsyncSession, work: Work) -> None:
    """Note that everything down to the last line has been read.

    With the last reply before it, so that when the last one is swiped away, the next run reads what
    comes instead of it, and not the whole stretch anew.
    """
    *before, last = work.stretch.lines
    replies = [line for line in before if line.role != "user"]
    for line in (*replies[-1:], last):
        values = {
            "id": line.id,
            "user_id": work.reader.holder.sealer.user_id,
            "chat_id": work.stretch.chat_id,
            "position": line.position,
        }
        await upsert(session, EnrichmentMark, values, key=["id"], update={})


def run_row(
    job: RunningJob, work: Work, state: RunState, *, error: Exception | None = None
) -> EnrichmentRun:
    """The row of a run, but for what is sealed in it."""
    stretch, purse = work.stretch, work.purse
    slug = error.slug if isinstance(error, AppError) else UNEXPECTED
    return EnrichmentRun(
        id=work.run_id,
        user_id=job.keys.user_id,
        chat_id=stretch.chat_id,
        chronicle_id=stretch.chronicle_id,
        job_id=job.id,
        kind=work.kind,
        state=state,
        model=work.reader.model_id,
        from_position=stretch.lines[0].position,
        to_position=stretch.lines[-1].position,
        calls=purse.calls,
        prompt_tokens=purse.prompt_tokens,
        completion_tokens=purse.completion_tokens,
        duration_ms=round((time.monotonic() - work.begun) * 1000),
        error=slug if error else None,
    )


def log_run(job: RunningJob, work: Work, run: EnrichmentRun, *, count: int) -> None:
    """One line in the log for a run that is over; `count` is how much it wrote."""
    log.info(
        "enrichment.finished",
        job_id=job.id,
        run_id=run.id,
        chat_id=work.stretch.chat_id,
        chronicle_id=work.stretch.chronicle_id,
        model=work.reader.model_id,
        state=run.state,
        problem=run.error,
        attempt=job.attempt,
        count=count,
        prompt_tokens=work.purse.prompt_tokens,
        completion_tokens=work.purse.completion_tokens,
        duration_ms=run.duration_ms,
    )
