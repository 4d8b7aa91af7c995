"""Rows of second factors, and the digest by which a missing or added one is noticed.

Nothing here commits. What changes a factor has the account's row locked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from uuid import UUID

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.keyring import UserKey, check_current
from backend.accounts.models import FACTOR_SECRET, FactorKind, SecondFactor, User
from backend.accounts.protection import check_protection, protect, tampered
from backend.accounts.second_factor.passkeys import StoredPasskey
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True)
class Factors:
    """The second factors of an account that are on."""

    totp: SecondFactor | None
    passkeys: list[SecondFactor]
    codes: list[SecondFactor]

    @property
    def is_on(self) -> bool:
        """Whether a sign-in needs one."""
        return self.totp is not None or bool(self.passkeys)


async def read_factors(session: AsyncSession, user: User) -> Factors:
    """The factors that are on. Raises `TamperedAccountError` if they are not those of the digest.

    The digest itself is guarded by the account's MAC, which was checked when its key was opened.
    """
    query = select(SecondFactor).where(SecondFactor.user_id == user.id, SecondFactor.is_on)
    rows = list(await session.scalars(query.order_by(SecondFactor.id)))
    if not compare_digest(_digest(rows) or b"", user.factors_digest or b""):
        raise tampered(user)
    return Factors(
        totp=next((row for row in rows if row.kind == "totp"), None),
        passkeys=[row for row in rows if row.kind == "passkey"],
        codes=[row for row in rows if row.kind == "one_time_code"],
    )


async def lock_factors(
    session: AsyncSession, user_id: UUID, current: UserKey
) -> tuple[User, Factors]:
    """An account and its factors, for one transaction at a time.

    Raises `KeysChangedError`, `TamperedAccountError`.
    """
    user = await repository.get_user(session, user_id, lock=True)
    await session.refresh(user)
    check_current(user, current)
    check_protection(user, current.key, kdf=await _kdf(session, user_id))
    return user, await read_factors(session, user)


async def renew_digest(session: AsyncSession, user: User, user_key: bytes) -> None:
    """Make digest and MAC again, for a locked account whose factors this transaction changed."""
    await session.flush()
    query = select(SecondFactor).where(SecondFactor.user_id == user.id, SecondFactor.is_on)
    user.factors_digest = _digest(list(await session.scalars(query)))
    protect(user, user_key, kdf=await _kdf(session, user.id))


async def delete_factors(
    session: AsyncSession, user_id: UUID, *kinds: FactorKind, begun: bool = False
) -> None:
    """Delete an account's factors of some kinds, or of all; `begun` spares those that are on."""
    query = delete(SecondFactor).where(SecondFactor.user_id == user_id)
    if kinds:
        query = query.where(SecondFactor.kind.in_(kinds))
    if begun:
        query = query.where(~SecondFactor.is_on)
    await session.execute(query)


async def find_begun(session: AsyncSession, user_id: UUID, kind: FactorKind) -> SecondFactor | None:
    """The factor that the account has begun to set up."""
    query = select(SecondFactor).where(
        SecondFactor.user_id == user_id, SecondFactor.kind == kind, ~SecondFactor.is_on
    )
    return await session.scalar(query.order_by(SecondFactor.id.desc()).limit(1))


def open_secret(sealer: Sealer, row: SecondFactor) -> bytes:
    """A TOTP's secret in base32, a one-time code's digest, a passkey in JSON, or a challenge."""
    return sealer.open_bytes(FACTOR_SECRET, row.id, row.sealed_secret)


def open_passkey(sealer: Sealer, row: SecondFactor) -> StoredPasskey:
    """A passkey that is on."""
    return msgspec.json.decode(open_secret(sealer, row), type=StoredPasskey)


def _digest(rows: Iterable[SecondFactor]) -> bytes | None:
    """SHA-256 over the factors' kinds and ids; None without factors."""
    parts = sorted(row.kind.encode() + row.id.bytes for row in rows)
    return hashlib.sha256(b"".join(parts)).digest() if parts else None


async def _kdf(session: AsyncSession, user_id: UUID) -> bytes | None:
    slot = await repository.slot_of_kind(session, user_id, "password")
    return slot.kdf if slot else None
