"""Create, list, change and delete chronicles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec
from sqlalchemy import column, func, select, table, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.models import Chat
from backend.chronicles.events import ChronicleFields
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.chronicles.repository import (
    current,
    get_chronicle,
    make_chronicle,
    open_chronicle,
    seal_chronicle,
)
from backend.chronicles.schemas import ChronicleView, NewChronicle
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.database.types import Id
from backend.errors import ValidationError
from backend.http.schemas import (
    Page,
    check_revision,
    make_page,
    make_struct,
    merge_patch,
    reject_unknown,
)
from backend.jobs.deletions import queue_deletion
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.sealing import Sealer

_LOREBOOKS = table(
    "lorebooks", column("id", Id()), column("user_id", Id()), column("chronicle_id", Id())
)
_CAMPAIGNS = table(
    "campaigns", column("id", Id()), column("user_id", Id()), column("chronicle_id", Id())
)
"""The columns needed here. Lorebooks, campaigns and chronicles do not import each other."""


@runtime_checkable
class ChronicleDeleted(Protocol):
    """A chronicle is about to be hidden and deleted."""

    async def chronicle_deleted(
        self, session: AsyncSession, identity: Identity, chronicle_id: UUID
    ) -> None:
        """Keep data that must remain, and detach or hide the rest that refers to it."""
        ...


class ChronicleService:
    """Operations of a user on chronicles. The routes list the errors."""

    def __init__(
        self, database: Database, outbox: IndexOutbox, *, participants: Participants
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._participants = participants

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[ChronicleView]:
        query = select(Chronicle).where(Chronicle.match_owner(identity.user_id))
        if after is not None:
            query = query.where(Chronicle.id < after)
        query = query.order_by(Chronicle.id.desc()).limit(limit + 1)
        async with self._database.read() as session:
            rows, following = make_page(list(await session.scalars(query)), limit)
            items = await _views(session, identity.sealer, rows)
        return Page(items=items, next=following)

    async def create(self, identity: Identity, new: NewChronicle) -> ChronicleView:
        fields = ChronicleFields(name=new.name, description=new.description)
        async with self._database.write() as session:
            row = await make_chronicle(session, identity, fields)
            [view] = await _views(session, identity.sealer, [row])
        return view

    async def get(self, identity: Identity, chronicle_id: UUID) -> ChronicleView:
        """Return a chronicle without its events."""
        async with self._database.read() as session:
            row = await get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            [view] = await _views(session, identity.sealer, [row])
        return view

    async def patch(
        self, identity: Identity, chronicle_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> ChronicleView:
        """Merge `patch` into a chronicle. Absent fields are kept, null restores the default."""
        reject_unknown(patch, ChronicleFields)
        sealer = identity.sealer
        async with self._database.write() as session:
            row = await get_chronicle(session, chronicle_id, owner_id=sealer.user_id, lock=True)
            check_revision(if_match, row.revision)
            changed = merge_patch(open_chronicle(sealer, row), patch)
            if not changed.name.strip():
                raise ValidationError("A chronicle needs a name.")
            row.sealed_chronicle = seal_chronicle(sealer, chronicle_id, changed)
            row.revision += 1
            row.updated_at = now()
            await session.flush()
            [view] = await _views(session, sealer, [row])
        return view

    async def delete(self, identity: Identity, chronicle_id: UUID, *, if_match: str | None) -> None:
        """Delete a chronicle with its events and its lorebook. Its chats are kept without one.

        Their consent to writing it is removed too.
        """
        owner_id = identity.user_id
        uses_it = Chat.chronicle_id == chronicle_id, Chat.user_id == owner_id
        async with self._database.write() as session:
            # All code locks chats, campaigns and chronicles in this order.
            chats = select(Chat.id).where(*uses_it).order_by(Chat.id)
            await session.execute(chats.with_for_update())
            told = _CAMPAIGNS.c.chronicle_id == chronicle_id, _CAMPAIGNS.c.user_id == owner_id
            campaigns = select(_CAMPAIGNS.c.id).where(*told).order_by(_CAMPAIGNS.c.id)
            await session.execute(campaigns.with_for_update())
            row = await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=True)
            check_revision(if_match, row.revision)
            books = await _find_lorebooks(session, [chronicle_id], owner_id=owner_id)
            await session.execute(
                update(Chat)
                .where(*uses_it)
                .values(chronicle_id=None, chronicle_enabled=False, revision=Chat.revision + 1)
            )
            for handler in self._participants.find_handlers(ChronicleDeleted):
                await handler.chronicle_deleted(session, identity, chronicle_id)
            row.deleted_at = now()
            await session.flush()
            await queue_deletion(session, "chronicle", chronicle_id)
            await self._outbox.changed(session, identity, kind="event", container_id=chronicle_id)
            for book_id in books.values():
                await self._outbox.changed(session, identity, kind="lore", container_id=book_id)


async def _views(
    session: AsyncSession, sealer: Sealer, rows: Sequence[Chronicle]
) -> list[ChronicleView]:
    """Return the chronicles with their counts and chats, in the order given."""
    ids = [row.id for row in rows]
    counted = await session.execute(
        select(ChronicleEvent.chronicle_id, func.count(), func.count().filter(current()))
        .where(ChronicleEvent.chronicle_id.in_(ids))
        .group_by(ChronicleEvent.chronicle_id)
    )
    counts = {row[0]: (row[1], row[2]) for row in counted}
    using = await session.execute(
        select(Chat.chronicle_id, Chat.id)
        .where(Chat.chronicle_id.in_(ids), Chat.user_id == sealer.user_id)
        .order_by(Chat.id)
    )
    chats: defaultdict[UUID | None, list[UUID]] = defaultdict(list)
    for chronicle_id, chat_id in using:
        chats[chronicle_id].append(chat_id)
    books = await _find_lorebooks(session, ids, owner_id=sealer.user_id)
    found: list[ChronicleView] = []
    for row in rows:
        event_count, current_count = counts.get(row.id, (0, 0))
        found.append(
            make_struct(
                ChronicleView,
                row,
                **msgspec.structs.asdict(open_chronicle(sealer, row)),
                event_count=event_count,
                current_count=current_count,
                chat_ids=chats[row.id],
                lorebook_id=books.get(row.id),
            )
        )
    return found


async def _find_lorebooks(
    session: AsyncSession, chronicle_ids: Sequence[UUID], *, owner_id: UUID
) -> dict[UUID, UUID]:
    books = _LOREBOOKS.c
    query = select(books.chronicle_id, books.id).where(
        books.chronicle_id.in_(chronicle_ids), books.user_id == owner_id
    )
    return dict((await session.execute(query)).all())
