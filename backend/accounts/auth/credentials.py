"""Passwords and recovery codes: which are taken, how fast they are tried, their slots."""

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
from backend.accounts.keys.keyring import UserKey, check_protection, tampered
from backend.accounts.keys.slots import new_slot, open_slot
from backend.accounts.models import KeySlot, User
from backend.vault.envelopes import UnwrappedKey
from backend.vault.root import RootKeys
from backend.vault.slots import (
    PasswordKdf,
    WrongSecretError,
    make_recovery_code,
    parse_recovery_code,
)

MIN_LENGTH = 8
MAX_LENGTH = 256
MAX_WAITING = 20
BUSY_SECONDS = 5
"""About what it takes to stretch as many passwords as may wait."""


def normalise_password(password: str) -> str:
    """The same keys give the same password on every machine: NFKC (NIST SP 800-63B)."""
    return unicodedata.normalize("NFKC", password)


def check_password(password: str, *, name: str) -> str:
    """The password, normalised. Raises `WeakPasswordError` with what to do about it."""
    password = normalise_password(password)
    if len(password) < MIN_LENGTH:
        raise WeakPasswordError(f"Enter at least {MIN_LENGTH} characters.")
    if len(password) > MAX_LENGTH:
        raise WeakPasswordError(f"Enter at most {MAX_LENGTH} characters.")
    if password.casefold() in _common() or password.casefold() == normalise_name(name):
        raise WeakPasswordError("It is a very common password. Choose another one.")
    return password


@cache
def _common() -> frozenset[str]:
    # Late: a tenth of a second at each start, for something that only sign-ups need.
    from zxcvbn.frequency_lists import FREQUENCY_LISTS  # noqa: PLC0415

    return frozenset(FREQUENCY_LISTS["passwords"])


class Stretcher:
    """Runs Argon2id, at most two at once: a rush of log-ins must not eat the memory.

    A few more may wait. Those after them are refused: their clients would have given up before
    the answer.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(2)
        self._waiting = 0

    async def stretch(self, kdf: PasswordKdf, password: str) -> bytes:
        """The stretched password (32 bytes), computed in a thread. Raises `BusyError`."""
        if self._waiting >= MAX_WAITING:
            raise BusyError(retry_after=BUSY_SECONDS)
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            return await asyncio.to_thread(kdf.stretch, password)
        finally:
            self._places.release()


class Stretched(msgspec.Struct, frozen=True):
    """A password that was run through Argon2id, and how (JSON), as a slot keeps it."""

    secret: bytes
    kdf: bytes


class Credentials:
    """Makes and opens the two slots that people open themselves.

    Args:
        root: Wraps password slots once more.
        kdf: Argon2id's costs for new passwords.
    """

    def __init__(self, root: RootKeys, kdf: PasswordKdf) -> None:
        self._root = root
        self._kdf = kdf
        self._stretcher = Stretcher()

    async def stretch_new(self, password: str) -> Stretched:
        """Stretch a new password, at today's cost and with a salt of its own."""
        kdf = self._kdf.renew_salt()
        secret = await self._stretcher.stretch(kdf, normalise_password(password))
        return Stretched(secret, msgspec.json.encode(kdf))

    async def open_password(
        self, user: User, slot: KeySlot, password: str
    ) -> tuple[bytes, UnwrappedKey]:
        """(The slot's secret, what is in it).

        Raises `WrongCredentialsError`, `TamperedAccountError`, `BusyError`.
        """
        try:
            kdf = msgspec.json.decode(slot.kdf or b"", type=PasswordKdf)
            secret = await self._stretcher.stretch(kdf, normalise_password(password))
        except (msgspec.DecodeError, HashingError) as error:
            raise tampered(user) from error
        if user.is_disabled:
            raise WrongCredentialsError
        try:
            opened = open_slot(slot, secret=secret, root=self._root)
        except WrongSecretError as error:
            raise WrongCredentialsError from error
        check_protection(user, opened.user_key, kdf=slot.kdf)
        return secret, opened

    def open_recovery(self, user: User, slot: KeySlot, code: str) -> bytes:
        """The user key. Raises `WrongRecoveryCodeError`."""
        secret = parse_recovery_code(code)
        if secret is None or user.is_disabled:
            raise WrongRecoveryCodeError
        try:
            return open_slot(slot, secret=secret, root=self._root).user_key
        except WrongSecretError as error:
            raise WrongRecoveryCodeError from error

    def password_slot(self, user_id: UUID, current: UserKey, stretched: Stretched) -> KeySlot:
        """A password slot's row."""
        secret, kdf = stretched.secret, stretched.kdf
        return new_slot("password", user_id, current, secret=secret, root=self._root, kdf=kdf)

    def recovery_slot(self, user_id: UUID, current: UserKey) -> tuple[str, KeySlot]:
        """A new recovery code and its row."""
        code, secret = make_recovery_code()
        return code, new_slot("recovery", user_id, current, secret=secret, root=self._root)

    async def replace_password(
        self, session: AsyncSession, user_id: UUID, current: UserKey, stretched: Stretched
    ) -> None:
        """Put a new password in the place of the old one, for a user that `lock_account` locked."""
        await repository.delete_slots(session, user_id, "password")
        session.add(self.password_slot(user_id, current, stretched))
