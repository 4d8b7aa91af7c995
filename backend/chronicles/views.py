"""Rows of chronicles into what the API shows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles import repository
from backend.chronicles.models import Chronicle
from backend.chronicles.reading import StoryEvent
from backend.chronicles.records import open_chronicle
from backend.chronicles.schemas import ChronicleView, EventView
from backend.vault.sealing import Sealer


async def chronicle_views(
    session: AsyncSession, sealer: Sealer, rows: Sequence[Chronicle]
) -> list[ChronicleView]:
    """Chronicles with their counts and who uses them, in the order given."""
    ids = [row.id for row in rows]
    counts = await repository.event_counts(session, ids)
    chats = await repository.chats_of(session, ids, owner_id=sealer.user_id)
    books = await repository.lorebooks_of(session, ids, owner_id=sealer.user_id)
    found: list[ChronicleView] = []
    for row in rows:
        fields, count = open_chronicle(sealer, row), counts[row.id]
        found.append(
            ChronicleView(
                id=row.id,
                name=fields.name,
                description=fields.description,
                event_count=count.all,
                current_count=count.current,
                chat_ids=chats[row.id],
                lorebook_id=books.get(row.id),
                revision=row.revision,
                created_at=row.created_at,
                updated_at=row.updated_at,
            )
        )
    return found


def event_view(event: StoryEvent) -> EventView:
    """An event."""
    return EventView(
        **msgspec.structs.asdict(event.fields),
        id=event.id,
        chronicle_id=event.chronicle_id,
        significance=event.significance,
        pinned=event.is_pinned,
        source=event.source,
        happened_at=event.happened_at,
        source_message_ids=[each.id for each in event.sources],
        source_chat_ids=list(dict.fromkeys(each.chat_id for each in event.sources)),
        is_current=event.is_current,
        superseded_by=event.superseded_by,
        edited=event.is_edited,
        run_id=event.run_id,
        revision=event.revision,
        created_at=event.created_at,
        updated_at=event.updated_at,
    )
