"""Backgrounds of chats and characters, at most one each. `chats.models` has the table.

Every picture is encoded again, so that no metadata and no trailing bytes of an upload are served.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import Delete, delete, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.accounts.auth.identity import Identity
from backend.backgrounds.errors import BackgroundNotFoundError
from backend.characters.avatars import Picture
from backend.characters.events import CharacterCopied
from backend.characters.repository import get_character
from backend.chats.events import ChatCopied
from backend.chats.models import BACKGROUND_IMAGE, Background
from backend.chats.repository import get_chat
from backend.core.cpu_pool import CpuPool
from backend.database.base import RecordCreated, new_id, record_nothing
from backend.database.engine import Database
from backend.http.schemas import Page, make_page
from backend.vault.sealing import Sealer

BackgroundHolder = Literal["chat", "character"]

_HOLDER_IDS: Mapping[BackgroundHolder, InstrumentedAttribute[UUID | None]] = {
    "chat": Background.chat_id,
    "character": Background.character_id,
}


class BackgroundItem(msgspec.Struct, kw_only=True):
    """A background, which belongs to a chat or to a character. A new picture has a new `id`."""

    id: UUID
    chat_id: UUID | None
    character_id: UUID | None


class BackgroundService(ChatCopied, CharacterCopied):
    """The backgrounds of chats and characters.

    The methods for one holder raise its not-found error. `read` and `remove` raise
    `BackgroundNotFoundError` if the holder has no background.
    """

    def __init__(self, database: Database, pool: CpuPool) -> None:
        self._database = database
        self._pool = pool

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[BackgroundItem]:
        query = select(Background.id, Background.chat_id, Background.character_id).where(
            Background.user_id == identity.user_id
        )
        if after is not None:
            query = query.where(Background.id < after)
        query = query.order_by(Background.id.desc()).limit(limit + 1)
        async with self._database.read() as session:
            rows, following = make_page((await session.execute(query)).all(), limit)
        items = [
            BackgroundItem(id=row.id, chat_id=row.chat_id, character_id=row.character_id)
            for row in rows
        ]
        return Page(items=items, next=following)

    async def read(self, identity: Identity, kind: BackgroundHolder, holder_id: UUID) -> Picture:
        owner_id = identity.user_id
        async with self._database.read() as session:
            await _check_holder(session, kind, holder_id, owner_id)
            row = await _find(session, kind, holder_id, owner_id)
        if row is None:
            raise BackgroundNotFoundError
        data = identity.sealer.open_bytes(BACKGROUND_IMAGE, row.id, row.sealed_image)
        return Picture(data, row.media_type, row.id.hex)

    async def replace(
        self,
        identity: Identity,
        kind: BackgroundHolder,
        holder_id: UUID,
        data: bytes,
        *,
        record: RecordCreated = record_nothing,
    ) -> None:
        """Set the background to a PNG, JPEG, WebP or GIF. Raises `ImageError`, `TooLargeError`."""
        owner_id = identity.user_id
        async with self._database.read() as session:
            await _check_holder(session, kind, holder_id, owner_id)
        background = await self.prepare(identity, kind, holder_id, data)
        async with self._database.write() as session:
            await _check_holder(session, kind, holder_id, owner_id, lock=True)
            await session.execute(_delete(kind, holder_id, owner_id))
            session.add(background)
            await record(session, holder_id)

    async def prepare(
        self, identity: Identity, kind: BackgroundHolder, holder_id: UUID, data: bytes
    ) -> Background:
        """Return the row of a background, without storing it. Raises as `replace` does.

        The holder need not exist yet.
        """
        work = partial(_seal_background, identity.sealer, kind, holder_id, data)
        return await self._pool.run(identity.user_id, work)

    async def remove(self, identity: Identity, kind: BackgroundHolder, holder_id: UUID) -> None:
        owner_id = identity.user_id
        async with self._database.write() as session:
            await _check_holder(session, kind, holder_id, owner_id, lock=True)
            deleted = await session.scalars(
                _delete(kind, holder_id, owner_id).returning(Background.id)
            )
            if deleted.one_or_none() is None:
                raise BackgroundNotFoundError

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy the chat's background."""
        del copied
        await _copy(session, identity.sealer, "chat", source_id, fork_id)

    async def character_copied(
        self, session: AsyncSession, identity: Identity, source_id: UUID, copy_id: UUID
    ) -> None:
        """Copy the character's background."""
        await _copy(session, identity.sealer, "character", source_id, copy_id)


async def _check_holder(
    session: AsyncSession,
    kind: BackgroundHolder,
    holder_id: UUID,
    owner_id: UUID,
    *,
    lock: bool = False,
) -> None:
    """Raise the holder's not-found error. `lock` blocks another upload for the same holder."""
    get = get_chat if kind == "chat" else get_character
    await get(session, holder_id, owner_id=owner_id, lock=lock)


async def _find(
    session: AsyncSession, kind: BackgroundHolder, holder_id: UUID, owner_id: UUID
) -> Background | None:
    query = select(Background).where(_HOLDER_IDS[kind] == holder_id, Background.user_id == owner_id)
    return await session.scalar(query)


def _delete(kind: BackgroundHolder, holder_id: UUID, owner_id: UUID) -> Delete:
    return delete(Background).where(_HOLDER_IDS[kind] == holder_id, Background.user_id == owner_id)


async def _copy(
    session: AsyncSession, sealer: Sealer, kind: BackgroundHolder, source_id: UUID, copy_id: UUID
) -> None:
    row = await _find(session, kind, source_id, sealer.user_id)
    if row is not None:
        data = sealer.open_bytes(BACKGROUND_IMAGE, row.id, row.sealed_image)
        session.add(_make_row(sealer, kind, copy_id, data, row.media_type))


def _seal_background(
    sealer: Sealer, kind: BackgroundHolder, holder_id: UUID, data: bytes
) -> Background:
    """Encode a picture again and seal it. CPU-bound. Raises `ImageError`, `TooLargeError`."""
    from backend.characters.pictures import reencode_background  # noqa: PLC0415  # imports Pillow

    return _make_row(sealer, kind, holder_id, reencode_background(data), "image/webp")


def _make_row(
    sealer: Sealer, kind: BackgroundHolder, holder_id: UUID, data: bytes, media_type: str
) -> Background:
    background_id = new_id()
    return Background(
        id=background_id,
        user_id=sealer.user_id,
        media_type=media_type,
        sealed_image=sealer.seal_bytes(BACKGROUND_IMAGE, background_id, data),
        **{f"{kind}_id": holder_id},
    )
