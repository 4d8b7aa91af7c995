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
from backend.vault.root import RootKeyError, RootKeys, RootSealBrokenError
from backend.vault.slots import (
    SlotKind,
    WrongSecretError,
    rewrap_password,
    unwrap_inner_password,
    unwrap_lent,
    unwrap_with_password,
    unwrap_with_secret,
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
    """The user key in a slot, whatever its form. Raises `WrongSecretError`, `RootKeyError`."""
    if slot.generation is not None:
        return envelopes.unwrap(
            place_of(slot),
            secret=secret,
            blob=slot.wrapped,
            root_version=slot.root_version or 0,
            root=root,
        )
    kind = _kind(slot)
    if kind != "password":
        user_key = unwrap_with_secret(kind, slot.id, slot.user_id, secret=secret, blob=slot.wrapped)
        return Opened(user_key, is_direct=False)
    try:
        user_key = unwrap_with_password(
            slot.id,
            slot.user_id,
            stretched=secret,
            blob=slot.wrapped,
            root_version=slot.root_version or 0,
            root=root,
        )
    except RootSealBrokenError as error:
        raise WrongSecretError from error
    return Opened(user_key, is_direct=False)


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
    if slot.generation is not None:
        wrapped = envelopes.readdress(
            place_of(slot),
            blob=slot.wrapped,
            root_version=slot.root_version or 0,
            old_key=old_key,
            new_key=new_key,
            root=root,
        )
    else:
        first_blob = slot.wrapped
        if slot.kind == "password":
            first_blob = unwrap_inner_password(
                slot.id,
                slot.user_id,
                blob=slot.wrapped,
                root_version=slot.root_version or 0,
                root=root,
            )
        place = EnvelopePlace(_kind(slot), slot.id, slot.user_id, generation)
        wrapped = envelopes.bridge(
            place, first_blob=first_blob, old_key=old_key, new_key=new_key, root=root
        )
    slot.root_version, slot.wrapped = wrapped
    slot.generation = generation


def rewrap_under_root(slot: KeySlot, root: RootKeys) -> None:
    """Put a slot under the newest root key. Raises `RootKeyError`."""
    version = slot.root_version
    if version is None:
        return
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
        elif slot.generation is not None:
            place = place_of(slot)
            wrapped = envelopes.rewrap(place, blob=slot.wrapped, root_version=version, root=root)
        else:
            wrapped = rewrap_password(
                slot.id, slot.user_id, blob=slot.wrapped, root_version=version, root=root
            )
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
