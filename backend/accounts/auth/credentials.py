"""The rules for passwords, their slow hash, and the slots of passwords and recovery codes."""

from __future__ import annotations

import asyncio
import unicodedata
from functools import cache
from uuid import UUID

import msgspec
from argon2.exceptions import HashingError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.names import normalise_name
from backend.accounts.errors import (
    BusyError,
    WeakPasswordError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
)
from backend.accounts.keys.keyring import UserKey, check_protection, report_tampering
from backend.accounts.keys.slots import make_slot, open_slot
from backend.accounts.models import KeySlot, User
from backend.vault.root import RootKeys
from backend.vault.slots import (
    PasswordKdf,
    UnwrappedKey,
    WrongSecretError,
    make_recovery_code,
    parse_recovery_code,
)

MIN_PASSWORD_LENGTH = 8
MAX_PASSWORD_LENGTH = 256
MAX_WAITING_PASSWORDS = 20
RETRY_SECONDS = 5
"""The approximate time to stretch `MAX_WAITING_PASSWORDS` passwords."""


def normalise_password(password: str) -> str:
    """Return the NFKC form, so that the same keys give the same password everywhere.

    See NIST SP 800-63B.
    """
    return unicodedata.normalize("NFKC", password)


def check_password(password: str, *, name: str) -> str:
    """Return the normalised password. Raises `WeakPasswordError` with advice."""
    password = normalise_password(password)
    if len(password) < MIN_PASSWORD_LENGTH:
        raise WeakPasswordError(f"Enter at least {MIN_PASSWORD_LENGTH} characters.")
    if len(password) > MAX_PASSWORD_LENGTH:
        raise WeakPasswordError(f"Enter at most {MAX_PASSWORD_LENGTH} characters.")
    if password.casefold() in _load_common_passwords() or password.casefold() == normalise_name(
        name
    ):
        raise WeakPasswordError("It is a very common password. Choose another one.")
    return password


@cache
def _load_common_passwords() -> frozenset[str]:
    # Imported here because it takes 0.1 s, and only sign-ups need it.
    from zxcvbn.frequency_lists import FREQUENCY_LISTS  # noqa: PLC0415

    return frozenset(FREQUENCY_LISTS["passwords"])


class Stretcher:
    """Runs Argon2id at most twice at the same time, which limits its memory.

    A few more calls may wait. Further calls are refused, because their clients would time out
    before the response.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(2)
        self._waiting = 0

    async def stretch(self, kdf: PasswordKdf, password: str) -> bytes:
        """Stretch the password in a thread. Raises `BusyError`."""
        if self._waiting >= MAX_WAITING_PASSWORDS:
            raise BusyError(retry_after=RETRY_SECONDS)
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            return await asyncio.to_thread(kdf.stretch, password)
        finally:
            self._places.release()


class StretchedPassword(msgspec.Struct, frozen=True):
    """A password stretched with Argon2id, and the parameters (JSON) that its slot stores."""

    secret: bytes
    kdf: bytes


class Credentials:
    def __init__(self, root: RootKeys, kdf: PasswordKdf) -> None:
        self._root = root
        self._kdf = kdf
        self._stretcher = Stretcher()

    async def stretch_new(self, password: str) -> StretchedPassword:
        """Stretch a new password with the current costs and a new salt."""
        kdf = self._kdf.renew_salt()
        secret = await self._stretcher.stretch(kdf, normalise_password(password))
        return StretchedPassword(secret, msgspec.json.encode(kdf))

    async def open_password(
        self, user: User, slot: KeySlot, password: str
    ) -> tuple[bytes, UnwrappedKey]:
        """Raises `WrongCredentialsError`, `TamperedAccountError`, `BusyError`."""
        try:
            kdf = msgspec.json.decode(slot.kdf or b"", type=PasswordKdf)
            secret = await self._stretcher.stretch(kdf, normalise_password(password))
        except (msgspec.DecodeError, HashingError) as error:
            raise report_tampering(user) from error
        if user.is_disabled:
            raise WrongCredentialsError
        try:
            opened = open_slot(slot, secret=secret, root=self._root)
        except WrongSecretError as error:
            raise WrongCredentialsError from error
        check_protection(user, opened.user_key, kdf=slot.kdf)
        return secret, opened

    def open_recovery(self, user: User, slot: KeySlot, code: str) -> bytes:
        """Return the user key. Raises `WrongRecoveryCodeError`."""
        secret = parse_recovery_code(code)
        if secret is None or user.is_disabled:
            raise WrongRecoveryCodeError
        try:
            return open_slot(slot, secret=secret, root=self._root).user_key
        except WrongSecretError as error:
            raise WrongRecoveryCodeError from error

    def make_password_slot(
        self, user_id: UUID, current: UserKey, stretched: StretchedPassword
    ) -> KeySlot:
        secret, kdf = stretched.secret, stretched.kdf
        return make_slot("password", user_id, current, secret=secret, root=self._root, kdf=kdf)

    def make_recovery_slot(self, user_id: UUID, current: UserKey) -> tuple[str, KeySlot]:
        code, secret = make_recovery_code()
        return code, make_slot("recovery", user_id, current, secret=secret, root=self._root)

    async def replace_password(
        self, session: AsyncSession, user_id: UUID, current: UserKey, stretched: StretchedPassword
    ) -> None:
        """Replace the password of an account that `lock_account` has locked."""
        await repository.delete_slots(session, user_id, "password")
        session.add(self.make_password_slot(user_id, current, stretched))
