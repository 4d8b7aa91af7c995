"""Replacement of keys: the root key, users' data keys, and the user key of an account.

The rotations of the root key and of data keys work in batches, each in its own transaction. Both
may be killed at any point and started again. Finished batches stay done, and the old key remains
until nothing needs it.

A user key is replaced in one transaction. Afterwards the old user key opens none of the account's
rows, even if someone knows it from a restored slot or from a server's memory: the data keys and
every slot are under the new one. Texts stay under their data keys. New texts are sealed under a new
data key.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.names import INSTANCE_CONTEXT, open_instance_key
from backend.accounts.errors import TooManyDataKeysError
from backend.accounts.keys.keyring import (
    UserKey,
    check_current,
    check_protection,
    make_data_key,
    open_data_keys,
    open_derivation_key,
    open_sealer,
    protect,
    report_tampering,
    wrap_data_key,
    wrap_derivation_key,
)
from backend.accounts.keys.sealed_tables import (
    ReportProgress,
    Resealer,
    SealedTable,
    find_sealed_tables,
    find_used_keys,
)
from backend.accounts.keys.slots import (
    carry_over,
    count_stale_job_keys,
    lock_jobs_with_keys,
    refuse_older_root,
    rewrap_job_keys,
    rewrap_under_root,
    store_job_keys,
    wrap_for_jobs,
)
from backend.accounts.models import DataKey, InstanceKey, KeySlot, User
from backend.core.logs import get_logger
from backend.database.base import now
from backend.database.engine import Database
from backend.database.types import Id
from backend.vault.root import (
    RootKeyError,
    RootKeys,
    RootSealBrokenError,
    Wrapped,
    add_root_key,
    drop_old_root_keys,
    load_root_keys,
)
from backend.vault.sealing import KEY_BYTES, SealBrokenError

log = get_logger(__name__)

PROVIDERS = Table(
    "installation_providers",
    MetaData(),
    Column("id", Id(), primary_key=True),
    Column("root_version", Integer),
    Column("wrapped_config", LargeBinary),
)


BATCH_ROWS = 200
GRACE_PERIOD = timedelta(days=1)
"""No request, turn or job keeps a user's keys in memory for longer."""

MAX_DATA_KEYS = 100
"""Per account, for changes of keys that can wait. A new password never has to wait."""


def make_provider_context(provider_id: UUID) -> bytes:
    return b"installation-provider/" + provider_id.bytes


async def count_stale_providers(session: AsyncSession, current: int) -> int:
    query = select(func.count()).select_from(PROVIDERS)
    return await session.scalar(query.where(PROVIDERS.c.root_version != current)) or 0


async def rewrap_providers(session: AsyncSession, root: RootKeys, *, limit: int) -> int:
    """Rewrap up to `limit` providers under the newest root key. Return their number.

    A provider that does not open is deleted, because no one can use it. An administrator can add it
    again.
    """
    query = select(PROVIDERS).where(PROVIDERS.c.root_version != root.current)
    query = query.order_by(PROVIDERS.c.id).limit(limit).with_for_update()
    rows = (await session.execute(query)).all()
    for row in rows:
        context, is_this = make_provider_context(row.id), PROVIDERS.c.id == row.id
        try:
            config = root.unwrap(Wrapped(row.root_version, row.wrapped_config), context=context)
        except RootSealBrokenError:
            log.warning("rotation.provider_deleted", provider_id=row.id)
            await session.execute(delete(PROVIDERS).where(is_this))
            continue
        version, wrapped = root.wrap(config, context=context)
        values = {"root_version": version, "wrapped_config": wrapped}
        await session.execute(update(PROVIDERS).where(is_this).values(values))
    return len(rows)


@dataclass(frozen=True, slots=True)
class RootKeyRotation:
    """The result of a rotation of the root key. Nothing is under an older version.

    `dropped` are the versions that were removed from the file. `removable` are the versions that
    the operator can remove from `TALEKEEPER_ROOT_KEY`, or from a read-only file.
    """

    version: int
    rewrapped: int
    dropped: tuple[int, ...] = ()
    removable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DataKeyRotation:
    """The result of a rotation of a user's data key.

    `resealed` counts the rows that this run changed, `damaged` the values that do not open. `kept`
    are the older keys that remain: something is under them (a damaged value, a row that was
    locked), or a process may still write with them. The next rotation checks them again.
    """

    number: int
    resealed: int
    damaged: int
    kept: tuple[int, ...]


async def rotate_root_key(
    database: Database, *, path: Path, value: str | None, report: ReportProgress
) -> RootKeyRotation:
    """Replace the root key, or finish an earlier rotation.

    In the file, the new version is added first, and older versions are removed last. In the setting
    (`value`) and in a read-only file, the operator adds the new version.

    Raises `RootKeyError`.
    """
    root = load_root_keys(path, value=value)
    async with database.read() as session:
        row = await session.get(InstanceKey, 1)
    if row is not None:
        open_instance_key(row, root)  # checks the key before anything is written
    if len(root.versions) == 1 and await _count_stale(database, root.current) == 0:
        root = _add_version(root, path, value=value)
    rewrapped = await rewrap_all_keys(database, root, report)
    older = tuple(root.versions[:-1])
    if value is None:
        # A mounted secret cannot be replaced from here. Its operator has to change it.
        with contextlib.suppress(OSError):
            drop_old_root_keys(path)
            return RootKeyRotation(root.current, rewrapped, dropped=older)
    return RootKeyRotation(root.current, rewrapped, removable=older)


def _add_version(root: RootKeys, path: Path, *, value: str | None) -> RootKeys:
    if value is None:
        with contextlib.suppress(OSError):
            return add_root_key(path)
    place = "TALEKEEPER_ROOT_KEY has" if value is not None else f"{path} can't be written, and has"
    raise RootKeyError(
        f"{place} only one version. Put a new one in front of it, as in `{root.current + 1}:new,"
        f"{root.current}:present`, restart every server, and run this again."
    )


async def rewrap_all_keys(database: Database, root_keys: RootKeys, report: ReportProgress) -> int:
    """Wrap everything under the newest root key. Return the number of rewrapped values.

    Afterwards nothing is under an older version. Raises `RootKeyError`.
    """
    done, total = 0, await _count_stale(database, root_keys.current)
    report(done, total)
    # First, because once it is under the new version, `refuse_older_root` refuses older ones.
    done += await _rewrap_instance_key(database, root_keys)
    for rewrap in (_rewrap_slots, rewrap_job_keys, rewrap_providers):
        while True:
            async with database.write() as session:
                batch = await rewrap(session, root_keys, limit=BATCH_ROWS)
            if not batch:
                break
            done += batch
            report(done, max(done, total))
    return done


async def request_new_data_keys(database: Database) -> int:
    """Give every account a new data key at its next sign-in. Return how many were marked."""
    query = update(User).where(~User.new_data_key_due).values(new_data_key_due=True)
    async with database.write() as session:
        return len(list(await session.scalars(query.returning(User.id))))


async def ensure_data_key(session: AsyncSession, user: User, user_key: bytes) -> bool:
    """Add the account's next data key if one is due. Return True if it was.

    Call it in a transaction that writes. New texts are sealed under the new key. Older texts are
    resealed when they are rewritten, or by `rotate_data_key`.
    """
    if not user.new_data_key_due:
        return False
    locked = await repository.get_user(session, user.id, lock=True)
    if not locked.new_data_key_due:
        return False
    await _add_data_key(session, locked, user_key)
    return True


async def rotate_data_key(
    database: Database,
    user_id: UUID,
    user_key: bytes,
    report: ReportProgress,
    *,
    grace: timedelta = GRACE_PERIOD,
) -> DataKeyRotation:
    """Replace an account's data key, or finish an earlier rotation, and reseal all its texts.

    A rotation is unfinished as long as an older key exists. In that case, another key is made only
    if `new_data_key_due` is set. An older key is deleted when no text is under it and `grace` has
    passed since the next key was made. Until then, a running turn may still store its reply under
    it. Rows that another transaction has locked are left to the next rotation.

    Raises `UserNotFoundError`, and `SealBrokenError` if `user_key` is wrong.
    """
    async with database.write() as session:
        tables = await find_sealed_tables(session)
        user = await repository.get_user(session, user_id, lock=True)
        rows = await repository.list_data_keys(session, user_id)
        if user.new_data_key_due or len(rows) == 1:
            rows = await _add_data_key(session, user, user_key)
        sealer = open_sealer(user, rows, user_key=user_key)
    resealer = Resealer(database, tables, sealer, report)
    await resealer.run()
    async with database.write() as session:
        await repository.get_user(session, user_id, lock=True)
        kept = await delete_unused_keys(session, tables, user_id, grace)
    return DataKeyRotation(sealer.current_key, resealer.done, resealer.damaged, kept)


async def _count_stale(database: Database, current: int) -> int:
    async with database.read() as session:
        counts = [
            await session.scalar(
                select(func.count()).select_from(table).where(table.root_version != current)
            )
            for table in (InstanceKey, KeySlot)
        ]
        counts.append(await count_stale_job_keys(session, current))
        counts.append(await count_stale_providers(session, current))
    return sum(filter(None, counts))


async def _rewrap_instance_key(database: Database, root: RootKeys) -> int:
    async with database.write() as session:
        row = await session.get(InstanceKey, 1, with_for_update=True)
        if row is None or row.root_version == root.current:
            return 0
        secret = open_instance_key(row, root)
        row.root_version, row.wrapped = root.wrap(secret, context=INSTANCE_CONTEXT)
        return 1


async def _rewrap_slots(session: AsyncSession, root: RootKeys, *, limit: int) -> int:
    query = (
        select(KeySlot)
        .where(KeySlot.root_version != root.current)
        .order_by(KeySlot.id)
        .limit(limit)
        .with_for_update()
    )
    slots = list(await session.scalars(query))
    for slot in slots:
        try:
            rewrap_under_root(slot, root)
        except RootSealBrokenError:
            if slot.kind not in {"session", "api_key"}:
                raise
            # It opens nothing, and its user can make another one.
            log.warning("rotation.slot_deleted", user_id=slot.user_id)
            await session.delete(slot)
    return len(slots)


async def _add_data_key(session: AsyncSession, user: User, user_key: bytes) -> list[DataKey]:
    rows = await repository.list_data_keys(session, user.id)
    # A key wrapped under a wrong user key would make every later text unreadable.
    newest = open_sealer(user, rows, user_key=user_key).current_key
    added = make_data_key(user.id, newest + 1, user_key=user_key)
    session.add(added)
    user.new_data_key_due = False
    await session.flush()
    return [*rows, added]


async def delete_unused_keys(
    session: AsyncSession, tables: Sequence[SealedTable], user_id: UUID, grace: timedelta
) -> tuple[int, ...]:
    """Delete a locked account's older data keys that no text is under.

    Return the numbers of the older keys that remain: a text is under them, or less than `grace` has
    passed since the next one was made.
    """
    used = await find_used_keys(session, tables, user_id)
    kept: list[int] = []
    rows = await repository.list_data_keys(session, user_id)
    for row, following in pairwise(sorted(rows, key=lambda each: each.number)):
        if row.number in used or now() < following.created_at + grace:
            kept.append(row.number)
        else:
            await session.delete(row)
    return tuple(kept)


async def lock_account(
    session: AsyncSession, user_id: UUID, current: UserKey, *, root: RootKeys
) -> User:
    """Lock an account before a change of its keys, which `renew_user_key` ends.

    Raises the errors of `lock_user`.
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
