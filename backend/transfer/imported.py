"""The files that an account has imported, by keyed digest, so that none is imported twice."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, BinaryIO
from uuid import UUID

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.models import Campaign
from backend.characters.models import Character, Persona
from backend.chats.models import Chat, StoredFile
from backend.chronicles.models import Chronicle
from backend.core.cpu_pool import check_stopped
from backend.database.base import Deletable, RecordCreated, new_id
from backend.llm.models import Provider
from backend.lorebooks.models import Lorebook
from backend.presets.models import Preset
from backend.transfer.models import IMPORTED_SOURCE, ImportedFile, ItemKind
from backend.vault.sealing import Sealer

READ_BYTES = 1 << 20

Item = Campaign | Character | Chat | Chronicle | Lorebook | Persona | Preset | Provider | StoredFile

_TABLES: Mapping[ItemKind, type[Item]] = {
    "campaign": Campaign,
    "character": Character,
    "chat": Chat,
    "chronicle": Chronicle,
    "file": StoredFile,
    "lorebook": Lorebook,
    "persona": Persona,
    "preset": Preset,
    "provider": Provider,
}
"""The table of each kind. The item of the others, such as settings, is the account itself."""


def digest_file(sealer: Sealer, file: BinaryIO) -> bytes:
    """Return the keyed digest of a file's content. Reads `READ_BYTES` at a time. CPU-bound."""
    mac = hmac.new(sealer.derive_key("imported-files"), digestmod=sha256)
    while chunk := file.read(READ_BYTES):
        check_stopped()
        mac.update(chunk)
    return mac.digest()


def digest_parts(sealer: Sealer, purpose: str, parts: Iterable[bytes]) -> bytes:
    """Return the keyed digest of something that is not a whole file, such as a name.

    It differs from the digest of any file, and from that of another `purpose`.
    """
    mac = hmac.new(sealer.derive_key(f"imported-{purpose}"), digestmod=sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


async def find_imported(
    session: AsyncSession, owner_id: UUID, digest: bytes
) -> ImportedFile | None:
    """Return the newest import of a file, or None if its items have been deleted."""
    return await session.scalar(
        select(ImportedFile)
        .where(ImportedFile.user_id == owner_id, ImportedFile.digest == digest, _item_exists())
        .order_by(ImportedFile.id.desc())
        .limit(1)
    )


async def record_imported(
    session: AsyncSession,
    sealer: Sealer,
    *,
    digest: bytes,
    kind: ItemKind,
    item_id: UUID,
    message_id: UUID | None = None,
    source: bytes | None = None,
) -> None:
    """Record a file in the transaction that stores its item. `source` is sealed here."""
    row_id = new_id()
    sealed = None if source is None else sealer.seal_bytes(IMPORTED_SOURCE, row_id, source)
    session.add(
        ImportedFile(
            id=row_id,
            user_id=sealer.user_id,
            digest=digest,
            kind=kind,
            item_id=item_id,
            message_id=message_id,
            sealed_source=sealed,
        )
    )


def make_recorder(sealer: Sealer, kind: ItemKind, *digests: bytes) -> RecordCreated:
    """Return a function for a service's `record`, which records the new item under each digest."""
    return partial(_record_item, sealer, kind, digests)


async def _record_item(
    sealer: Sealer, kind: ItemKind, digests: Iterable[bytes], session: AsyncSession, item_id: UUID
) -> None:
    for digest in digests:
        await record_imported(session, sealer, digest=digest, kind=kind, item_id=item_id)


def _item_exists() -> ColumnElement[bool]:
    """Build the condition that the item of an `ImportedFile` is still there."""
    of_account = and_(
        ImportedFile.kind.not_in(_TABLES), ImportedFile.item_id == ImportedFile.user_id
    )
    stored = [
        and_(
            ImportedFile.kind == kind,
            exists().where(table.id == ImportedFile.item_id, is_owned(table, ImportedFile.user_id)),
        )
        for kind, table in _TABLES.items()
    ]
    return or_(of_account, *stored)


def is_owned(table: type[Item], owner: Any) -> ColumnElement[bool]:
    """Build the condition for items of an owner, an id or a column. Hidden ones do not count."""
    if issubclass(table, Deletable):
        return table.match_owner(owner)
    is_own: ColumnElement[bool] = table.user_id == owner
    return and_(is_own, Chat.is_ready) if table is Chat else is_own
