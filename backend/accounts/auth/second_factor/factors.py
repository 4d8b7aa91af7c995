"""Second factors: their rows, codes of authenticator apps (RFC 6238), and one-time codes.

A digest of the rows shows if one is missing or was added. Nothing here commits. Callers that change
a factor have locked the account's row.
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
from backend.accounts.keys.keyring import UserKey, protect, report_tampering
from backend.accounts.keys.rotation import lock_user
from backend.accounts.models import FACTOR_SECRET, FactorKind, SecondFactor, User
from backend.vault.sealing import Sealer
from backend.vault.slots import normalize_code

ISSUER = "Talekeeper"
TOTP_WINDOW_STEPS = 1
"""Steps of 30 s that a phone's clock may be wrong, in each direction."""

TOTP_CODE = re.compile(r"[0-9]{6}")
WRONG_CODE_ADVICE = "It is wrong, was used before, or came too late. Try the next one."

ONE_TIME_CODE_COUNT = 10
CODE_GROUP_LENGTH = 5
CODE_LENGTH = 10
"""Letters of base32: 50 bits. They can only be guessed online, at the rate that the throttle
allows."""


@dataclass(frozen=True, slots=True)
class Factors:
    totp: SecondFactor | None
    passkeys: list[SecondFactor]
    codes: list[SecondFactor]

    @property
    def is_on(self) -> bool:
        return self.totp is not None or bool(self.passkeys)


async def read_factors(session: AsyncSession, user: User) -> Factors:
    """Return the active factors. Raises `TamperedAccountError` if they do not match the digest.

    The digest is covered by the account's MAC, which was checked when its key was opened.
    """
    query = select(SecondFactor).where(SecondFactor.user_id == user.id, SecondFactor.is_on)
    rows = list(await session.scalars(query.order_by(SecondFactor.id)))
    if not compare_digest(_make_digest(rows) or b"", user.factors_digest or b""):
        raise report_tampering(user)
    return Factors(
        totp=next((row for row in rows if row.kind == "totp"), None),
        passkeys=[row for row in rows if row.kind == "passkey"],
        codes=[row for row in rows if row.kind == "one_time_code"],
    )


async def lock_factors(
    session: AsyncSession, user_id: UUID, current: UserKey
) -> tuple[User, Factors]:
    """Lock an account. Raises `KeysChangedError`, `TamperedAccountError`."""
    user = await lock_user(session, user_id, current)
    return user, await read_factors(session, user)


async def renew_digest(session: AsyncSession, user: User, user_key: bytes) -> None:
    """Update the digest and the MAC of a locked account after its factors changed."""
    await session.flush()
    query = select(SecondFactor).where(SecondFactor.user_id == user.id, SecondFactor.is_on)
    user.factors_digest = _make_digest(list(await session.scalars(query)))
    protect(user, user_key, kdf=await repository.load_password_kdf(session, user.id))


async def delete_factors(
    session: AsyncSession, user_id: UUID, *kinds: FactorKind, only_unconfirmed: bool = False
) -> None:
    """Delete an account's factors of these kinds, or of all kinds."""
    query = delete(SecondFactor).where(SecondFactor.user_id == user_id)
    if kinds:
        query = query.where(SecondFactor.kind.in_(kinds))
    if only_unconfirmed:
        query = query.where(~SecondFactor.is_on)
    await session.execute(query)


async def find_unconfirmed(
    session: AsyncSession, user_id: UUID, kind: FactorKind, *, since: datetime
) -> SecondFactor | None:
    """Return the newest unconfirmed factor that was begun after `since`."""
    query = select(SecondFactor).where(
        SecondFactor.user_id == user_id,
        SecondFactor.kind == kind,
        ~SecondFactor.is_on,
        SecondFactor.created_at >= since,
    )
    return await session.scalar(query.order_by(SecondFactor.id.desc()).limit(1))


def open_secret(sealer: Sealer, row: SecondFactor) -> bytes:
    """Decrypt a TOTP secret (base32), the digest of a code, a passkey (JSON), or a challenge."""
    return sealer.open_bytes(FACTOR_SECRET, row.id, row.sealed_secret)


def open_passkey(sealer: Sealer, row: SecondFactor) -> StoredPasskey:
    return msgspec.json.decode(open_secret(sealer, row), type=StoredPasskey)


def make_totp_uri(secret: str, name: str) -> str:
    return TOTP(secret).provisioning_uri(name=name, issuer_name=ISSUER)


def use_totp(row: SecondFactor | None, sealer: Sealer, code: str, at: datetime) -> None:
    """Accept a TOTP code once. Raises `WrongSecondFactorError`."""
    if row is None:
        raise WrongSecondFactorError(WRONG_CODE_ADVICE)
    totp = TOTP(open_secret(sealer, row).decode())
    try:
        step = totp.verify_and_get_timecode(
            strip_code(code), for_time=at, valid_window=TOTP_WINDOW_STEPS
        )
    except OTPVerificationError as error:
        raise WrongSecondFactorError(WRONG_CODE_ADVICE) from error
    if step <= row.counter:
        raise WrongSecondFactorError(WRONG_CODE_ADVICE)
    row.counter, row.last_used_at = step, at


def make_one_time_codes() -> list[str]:
    codes = [
        base64.b32encode(secrets.token_bytes(7)).decode()[:CODE_LENGTH]
        for _ in range(ONE_TIME_CODE_COUNT)
    ]
    return [f"{code[:CODE_GROUP_LENGTH]}-{code[CODE_GROUP_LENGTH:]}" for code in codes]


def hash_code(code: str) -> bytes:
    """Return the SHA-256 of a one-time code's letters, which is stored."""
    return hashlib.sha256(normalize_code(code).encode()).digest()


def strip_code(code: str) -> str:
    return "".join(code.split())


def _make_digest(rows: Iterable[SecondFactor]) -> bytes | None:
    """SHA-256 over the factors' kinds and ids; None without factors."""
    parts = sorted(row.kind.encode() + row.id.bytes for row in rows)
    return hashlib.sha256(b"".join(parts)).digest() if parts else None
