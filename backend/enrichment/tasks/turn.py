"""The jobs in which the agent reads messages: the base class, and the job after each reply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, kw_only=True)
class StudyWork(RunWork):
    """The run of one slice of the active path."""

    stretch: TranscriptSlice


class StudyTask(Task[StudyWork, AgentResult]):
    """Lets the agent read a slice of a chat, and writes its proposals."""

    json_task = "triage"
    use = "chronicle"

    async def new_work(
        self, session: AsyncSession, reader: Reader, stretch: TranscriptSlice
    ) -> StudyWork:
        """Return the run of a slice. Raises `RetryLaterError` if no tokens are left."""
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
        """Raise `PathChangedError` if the lines have changed or consent was withdrawn."""
        stretch = work.stretch
        is_wanted = (
            chat.chronicle_enabled
            and chat.chronicle_id == stretch.chronicle_id
            and stretch.since in {None, chat.chronicle_since}
            and await is_unchanged(session, stretch)
        )
        if not is_wanted:
            raise PathChangedError

    async def propose(self, work: StudyWork) -> AgentResult:
        """Let the agent read the slice."""
        return await self.runtime.agent.study(work.reader, work.stretch, budget=work.budget)

    async def write(
        self,
        session: AsyncSession,
        work: StudyWork,
        study: AgentResult,
        removed: Sequence[RunEffect] = (),
    ) -> RunDetail:
        """Write the proposals, queue their indexing, and return the details of the run.

        `removed` are the effects of earlier deletions in this run.
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
        """Mark everything up to the last line as read.

        The reply before it is marked, too. If the last one is swiped away, the next run reads only
        its replacement, and not the whole slice.
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
    """Lets the agent read the messages of a chat since its last run."""

    kind = "turn"

    async def load(self, session: AsyncSession, chat: Chat) -> StudyWork | None:
        """Load the messages after the watermark."""
        if not chat.chronicle_enabled:
            raise ChronicleNotEnabledError
        reader = await self.load_reader(session, chat)
        stretch = await read_unread(session, reader, chat)
        if stretch is None:
            return None
        work = await self.new_work(session, reader, stretch)
        return replace(work, ends_job=stretch.is_last)

    async def apply(
        self, session: AsyncSession, chat: Chat, work: StudyWork, proposal: AgentResult
    ) -> RunDetail:
        """Write the proposals and the watermark."""
        await self.check_wanted(session, chat, work)
        # After a change of the chronicle, two jobs may have read the same messages.
        if await find_unread_position(session, chat.id) > work.from_position:
            raise PathChangedError
        detail = await self.write(session, work, proposal)
        await self.set_mark(session, work)
        return detail

    async def recover(
        self, session: AsyncSession, work: StudyWork, error: Exception
    ) -> RunRecovery:
        """Retry. The next attempt, or the next reply's job, continues after the watermark."""
        if isinstance(error, PathChangedError):
            return RunRecovery()
        if isinstance(error, UnknownModelError):  # waiting does not help
            return RunRecovery(is_over=True)
        if (
            isinstance(error, SKIPPABLE_ERRORS)
            and self.job.attempt >= MAX_BLOCKED_ATTEMPTS
            and await is_unchanged(session, work.stretch)
        ):
            await self.set_mark(session, work)
        return RunRecovery(raises=error)
