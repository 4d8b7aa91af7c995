"""What people see and do of the work behind the reply."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Select, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles.repository import get_chronicle
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.errors import (
    ChronicleNotEnabledError,
    OtherChronicleError,
    RebuildNotFoundError,
    RebuildUnderWayError,
)
from backend.enrichment.outbox import REBUILD, TURN, EnrichmentOutbox, lane_of
from backend.enrichment.reader import find_reader, spent_today
from backend.enrichment.runs.store import get_run, list_runs, open_detail
from backend.enrichment.runs.undo import undo_run
from backend.enrichment.schemas import (
    EnrichmentView,
    NewRebuild,
    RebuildEstimate,
    RunView,
    UndoView,
)
from backend.enrichment.story import (
    PathRange,
    count_lines,
    count_unread,
    find_last_reply,
    plan_batches,
)
from backend.enrichment.tasks.rebuild import (
    RebuildState,
    estimate_cost,
    find_replaced_entries,
    find_replaced_events,
)
from backend.errors import ValidationError
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.schemas import JobView
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.prompts import PromptLibrary
from backend.settings import Settings

UNDER_WAY = ("queued", "waiting_key", "running")


class EnrichmentService:
    """The runs behind a user's chats, undoing them, and rebuilding a chronicle."""

    def __init__(
        self,
        database: Database,
        queue: JobQueue,
        index: IndexOutbox,
        user_models: UserModels,
        settings: Settings,
        prompts: PromptLibrary,
    ) -> None:
        self._database = database
        self._queue = queue
        self._index = index
        self._user_models = user_models
        self._settings = settings
        self._prompts = prompts

    async def overview(
        self, identity: Identity, chat_id: UUID, *, limit: int, after: UUID | None
    ) -> EnrichmentView:
        """How the work behind a chat stands, and a page of its runs. Raises `ChatNotFoundError`."""
        async with self._database.read() as session:
            chat = await get_chat(session, chat_id, owner_id=identity.user_id)
            rows = await list_runs(session, chat_id, limit=limit + 1, after=after)
            pending = await count_unread(session, chat) if chat.chronicle_enabled else 0
            job = await _turn_job(session, chat, is_behind=pending > 0)
            reader = await find_reader(
                session, self._user_models, self._settings, identity.sealer, chat
            )
            spent = await spent_today(session, identity.user_id, now())
        page = rows[:limit]
        return EnrichmentView(
            enabled=chat.chronicle_enabled,
            chronicle_id=chat.chronicle_id,
            model=reader.model_id,
            pending=pending,
            job=JobView.of(job) if job else None,
            tokens_today=spent,
            tokens_per_day=self._settings.enrichment_tokens_per_day,
            items=[RunView.of(row, open_detail(identity.sealer, row)) for row in page],
            next=str(page[-1].id) if len(rows) > limit else None,
        )

    async def get(self, identity: Identity, run_id: UUID) -> RunView:
        """Raises `RunNotFoundError`."""
        async with self._database.read() as session:
            run = await get_run(session, run_id, owner_id=identity.user_id)
        return RunView.of(run, open_detail(identity.sealer, run))

    async def undo(self, identity: Identity, run_id: UUID, *, force: bool) -> UndoView:
        """Take back what a run wrote: `undo_run`."""
        async with self._database.write() as session:
            return await undo_run(session, self._index, identity, run_id, force=force)

    async def estimate_rebuild(
        self, identity: Identity, chronicle_id: UUID, wanted: NewRebuild
    ) -> RebuildEstimate:
        """What a rebuild would take. Asks no model.

        Raises what `rebuild` does, but for `RebuildUnderWayError`.
        """
        async with self._database.read() as session:
            chat, place = await _checked(session, identity, chronicle_id, wanted)
            reader = await find_reader(
                session, self._user_models, self._settings, identity.sealer, chat
            )
            batches = await plan_batches(session, chat, place, most_tokens=reader.stretch_tokens)
            events = await find_replaced_events(session, place)
            entries = await find_replaced_entries(session, place)
        cost = estimate_cost(
            batches,
            self._prompts,
            most_writes=self._settings.enrichment_max_writes,
            per_run=self._settings.enrichment_tokens_per_run,
        )
        return RebuildEstimate(
            messages=sum(map(len, batches)),
            batches=len(batches),
            calls=cost.calls,
            prompt_tokens=cost.prompt_tokens,
            completion_tokens=cost.completion_tokens,
            events_to_replace=len(events),
            entries_to_replace=len(entries),
            model=reader.model_id,
        )

    async def rebuild(self, identity: Identity, chronicle_id: UUID, wanted: NewRebuild) -> JobView:
        """Have a chronicle rebuilt from a chat.

        Raises `ChatNotFoundError`, `ChronicleNotFoundError`, `OtherChronicleError`,
        `ChronicleNotEnabledError`, `ValidationError`, `RebuildUnderWayError`.
        """
        queue = self._queue
        async with self._database.write() as session:
            chat, place = await _checked(session, identity, chronicle_id, wanted, lock=True)
            under_way = await session.scalar(
                _rebuilds(identity.user_id, chronicle_id).where(Job.state.in_(UNDER_WAY)).limit(1)
            )
            if under_way is not None:
                raise RebuildUnderWayError(
                    "Stop it first, or wait until it is done.", extra={"job_id": str(under_way.id)}
                )
            total = await count_lines(session, chat, place)
            state = RebuildState(
                chat_id=chat.id,
                chronicle_id=chronicle_id,
                next=place.from_position,
                to_position=place.to_position,
                total=total,
            )
            job_id = await queue.enqueue(
                session,
                NewJob(
                    kind=REBUILD,
                    user_id=identity.user_id,
                    lane=lane_of(chronicle_id),
                    payload=state.to_payload(),
                    dedupe_key=f"{REBUILD}/{chronicle_id}",
                ),
                key=queue.grant(identity.sealer, identity.key_mode),
            )
            if job_id is None:  # what else holds its key is a rebuild that waits: there was none
                raise RebuildUnderWayError
            await session.execute(update(Job).where(Job.id == job_id).values(progress_total=total))
            reader = await find_reader(
                session, self._user_models, self._settings, identity.sealer, chat
            )
            if reader.writes_questions:
                await EnrichmentOutbox(queue).write_questions(
                    session, identity, chat, positions=(place.from_position, place.to_position)
                )
            return JobView.of(await session.get_one(Job, job_id))

    async def latest_rebuild(self, identity: Identity, chronicle_id: UUID) -> JobView:
        """Raises `ChronicleNotFoundError`, `RebuildNotFoundError`."""
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            query = _rebuilds(identity.user_id, chronicle_id).order_by(Job.id.desc()).limit(1)
            job = await session.scalar(query)
        if job is None:
            raise RebuildNotFoundError(
                "Rebuilds are shown for a day, and longer where they failed."
            )
        return JobView.of(job)


async def _turn_job(session: AsyncSession, chat: Chat, *, is_behind: bool) -> Job | None:
    """The last job that reads what a chat said: while it waits or runs, or has left it behind."""
    if chat.chronicle_id is None:
        return None
    query = select(Job).where(
        Job.lane == lane_of(chat.chronicle_id),
        Job.state.in_(("queued", "waiting_key", "running", *(["dead"] if is_behind else []))),
        Job.user_id == chat.user_id,
        Job.dedupe_key == f"{TURN}/{chat.id}",
    )
    return await session.scalar(query.order_by(Job.id.desc()).limit(1))


async def _checked(
    session: AsyncSession,
    identity: Identity,
    chronicle_id: UUID,
    wanted: NewRebuild,
    *,
    lock: bool = False,
) -> tuple[Chat, PathRange]:
    """The chat, and the stretch of it that is to be read. Raises what `rebuild` does."""
    owner_id = identity.user_id
    chat = await get_chat(session, wanted.chat_id, owner_id=owner_id, lock=lock)
    await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=lock)
    if chat.chronicle_id != chronicle_id:
        raise OtherChronicleError("Choose this chronicle in the chat's settings first.")
    if not chat.chronicle_enabled:
        raise ChronicleNotEnabledError(
            "Nothing of it is read without consent: switch chronicle_enabled on in its settings."
        )
    first = wanted.from_position or 0
    if wanted.to_position is not None and wanted.to_position < first:
        raise ValidationError("to_position must not be before from_position.")
    last = await find_last_reply(session, chat)
    end = -1 if last is None else last
    if wanted.to_position is not None:
        end = min(end, wanted.to_position)
    return chat, PathRange(
        owner_id=owner_id,
        chat_id=chat.id,
        chronicle_id=chronicle_id,
        from_position=first,
        to_position=end,
    )


def _rebuilds(owner_id: UUID, chronicle_id: UUID) -> Select[Job]:
    return select(Job).where(
        Job.lane == lane_of(chronicle_id), Job.kind == REBUILD, Job.user_id == owner_id
    )
