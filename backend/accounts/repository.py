"""Queries for accounts. Nothing here commits."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.errors import ApiKeyNotFoundError, SessionNotFoundError, UserNotFoundError
from backend.accounts.models import DataKey, InstanceKey, Invitation, KeySlot, User
from backend.vault.slots import SlotKind


async def lock_accounts(session: AsyncSession) -> None:
    """Serialise transactions that depend on the number of accounts or administrators."""
    await session.execute(select(InstanceKey).with_for_update())


async def has_users(session: AsyncSession, *, other_than: UUID | None = None) -> bool:
    """True if there is another account. Reads one row, and not all as a count does."""
    query = select(User.id).where(User.deleted_at.is_(None)).order_by(User.id).limit(1)
    if other_than is not None:
        query = query.where(User.id != other_than)
    return await session.scalar(query) is not None


async def count_administrators(session: AsyncSession) -> int:
    query = select(func.count()).where(User.is_administrator, ~User.is_disabled)
    return await session.scalar(query) or 0


async def find_user(session: AsyncSession, name_lookup: bytes) -> User | None:
    return await session.scalar(select(User).where(User.name_lookup == name_lookup))


async def get_user(session: AsyncSession, user_id: UUID, *, lock: bool = False) -> User:
    """Load an account. Raises `UserNotFoundError` if it is absent or deleted.

    `lock` reads the current row, and serialises changes of the account's password, recovery code,
    key mode and keys. So slots that are read afterwards match the MAC of the account.
    """
    # Allows concurrent inserts of rows that refer to the account.
    for_update = {"key_share": True} if lock else None
    user = await session.get(User, user_id, populate_existing=lock, with_for_update=for_update)
    if user is None or user.deleted_at is not None:
        raise UserNotFoundError
    return user


async def find_slot(session: AsyncSession, user_id: UUID, kind: SlotKind) -> KeySlot | None:
    query = select(KeySlot).where(KeySlot.user_id == user_id, KeySlot.kind == kind)
    return await session.scalar(query)


async def load_password_kdf(session: AsyncSession, user_id: UUID) -> bytes | None:
    """Return the parameters that stretch an account's password, in JSON."""
    slot = await find_slot(session, user_id, "password")
    return slot.kdf if slot else None


async def list_slots(
    session: AsyncSession, user_id: UUID, kind: SlotKind, *, after: UUID | None, limit: int
) -> list[KeySlot]:
    query = (
        select(KeySlot)
        .where(KeySlot.user_id == user_id, KeySlot.kind == kind)
        .order_by(KeySlot.id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(KeySlot.id < after)
    return list(await session.scalars(query))


async def delete_slot(
    session: AsyncSession, slot_id: UUID, *, owner_id: UUID, kind: SlotKind
) -> None:
    """Raises `SessionNotFoundError` or `ApiKeyNotFoundError`."""
    removed = await session.scalar(
        delete(KeySlot)
        .where(KeySlot.id == slot_id, KeySlot.user_id == owner_id, KeySlot.kind == kind)
        .returning(KeySlot.id)
    )
    if removed is None:
        raise SessionNotFoundError if kind == "session" else ApiKeyNotFoundError


async def delete_slots(
    session: AsyncSession, user_id: UUID, kind: SlotKind, *, but: UUID | None = None
) -> list[UUID]:
    query = delete(KeySlot).where(KeySlot.user_id == user_id, KeySlot.kind == kind)
    if but is not None:
        query = query.where(KeySlot.id != but)
    return list(await session.scalars(query.returning(KeySlot.id)))


_PASSWORD = aliased(KeySlot)
# Built once, because every request executes it.
_BY_TOKEN = (
    select(KeySlot, User, DataKey, _PASSWORD.kdf)
    .join(User, User.id == KeySlot.user_id)
    .join(DataKey, DataKey.user_id == User.id)
    .outerjoin(_PASSWORD, (_PASSWORD.user_id == User.id) & (_PASSWORD.kind == "password"))
    .where(KeySlot.lookup == bindparam("token"), KeySlot.kind == bindparam("token_kind"))
)


async def find_by_token(
    session: AsyncSession, lookup: bytes, kind: SlotKind
) -> tuple[KeySlot, User, list[DataKey], bytes | None] | None:
    """Find the slot of a token, its account, and the account's data keys and KDF, in one query."""
    rows = (await session.execute(_BY_TOKEN, {"token": lookup, "token_kind": kind})).all()
    if not rows:
        return None
    slot, user, _, kdf = rows[0]
    return slot, user, [row[2] for row in rows], kdf


async def list_data_keys(session: AsyncSession, user_id: UUID) -> list[DataKey]:
    return list(await session.scalars(select(DataKey).where(DataKey.user_id == user_id)))


async def touch_slot(session: AsyncSession, slot_id: UUID, at: datetime) -> None:
    await session.execute(update(KeySlot).where(KeySlot.id == slot_id).values(last_used_at=at))


async def has_invitation(
    session: AsyncSession, lookup: bytes, at: datetime, *, use: bool = False
) -> bool:
    """True if an invitation can be used. `use` marks it as used."""
    usable = (
        Invitation.lookup == lookup,
        Invitation.used_at.is_(None),
        Invitation.expires_at > at,
    )
    query = (
        update(Invitation).where(*usable).values(used_at=at).returning(Invitation.id)
        if use
        else select(Invitation.id).where(*usable)
    )
    return await session.scalar(query) is not None


async def list_usable_slots(
    session: AsyncSession, slot_ids: set[UUID]
) -> list[tuple[KeySlot, int]]:
    """List the slots that still exist, of accounts that are not disabled.

    Each comes with the generation of its account's user key.
    """
    query = (
        select(KeySlot, User.key_generation)
        .join(User, User.id == KeySlot.user_id)
        .where(KeySlot.id.in_(slot_ids), ~User.is_disabled)
    )
    return [(slot, number) for slot, number in await session.execute(query)]


async def delete_ended_sessions(
    session: AsyncSession, user_id: UUID, *, at: datetime, unused_since: datetime
) -> None:
    await session.execute(
        delete(KeySlot).where(
            KeySlot.user_id == user_id,
            KeySlot.kind == "session",
            or_(KeySlot.expires_at <= at, KeySlot.last_used_at <= unused_since),
        )
    )
