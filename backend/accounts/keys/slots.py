"""Rows of slots: made, opened, and given the next user key or root key."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys.keyring import UserKey
from backend.accounts.models import InstanceKey, KeySlot
from backend.database.base import new_id
from backend.database.engine import Database
from backend.vault import envelopes
from backend.vault.envelopes import EnvelopePlace, UnwrappedKey
from backend.vault.root import RootKeyError, RootKeys, Wrapped
from backend.vault.slots import (
    SlotKind,
    rewrap_lent,
    wrap_lent,
)


async def refuse_older_root(session: AsyncSession, root_keys: RootKeys) -> None:
    """Raise `RootKeyError` where the root key was rotated after this process read it.

    To be asked at the beginning of a transaction that wraps something under the root key: what a
    server that was not restarted wraps under the old key could never be opened again once that key
    is dropped. Its lock lets the rotation wait for such a transaction, or the other way round.
    """
    query = select(InstanceKey.root_version).with_for_update(read=True)
    version = await session.scalar(query)
    if version is not None and version > root_keys.current:
        raise RootKeyError("The root key was rotated. Restart this server with the new one.")


def new_slot(
    kind: SlotKind,
    user_id: UUID,
    current: UserKey,
    *,
    secret: bytes,
    root: RootKeys,
    **columns: Any,
) -> KeySlot:
    """A slot's row with the user key in it, for a secret that is at hand."""
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
    """The user key in a slot. Raises `WrongSecretError`, `RootKeyError`."""
    return envelopes.unwrap(_place_of(slot), _wrapped(slot), secret=secret, root=root)


async def wrap_directly(
    database: Database, slot: KeySlot, current: UserKey, *, secret: bytes, root: RootKeys
) -> None:
    """Give a slot that was just opened the form that opens fastest, unless it changed meanwhile."""
    place = _place_of(slot)._replace(generation=current.generation)
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
    """Put the next user key into a slot.

    Raises `SealBrokenError` where the slot is not one of the old user key, and `RootKeyError`.
    """
    if slot.kind == "standing":
        wrapped = wrap_lent("standing", slot.id, slot.user_id, user_key=new.key, root=root)
    else:
        wrapped = envelopes.readdress(
            _place_of(slot), _wrapped(slot), old_key=old_key, new_key=new.key, root=root
        )
        slot.generation = new.generation
    slot.root_version, slot.wrapped = wrapped


def rewrap_under_root(slot: KeySlot, root: RootKeys) -> None:
    """Put a slot under the newest root key. Raises `RootKeyError`."""
    try:
        if slot.kind == "standing":
            wrapped = rewrap_lent("standing", slot.id, slot.user_id, _wrapped(slot), root=root)
        else:
            wrapped = envelopes.rewrap(_place_of(slot), _wrapped(slot), root=root)
    except RootKeyError as error:
        raise type(error)(
            f"Slot {slot.id} ({slot.kind}) of {slot.user_id}: {error.detail}"
        ) from error
    slot.root_version, slot.wrapped = wrapped


def _place_of(slot: KeySlot) -> EnvelopePlace:
    kind = cast("SlotKind", slot.kind)
    return EnvelopePlace(kind, slot.id, slot.user_id, slot.generation or 0)


def _wrapped(slot: KeySlot) -> Wrapped:
    return Wrapped(slot.root_version, slot.wrapped)
