"""The events of chronicles as a source of memories."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles.events import format_story_time, render_event
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.chronicles.repository import STORY_ORDER, StoryEvent, get_events
from backend.core.audience import GM, Viewpoint
from backend.database.base import get_table
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import IndexDocument, build_event_document
from backend.memory.indexing.sources import (
    MemoryItem,
    OriginMessage,
    SourceRow,
    SourceTable,
    TableSource,
    compute_version,
)
from backend.vault.sealing import Sealer

KIND: Final = "event"


class ChronicleSource(TableSource):
    """Events of all branches. `recall` drops those that are not current."""

    kind: Kind = KIND
    table = SourceTable(
        containers=get_table(Chronicle),
        rows=get_table(ChronicleEvent),
        container_id=get_table(ChronicleEvent).c.chronicle_id,
        order=STORY_ORDER,
        is_listed=get_table(Chronicle).c.deleted_at.is_(None),
    )

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # an event has no neighbours
    ) -> list[SourceRow]:
        """Return events with one document each, also those that are not current."""
        found = await get_events(session, sealer, source_ids)
        return [
            SourceRow(
                source_id=event.id,
                size=len(event.fields.summary),
                documents=partial(_documents, event),
            )
            for event in found.values()
            if event.chronicle_id == container_id
        ]

    async def recall(
        self,
        session: AsyncSession,
        sealer: Sealer,
        source_ids: Collection[UUID],
        *,
        viewpoint: Viewpoint = GM,
    ) -> dict[UUID, MemoryItem]:
        """Return current events that the viewpoint may know."""
        found = await get_events(session, sealer, list(source_ids), viewpoint=viewpoint)
        return {event.id: _build_item(event) for event in found.values() if event.is_current}


def _documents(event: StoryEvent) -> list[IndexDocument]:
    fields = event.fields
    document = build_event_document(
        event.id,
        event.chronicle_id,
        summary=fields.summary,
        when=format_story_time(fields),
        where=fields.where,
        who=fields.who,
        keywords=fields.keywords,
        said_at=event.happened_at,
        version=compute_version(event.updated_at),
        audience=event.stored_audience,
    )
    return [document]


def _build_item(event: StoryEvent) -> MemoryItem:
    first = event.sources[0] if event.sources else None
    # Without its messages, the event is not in the history of the viewpoint.
    chats = {source.chat_id for source in event.sources} if event.is_heard else set[UUID]()
    return MemoryItem(
        kind=KIND,
        source_id=event.id,
        container_id=event.chronicle_id,
        title="",
        text=render_event(event.fields),
        story_time=format_story_time(event.fields),
        said_at=event.happened_at,
        position=first.position if first else 0,
        chat_id=chats.pop() if len(chats) == 1 else None,
        origins=[OriginMessage(each.id, each.chat_id, each.position) for each in event.sources],
        audience=event.audience,
        is_authoritative=event.is_users_own,
    )
