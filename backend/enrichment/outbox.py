"""Queue background work in the transaction that stores a reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import ColumnElement, Update, and_, bindparam, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.paths import clear_marks
from backend.chats.events import ConsentWithdrawn
from backend.chats.models import Chat
from backend.chats.schemas import ChatSettings
from backend.database.base import UNSYNCHRONIZED, now
from backend.database.engine import Database
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.models import EnrichmentMark
from backend.enrichment.titles import find_title_source, use_first_line
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.memory.indexing.outbox import KeyHolder

POLL_SECONDS = 0.1


class UnfinishedJob(NamedTuple):
    """State and number of attempts of a job that is queued or running."""

    state: str
    attempts: int


_JobsByLane = Mapping[UUID | None, Sequence[UnfinishedJob]]
"""Unfinished jobs by lane."""


class SummaryWatch:
    """Polls the unfinished jobs of one kind for all turns that wait for a summary.

    One query in `POLL_SECONDS` serves all of them.
    """

    def __init__(self, database: Database, kind: str) -> None:
        self._database = database
        self._query = select(Job.lane, Job.state, Job.attempts).where(
            Job.lane.in_(bindparam("lanes", expanding=True)),
            Job.kind == kind,
            Job.state.in_(["queued", "running"]),
        )
        self._lanes: set[UUID] = set()
        self._next: asyncio.Task[_JobsByLane] | None = None

    async def poll(self, lane: UUID) -> Sequence[UnfinishedJob]:
        self._lanes.add(lane)
        if self._next is None:
            self._next = asyncio.create_task(self._poll())
        found = await asyncio.shield(self._next)
        return found.get(lane, ())

    async def _poll(self) -> _JobsByLane:
        await asyncio.sleep(POLL_SECONDS)
        # A turn that asks from here on waits for the query after this one.
        lanes, self._lanes, self._next = self._lanes, set(), None
        found: defaultdict[UUID | None, list[UnfinishedJob]] = defaultdict(list)
        async with self._database.read() as session:
            for lane, state, attempts in await session.execute(self._query, {"lanes": list(lanes)}):
                found[lane].append(UnfinishedJob(state, attempts))
        return found


TURN = "enrichment.turn"
REBUILD = "enrichment.rebuild"
SUMMARY = "enrichment.summary"
GLOSSARY = "enrichment.glossary"
SCENE = "enrichment.scene"
CHAPTER = "enrichment.chapter"
COMPACTION = "enrichment.compaction"
TITLE = "enrichment.title"

NEED_CONSENT = (TURN, REBUILD, GLOSSARY, COMPACTION)
"""Kinds of jobs that read a chat only while its chronicle is switched on."""

SUMMARY_SECONDS = 30.0
"""The longest time that a turn waits for a summary that is being written."""

WORKER_SECONDS = 5.0
"""The longest time that a turn waits for a worker to begin with a summary."""

_NAMESPACE = UUID("5d1f2d1e-3f0a-5c55-8a57-6a0c3c1b9e42")


def _run_now(*conditions: ColumnElement[bool]) -> Update:
    """Build the statement that makes postponed jobs due, and running ones if they are postponed.

    Jobs that failed keep their waiting time. Locked rows are skipped, because their worker may
    itself wait for rows that the caller has locked.
    """
    running = select(Job.id).where(*conditions, Job.state == "running")
    unlocked = running.with_for_update(skip_locked=True)
    is_postponed = and_(Job.state == "queued", Job.attempts == 0)
    return (
        update(Job)
        .where(*conditions, or_(is_postponed, Job.id.in_(unlocked)))
        .values(run_after=bindparam("at"))
    )


_SUMMARISE_NOW = _run_now(Job.lane == bindparam("in_lane"), Job.dedupe_key == bindparam("job"))
_COMPACT_NOW = _run_now(Job.lane == bindparam("in_lane"), Job.kind == COMPACTION)


def lane_of(container_id: UUID) -> UUID:
    """Return the lane of the jobs that write into a chronicle, a campaign or a chat.

    It differs from the lane of the container's index jobs.
    """
    return uuid5(_NAMESPACE, str(container_id))


class EnrichmentOutbox(ConsentWithdrawn):
    """Queues background work of a chat. Work that needs its owner's consent is not queued without.

    In a `per_job` account each job carries the key of the `holder`.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._summaries = SummaryWatch(queue.database, SUMMARY)

    async def follow_reply(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        chat: Chat,
        settings: ChatSettings,
        *,
        path_tokens: int,
        history_budget: int,
        count_unit: str,
        is_summary_due: bool = False,
    ) -> None:
        """Queue the study of a stored reply, and a summary if one is due.

        Tokens are in `count_unit`, the chat's unit for the prompt. `is_summary_due` says that a
        campaign has had enough rounds since its last summary.
        """
        if chat.chronicle_enabled and chat.chronicle_id is not None:
            await self.study(session, holder, chat.id, chat.chronicle_id)
        is_wanted = settings.summary.enabled and is_nearly_full(path_tokens, history_budget)
        if is_wanted or is_summary_due:
            await self.summarise(
                session, holder, chat.id, history_budget=history_budget, count_unit=count_unit
            )

    async def study(
        self, session: AsyncSession, holder: KeyHolder, chat_id: UUID, chronicle_id: UUID
    ) -> None:
        """Queue the agent for the messages that it has not read."""
        await self._enqueue(session, holder, TURN, chronicle_id, chat_id)

    async def study_later(self, session: AsyncSession, chat: Chat) -> None:
        """Queue the agent without a key, after a crash. The job waits until the user is seen."""
        if chat.chronicle_enabled and chat.chronicle_id is not None:
            job = _job(TURN, chat.user_id, chat.chronicle_id, chat.id)
            await self._queue.enqueue(session, job)

    async def study_again(self, session: AsyncSession, message_id: UUID) -> None:
        """Mark a reply as unread, because it is being continued."""
        mark = delete(EnrichmentMark).where(EnrichmentMark.id == message_id)
        await session.execute(mark.execution_options(synchronize_session=False))
        await clear_marks(session, None, message_id)

    async def read_terms(
        self, session: AsyncSession, holder: KeyHolder, chat: Chat, reply_id: UUID
    ) -> None:
        """Queue the search for new glossary terms in a stored reply.

        Replies of one campaign are read one after the other, so that no term is proposed twice.
        """
        if chat.chronicle_enabled and chat.campaign_id is not None:
            await self._enqueue(
                session, holder, GLOSSARY, chat.campaign_id, chat.id, reply_id, message_id=reply_id
            )

    async def compress_scenes(
        self, session: AsyncSession, holder: KeyHolder, chat: Chat, scene_ids: Iterable[UUID]
    ) -> None:
        """Queue the compression of the parts of scenes that belong to this chat.

        The lane is the campaign's, because each scene is compared with what the last one left.
        """
        if chat.campaign_id is None:
            return
        for scene_id in scene_ids:
            name = f"{scene_id}/{chat.id}"
            await self._enqueue(
                session, holder, SCENE, chat.campaign_id, chat.id, name, scene_id=scene_id
            )

    async def make_chapters(self, session: AsyncSession, holder: KeyHolder, chat: Chat) -> None:
        """Queue the combination of old scenes into chapters."""
        if chat.campaign_id is not None:
            await self._enqueue(session, holder, CHAPTER, chat.campaign_id, chat.id)

    async def name_chat(self, session: AsyncSession, holder: KeyHolder, chat: Chat) -> None:
        """Give a chat that is named after its characters a title, and queue a better one.

        The chat is locked. Nothing happens before the first line of the user.
        """
        if chat.title_origin != "characters":
            return
        source = await find_title_source(session, holder.sealer)
        if source == "off" or not await use_first_line(session, holder.sealer, chat):
            return
        if source == "model":
            await self._enqueue(session, holder, TITLE, chat.id, chat.id)

    async def compact(self, session: AsyncSession, holder: KeyHolder, chat: Chat) -> UUID | None:
        """Queue a compaction of the chat's unread messages, and resume one that is postponed.

        Returns the id of the new job, or None if there is none: without consent, or because a job
        waits already.
        """
        if not chat.chronicle_enabled or chat.campaign_id is None:
            return None
        job_id = await self._enqueue(session, holder, COMPACTION, chat.campaign_id, chat.id)
        await self.resume_compactions(session, chat)
        return job_id

    async def resume_compactions(self, session: AsyncSession, chat: Chat) -> None:
        """Make compactions due that were postponed until an action is over.

        A running one is included, because it may be about to be postponed.
        """
        if chat.campaign_id is not None:
            values = {"in_lane": lane_of(chat.campaign_id), "at": now()}
            await session.execute(_COMPACT_NOW, values, execution_options=UNSYNCHRONIZED)

    async def summarise(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        chat_id: UUID,
        *,
        history_budget: int,
        count_unit: str,
    ) -> None:
        """Queue the extension of a chat's summary, as far as its history needs it."""
        needs = {"history_budget": history_budget, "count_unit": count_unit}
        await self._enqueue(session, holder, SUMMARY, chat_id, chat_id, **needs)

    async def summarise_now(
        self, holder: KeyHolder, chat_id: UUID, *, history_budget: int, count_unit: str
    ) -> bool:
        """Extend a chat's summary while a turn waits. Return True if it was done.

        Waits for one attempt: `WORKER_SECONDS` until it begins, `SUMMARY_SECONDS` for its end.
        """
        lane = lane_of(chat_id)
        async with self._queue.database.write() as session:
            await self.summarise(
                session, holder, chat_id, history_budget=history_budget, count_unit=count_unit
            )
            # A job that a turn has interrupted is postponed.
            values = {"in_lane": lane, "job": f"{SUMMARY}/{chat_id}", "at": now()}
            await session.execute(_SUMMARISE_NOW, values, execution_options=UNSYNCHRONIZED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORKER_SECONDS) as limit:
                has_begun = False
                while True:
                    waiting = await self._summaries.poll(lane)
                    if not waiting:
                        return True
                    if not any(row.state == "running" or not row.attempts for row in waiting):
                        return False
                    if not has_begun and any(row.state == "running" for row in waiting):
                        has_begun = True
                        limit.reschedule(asyncio.get_running_loop().time() + SUMMARY_SECONDS)
        return False

    async def consent_withdrawn(self, session: AsyncSession, chat: Chat) -> None:
        """Stop the running jobs that need the owner's consent.

        Queued jobs check the consent before they ask a model.
        """
        containers = [each for each in (chat.chronicle_id, chat.campaign_id) if each]
        await self._queue.stop_running(
            session,
            chat.user_id,
            lanes=[lane_of(each) for each in containers],
            kinds=NEED_CONSENT,
            payload={"chat_id": str(chat.id)},
            error=ChronicleNotEnabledError.slug,
        )

    async def _enqueue(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        kind: str,
        container_id: UUID,
        chat_id: UUID,
        name: object = None,
        **payload: object,
    ) -> UUID | None:
        """Queue a job, unless one of its kind and `name` waits. The name defaults to the chat."""
        job = _job(kind, holder.sealer.user_id, container_id, chat_id, name, **payload)
        key = self._queue.grant(holder.sealer, holder.key_mode)
        return await self._queue.enqueue(session, job, key=key)


def _job(
    kind: str,
    user_id: UUID,
    container_id: UUID,
    chat_id: UUID,
    name: object = None,
    **payload: object,
) -> NewJob:
    return NewJob(
        kind=kind,
        user_id=user_id,
        lane=lane_of(container_id),
        payload=msgspec.to_builtins({"chat_id": chat_id, **payload}),
        dedupe_key=f"{kind}/{name or chat_id}",
    )


def is_nearly_full(path_tokens: int, history_budget: int) -> bool:
    """True if the path takes at least 80% of the history budget."""
    return 5 * path_tokens >= 4 * history_budget
