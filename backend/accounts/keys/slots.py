"""Key slots, and the user keys in jobs.

Standing slots and the keys in jobs are under the root key alone, so that work can continue while
the user is away. The table of jobs belongs to `backend.jobs`, a layer above. Only these columns of
it are known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    bindparam,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys.keyring import UserKey
from backend.accounts.models import InstanceKey, KeySlot
from backend.core.logs import get_logger
from backend.database.base import new_id
from backend.database.engine import Database
from backend.database.types import Id, UtcTime
from backend.vault import slots as envelopes
from backend.vault.root import RootKeyError, RootKeys, Wrapped
from backend.vault.slots import (
    EnvelopePlace,
    SlotKind,
    UnwrappedKey,
    rewrap_lent,
    wrap_lent,
)

log = get_logger(__name__)

STANDING_DURATION = timedelta(days=30)
"""A standing slot ends this long after its user's last request."""

JOBS = Table(
    "jobs",
    MetaData(),
    Column("id", Id(), primary_key=True),
    Column("user_id", Id()),
    Column("wrapped_key", LargeBinary),
    Column("root_version", Integer),
    Column("key_until", UtcTime()),
)
NO_KEY_VALUES: dict[str, Any] = {"wrapped_key": None, "root_version": None, "key_until": None}


async def refuse_older_root(session: AsyncSession, root_keys: RootKeys) -> None:
    """Raise `RootKeyError` if the root key was rotated after this process read it.

    Call it at the start of a transaction that wraps something under the root key. Values that a
    stale server wraps under the old key could never be opened after that key is dropped. The lock
    makes the rotation wait for such a transaction, or the other way round.
    """
    query = select(InstanceKey.root_version).with_for_update(read=True)
    version = await session.scalar(query)
    if version is not None and version > root_keys.current:
        raise RootKeyError("The root key was rotated. Restart this server with the new one.")


def make_slot(
    kind: SlotKind,
    user_id: UUID,
    current: UserKey,
    *,
    secret: bytes,
    root: RootKeys,
    **columns: Any,
) -> KeySlot:
    slot_id = columns.pop("id", None) or new_id()
    place = EnvelopePlace(kind, slot_id, user_id, current.generation)
    wrapped = envelopes.wrap(place, secret=secret, user_key=current.key, root=root)
    return KeySlot(
        id=slot_id,
        user_id=user_id,
        kind=kind,
        wrapped=wrapped.blob,
        root_version=wrapped.root_version,
        generation=current.generation,
        **columns,
    )


def open_slot(slot: KeySlot, *, secret: bytes, root: RootKeys) -> UnwrappedKey:
    """Return the user key in a slot. Raises `WrongSecretError`, `RootKeyError`."""
    return envelopes.unwrap(_make_place(slot), _get_wrapped(slot), secret=secret, root=root)


async def wrap_directly(
    database: Database, slot: KeySlot, current: UserKey, *, secret: bytes, root: RootKeys
) -> None:
    """Store the form that opens fastest in a slot that was just opened, unless it has changed."""
    place = _make_place(slot)._replace(generation=current.generation)
    wrapped = envelopes.wrap(place, secret=secret, user_key=current.key, root=root)
    is_as_it_was = (KeySlot.id == slot.id) & (KeySlot.wrapped == slot.wrapped)
    async with database.write() as session:
        await refuse_older_root(session, root)
        await session.execute(
            update(KeySlot)
            .where(is_as_it_was)
            .values(
                wrapped=wrapped.blob,
                root_version=wrapped.root_version,
                generation=current.generation,
            )
        )


def carry_over(slot: KeySlot, *, old_key: bytes, new: UserKey, root: RootKeys) -> None:
    """Replace the user key in a slot.

    Raises `RootKeyError`, and `SealBrokenError` if the slot does not contain the old user key.
    """
    if slot.kind == "standing":
        wrapped = wrap_lent("standing", slot.id, slot.user_id, user_key=new.key, root=root)
    else:
        wrapped = envelopes.readdress(
            _make_place(slot), _get_wrapped(slot), old_key=old_key, new_key=new.key, root=root
        )
        slot.generation = new.generation
    slot.root_version, slot.wrapped = wrapped


def rewrap_under_root(slot: KeySlot, root: RootKeys) -> None:
    """Rewrap a slot under the newest root key. Raises `RootKeyError`."""
    try:
        if slot.kind == "standing":
            wrapped = rewrap_lent("standing", slot.id, slot.user_id, _get_wrapped(slot), root=root)
        else:
            wrapped = envelopes.rewrap(_make_place(slot), _get_wrapped(slot), root=root)
    except RootKeyError as error:
        raise type(error)(
            f"Slot {slot.id} ({slot.kind}) of {slot.user_id}: {error.detail}"
        ) from error
    slot.root_version, slot.wrapped = wrapped


def _make_place(slot: KeySlot) -> EnvelopePlace:
    kind = cast("SlotKind", slot.kind)
    return EnvelopePlace(kind, slot.id, slot.user_id, slot.generation or 0)


def _get_wrapped(slot: KeySlot) -> Wrapped:
    return Wrapped(slot.root_version, slot.wrapped)


async def make_standing_slot(
    session: AsyncSession, user_id: UUID, *, user_key: bytes, root: RootKeys, at: datetime
) -> None:
    """Make an account's standing slot, which replaces an older one."""
    await delete_standing_slot(session, user_id)
    slot_id = new_id()
    version, wrapped = wrap_lent("standing", slot_id, user_id, user_key=user_key, root=root)
    session.add(
        KeySlot(
            id=slot_id,
            user_id=user_id,
            kind="standing",
            wrapped=wrapped,
            root_version=version,
            created_at=at,
            expires_at=at + STANDING_DURATION,
        )
    )


async def extend_standing_slot(session: AsyncSession, user_id: UUID, *, at: datetime) -> None:
    """Extend a standing slot that has not expired, because its user is active."""
    query = update(KeySlot).where(
        KeySlot.user_id == user_id, KeySlot.kind == "standing", KeySlot.expires_at > at
    )
    await session.execute(query.values(expires_at=at + STANDING_DURATION))


async def delete_standing_slot(session: AsyncSession, user_id: UUID) -> None:
    await session.execute(
        delete(KeySlot).where(KeySlot.user_id == user_id, KeySlot.kind == "standing")
    )


async def clear_job_keys(session: AsyncSession, user_id: UUID) -> None:
    """Remove the key from every job of an account. Jobs that have not begun wait for their user."""
    query = update(JOBS).where(JOBS.c.user_id == user_id, JOBS.c.wrapped_key.is_not(None))
    await session.execute(query.values(NO_KEY_VALUES))


async def delete_jobs(session: AsyncSession, user_id: UUID) -> None:
    """Delete an account's jobs and the keys in them. A worker that runs one loses it."""
    await session.execute(delete(JOBS).where(JOBS.c.user_id == user_id))


async def clear_expired_keys(session: AsyncSession, *, at: datetime) -> None:
    await session.execute(update(JOBS).where(JOBS.c.key_until <= at).values(NO_KEY_VALUES))
    await session.execute(
        delete(KeySlot).where(KeySlot.kind == "standing", KeySlot.expires_at <= at)
    )


async def lock_jobs_with_keys(session: AsyncSession, user_id: UUID) -> Sequence[UUID]:
    query = (
        select(JOBS.c.id)
        .where(JOBS.c.user_id == user_id, JOBS.c.wrapped_key.is_not(None))
        .order_by(JOBS.c.id)
        .with_for_update()
    )
    return (await session.scalars(query)).all()


def wrap_for_jobs(
    job_ids: Sequence[UUID], user_id: UUID, *, user_key: bytes, root: RootKeys
) -> list[dict[str, Any]]:
    return [
        {"job_id": job_id, "version": wrapped.root_version, "wrapped": wrapped.blob}
        for job_id in job_ids
        for wrapped in [wrap_lent("job", job_id, user_id, user_key=user_key, root=root)]
    ]


async def store_job_keys(session: AsyncSession, keys: Sequence[dict[str, Any]]) -> None:
    if keys:
        query = update(JOBS).where(JOBS.c.id == bindparam("job_id"))
        query = query.values(wrapped_key=bindparam("wrapped"), root_version=bindparam("version"))
        await session.execute(query, keys)


async def count_stale_job_keys(session: AsyncSession, current: int) -> int:
    query = select(func.count()).select_from(JOBS).where(JOBS.c.root_version != current)
    return await session.scalar(query) or 0


async def rewrap_job_keys(session: AsyncSession, root: RootKeys, *, limit: int) -> int:
    """Rewrap up to `limit` jobs' keys under the newest root key. Return their number.

    A key that does not open is cleared, and its job waits until the user is active.
    """
    query = (
        select(JOBS.c.id, JOBS.c.user_id, JOBS.c.wrapped_key, JOBS.c.root_version)
        .where(JOBS.c.root_version != root.current)
        .order_by(JOBS.c.id)
        .limit(limit)
        .with_for_update()
    )
    rows = (await session.execute(query)).all()
    for row in rows:
        wrapped = Wrapped(row.root_version, row.wrapped_key)
        try:
            version, blob = rewrap_lent("job", row.id, row.user_id, wrapped, root=root)
            values = {"root_version": version, "wrapped_key": blob}
        except RootKeyError:
            log.warning("rotation.job_key_cleared", job_id=row.id)
            values = NO_KEY_VALUES
        await session.execute(update(JOBS).where(JOBS.c.id == row.id).values(values))
    return len(rows)
