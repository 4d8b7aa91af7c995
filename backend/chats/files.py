"""Pictures and files of messages, each stored once for all messages with the same content.

No function commits. The content is sealed, and found again by a digest that is keyed with the
user's key. A file is deleted when no message refers to it any more.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import delete, exists, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.drafts import reseal
from backend.chats.models import (
    FILE_DATA,
    FILE_DESCRIPTION,
    FILE_REFERENCE,
    MessageFile,
    StoredFile,
)
from backend.database.base import UNSYNCHRONIZED, new_id, split_chunks, upsert
from backend.generation.model import PromptImage
from backend.vault.sealing import Sealer, digest

MAX_FILE_BYTES: Final = 16 * 1024 * 1024

_KEY_PURPOSE: Final = "files/digest"


class FileDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The media type of a stored file, and its size in bytes."""

    media_type: str
    size: int


class FileName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a message's file, and its path in the imported chat."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """A file to store, if there is none with its digest."""

    digest: bytes
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedReference:
    """A file of a message. `digest` is None if the content is missing."""

    message_id: UUID
    digest: bytes | None
    row: Mapping[str, Any]


def compute_digest(sealer: Sealer, data: bytes) -> bytes:
    return digest(sealer.derive_key(_KEY_PURPOSE), hashlib.sha256(data).digest())


def seal_file(sealer: Sealer, data: bytes, *, media_type: str) -> SealedFile:
    """CPU-bound."""
    file_id, found = new_id(), compute_digest(sealer, data)
    description = msgspec.json.encode(FileDescription(media_type=media_type, size=len(data)))
    row = {
        "id": file_id,
        "user_id": sealer.user_id,
        "digest": found,
        "sealed_description": sealer.seal_bytes(FILE_DESCRIPTION, file_id, description),
        "sealed_data": sealer.seal_bytes(FILE_DATA, file_id, data),
    }
    return SealedFile(digest=found, row=row)


def seal_reference(
    sealer: Sealer, message_id: UUID, name: FileName, *, place: int, digest: bytes | None
) -> SealedReference:
    row_id = new_id()
    row = {
        "id": row_id,
        "user_id": sealer.user_id,
        "message_id": message_id,
        "place": place,
        "sealed_reference": sealer.seal_bytes(FILE_REFERENCE, row_id, msgspec.json.encode(name)),
    }
    return SealedReference(message_id=message_id, digest=digest, row=row)


def seal_images(
    sealer: Sealer, message_id: UUID, images: Sequence[PromptImage]
) -> tuple[list[SealedFile], list[SealedReference]]:
    """Return the files of a message's images. Images that are only an address have none.

    CPU-bound.
    """
    files: list[SealedFile] = []
    references: list[SealedReference] = []
    for image in images:
        if not image.data or len(image.data) > MAX_FILE_BYTES:
            continue
        place = len(references)
        extension = mimetypes.guess_extension(image.media_type) or ""
        name = FileName(name=f"image-{place + 1}{extension}", path="")
        files.append(seal_file(sealer, image.data, media_type=image.media_type))
        digest = files[-1].digest
        references.append(seal_reference(sealer, message_id, name, place=place, digest=digest))
    return files, references


def open_name(sealer: Sealer, row_id: UUID, blob: bytes) -> FileName:
    return msgspec.json.decode(sealer.open_bytes(FILE_REFERENCE, row_id, blob), type=FileName)


def open_description(sealer: Sealer, file_id: UUID, blob: bytes) -> FileDescription:
    data = sealer.open_bytes(FILE_DESCRIPTION, file_id, blob)
    return msgspec.json.decode(data, type=FileDescription)


async def insert_files(
    session: AsyncSession,
    owner_id: UUID,
    files: Sequence[SealedFile],
    references: Sequence[SealedReference],
) -> None:
    """Store files, unless they are there, and then the references of messages to them.

    A reference to a digest that is neither in `files` nor stored has no content.
    """
    for part in split_chunks(references, _BATCH_ROWS):
        wanted = {each.digest for each in part if each.digest is not None}
        found = await _lock_files(session, owner_id, wanted)
        missing = [dict(each.row) for each in files if each.digest in wanted - found.keys()]
        for row in missing:
            await upsert(session, StoredFile, row, key=("user_id", "digest"))
        if missing:
            found = await _lock_files(session, owner_id, wanted)
        rows = [
            {**each.row, "file_id": found.get(each.digest) if each.digest else None}
            for each in part
        ]
        await session.execute(insert(MessageFile), rows)


_BATCH_ROWS: Final = 500


async def _lock_files(
    session: AsyncSession, owner_id: UUID, digests: Collection[bytes]
) -> dict[bytes, UUID]:
    """Return the ids of stored files. No other transaction can delete them until this one ends."""
    query = (
        select(StoredFile.digest, StoredFile.id)
        .where(StoredFile.user_id == owner_id, StoredFile.digest.in_(digests))
        .order_by(StoredFile.digest)
        .with_for_update(read=True, key_share=True)
    )
    rows = await session.execute(query)
    return {row.digest: row.id for row in rows}


async def delete_unused_files(session: AsyncSession, owner_id: UUID) -> None:
    """Delete a user's files that no message refers to.

    They are locked first, and looked at again: another transaction may just have added a reference.
    """
    is_unused = ~exists().where(MessageFile.file_id == StoredFile.id)
    query = select(StoredFile.id).where(StoredFile.user_id == owner_id, is_unused)
    ids = list(await session.scalars(query.order_by(StoredFile.id).with_for_update()))
    for part in split_chunks(ids):
        await session.execute(
            delete(StoredFile).where(StoredFile.id.in_(part), is_unused),
            execution_options=UNSYNCHRONIZED,
        )


async def copy_references(
    session: AsyncSession, sealer: Sealer, copied: Mapping[UUID, UUID]
) -> None:
    """Let copies of messages refer to the files of the originals. `copied` maps their ids."""
    for ids in split_chunks(list(copied)):
        query = select(MessageFile.__table__).where(
            MessageFile.message_id.in_(ids), MessageFile.user_id == sealer.user_id
        )
        rows: list[dict[str, Any]] = []
        for row in (await session.execute(query)).mappings():
            copy_id = new_id()
            name = reseal(sealer, FILE_REFERENCE, row["id"], row["sealed_reference"], copy_id)
            own = {"id": copy_id, "message_id": copied[row["message_id"]], "sealed_reference": name}
            rows.append({**row, **own})
        if rows:
            await session.execute(insert(MessageFile), rows)
