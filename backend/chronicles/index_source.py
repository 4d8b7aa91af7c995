"""Events of chronicles as a source of memories."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles.events import format_story_time, render_event
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.chronicles.repository import STORY_ORDER, StoryEvent, get_events
from backend.core.audience import GM, Viewpoint, may_know
from backend.memory.index.protocol import Kind
from backend.memory.indexing.documents import Document, event_document
from backend.memory.indexing.sources import (
    Origin,
    Recalled,
    SourceRow,
    count_of,
    inventory_of,
    version_of,
)
from backend.vault.sealing import Sealer

KIND: Final = "event"


class ChronicleSource:
    """The events of a user's chronicles."""

    kind: Kind = KIND

    async def containers(self, session: AsyncSession, *, owner_id: UUID) -> list[UUID]:
        """A user's chronicles."""
        query = select(Chronicle.id).where(Chronicle.user_id == owner_id)
        return list(await session.scalars(query))

    async def count(
        self,
        session: AsyncSession,
        *,
        owner_id: UUID,
        container_ids: Sequence[UUID] | None = None,
    ) -> int:
        """See `Source`."""
        owned = select(func.count()).where(ChronicleEvent.user_id == owner_id)
        return await count_of(session, owned, ChronicleEvent.chronicle_id, container_ids)

    async def inventory(
        self, session: AsyncSession, container_id: UUID, *, owner_id: UUID
    ) -> dict[UUID, int] | None:
        """A chronicle's events in story order; None when there is no such chronicle.

        Those that do not count now are among them: coming back to a branch finds them again.
        """
        owned = Chronicle.id == container_id, Chronicle.user_id == owner_id
        if await session.scalar(select(Chronicle.id).where(*owned)) is None:
            return None
        rows = await session.execute(
            select(ChronicleEvent.id, ChronicleEvent.updated_at)
            .where(ChronicleEvent.chronicle_id == container_id)
            .order_by(*STORY_ORDER)
        )
        return await inventory_of(rows)

    async def rows(
        self,
        session: AsyncSession,
        sealer: Sealer,
        container_id: UUID,
        source_ids: Sequence[UUID],
        *,
        neighbours: bool,  # noqa: ARG002  # events stand by themselves
    ) -> list[SourceRow]:
        """Events, one document each, whether they count or not."""
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
    ) -> dict[UUID, Recalled]:
        """Events that count, that none which counts has superseded, and that it may know."""
        found = await get_events(session, sealer, list(source_ids))
        return {
            event.id: _recalled(event)
            for event in found.values()
            if event.is_current and may_know(viewpoint, event.audience)
        }


def _documents(event: StoryEvent) -> list[Document]:
    fields = event.fields
    document = event_document(
        event.id,
        event.chronicle_id,
        summary=fields.summary,
        when=format_story_time(fields),
        where=fields.where,
        who=fields.who,
        keywords=fields.keywords,
        said_at=event.happened_at,
        version=version_of(event.updated_at),
        audience=event.audience,
    )
    return [document]


def _recalled(event: StoryEvent) -> Recalled:
    first = event.sources[0] if event.sources else None
    chats = {source.chat_id for source in event.sources}
    return Recalled(
        kind=KIND,
        source_id=event.id,
        container_id=event.chronicle_id,
        title="",
        text=render_event(event.fields),
        story_time=format_story_time(event.fields),
        said_at=event.happened_at,
        position=first.position if first else 0,
        chat_id=chats.pop() if len(chats) == 1 else None,
        origins=[Origin(each.id, each.chat_id, each.position) for each in event.sources],
        audience=event.audience,
    )
