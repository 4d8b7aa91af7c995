"""A new user key in the place of the old one, in one transaction.

The old user key, known from a slot that was put back or from a server's memory, opens none of the
account's rows afterwards: the data keys and every slot are under the new one. Texts stay as they
are, under the data keys that they were sealed under, and what is written from then on is under a
new data key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import TooManyDataKeysError
from backend.accounts.key_slots import carry_over
from backend.accounts.keyring import (
    UserKey,
    check_current,
    new_data_key,
    open_data_keys,
    open_derivation_key,
    wrap_data_key,
    wrap_derivation_key,
)
from backend.accounts.models import DataKey, KeySlot, User
from backend.accounts.protection import check_protection, protect, tampered
from backend.accounts.root_version import refuse_older_root
from backend.accounts.rotation import GRACE, delete_unused_keys
from backend.accounts.rotation_columns import sealed_tables
from backend.accounts.server_held_keys import (
    JobKeyRow,
    job_keys,
    rewrap_for_new_user_key,
    store_job_keys,
)
from backend.vault.root import RootKeyError, RootKeys
from backend.vault.sealing import KEY_BYTES, SealBrokenError

MOST_DATA_KEYS = 100
"""Of one account, for changes of keys that could wait. A new password never has to."""


async def lock_account(
    session: AsyncSession, user_id: UUID, current: UserKey, *, root: RootKeys
) -> User:
    """The account's row, for a transaction that will change how its keys are kept.

    What is changed after it ends with `renew_user_key`. Raises `UserNotFoundError`,
    `KeysChangedError` where another request changed the keys meanwhile, `TamperedAccountError`:
    the next MAC must not lend its authority to what other hands have set.
    """
    await refuse_older_root(session, root)
    user = await repository.get_user(session, user_id, lock=True)
    check_current(user, current)
    password = await repository.slot_of_kind(session, user_id, "password")
    check_protection(user, current.key, kdf=password.kdf if password else None)
    return user


async def make_room(session: AsyncSession, user_id: UUID) -> None:
    """Before one more data key: delete those that no text is under, where there are very many.

    Each is opened with every request. Raises `TooManyDataKeysError` where that does not help.
    """
    if len(await repository.data_keys(session, user_id)) < MOST_DATA_KEYS:
        return
    kept = await delete_unused_keys(session, await sealed_tables(session), user_id, GRACE)
    if len(kept) + 1 >= MOST_DATA_KEYS:
        raise TooManyDataKeysError


async def renew_user_key(
    session: AsyncSession, user: User, old_key: bytes, *, root: RootKeys
) -> UserKey:
    """Give an account that `lock_account` has locked its next user key.

    Its slots, as they are now in this transaction, get the new key, whether or not their secrets
    are at hand; so do the jobs that carry the old one. Raises `TamperedAccountError`.
    """
    await session.flush()
    query = select(KeySlot).where(KeySlot.user_id == user.id).order_by(KeySlot.id)
    slots = list(await session.scalars(query.with_for_update()))
    data_keys = await repository.data_keys(session, user.id)
    jobs = await job_keys(session, user.id)
    new = UserKey(os.urandom(KEY_BYTES), user.key_generation + 1)
    renewal = _Renewal(user, slots, data_keys, jobs, old_key=old_key, new=new, root=root)
    try:
        # A fifth of a millisecond a slot or job, and there may be many.
        added = await asyncio.to_thread(renewal.run)
    except (SealBrokenError, RootKeyError) as error:
        raise tampered(user) from error
    session.add(added)
    await store_job_keys(session, jobs)
    await session.flush()
    return new


class _Renewal:
    """The work of `renew_user_key` on rows that were read: without a database."""

    def __init__(
        self,
        user: User,
        slots: Sequence[KeySlot],
        data_keys: Sequence[DataKey],
        jobs: Sequence[JobKeyRow],
        *,
        old_key: bytes,
        new: UserKey,
        root: RootKeys,
    ) -> None:
        self._user = user
        self._slots = slots
        self._data_keys = data_keys
        self._jobs = jobs
        self._old_key = old_key
        self._new = new
        self._root = root

    def run(self) -> DataKey:
        """Change the rows; the new data key."""
        user, new_key = self._user, self._new.key
        derivation_key = open_derivation_key(user, user_key=self._old_key)
        keys = open_data_keys(self._data_keys, user_key=self._old_key)
        for row in self._data_keys:
            wrap_data_key(row, keys[row.number], user_key=new_key)
        for slot in self._slots:
            carry_over(
                slot,
                old_key=self._old_key,
                new_key=new_key,
                generation=self._new.generation,
                root=self._root,
            )
        for job in self._jobs:
            rewrap_for_new_user_key(job, user_key=new_key, root=self._root)
        added = new_data_key(user.id, max(keys) + 1, user_key=new_key)
        user.key_generation = self._new.generation
        user.newest_data_key = added.number
        wrap_derivation_key(user, derivation_key, user_key=new_key)
        kdf = next((slot.kdf for slot in self._slots if slot.kind == "password"), None)
        protect(user, new_key, kdf=kdf)
        return added
