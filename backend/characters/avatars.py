"""Avatars of characters and personas, at most one each.

Every picture is encoded again, so that no metadata and no trailing bytes of an upload are served.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.characters import repository
from backend.characters.errors import AvatarNotFoundError
from backend.characters.models import AVATAR_IMAGE, AVATAR_THUMBNAIL, Avatar
from backend.characters.repository import HolderKind
from backend.characters.schemas import AvatarSize
from backend.core.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.vault.sealing import Sealer

_COLUMNS = {"full": AVATAR_IMAGE, "thumbnail": AVATAR_THUMBNAIL}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture to serve. A new picture has a new `tag`."""

    data: bytes
    media_type: str
    tag: str


class AvatarService:
    """The avatars of characters and personas.

    Every method raises the holder's not-found error. `read` and `remove` raise
    `AvatarNotFoundError` if the holder has no avatar.
    """

    def __init__(self, database: Database, pool: CpuPool) -> None:
        self._database = database
        self._pool = pool

    async def read(
        self, identity: Identity, kind: HolderKind, holder_id: UUID, size: AvatarSize
    ) -> Picture:
        owner_id = identity.user_id
        async with self._database.read() as session:
            stored = await repository.find_avatar(
                session, kind, holder_id, owner_id=owner_id, size=size
            )
            if stored is None:
                await repository.get_holder(session, kind, holder_id, owner_id=owner_id)
                raise AvatarNotFoundError
        data = identity.sealer.open_bytes(_COLUMNS[size], stored.id, stored.sealed)
        return Picture(data, stored.media_type, f"{stored.id.hex}-{size}")

    async def replace(
        self, identity: Identity, kind: HolderKind, holder_id: UUID, data: bytes
    ) -> None:
        """Set the avatar to a PNG, JPEG, WebP or GIF file. Raises `ImageError`, `TooLargeError`."""
        owner_id = identity.user_id
        async with self._database.read() as session:
            await repository.get_holder(session, kind, holder_id, owner_id=owner_id)
        avatar = await self._pool.run(
            owner_id, partial(seal_avatar, identity.sealer, kind, holder_id, data)
        )
        async with self._database.write() as session:
            await repository.get_holder(session, kind, holder_id, owner_id=owner_id, lock=True)
            await repository.delete_avatar(session, kind, holder_id, owner_id=owner_id)
            session.add(avatar)

    async def remove(self, identity: Identity, kind: HolderKind, holder_id: UUID) -> None:
        owner_id = identity.user_id
        async with self._database.write() as session:
            await repository.get_holder(session, kind, holder_id, owner_id=owner_id, lock=True)
            if not await repository.delete_avatar(session, kind, holder_id, owner_id=owner_id):
                raise AvatarNotFoundError


def seal_avatar(
    sealer: Sealer, kind: HolderKind, holder_id: UUID, data: bytes, *, is_imported: bool = False
) -> Avatar:
    """Encode a picture again and seal it. CPU-bound. Raises `ImageError`, `TooLargeError`."""
    from backend.characters.pictures import reencode_avatar  # noqa: PLC0415  # imports Pillow

    picture = reencode_avatar(data)
    avatar_id = new_id()
    return Avatar(
        id=avatar_id,
        user_id=sealer.user_id,
        media_type=picture.media_type,
        thumbnail_media_type=picture.thumbnail_media_type,
        is_imported=is_imported,
        sealed_image=sealer.seal_bytes(AVATAR_IMAGE, avatar_id, picture.data),
        sealed_thumbnail=sealer.seal_bytes(AVATAR_THUMBNAIL, avatar_id, picture.thumbnail),
        **{f"{kind}_id": holder_id},
    )
