"""Services of the background work's routes."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import Select, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.records import (
    ItemKey,
    build_item_view,
    edit_item,
    get_campaign,
    get_item_row,
    lock_with_cause,
    open_campaign,
    open_item,
)
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignItem
from backend.campaigns.rules.protocol import find_rules, is_unsettled
from backend.campaigns.scenes.scenes import find_last_chat
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles.repository import get_chronicle
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.compaction.reader import count_uncompacted
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
    CompactionView,
    EnrichmentView,
    NewCompaction,
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
from backend.http.schemas import check_revision
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.schemas import JobView
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.prompts import PromptLibrary
from backend.settings import Settings

UNDER_WAY = ("queued", "waiting_key", "running")


class EnrichmentService:
    """The runs of a user's chats, undoing them, and rebuilding a chronicle."""

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
        """Return the state of a chat's work and a page of its runs. Raises `ChatNotFoundError`."""
        async with self._database.read() as session:
            chat = await get_chat(session, chat_id, owner_id=identity.user_id)
            rows = await list_runs(session, chat_id, limit=limit + 1, after=after)
            pending = await count_unread(session, chat) if chat.chronicle_enabled else 0
            job = await _find_turn_job(session, chat, is_behind=pending > 0)
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
            job=JobView.from_row(job) if job else None,
            tokens_today=spent,
            tokens_per_day=self._settings.enrichment_tokens_per_day,
            items=[RunView.from_run(row, open_detail(identity.sealer, row)) for row in page],
            next=str(page[-1].id) if len(rows) > limit else None,
        )

    async def get(self, identity: Identity, run_id: UUID) -> RunView:
        """Raises `RunNotFoundError`."""
        async with self._database.read() as session:
            run = await get_run(session, run_id, owner_id=identity.user_id)
        return RunView.from_run(run, open_detail(identity.sealer, run))

    async def undo(self, identity: Identity, run_id: UUID, *, force: bool) -> UndoView:
        async with self._database.write() as session:
            return await undo_run(session, self._index, identity, run_id, force=force)

    async def estimate_rebuild(
        self, identity: Identity, chronicle_id: UUID, wanted: NewRebuild
    ) -> RebuildEstimate:
        """Estimate the cost of a rebuild. Asks no model.

        Raises the errors of `rebuild`, except `RebuildUnderWayError`.
        """
        async with self._database.read() as session:
            chat, place = await _check_range(session, identity, chronicle_id, wanted)
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
        """Queue the rebuild of a chronicle from a chat.

        Raises `ChatNotFoundError`, `ChronicleNotFoundError`, `OtherChronicleError`,
        `ChronicleNotEnabledError`, `ValidationError`, `RebuildUnderWayError`.
        """
        queue = self._queue
        async with self._database.write() as session:
            chat, place = await _check_range(session, identity, chronicle_id, wanted, lock=True)
            under_way = await session.scalar(
                _select_rebuilds(identity.user_id, chronicle_id)
                .where(Job.state.in_(UNDER_WAY))
                .limit(1)
            )
            if under_way is not None:
                raise RebuildUnderWayError(
                    "Stop the rebuild, or wait for its end.", extra={"job_id": str(under_way.id)}
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
            if job_id is None:  # only a waiting rebuild can have the same dedupe key
                raise RebuildUnderWayError
            await session.execute(update(Job).where(Job.id == job_id).values(progress_total=total))
            return JobView.from_row(await session.get_one(Job, job_id))

    async def latest_rebuild(self, identity: Identity, chronicle_id: UUID) -> JobView:
        """Raises `ChronicleNotFoundError`, `RebuildNotFoundError`."""
        async with self._database.read() as session:
            await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            query = (
                _select_rebuilds(identity.user_id, chronicle_id).order_by(Job.id.desc()).limit(1)
            )
            job = await session.scalar(query)
        if job is None:
            raise RebuildNotFoundError("A rebuild is shown for a day, and longer if it failed.")
        return JobView.from_row(job)


async def _find_turn_job(session: AsyncSession, chat: Chat, *, is_behind: bool) -> Job | None:
    """Return the latest job that reads the chat, if it is unfinished or left messages unread."""
    if chat.chronicle_id is None:
        return None
    query = select(Job).where(
        Job.lane == lane_of(chat.chronicle_id),
        Job.state.in_(("queued", "waiting_key", "running", *(["dead"] if is_behind else []))),
        Job.user_id == chat.user_id,
        Job.dedupe_key == f"{TURN}/{chat.id}",
    )
    return await session.scalar(query.order_by(Job.id.desc()).limit(1))


async def _check_range(
    session: AsyncSession,
    identity: Identity,
    chronicle_id: UUID,
    wanted: NewRebuild,
    *,
    lock: bool = False,
) -> tuple[Chat, PathRange]:
    owner_id = identity.user_id
    chat = await get_chat(session, wanted.chat_id, owner_id=owner_id, lock=lock)
    await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=lock)
    if chat.chronicle_id != chronicle_id:
        raise OtherChronicleError("Select this chronicle in the chat's settings first.")
    if not chat.chronicle_enabled:
        raise ChronicleNotEnabledError(
            "Set chronicle_enabled in the chat's settings first. Without consent nothing is read."
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


def _select_rebuilds(owner_id: UUID, chronicle_id: UUID) -> Select[Job]:
    return select(Job).where(
        Job.lane == lane_of(chronicle_id), Job.kind == REBUILD, Job.user_id == owner_id
    )


class SceneService:
    """Ends scenes of campaigns."""

    def __init__(self, database: Database, outbox: EnrichmentOutbox) -> None:
        self._database = database
        self._outbox = outbox

    async def close(
        self,
        identity: Identity,
        campaign_id: UUID,
        scene_id: UUID,
        *,
        if_match: str | None,
        message_id: UUID | None = None,
    ) -> msgspec.Struct:
        """End a scene and queue its compression, also of a scene that has ended before.

        With `message_id` the scene is closed only while that message is on the active path. Raises
        `CampaignNotFoundError`, `CampaignItemNotFoundError`, `PreconditionFailedError`,
        `MessageNotFoundError`, `ValidationError`.
        """
        key = ItemKey(campaign_id, "scene", scene_id)
        async with self._database.write() as session:
            campaign, cause = await lock_with_cause(session, identity, campaign_id, message_id)
            row = await get_item_row(session, identity, key)
            check_revision(if_match, row.seq)
            closed = {"status": "closed"}
            await edit_item(session, identity.sealer, campaign, key, closed, cause=cause)
            chat_id = cause.chat_id if cause else await find_last_chat(session, scene_id)
            if chat_id is not None:
                chat = await get_chat(session, chat_id, owner_id=identity.user_id)
                await self._outbox.compact(session, identity, chat)
                if open_campaign(identity.sealer, campaign).settings.summaries:
                    await self._outbox.compress_scenes(session, identity, chat, [scene_id])
            row = await get_item_row(session, identity, key)
            return build_item_view(row, open_item(identity.sealer, row))


class CompactionService:
    """Compactions that a user requests."""

    def __init__(self, database: Database, outbox: EnrichmentOutbox) -> None:
        self._database = database
        self._outbox = outbox

    async def compact(
        self, identity: Identity, campaign_id: UUID, wanted: NewCompaction
    ) -> CompactionView:
        """Queue a compaction of all unread messages of a chat.

        Raises `CampaignNotFoundError`, `ChatNotFoundError`, `ChronicleNotEnabledError`, and
        `ValidationError` if the chat does not belong to the campaign.
        """
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            chat = await get_chat(session, wanted.chat_id, owner_id=identity.user_id)
            if chat.campaign_id != campaign.id:
                raise ValidationError("`chat_id` must be a chat of the campaign.")
            if not chat.chronicle_enabled:
                raise ChronicleNotEnabledError(
                    "Set chronicle_enabled in the chat's settings first: a model reads the chat."
                )
            world = await session.get_one(CampaignItem, campaign.id)
            waits = is_unsettled(
                read_state(sealer, world.id, world.sealed_state),
                find_rules(campaign.rules),
                is_played=open_campaign(sealer, campaign).settings.tools,
            )
            messages = await count_uncompacted(session, chat)
            job_id = await self._outbox.compact(session, identity, chat) if messages else None
        return CompactionView(messages=messages, job_id=job_id, waits=waits)
