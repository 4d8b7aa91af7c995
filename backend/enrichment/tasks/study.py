"""What the agent reads: the lines behind a stored reply, run by run until it has read them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat
from backend.database.base import upsert
from backend.enrichment.agent.proposals import AgentResult
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.models import EnrichmentMark
from backend.enrichment.pipeline import (
    MAX_BLOCKED_ATTEMPTS,
    SKIPPABLE_ERRORS,
    PathChangedError,
    RunRecovery,
    RunWork,
    Task,
)
from backend.enrichment.reader import Reader, open_budget
from backend.enrichment.runs.effects import Changed, ProposalWriter, update_index
from backend.enrichment.runs.store import RunDetail, RunEffect
from backend.enrichment.story import (
    TranscriptSlice,
    find_unread_position,
    is_unchanged,
    read_unread,
)
from backend.generation.registry import UnknownModelError
from backend.memory.index.protocol import Kind

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class StudyWork(RunWork):
    """A stretch of the active path, for a model."""

    stretch: TranscriptSlice


class StretchTask(Task[StudyWork, P], Generic[P]):
    """A model reads a stretch of a chat whose owner agrees to it."""

    async def new_work(
        self, session: AsyncSession, reader: Reader, stretch: TranscriptSlice
    ) -> StudyWork:
        """A run that reads a stretch. Raises `RetryLaterError`."""
        return StudyWork(
            reader=reader,
            budget=await open_budget(session, self.runtime.settings, self.sealer.user_id),
            stretch=stretch,
            chronicle_id=stretch.chronicle_id,
            message_ids=[line.id for line in stretch.lines],
            from_position=stretch.lines[0].position,
            to_position=stretch.lines[-1].position,
        )

    async def check_wanted(self, session: AsyncSession, chat: Chat, work: StudyWork) -> None:
        """Raises `PathChangedError` unless the chat says what was read, and its owner agrees."""
        stretch = work.stretch
        is_wanted = (
            chat.chronicle_enabled
            and chat.chronicle_id == stretch.chronicle_id
            and stretch.since in {None, chat.chronicle_since}
            and await is_unchanged(session, stretch)
        )
        if not is_wanted:
            raise PathChangedError


class StudyTask(StretchTask[AgentResult]):
    """The agent reads a stretch, and what it proposes is written down."""

    json_task = "triage"
    use = "chronicle"

    async def propose(self, work: StudyWork) -> AgentResult:
        """What the agent makes of the stretch."""
        return await self.runtime.agent.study(work.reader, work.stretch, budget=work.budget)

    async def write(
        self,
        session: AsyncSession,
        work: StudyWork,
        study: AgentResult,
        removed: Sequence[RunEffect] = (),
    ) -> RunDetail:
        """Write what a study proposes, and tell the index; what the run read and wrote in all.

        `removed` is what the run deleted before.
        """
        writer = ProposalWriter(session, self.sealer, work.stretch, work.run_id, self.runtime.clock)
        await writer.write(study.proposals, seen=study.seen)
        effects = [*removed, *writer.effects]
        changed: Changed = defaultdict(set)
        for effect in effects:
            kind: Kind = "event" if effect.what.startswith("event") else "lore"
            changed[kind, effect.container_id].add(effect.id)
        await update_index(session, self.runtime.index, work.reader, changed)
        refused = [*study.detail.refused, *writer.refused]
        return msgspec.structs.replace(study.detail, effects=effects, refused=refused)

    async def set_mark(self, session: AsyncSession, work: StudyWork) -> None:
        """Note that everything down to the last line has been read.

        With the last reply before it, so that when the last one is swiped away, the next run reads
        what comes instead of it, and not the whole stretch anew.
        """
        *before, last = work.stretch.lines
        replies = [line for line in before if line.role != "user"]
        for line in (*replies[-1:], last):
            values = {
                "id": line.id,
                "user_id": self.sealer.user_id,
                "chat_id": self.chat_id,
                "position": line.position,
            }
            await upsert(session, EnrichmentMark, values, key=("id",))


class TurnTask(StudyTask):
    """Has the agent read what a chat said since it read last, until nothing is left."""

    kind = "turn"

    async def load(self, session: AsyncSession, chat: Chat) -> StudyWork | None:
        """What was said behind the watermark."""
        if not chat.chronicle_enabled:
            raise ChronicleNotEnabledError
        reader = await self.reader(session, chat)
        stretch = await read_unread(session, reader, chat)
        if stretch is None:
            return None
        work = await self.new_work(session, reader, stretch)
        return replace(work, ends_job=stretch.is_last)

    async def apply(
        self, session: AsyncSession, chat: Chat, work: StudyWork, proposal: AgentResult
    ) -> RunDetail:
        """Write everything that was found, and how far the agent has read."""
        await self.check_wanted(session, chat, work)
        # Where the chat went over to another chronicle, two of its jobs may have read this.
        if await find_unread_position(session, chat.id) > work.from_position:
            raise PathChangedError
        detail = await self.write(session, work, proposal)
        await self.set_mark(session, work)
        return detail

    async def recover(
        self, session: AsyncSession, work: StudyWork, error: Exception
    ) -> RunRecovery:
        """The next attempt, or the job behind the next reply, goes on behind the watermark."""
        if isinstance(error, PathChangedError):
            return RunRecovery()
        if isinstance(error, UnknownModelError):  # waiting does not bring it back
            return RunRecovery(is_over=True)
        if (
            isinstance(error, SKIPPABLE_ERRORS)
            and self.job.attempt >= MAX_BLOCKED_ATTEMPTS
            and await is_unchanged(session, work.stretch)
        ):
            await self.set_mark(session, work)
        return RunRecovery(raises=error)
