"""Replacement of an account's user key, in one transaction.

Afterwards the old user key opens none of the account's rows, even if someone knows it from a
restored slot or from a server's memory: the data keys and every slot are under the new one. Texts
stay under their data keys. New texts are sealed under a new data key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import TooManyDataKeysError
from backend.accounts.keys.keyring import (
    UserKey,
    check_current,
    check_protection,
    make_data_key,
    open_data_keys,
    open_derivation_key,
    protect,
    report_tampering,
    wrap_data_key,
    wrap_derivation_key,
)
from backend.accounts.keys.rotation import GRACE_PERIOD, delete_unused_keys
from backend.accounts.keys.sealed_tables import find_sealed_tables
from backend.accounts.keys.server_held import lock_jobs_with_keys, store_job_keys, wrap_for_jobs
from backend.accounts.keys.slots import carry_over, refuse_older_root
from backend.accounts.models import DataKey, KeySlot, User
from backend.vault.root import RootKeyError, RootKeys
from backend.vault.sealing import KEY_BYTES, SealBrokenError

MAX_DATA_KEYS = 100
"""Per account, for changes of keys that can wait. A new password never has to wait."""


async def lock_account(
    session: AsyncSession, user_id: UUID, current: UserKey, *, root: RootKeys
) -> User:
    """Lock an account before a change of its key protection.

    The change ends with `renew_user_key`. Raises the errors of `lock_user`.
    """
    await refuse_older_root(session, root)
    return await lock_user(session, user_id, current)


async def lock_user(session: AsyncSession, user_id: UUID, current: UserKey) -> User:
    """Lock an account before a change of the values that its MAC covers.

    Raises `UserNotFoundError`, and `KeysChangedError` if another request has changed the keys.
    Raises `TamperedAccountError`, because the next MAC must not confirm values that someone else
    has set.
    """
    user = await repository.get_user(session, user_id, lock=True)
    check_current(user, current)
    check_protection(user, current.key, kdf=await repository.load_password_kdf(session, user_id))
    return user


async def make_room(session: AsyncSession, user_id: UUID) -> None:
    """Delete unused data keys if the account has very many.

    Each data key is opened with every request. Raises `TooManyDataKeysError` if too many remain.
    """
    if len(await repository.list_data_keys(session, user_id)) < MAX_DATA_KEYS:
        return
    kept = await delete_unused_keys(
        session, await find_sealed_tables(session), user_id, GRACE_PERIOD
    )
    if len(kept) + 1 >= MAX_DATA_KEYS:
        raise TooManyDataKeysError


async def renew_user_key(
    session: AsyncSession, user: User, old_key: bytes, *, root: RootKeys
) -> UserKey:
    """Replace the user key of an account that `lock_account` has locked.

    Its slots, as they are in this transaction, and its jobs get the new key, even if the slots'
    secrets are unknown. Raises `TamperedAccountError`.
    """
    await session.flush()
    query = select(KeySlot).where(KeySlot.user_id == user.id).order_by(KeySlot.id)
    slots = list(await session.scalars(query.with_for_update()))
    data_keys = await repository.list_data_keys(session, user.id)
    jobs = await lock_jobs_with_keys(session, user.id)
    new = UserKey(os.urandom(KEY_BYTES), user.key_generation + 1)

    def renew() -> tuple[DataKey, list[dict[str, Any]]]:
        added = _replace_keys(user, slots, data_keys, old_key=old_key, new=new, root=root)
        return added, wrap_for_jobs(jobs, user.id, user_key=new.key, root=root)

    try:
        # 0.2 ms for each slot or job, and there may be many.
        added, wrapped = await asyncio.to_thread(renew)
    except (SealBrokenError, RootKeyError) as error:
        raise report_tampering(user) from error
    session.add(added)
    await store_job_keys(session, wrapped)
    await session.flush()
    return new


def _replace_keys(
    user: User,
    slots: Sequence[KeySlot],
    data_keys: Sequence[DataKey],
    *,
    old_key: bytes,
    new: UserKey,
    root: RootKeys,
) -> DataKey:
    """Replace the user key in the given rows. Return the new data key."""
    derivation_key = open_derivation_key(user, user_key=old_key)
    keys = open_data_keys(data_keys, user_key=old_key)
    for row in data_keys:
        wrap_data_key(row, keys[row.number], user_key=new.key)
    for slot in slots:
        carry_over(slot, old_key=old_key, new=new, root=root)
    added = make_data_key(user.id, max(keys) + 1, user_key=new.key)
    user.key_generation = new.generation
    user.newest_data_key = added.number
    wrap_derivation_key(user, derivation_key, user_key=new.key)
    kdf = next((slot.kdf for slot in slots if slot.kind == "password"), None)
    protect(user, new.key, kdf=kdf)
    return added
