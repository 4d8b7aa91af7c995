"""What a stored reply sets off behind it, in the transaction that stores it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid5

from sqlalchemy import ColumnElement, Update, and_, bindparam, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.read_marks import read_again
from backend.campaigns.scenes.scenes import count_beat, end_left_scenes, ended_scenes
from backend.chats.events import ConsentWithdrawn
from backend.chats.models import Chat, Message
from backend.chats.questions import read_questions_again
from backend.chats.schemas import ChatSettings
from backend.database.base import UNSYNCHRONIZED, now
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.models import EnrichmentMark
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.memory.indexing.outbox import KeyHolder

TURN = "enrichment.turn"
REBUILD = "enrichment.rebuild"
SUMMARY = "enrichment.summary"
GLOSSARY = "enrichment.glossary"
SCENE = "enrichment.scene"
CHAPTER = "enrichment.chapter"
COMPACTION = "enrichment.compaction"
QUESTIONS = "enrichment.questions"

NEED_CONSENT = (TURN, REBUILD, GLOSSARY, COMPACTION, QUESTIONS)
"""Kinds of jobs that read a chat only while its chronicle is switched on."""

SUMMARY_WAIT = 30.0
WORKER_WAIT = 5.0


def _call(*which: ColumnElement[bool]) -> Update:
    """Have jobs taken now that were put off, and those that run again if they are put off.

    One that writes at this very moment is left alone: it may wait for rows that the caller holds.
    """
    running = select(Job.id).where(*which, Job.state == "running")
    # What has failed waits for its time.
    is_put_off = and_(Job.state == "queued", Job.attempts == 0)
    return (
        update(Job)
        .where(*which, or_(is_put_off, Job.id.in_(running.with_for_update(skip_locked=True))))
        .values(run_after=bindparam("at"))
    )


_GO_ON = _call(Job.dedupe_key == bindparam("job"))
_COMPACT_NOW = _call(Job.lane == bindparam("in_lane"), Job.kind == COMPACTION)

_LANES = UUID("5d1f2d1e-3f0a-5c55-8a57-6a0c3c1b9e42")


def lane_of(container_id: UUID) -> UUID:
    """The lane of the work behind a chronicle, or a chat: apart from that of its index jobs.

    Whatever writes into one chronicle does so one after the other, from whichever chat.
    """
    return uuid5(_LANES, str(container_id))


class EnrichmentOutbox(ConsentWithdrawn):
    """Puts work behind the reply into the queue, where the chat's owner has agreed to it."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._summaries = SummaryWatch(queue.database, SUMMARY)

    async def replied(
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
        """A reply was stored. Tokens are counted in `count_unit`, the chat's of the prompt.

        With `is_summary_due` so many rounds of a campaign are told that its summary goes on.
        Without consent there is no job: this is where the opt-in is enforced. A campaign's summary
        goes by the campaign's settings.
        """
        if chat.chronicle_enabled and chat.chronicle_id is not None:
            await self.study(session, holder, chat.id, chat.chronicle_id)
        wanted = settings.summary.enabled and is_nearly_full(path_tokens, history_budget)
        if wanted or is_summary_due:
            await self.summarise(
                session, holder, chat.id, history_budget=history_budget, count_unit=count_unit
            )

    async def read_terms(
        self, session: AsyncSession, holder: KeyHolder, chat: Chat, reply_id: UUID
    ) -> None:
        """Have the terms found that a stored reply coins. Without consent there is no job.

        Two replies of one campaign are read one after the other, so that neither proposes what the
        other does.
        """
        if not chat.chronicle_enabled or chat.campaign_id is None:
            return
        await self._queue.enqueue(
            session,
            NewJob(
                kind=GLOSSARY,
                user_id=holder.sealer.user_id,
                lane=lane_of(chat.campaign_id),
                payload={"chat_id": str(chat.id), "message_id": str(reply_id)},
                dedupe_key=f"{GLOSSARY}/{reply_id}",
            ),
            key=self._queue.grant(holder.sealer, holder.key_mode),
        )

    async def count_beat(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        chat: Chat,
        reply: Message,
        *,
        turn_id: UUID,
        lead_id: UUID | None = None,
    ) -> None:
        """Count a finished reply as a beat of its campaign's open scene, which may then be due.

        `lead_id` is the character whom the chat's story follows.
        """
        for scene_id in await count_beat(
            session, holder.sealer, chat, reply, turn_id=turn_id, lead_id=lead_id
        ):
            await self.compress(session, holder, chat, scene_id)

    async def end_scenes(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        chat: Chat,
        reply: Message,
        *,
        turn_id: UUID,
    ) -> None:
        """End the scenes that the players have left, and have all compressed that a turn ended."""
        await end_left_scenes(session, holder.sealer, chat, reply, turn_id=turn_id)
        for scene_id in await ended_scenes(session, chat, turn_id=turn_id):
            await self.compact(session, holder, chat)
            await self.compress(session, holder, chat, scene_id)

    async def compress(
        self, session: AsyncSession, holder: KeyHolder, chat: Chat, scene_id: UUID
    ) -> None:
        """Have a scene compressed, as far as this chat tells it.

        In the lane of the campaign: what one scene leaves behind, the next one is compared with.
        """
        if chat.campaign_id is None:
            return
        await self._queue.enqueue(
            session,
            NewJob(
                kind=SCENE,
                user_id=holder.sealer.user_id,
                lane=lane_of(chat.campaign_id),
                payload={"chat_id": str(chat.id), "scene_id": str(scene_id)},
                dedupe_key=f"{SCENE}/{scene_id}/{chat.id}",
            ),
            key=self._queue.grant(holder.sealer, holder.key_mode),
        )

    async def make_chapters(self, session: AsyncSession, holder: KeyHolder, chat: Chat) -> None:
        """Have old scenes that a chat has told made into chapters, where they are many."""
        if chat.campaign_id is None:
            return
        await self._queue.enqueue(
            session,
            NewJob(
                kind=CHAPTER,
                user_id=holder.sealer.user_id,
                lane=lane_of(chat.campaign_id),
                payload={"chat_id": str(chat.id)},
                dedupe_key=f"{CHAPTER}/{chat.id}",
            ),
            key=self._queue.grant(holder.sealer, holder.key_mode),
        )

    async def compact(self, session: AsyncSession, holder: KeyHolder, chat: Chat) -> UUID | None:
        """Have a campaign brought up to date with what a chat has told since it was read.

        Without consent there is no job. The id of the new one; where one waits already, None: that
        one goes on now, but for one that failed, which waits for its time. One that runs takes the
        new one's place should it be put off, and goes on at once.
        """
        if not chat.chronicle_enabled or chat.campaign_id is None:
            return None
        job = NewJob(
            kind=COMPACTION,
            user_id=holder.sealer.user_id,
            lane=lane_of(chat.campaign_id),
            payload={"chat_id": str(chat.id)},
            dedupe_key=f"{COMPACTION}/{chat.id}",
        )
        key = self._queue.grant(holder.sealer, holder.key_mode)
        job_id = await self._queue.enqueue(session, job, key=key)
        await self.go_on(session, chat)
        return job_id

    async def go_on(self, session: AsyncSession, chat: Chat) -> None:
        """Let the compactions of a chat's campaign go on that wait for an action to be over.

        One may have seen the action while it was on, and be about to wait.
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
        """Have a chat's summary brought as far as its history needs it."""
        await self._queue.enqueue(
            session,
            NewJob(
                kind=SUMMARY,
                user_id=holder.sealer.user_id,
                lane=lane_of(chat_id),
                payload={
                    "chat_id": str(chat_id),
                    "history_budget": history_budget,
                    "count_unit": count_unit,
                },
                dedupe_key=f"{SUMMARY}/{chat_id}",
            ),
            key=self._queue.grant(holder.sealer, holder.key_mode),
        )

    async def summarise_now(
        self, holder: KeyHolder, chat_id: UUID, *, history_budget: int, count_unit: str
    ) -> bool:
        """The same for a turn that waits for it; whether it was done.

        Waits for one attempt: `WORKER_WAIT` seconds until it begins, `SUMMARY_WAIT` for its end.
        """
        lane = lane_of(chat_id)
        async with self._queue.database.write() as session:
            await self.summarise(
                session, holder, chat_id, history_budget=history_budget, count_unit=count_unit
            )
            # One that a turn has cut off waits for a while.
            await _bring_forward(session, f"{SUMMARY}/{chat_id}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORKER_WAIT) as limit:
                has_begun = False
                while True:
                    waiting = await self._summaries.look(lane)
                    if not waiting:
                        return True
                    if not any(row.state == "running" or not row.attempts for row in waiting):
                        return False
                    if not has_begun and any(row.state == "running" for row in waiting):
                        has_begun = True
                        limit.reschedule(asyncio.get_running_loop().time() + SUMMARY_WAIT)
        return False

    async def study(
        self, session: AsyncSession, holder: KeyHolder, chat_id: UUID, chronicle_id: UUID
    ) -> None:
        """Have the agent read what a chat said since it read last."""
        job = _study(holder.sealer.user_id, chat_id, chronicle_id)
        key = self._queue.grant(holder.sealer, holder.key_mode)
        await self._queue.enqueue(session, job, key=key)

    async def write_questions(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        chat: Chat,
        *,
        positions: tuple[int, int] | None = None,
    ) -> None:
        """Have the questions written that a chat's lines answer, once some have come together.

        With `positions` those of all lines from the first to the last, as far as they lack them.
        Without consent there is no job.
        """
        if not chat.chronicle_enabled:
            return
        payload: dict[str, Any] = {"chat_id": str(chat.id)}
        name = f"{QUESTIONS}/{chat.id}"
        if positions is not None:
            payload["positions"] = positions
            name += "/all"
        await self._queue.enqueue(
            session,
            NewJob(
                kind=QUESTIONS,
                user_id=holder.sealer.user_id,
                # A lane of its own: a turn may wait for the summary in the chat's.
                lane=_question_lane(chat.id),
                payload=payload,
                dedupe_key=name,
            ),
            key=self._queue.grant(holder.sealer, holder.key_mode),
        )

    async def consent_withdrawn(self, session: AsyncSession, chat: Chat) -> None:
        """End the jobs that read a chat with its owner's consent, and run just now.

        Those that wait end by themselves, before they ask a model.
        """
        containers = [each for each in (chat.chronicle_id, chat.campaign_id) if each]
        await self._queue.stop_running(
            session,
            chat.user_id,
            lanes=[*map(lane_of, containers), _question_lane(chat.id)],
            kinds=NEED_CONSENT,
            payload={"chat_id": str(chat.id)},
            error=ChronicleNotEnabledError.slug,
        )

    async def continued(self, session: AsyncSession, message_id: UUID) -> None:
        """A reply goes on that may have been read: it is read anew, as a whole."""
        mark = delete(EnrichmentMark).where(EnrichmentMark.id == message_id)
        await session.execute(mark.execution_options(synchronize_session=False))
        await read_questions_again(session, message_id)
        await read_again(session, None, message_id)

    async def left(self, session: AsyncSession, chat: Chat) -> None:
        """The same where a crash cut a reply off and nobody has the key at hand: it waits."""
        if chat.chronicle_enabled and chat.chronicle_id is not None:
            await self._queue.enqueue(session, _study(chat.user_id, chat.id, chat.chronicle_id))


def _question_lane(chat_id: UUID) -> UUID:
    return uuid5(_LANES, f"{QUESTIONS}/{chat_id}")


async def _bring_forward(session: AsyncSession, dedupe_key: str) -> None:
    """Let a job that was put off be taken now, unless it was put off because it failed."""
    values = {"job": dedupe_key, "at": now()}
    await session.execute(_GO_ON, values, execution_options=UNSYNCHRONIZED)


def _study(user_id: UUID, chat_id: UUID, chronicle_id: UUID) -> NewJob:
    return NewJob(
        kind=TURN,
        user_id=user_id,
        lane=lane_of(chronicle_id),
        payload={"chat_id": str(chat_id)},
        dedupe_key=f"{TURN}/{chat_id}",
    )


def is_nearly_full(path_tokens: int, history_budget: int) -> bool:
    """Whether the history is about to lose its beginning, or has lost it already."""
    return 5 * path_tokens >= 4 * history_budget
