"""Writing a chronicle anew from a chat: the agent reads it from the start, batch by batch.

Each batch is a run and a transaction of its own: what the agent wrote of it before goes, what it
finds now comes, and the job's payload says where the next one begins. So whatever is done stays
done when the job is stopped or its process is killed, and everything behind it is as it was.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles.repository import get_chronicle
from backend.database.engine import Database
from backend.enrichment.agent.agent import Agent
from backend.enrichment.detail import RunEffect
from backend.enrichment.effects import apply
from backend.enrichment.errors import ChronicleNotEnabledError, OtherChronicleError
from backend.enrichment.outbox import REBUILD
from backend.enrichment.rebuild.replacing import (
    RebuiltRange,
    entries_to_replace,
    events_to_replace,
    remove_replaced,
)
from backend.enrichment.rebuild.state import RebuildCounts, RebuildState
from backend.enrichment.run_work import (
    BLOCKED_ATTEMPTS,
    PASSED_OVER,
    PathChangedError,
    RunWork,
    Work,
    is_wanted,
    log_run,
    run_row,
    set_mark,
)
from backend.enrichment.runs import note_done, sealed_detail
from backend.enrichment.story import behind_mark, read_range
from backend.enrichment.study import AgentResult
from backend.errors import AppError
from backend.generation.model import ModelRateLimitError
from backend.generation.registry import ModelRegistry
from backend.jobs.errors import RetryLaterError
from backend.jobs.models import Job
from backend.jobs.running import JobKind, RunningJob, delay_after
from backend.memory.index.protocol import Kind
from backend.memory.outbox import IndexOutbox
from backend.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A stretch to be read, and the place of the path that it stands for."""

    state: RebuildState
    place: RebuiltRange
    work: Work


class Rebuilder:
    """Has the agent read a whole chat again, and replaces what it wrote itself.

    Args:
        draw: Gives numbers from [0, 1), for the waits between tries.
    """

    def __init__(
        self,
        database: Database,
        agent: Agent,
        registry: ModelRegistry,
        settings: Settings,
        index: IndexOutbox,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._runs = RunWork(agent, registry, settings)
        self._index = index
        self._draw = draw

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {REBUILD: JobKind(self.rebuild, keep=True, stoppable=True)}

    async def rebuild(self, job: RunningJob) -> None:
        """Go on with a rebuild, to the end of what was asked for.

        It ends early where the chat is gone, keeps another chronicle by now, or its owner no longer
        agrees: it is done, with that for its error. Raises `RetryLaterError` where it is to wait:
        for tokens, or for the model to come round; a batch that fails again and again uses up the
        job's attempts.
        """
        while (batch := await self._next_or_end(job)) is not None:
            try:
                study = await self._runs.study(batch.work)
            except AppError as error:
                await self._fail(job, batch, error)
                continue
            except Exception as error:
                async with job.step() as session:
                    await self._runs.note_failure(session, job, batch.work, error)
                raise
            try:
                await self._replace(job, batch, study)
            except PathChangedError as error:
                await self._fail(job, batch, error)

    async def _next_or_end(self, job: RunningJob) -> _Batch | None:
        try:
            return await self._next(job)
        except (ChatNotFoundError, ChronicleNotEnabledError, OtherChronicleError) as error:
            async with job.finish() as session:
                await session.execute(
                    update(Job)
                    .where(Job.id == job.id)
                    .values(error=error.slug)
                    .execution_options(synchronize_session=False)
                )
            return None

    async def _next(self, job: RunningJob) -> _Batch | None:
        state, sealer = RebuildState.of(job.payload), job.keys
        async with self._database.read() as session:
            chat = await _chat(session, state, owner_id=sealer.user_id)
            reader = await self._runs.reader(session, sealer, chat)
            rest = RebuiltRange(
                owner_id=sealer.user_id,
                chat_id=chat.id,
                chronicle_id=state.chronicle_id,
                from_position=state.next,
                to_position=state.to_position,
            )
            doomed = [
                *await events_to_replace(session, rest),
                *await entries_to_replace(session, rest),
            ]
            stretch = await read_range(
                session,
                sealer,
                chat,
                reader.settings,
                chronicle_id=state.chronicle_id,
                from_position=rest.from_position,
                to_position=rest.to_position,
                left_alone=frozenset(doomed),
                most_tokens=reader.stretch_tokens,
            )
            if stretch is None:
                return None
            purse = await self._runs.purse(session, sealer.user_id)
        return _Batch(
            state=state,
            place=replace(rest, to_position=stretch.lines[-1].position),
            work=Work(kind="rebuild", reader=reader, stretch=stretch, purse=purse),
        )

    async def _replace(self, job: RunningJob, batch: _Batch, study: AgentResult) -> None:
        """Put what was found in place of what was there: one transaction."""
        work, holder, place = batch.work, batch.work.reader.holder, batch.place
        async with job.step() as session:
            if not await is_wanted(session, work):
                raise PathChangedError
            await get_chronicle(session, place.chronicle_id, owner_id=place.owner_id, lock=True)
            run = run_row(job, work, "done")
            await note_done(session, run)
            removed = await remove_replaced(session, holder.sealer, place)
            await self._note(session, batch, removed)
            written = await apply(
                session, holder, self._index, work.stretch, study, run_id=work.run_id
            )
            effects = [*removed, *written.effects]
            detail = study.detail(effects, written.refused)
            run.sealed_detail = sealed_detail(job.keys, run.id, detail)
            # Not where something before it has not been read: the agent would never read that.
            if await behind_mark(session, place.chat_id) >= place.from_position:
                await set_mark(session, work)
            await self._go_on(job, batch, counts=_counted(batch.state.counts, effects))
        log_run(job, work, run, count=len(effects))

    async def _fail(self, job: RunningJob, batch: _Batch, error: AppError) -> None:
        """Note a failure; raises what the job is to do about it, unless it is to go on at once."""
        failures = batch.state.failures + 1
        if isinstance(error, PASSED_OVER) and failures >= BLOCKED_ATTEMPTS:
            await self._pass_over(job, batch, error)
            return
        async with job.step() as session:
            await self._runs.note_failure(session, job, batch.work, error)
            state = msgspec.structs.replace(batch.state, failures=failures)
            job.checkpoint(state.to_payload())
        if isinstance(error, PathChangedError) and failures == 1:
            return
        if isinstance(error, ModelRateLimitError) and error.retry_after is not None:
            raise RetryLaterError(error.detail, after=max(1.0, error.retry_after)) from error
        # Failures of one batch are counted by themselves: a long chat has many batches, and a job
        # has few attempts.
        wait = delay_after(failures, self._draw)
        if wait is None:
            raise error
        raise RetryLaterError(error.title, after=wait.total_seconds()) from error

    async def _pass_over(self, job: RunningJob, batch: _Batch, error: AppError) -> None:
        """Leave a batch as it is, and go on behind it."""
        async with job.step() as session:
            await self._runs.note_failure(session, job, batch.work, error)
            await self._go_on(job, batch, counts=batch.state.counts)

    async def _go_on(self, job: RunningJob, batch: _Batch, *, counts: RebuildCounts) -> None:
        """Have the next batch begin behind this one. Within a step."""
        done = batch.state.done + len(batch.work.stretch.lines)
        total = done if batch.work.stretch.is_last else max(batch.state.total, done)
        state = msgspec.structs.replace(
            batch.state,
            next=batch.place.to_position + 1,
            done=done,
            total=total,
            failures=0,
            counts=counts,
        )
        job.checkpoint(state.to_payload())
        await job.progress(done, total)

    async def _note(
        self, session: AsyncSession, batch: _Batch, removed: Sequence[RunEffect]
    ) -> None:
        changed: defaultdict[tuple[Kind, UUID], list[UUID]] = defaultdict(list)
        for effect in removed:
            kind: Kind = "event" if effect.what.startswith("event") else "lore"
            changed[kind, effect.container_id].append(effect.id)
        for (kind, container_id), ids in changed.items():
            await self._index.changed(
                session,
                batch.work.reader.holder,
                kind=kind,
                container_id=container_id,
                source_ids=ids,
            )


async def _chat(session: AsyncSession, state: RebuildState, *, owner_id: UUID) -> Chat:
    """The chat, as long as it may be read.

    Raises `ChatNotFoundError`, `ChronicleNotEnabledError`, `OtherChronicleError`.
    """
    chat = await get_chat(session, state.chat_id, owner_id=owner_id)
    if chat.chronicle_id != state.chronicle_id:
        raise OtherChronicleError
    if not chat.chronicle_enabled:
        raise ChronicleNotEnabledError
    return chat


def _counted(counts: RebuildCounts, effects: Sequence[RunEffect]) -> RebuildCounts:
    """What was written so far, with what a batch wrote."""
    kinds = [effect.what for effect in effects]
    return RebuildCounts(
        events=counts.events + kinds.count("event_created"),
        entries=counts.entries + kinds.count("entry_created"),
        replaced=counts.replaced + kinds.count("event_removed") + kinds.count("entry_removed"),
    )
