"""What a rebuild puts something else in the place of: what the agent wrote, and nobody changed."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.chats.models import Message
from backend.chronicles import writing
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.chronicles.reading import counting, open_event
from backend.database.base import chunks
from backend.enrichment.effects import effect_on
from backend.enrichment.runs import RunEffect
from backend.enrichment.story import PathRange
from backend.lorebooks import authoring
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.vault.sealing import Sealer

_TITLE = 200
"""Characters of an event's summary that stand for it."""

_REBUILT = "replaced by a rebuild"
_SUPERSEDER_REPLACED = "what superseded it was replaced by a rebuild"


async def events_to_replace(session: AsyncSession, place: PathRange) -> list[UUID]:
    """Events that the agent wrote of this chat alone, whose last message stands in the place.

    Those of other branches and of hidden lines are not among them: a rebuild reads nothing that
    could take their place. Nor are those that a user has changed or pinned.
    """
    source = aliased(EventSource)
    last = (
        select(func.max(source.position))
        .where(source.event_id == ChronicleEvent.id)
        .scalar_subquery()
    )
    elsewhere = exists().where(
        EventSource.event_id == ChronicleEvent.id, EventSource.chat_id != place.chat_id
    )
    hidden = exists().where(
        source.event_id == ChronicleEvent.id, Message.id == source.message_id, Message.hidden
    )
    query = select(ChronicleEvent.id).where(
        ChronicleEvent.chronicle_id == place.chronicle_id,
        ChronicleEvent.user_id == place.owner_id,
        ChronicleEvent.source == "agent",
        ~ChronicleEvent.is_edited,
        ~ChronicleEvent.is_pinned,
        ~elsewhere,
        ~hidden,
        last.between(place.from_position, place.to_position),
        counting(),
    )
    return list(await session.scalars(query.order_by(ChronicleEvent.id)))


async def entries_to_replace(session: AsyncSession, place: PathRange) -> list[UUID]:
    """The agent's own entries in the chronicle's book that come from the place."""
    query = select(LoreEntryRow.id).where(
        LoreEntryRow.lorebook_id.in_(
            select(Lorebook.id).where(
                Lorebook.chronicle_id == place.chronicle_id, Lorebook.user_id == place.owner_id
            )
        ),
        LoreEntryRow.agent_revision == LoreEntryRow.revision,
        LoreEntryRow.source_chat_id == place.chat_id,
        exists().where(
            Message.id == LoreEntryRow.source_message_id,
            Message.is_active,
            ~Message.hidden,
            Message.position.between(place.from_position, place.to_position),
        ),
    )
    return list(await session.scalars(query.order_by(LoreEntryRow.id)))


async def remove_replaced(
    session: AsyncSession, sealer: Sealer, place: PathRange
) -> list[RunEffect]:
    """Delete what is to be replaced; what that was, in the order in which it went.

    The caller has locked the chat and the chronicle, and tells the index.
    """
    effects = await _remove_events(session, sealer, await events_to_replace(session, place))
    return effects + await _remove_entries(session, sealer, place)


async def _remove_events(
    session: AsyncSession, sealer: Sealer, event_ids: Sequence[UUID]
) -> list[RunEffect]:
    removed: list[RunEffect] = []
    kept: list[RunEffect] = []
    heirs: dict[UUID, UUID | None] = {}
    for ids in chunks(event_ids):
        doomed = await session.scalars(
            select(ChronicleEvent)
            .where(ChronicleEvent.id.in_(ids))
            .order_by(ChronicleEvent.happened_at, ChronicleEvent.place, ChronicleEvent.id)
        )
        for row in doomed.all():
            heirs[row.id] = row.superseded_by
            before = await writing.snapshot(session, sealer, row)
            title = open_event(sealer, row).summary[:_TITLE]
            removed.append(
                effect_on(row, "event_removed", title=title, because=_REBUILT, before=before)
            )
    for ids in chunks(event_ids):
        others = await session.scalars(
            select(ChronicleEvent).where(
                ChronicleEvent.superseded_by.in_(ids), ChronicleEvent.id.not_in(event_ids)
            )
        )
        for row in others.all():
            before = await writing.snapshot(session, sealer, row)
            by = row.superseded_by
            while by is not None and by in heirs:
                by = heirs[by]
            await writing.supersede(session, row, by)
            title = open_event(sealer, row).summary[:_TITLE]
            kept.append(
                effect_on(
                    row, "event_changed", title=title, because=_SUPERSEDER_REPLACED, before=before
                )
            )
    await writing.remove_events(session, event_ids, owner_id=sealer.user_id)
    return kept + removed


async def _remove_entries(
    session: AsyncSession, sealer: Sealer, place: PathRange
) -> list[RunEffect]:
    book = await authoring.find_chronicle_book(
        session, place.chronicle_id, owner_id=place.owner_id, lock=True
    )
    if book is None:
        return []
    ids = await entries_to_replace(session, place)
    rows = await session.scalars(
        select(LoreEntryRow).where(LoreEntryRow.id.in_(ids)).order_by(LoreEntryRow.id)
    )
    effects: list[RunEffect] = []
    for row in rows.all():
        before = authoring.snapshot(sealer, row)
        title = before["entry"].get("title", "")
        effects.append(
            effect_on(row, "entry_removed", title=title, because=_REBUILT, before=before)
        )
        await authoring.remove_entry(session, book, row)
    return effects
