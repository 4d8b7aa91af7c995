"""Second factors: their rows, authenticator apps' codes (RFC 6238), and one-time codes.

A digest over the rows shows where one is missing or was added. Nothing here commits. What changes a
factor has the account's row locked.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from uuid import UUID

import msgspec
from pyotp.exceptions import OTPVerificationError
from pyotp.totp import TOTP
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.second_factor.passkeys import StoredPasskey
from backend.accounts.errors import WrongSecondFactorError
from backend.accounts.keys.keyring import UserKey, protect, tampered
from backend.accounts.keys.user_keys import lock_user
from backend.accounts.models import FACTOR_SECRET, FactorKind, SecondFactor, User
from backend.vault.sealing import Sealer
from backend.vault.slots import normalize_code

ISSUER = "Talekeeper"
TOTP_WINDOW = 1
"""Time steps of 30 s by which a phone's clock may be wrong, before and after."""

TOTP_CODE = re.compile(r"[0-9]{6}")
WRONG = "It is wrong, was used before, or came too late. Try the next one."

ONE_TIME_CODES = 10
CODE_GROUP = 5
CODE_LENGTH = 10
"""Letters of base32: 50 bits. They are only tried online, at the pace of the throttle."""


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
    user = await lock_user(session, user_id, current)
    return user, await read_factors(session, user)


async def renew_digest(session: AsyncSession, user: User, user_key: bytes) -> None:
    """Make digest and MAC again, for a locked account whose factors this transaction changed."""
    await session.flush()
    query = select(SecondFactor).where(SecondFactor.user_id == user.id, SecondFactor.is_on)
    user.factors_digest = _digest(list(await session.scalars(query)))
    protect(user, user_key, kdf=await repository.password_kdf(session, user.id))


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


async def find_begun(
    session: AsyncSession, user_id: UUID, kind: FactorKind, *, since: datetime
) -> SecondFactor | None:
    """The factor that the account has begun to set up, not before `since`."""
    query = select(SecondFactor).where(
        SecondFactor.user_id == user_id,
        SecondFactor.kind == kind,
        ~SecondFactor.is_on,
        SecondFactor.created_at >= since,
    )
    return await session.scalar(query.order_by(SecondFactor.id.desc()).limit(1))


def open_secret(sealer: Sealer, row: SecondFactor) -> bytes:
    """A TOTP's secret in base32, a one-time code's digest, a passkey in JSON, or a challenge."""
    return sealer.open_bytes(FACTOR_SECRET, row.id, row.sealed_secret)


def open_passkey(sealer: Sealer, row: SecondFactor) -> StoredPasskey:
    """A passkey that is on."""
    return msgspec.json.decode(open_secret(sealer, row), type=StoredPasskey)


def totp_uri(secret: str, name: str) -> str:
    """The `otpauth` address that an authenticator app reads."""
    return TOTP(secret).provisioning_uri(name=name, issuer_name=ISSUER)


def use_totp(row: SecondFactor | None, sealer: Sealer, code: str, at: datetime) -> None:
    """Take a TOTP's code, once. Raises `WrongSecondFactorError`."""
    if row is None:
        raise WrongSecondFactorError(WRONG)
    totp = TOTP(open_secret(sealer, row).decode())
    try:
        step = totp.verify_and_get_timecode(plain_code(code), for_time=at, valid_window=TOTP_WINDOW)
    except OTPVerificationError as error:
        raise WrongSecondFactorError(WRONG) from error
    if step <= row.counter:
        raise WrongSecondFactorError(WRONG)
    row.counter, row.last_used_at = step, at


def new_one_time_codes() -> list[str]:
    """Ten codes to write down, such as `ABCDE-FGHIJ`."""
    codes = [
        base64.b32encode(secrets.token_bytes(7)).decode()[:CODE_LENGTH]
        for _ in range(ONE_TIME_CODES)
    ]
    return [f"{code[:CODE_GROUP]}-{code[CODE_GROUP:]}" for code in codes]


def code_digest(code: str) -> bytes:
    """What is stored of a one-time code: the SHA-256 of its letters."""
    return hashlib.sha256(normalize_code(code).encode()).digest()


def plain_code(code: str) -> str:
    """A code as it is typed, without spaces."""
    return "".join(code.split())


def _digest(rows: Iterable[SecondFactor]) -> bytes | None:
    """SHA-256 over the factors' kinds and ids; None without factors."""
    parts = sorted(row.kind.encode() + row.id.bytes for row in rows)
    return hashlib.sha256(b"".join(parts)).digest() if parts else None
