"""Chronicles: listing, making, changing, deleting."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from backend.accounts.identity import Identity
from backend.chronicles import repository
from backend.chronicles.events import ChronicleFields
from backend.chronicles.making import make_chronicle
from backend.chronicles.records import open_chronicle, sealed_chronicle
from backend.chronicles.schemas import ChronicleView, NewChronicle
from backend.chronicles.views import chronicle_views
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.memory.outbox import IndexOutbox
from backend.wire import Page, check_revision, merge_patch, reject_unknown


class ChronicleService:
    """What a user does with chronicles as wholes."""

    def __init__(self, database: Database, outbox: IndexOutbox) -> None:
        self._database = database
        self._outbox = outbox

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[ChronicleView]:
        """Chronicles, newest first."""
        async with self._database.read() as session:
            rows = await repository.list_chronicles(
                session, owner_id=identity.user_id, limit=limit + 1, after=after
            )
            shown = await chronicle_views(session, identity.sealer, rows[:limit])
        return Page(items=shown, next=str(shown[-1].id) if len(rows) > limit else None)

    async def create(self, identity: Identity, new: NewChronicle) -> ChronicleView:
        """Make a chronicle without events. Raises `ChronicleFullError`."""
        fields = ChronicleFields(name=new.name, description=new.description)
        async with self._database.write() as session:
            row = await make_chronicle(session, identity, fields)
            [view] = await chronicle_views(session, identity.sealer, [row])
        return view

    async def get(self, identity: Identity, chronicle_id: UUID) -> ChronicleView:
        """Raises `ChronicleNotFoundError`."""
        async with self._database.read() as session:
            row = await repository.get_chronicle(session, chronicle_id, owner_id=identity.user_id)
            [view] = await chronicle_views(session, identity.sealer, [row])
        return view

    async def patch(
        self,
        identity: Identity,
        chronicle_id: UUID,
        patch: dict[str, Any],
        *,
        if_match: str | None,
    ) -> ChronicleView:
        """Merge into a chronicle: what is absent stays, null goes back to the default.

        Raises `ChronicleNotFoundError`, `PreconditionFailedError`, `ValidationError`.
        """
        reject_unknown(patch, ChronicleFields)
        sealer = identity.sealer
        async with self._database.write() as session:
            row = await repository.get_chronicle(
                session, chronicle_id, owner_id=identity.user_id, lock=True
            )
            check_revision(if_match, row.revision)
            changed = merge_patch(open_chronicle(sealer, row), patch)
            if not changed.name.strip():
                raise ValidationError("A chronicle needs a name.")
            row.sealed_chronicle = sealed_chronicle(sealer, chronicle_id, changed)
            row.revision += 1
            row.updated_at = now()
            await session.flush()
            [view] = await chronicle_views(session, sealer, [row])
        return view

    async def delete(self, identity: Identity, chronicle_id: UUID, *, if_match: str | None) -> None:
        """Delete a chronicle with its events and its lorebook; chats that use it go on without.

        Their consent to have it written goes with it. Raises `ChronicleNotFoundError`,
        `PreconditionFailedError`.
        """
        owner_id = identity.user_id
        async with self._database.write() as session:
            # Before the chronicle, as whoever changes a chat and its chronicle locks them.
            await repository.lock_chats(session, chronicle_id, owner_id=owner_id)
            row = await repository.get_chronicle(
                session, chronicle_id, owner_id=owner_id, lock=True
            )
            check_revision(if_match, row.revision)
            books = await repository.lorebooks_of(session, [chronicle_id], owner_id=owner_id)
            await repository.release_chats(session, chronicle_id, owner_id=owner_id)
            await session.delete(row)
            await session.flush()
            await self._outbox.changed(
                session, identity, kind="event", container_id=chronicle_id, source_ids=None
            )
            for book_id in books.values():
                await self._outbox.changed(
                    session, identity, kind="lore", container_id=book_id, source_ids=None
                )
