"""What people see and do of the work behind the reply."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.daily_budget import spent_today
from backend.enrichment.outbox import TURN, lane_of
from backend.enrichment.rebuild import starting
from backend.enrichment.run_work import find_reader
from backend.enrichment.runs import get_run, list_runs, open_detail
from backend.enrichment.schemas import (
    EnrichmentView,
    NewRebuild,
    RebuildEstimate,
    RunView,
    UndoView,
)
from backend.enrichment.story import count_unread
from backend.enrichment.undo.undo_run import undo_run
from backend.generation.registry import ModelRegistry
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue
from backend.jobs.schemas import JobView
from backend.memory.outbox import IndexOutbox
from backend.prompts import PromptLibrary
from backend.settings import Settings


class EnrichmentService:
    """The runs behind a user's chats, undoing them, and rebuilding a chronicle."""

    def __init__(
        self,
        database: Database,
        queue: JobQueue,
        index: IndexOutbox,
        registry: ModelRegistry,
        settings: Settings,
        prompts: PromptLibrary,
    ) -> None:
        self._database = database
        self._queue = queue
        self._index = index
        self._registry = registry
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
                session, self._registry, self._settings, identity.sealer, chat
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

    async def estimate(
        self, identity: Identity, chronicle_id: UUID, wanted: NewRebuild
    ) -> RebuildEstimate:
        """What a rebuild would take. Raises what `start` does, but for `RebuildUnderWayError`."""
        async with self._database.read() as session:
            return await starting.estimate(
                session,
                self._registry,
                self._settings,
                self._prompts,
                identity,
                chronicle_id,
                wanted,
            )

    async def rebuild(self, identity: Identity, chronicle_id: UUID, wanted: NewRebuild) -> JobView:
        """Have a chronicle rebuilt from a chat: `starting.start`."""
        async with self._database.write() as session:
            return await starting.start(session, self._queue, identity, chronicle_id, wanted)

    async def latest_rebuild(self, identity: Identity, chronicle_id: UUID) -> JobView:
        """Raises `ChronicleNotFoundError`, `RebuildNotFoundError`."""
        async with self._database.read() as session:
            return await starting.latest(session, identity, chronicle_id)


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
