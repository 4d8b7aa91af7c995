"""New keys in the place of old ones: the root key, and users' data keys.

Both rotations go batch by batch, each batch in a transaction of its own. Both may be killed at any
point and started again: what is done stays done, and the old key is there until nothing needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from uuid import UUID

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.names import INSTANCE_CONTEXT, open_instance_key
from backend.accounts.keys.keyring import new_data_key, open_sealer
from backend.accounts.keys.sealed_tables import (
    Report,
    Resealer,
    SealedTable,
    keys_in_use,
    sealed_tables,
)
from backend.accounts.keys.server_held import count_stale_job_keys, rewrap_job_keys
from backend.accounts.keys.slots import rewrap_under_root
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

log = get_logger(__name__)

PROVIDERS = Table(
    "installation_providers",
    MetaData(),
    Column("id", Id(), primary_key=True),
    Column("root_version", Integer),
    Column("wrapped_config", LargeBinary),
)


def provider_context(provider_id: UUID) -> bytes:
    """What a provider's config is bound to: another row's does not open in its place."""
    return b"installation-provider/" + provider_id.bytes


async def count_stale_providers(session: AsyncSession, current: int) -> int:
    """How many providers are not under this version of the root key."""
    query = select(func.count()).select_from(PROVIDERS)
    return await session.scalar(query.where(PROVIDERS.c.root_version != current)) or 0


async def rewrap_providers(session: AsyncSession, root: RootKeys, *, limit: int) -> int:
    """Put some of the providers under the newest root key; how many there were.

    One that does not open is deleted: nobody can use it, and an administrator can add it again.
    """
    query = select(PROVIDERS).where(PROVIDERS.c.root_version != root.current)
    query = query.order_by(PROVIDERS.c.id).limit(limit).with_for_update()
    rows = (await session.execute(query)).all()
    for row in rows:
        context, is_this = provider_context(row.id), PROVIDERS.c.id == row.id
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


BATCH_SLOTS = 200
GRACE = timedelta(days=1)
"""Longer than any request, turn or job keeps a user's keys in memory."""


@dataclass(frozen=True, slots=True)
class RotationResult:
    """How a rotation of the root key ended: nothing is under an older version any more.

    `dropped` are the versions that were taken out of the file, `removable` those that the operator
    can take out of `TALEKEEPER_ROOT_KEY`, or of a file that can't be written from here.
    """

    version: int
    rewrapped: int
    dropped: tuple[int, ...] = ()
    removable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DataKeyRotation:
    """How a rotation of a user's data key ended.

    `resealed` counts the rows that this run changed, `damaged` the blobs that do not open. `kept`
    are the older keys that are still there: something is under them (a damaged blob, a row that
    was locked), or somebody may still be writing with them. The next rotation looks again.
    """

    number: int
    resealed: int
    damaged: int
    kept: tuple[int, ...]


async def rotate_root_key(
    database: Database, *, path: Path, value: str | None, report: Report
) -> RotationResult:
    """Put a new root key in the place of the old one, or finish doing so.

    To the file a new version is added first, and the older ones are dropped from it last. To the
    setting (`value`), and to a file that can't be written, the operator adds the new version.

    Raises `RootKeyError`.
    """
    root = load_root_keys(path, value=value)
    async with database.read() as session:
        row = await session.get(InstanceKey, 1)
    if row is not None:
        open_instance_key(row, root)  # before anything is written: whether this is the right key
    if len(root.versions) == 1 and await _count_stale(database, root.current) == 0:
        root = _with_new_version(root, path, value=value)
    rewrapped = await rotate_root(database, root, report)
    older = tuple(root.versions[:-1])
    if value is None:
        # A secret that is mounted can't be replaced: it is the operator's to change.
        with contextlib.suppress(OSError):
            drop_old_root_keys(path)
            return RotationResult(root.current, rewrapped, dropped=older)
    return RotationResult(root.current, rewrapped, removable=older)


def _with_new_version(root: RootKeys, path: Path, *, value: str | None) -> RootKeys:
    if value is None:
        with contextlib.suppress(OSError):
            return add_root_key(path)
    place = "TALEKEEPER_ROOT_KEY has" if value is not None else f"{path} can't be written, and has"
    raise RootKeyError(
        f"{place} only one version. Put a new one in front of it, as in `{root.current + 1}:new,"
        f"{root.current}:present`, restart every server, and run this again."
    )


async def rotate_root(database: Database, root_keys: RootKeys, report: Report) -> int:
    """Wrap everything under the newest root key; returns how much there was to wrap.

    When it returns, nothing is under an older version. Raises `RootKeyError`.
    """
    done, total = 0, await _count_stale(database, root_keys.current)
    report(done, total)
    # First: once it is under the new version, `refuse_older_root` lets nobody use an older one.
    done += await _rewrap_instance_key(database, root_keys)
    for rewrap in (_rewrap_slots, rewrap_job_keys, rewrap_providers):
        while True:
            async with database.write() as session:
                batch = await rewrap(session, root_keys, limit=BATCH_SLOTS)
            if not batch:
                break
            done += batch
            report(done, max(done, total))
    return done


async def mark_all_due(database: Database) -> int:
    """Have every account get a new data key when it next logs in; returns how many newly are."""
    query = update(User).where(~User.new_data_key_due).values(new_data_key_due=True)
    async with database.write() as session:
        return len(list(await session.scalars(query.returning(User.id))))


async def ensure_data_key(session: AsyncSession, user: User, user_key: bytes) -> bool:
    """Give an account its next data key where that is due; whether it was.

    For a transaction that writes. What is sealed from then on is under the new key; older texts
    are resealed as they are rewritten, or by `rotate_data_key`.
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
    report: Report,
    *,
    grace: timedelta = GRACE,
) -> DataKeyRotation:
    """Give an account a new data key, or finish doing so, and reseal all its texts under it.

    It is unfinished as long as an older key is there; a further one is then made only where
    `new_data_key_due` asks for it. An older key is deleted when no text is under it and `grace` has
    passed since the next one was made: until then a turn that was running may come to store its
    reply under it. Rows that somebody else has locked are left to the next rotation.

    Raises `UserNotFoundError`, `SealBrokenError` for a wrong `user_key`.
    """
    async with database.write() as session:
        tables = await sealed_tables(session)
        user = await repository.get_user(session, user_id, lock=True)
        rows = await repository.data_keys(session, user_id)
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
            # It opens nothing, and its user can make another.
            log.warning("rotation.slot_deleted", user_id=slot.user_id)
            await session.delete(slot)
    return len(slots)


async def _add_data_key(session: AsyncSession, user: User, user_key: bytes) -> list[DataKey]:
    """Make the next data key of a locked account; returns all of its keys."""
    rows = await repository.data_keys(session, user.id)
    # A key wrapped under a wrong user key would make every later text unreadable.
    newest = open_sealer(user, rows, user_key=user_key).current_key
    added = new_data_key(user.id, newest + 1, user_key=user_key)
    session.add(added)
    user.new_data_key_due = False
    await session.flush()
    return [*rows, added]


async def delete_unused_keys(
    session: AsyncSession, tables: Sequence[SealedTable], user_id: UUID, grace: timedelta
) -> tuple[int, ...]:
    """Delete a locked account's older data keys that nothing is under.

    Those that are still there are returned: something is under them, or less than `grace` has
    passed since the next one was made.
    """
    used = await keys_in_use(session, tables, user_id)
    kept: list[int] = []
    rows = await repository.data_keys(session, user_id)
    for row, following in pairwise(sorted(rows, key=lambda each: each.number)):
        if row.number in used or now() < following.created_at + grace:
            kept.append(row.number)
        else:
            await session.delete(row)
    return tuple(kept)
