"""Rows of slots: made, opened, and given the next user key."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from sqlalchemy import update

from backend.accounts.models import KeySlot
from backend.accounts.root_version import refuse_older_root
from backend.database.base import new_id
from backend.database.engine import Database
from backend.vault import envelopes
from backend.vault.envelopes import EnvelopePlace, Opened
from backend.vault.root import RootKeyError, RootKeys
from backend.vault.slots import (
    SlotKind,
    unwrap_lent,
    wrap_lent,
)


def new_slot(
    kind: SlotKind,
    user_id: UUID,
    *,
    secret: bytes,
    user_key: bytes,
    generation: int,
    root: RootKeys,
    **columns: Any,
) -> KeySlot:
    """A slot's row with the user key in it, for a secret that is at hand."""
    slot_id = columns.pop("id", None) or new_id()
    place = EnvelopePlace(kind, slot_id, user_id, generation)
    wrapped = envelopes.wrap(place, secret=secret, user_key=user_key, root=root)
    return KeySlot(
        id=slot_id,
        user_id=user_id,
        kind=kind,
        wrapped=wrapped.blob,
        root_version=wrapped.root_version,
        generation=generation,
        **columns,
    )


def open_slot(slot: KeySlot, *, secret: bytes, root: RootKeys) -> Opened:
    """The user key in a slot. Raises `WrongSecretError`, `RootKeyError`."""
    return envelopes.unwrap(
        place_of(slot),
        secret=secret,
        blob=slot.wrapped,
        root_version=slot.root_version,
        root=root,
    )


async def wrap_directly(
    database: Database,
    slot: KeySlot,
    *,
    secret: bytes,
    user_key: bytes,
    generation: int,
    root: RootKeys,
) -> None:
    """Give a slot that was just opened the form that opens fastest, unless it changed meanwhile."""
    place = EnvelopePlace(_kind(slot), slot.id, slot.user_id, generation)
    wrapped = envelopes.wrap(place, secret=secret, user_key=user_key, root=root)
    is_as_it_was = (KeySlot.id == slot.id) & (KeySlot.wrapped == slot.wrapped)
    async with database.write() as session:
        await refuse_older_root(session, root)
        await session.execute(
            update(KeySlot)
            .where(is_as_it_was)
            .values(wrapped=wrapped.blob, root_version=wrapped.root_version, generation=generation)
        )


def carry_over(
    slot: KeySlot, *, old_key: bytes, new_key: bytes, generation: int, root: RootKeys
) -> None:
    """Put the next user key, of this generation, into a slot.

    Raises `SealBrokenError` where the slot is not one of the old user key, and `RootKeyError`.
    """
    if slot.kind == "standing":
        slot.root_version, slot.wrapped = wrap_lent(
            "standing", slot.id, slot.user_id, user_key=new_key, root=root
        )
        return
    wrapped = envelopes.readdress(
        place_of(slot),
        blob=slot.wrapped,
        root_version=slot.root_version,
        old_key=old_key,
        new_key=new_key,
        root=root,
    )
    slot.root_version, slot.wrapped = wrapped
    slot.generation = generation


def rewrap_under_root(slot: KeySlot, root: RootKeys) -> None:
    """Put a slot under the newest root key. Raises `RootKeyError`."""
    version = slot.root_version
    try:
        if slot.kind == "standing":
            user_key = unwrap_lent(
                "standing",
                slot.id,
                slot.user_id,
                blob=slot.wrapped,
                root_version=version,
                root=root,
            )
            wrapped = wrap_lent("standing", slot.id, slot.user_id, user_key=user_key, root=root)
        else:
            place = place_of(slot)
            wrapped = envelopes.rewrap(place, blob=slot.wrapped, root_version=version, root=root)
    except RootKeyError as error:
        raise type(error)(
            f"Slot {slot.id} ({slot.kind}) of {slot.user_id}: {error.detail}"
        ) from error
    slot.root_version, slot.wrapped = wrapped


def place_of(slot: KeySlot) -> EnvelopePlace:
    """Where a slot's envelope belongs."""
    return EnvelopePlace(_kind(slot), slot.id, slot.user_id, slot.generation or 0)


def _kind(slot: KeySlot) -> SlotKind:
    return cast("SlotKind", slot.kind)
