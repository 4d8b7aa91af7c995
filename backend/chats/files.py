"""Pictures and files of messages, each stored once for all messages with the same content.

No function commits. The content is sealed, and found again by a digest that is keyed with the
user's key. A file is deleted when no message refers to it any more. An uploaded file waits for a
message for `WAIT_DURATION`.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import delete, exists, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.drafts import reseal
from backend.chats.errors import UnknownFileError
from backend.chats.models import (
    FILE_DATA,
    FILE_DESCRIPTION,
    FILE_REFERENCE,
    MessageFile,
    StoredFile,
)
from backend.chats.schemas import MessageFileView
from backend.database.base import (
    UNSYNCHRONIZED,
    new_id,
    now,
    skip_index,
    split_chunks,
    upsert,
)
from backend.database.batches import Batches
from backend.generation.model import PromptImage
from backend.vault.sealing import Sealer, digest

MAX_FILE_BYTES: Final = 16 * 1024 * 1024

WAIT_DURATION: Final = timedelta(hours=24)
"""The time for which an uploaded file is kept without a message."""

FILES_PER_BATCH: Final = 10
"""Unused files that one transaction deletes. They may be large."""

IS_UNUSED: Final = ~exists().where(MessageFile.file_id == StoredFile.id)

_KEY_PURPOSE: Final = "files/digest"


class FileDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The media type of a stored file, and its size in bytes.

    An uploaded picture also has its name, and its width and height in pixels.
    """

    media_type: str
    size: int
    name: str = ""
    width: int | None = None
    height: int | None = None

    @property
    def extension(self) -> str:
        """The extension of a file of this type, with its dot."""
        return mimetypes.guess_extension(self.media_type) or ".bin"


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
class WaitingFile:
    """An uploaded file that a new message will have."""

    id: UUID
    digest: bytes
    description: FileDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedReference:
    """A file of a message. `digest` is None if the content is missing."""

    message_id: UUID
    digest: bytes | None
    row: Mapping[str, Any]


def compute_digest(sealer: Sealer, data: bytes) -> bytes:
    return digest(sealer.derive_key(_KEY_PURPOSE), hashlib.sha256(data).digest())


def seal_file(
    sealer: Sealer, data: bytes, *, media_type: str = "", description: FileDescription | None = None
) -> SealedFile:
    """Seal a file with its media type, or with a whole description. CPU-bound."""
    file_id, found = new_id(), compute_digest(sealer, data)
    description = description or FileDescription(media_type=media_type, size=len(data))
    row = {
        "id": file_id,
        "user_id": sealer.user_id,
        "digest": found,
        "sealed_description": seal_description(sealer, file_id, description),
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


def seal_description(sealer: Sealer, file_id: UUID, description: FileDescription) -> bytes:
    return sealer.seal_bytes(FILE_DESCRIPTION, file_id, msgspec.json.encode(description))


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
        .order_by(StoredFile.id)
        .with_for_update(read=True, key_share=True)
    )
    rows = await session.execute(query)
    return {row.digest: row.id for row in rows}


async def delete_unused_files(session: AsyncSession, owner_id: UUID) -> None:
    """Delete a user's files that no message refers to, and that wait for none.

    They are locked first, and looked at again: another transaction may just have added a reference.
    """
    query = select(StoredFile.id).where(StoredFile.user_id == owner_id, IS_UNUSED)
    ids = list(await session.scalars(query.order_by(StoredFile.id).with_for_update()))
    for part in split_chunks(ids):
        await _delete_still_unused(session, part)


async def delete_unused_files_in_batches(batches: Batches, owner_id: UUID) -> None:
    """Delete the same files in several transactions."""
    query = (
        select(StoredFile.id)
        .where(StoredFile.user_id == owner_id, IS_UNUSED)
        .order_by(StoredFile.id)
    )
    async with batches.database.read() as session:
        unused = list(await session.scalars(query))
    for ids in split_chunks(unused, FILES_PER_BATCH):
        await batches.run(partial(_lock_and_delete_unused, ids=ids))


async def _lock_and_delete_unused(session: AsyncSession, *, ids: Sequence[UUID]) -> int:
    query = select(StoredFile.id).where(StoredFile.id.in_(ids), IS_UNUSED)
    locked = list(await session.scalars(query.order_by(StoredFile.id).with_for_update()))
    await _delete_still_unused(session, locked)
    return len(locked)


async def _delete_still_unused(session: AsyncSession, ids: Sequence[UUID]) -> None:
    # SQLite reads the content of a row to get at `waits_until`, so only unused rows are looked at.
    await session.execute(
        delete(StoredFile).where(
            StoredFile.id.in_(ids),
            IS_UNUSED,
            or_(StoredFile.waits_until.is_(None), StoredFile.waits_until < now()),
        ),
        execution_options=UNSYNCHRONIZED,
    )


async def copy_references(
    session: AsyncSession, sealer: Sealer, copied: Mapping[UUID, UUID]
) -> None:
    """Let copies of messages refer to the files of the originals. `copied` maps their ids.

    A file that is deleted at the same time, with the original, has no content in the copy.
    """
    for ids in split_chunks(list(copied)):
        query = select(MessageFile.__table__).where(
            MessageFile.message_id.in_(ids), MessageFile.user_id == sealer.user_id
        )
        found = (await session.execute(query)).mappings().all()
        if not found:
            continue
        used = {row["file_id"] for row in found}
        lock = (
            select(StoredFile.id)
            .where(StoredFile.id.in_(used), StoredFile.user_id == sealer.user_id)
            .order_by(StoredFile.id)
            .with_for_update(read=True, key_share=True)
        )
        locked = set(await session.scalars(lock))
        rows: list[dict[str, Any]] = []
        for row in found:
            copy_id = new_id()
            name = reseal(sealer, FILE_REFERENCE, row["id"], row["sealed_reference"], copy_id)
            own = {"id": copy_id, "message_id": copied[row["message_id"]], "sealed_reference": name}
            file_id = row["file_id"] if row["file_id"] in locked else None
            rows.append({**row, **own, "file_id": file_id})
        await session.execute(insert(MessageFile), rows)


async def store_upload(
    session: AsyncSession,
    sealer: Sealer,
    file: SealedFile,
    description: FileDescription,
    *,
    until: datetime,
) -> UUID:
    """Store a file that waits for a message, and return its id.

    A file with the same content is kept, with the new description.
    """
    row = {**file.row, "waits_until": until}
    await upsert(session, StoredFile, row, key=("user_id", "digest"), update=("waits_until",))
    query = select(StoredFile.id).where(
        StoredFile.user_id == sealer.user_id, StoredFile.digest == file.digest
    )
    file_id = (await session.scalars(query)).one()
    if file_id != row["id"]:
        await session.execute(
            update(StoredFile)
            .where(StoredFile.id == file_id)
            .values(sealed_description=seal_description(sealer, file_id, description)),
            execution_options=UNSYNCHRONIZED,
        )
    return file_id


async def load_waiting_files(
    session: AsyncSession, sealer: Sealer, file_ids: Sequence[UUID]
) -> list[WaitingFile]:
    """Return files for a new message, in order and each once. Raises `UnknownFileError`."""
    wanted = list(dict.fromkeys(file_ids))
    query = select(StoredFile.id, StoredFile.digest, StoredFile.sealed_description).where(
        StoredFile.id.in_(wanted), skip_index(StoredFile.user_id) == sealer.user_id
    )
    rows = {row.id: row for row in await session.execute(query)}
    if len(rows) < len(wanted):
        raise UnknownFileError("Upload the file again.")
    return [
        WaitingFile(
            id=row.id,
            digest=row.digest,
            description=open_description(sealer, row.id, row.sealed_description),
        )
        for row in map(rows.__getitem__, wanted)
    ]


async def claim_files(session: AsyncSession, owner_id: UUID, files: Sequence[WaitingFile]) -> None:
    """Lock files for a new message, which refers to them from now on.

    Raises `UnknownFileError` if one of them was deleted.
    """
    ids = [each.id for each in files]
    query = (
        select(StoredFile.id)
        .where(StoredFile.id.in_(ids), StoredFile.user_id == owner_id)
        .order_by(StoredFile.id)
        .with_for_update(key_share=True)
    )
    if len((await session.scalars(query)).all()) < len(ids):
        raise UnknownFileError("Upload the file again.")
    await session.execute(
        update(StoredFile).where(StoredFile.id.in_(ids)).values(waits_until=None),
        execution_options=UNSYNCHRONIZED,
    )


async def load_file_views(
    session: AsyncSession, sealer: Sealer, message_ids: Sequence[UUID]
) -> dict[UUID, list[MessageFileView]]:
    """Return the files of messages, in order. Files without content are left out."""
    found: dict[UUID, list[MessageFileView]] = {}
    for ids in split_chunks(message_ids, _BATCH_ROWS):
        query = (
            select(
                MessageFile.id.label("reference_id"),
                MessageFile.message_id,
                MessageFile.sealed_reference,
                StoredFile.id,
                StoredFile.sealed_description,
            )
            .join(StoredFile, StoredFile.id == MessageFile.file_id)
            .where(
                MessageFile.message_id.in_(ids), skip_index(MessageFile.user_id) == sealer.user_id
            )
            .order_by(MessageFile.message_id, MessageFile.place)
        )
        for row in await session.execute(query):
            about = open_description(sealer, row.id, row.sealed_description)
            name = open_name(sealer, row.reference_id, row.sealed_reference).name
            view = MessageFileView(
                id=row.id,
                name=name or about.name or f"image{about.extension}",
                media_type=about.media_type,
                size=about.size,
                width=about.width,
                height=about.height,
            )
            found.setdefault(row.message_id, []).append(view)
    return found
