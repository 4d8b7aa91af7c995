"""Password and recovery slots: made, opened, and put in the place of older ones."""

from __future__ import annotations

import msgspec
from argon2.exceptions import HashingError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import (
    WrongCredentialsError,
    WrongRecoveryCodeError,
)
from backend.accounts.key_slots import new_slot, open_slot
from backend.accounts.models import KeySlot, User
from backend.accounts.passwords import Stretcher, normalise_password
from backend.accounts.protection import check_protection, tampered
from backend.vault.root import RootKeys
from backend.vault.slots import (
    PasswordKdf,
    WrongSecretError,
    new_recovery_code,
    recovery_secret,
)


class Stretched(msgspec.Struct, frozen=True):
    """A password that was run through Argon2id, and how (JSON), as a slot keeps it."""

    secret: bytes
    kdf: bytes


class OpenPassword(msgspec.Struct, frozen=True):
    """A password slot that was opened: its secret, what was in it, and whether directly."""

    secret: bytes
    user_key: bytes
    is_direct: bool


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
        kdf = self._kdf.fresh()
        secret = await self._stretcher.stretch(kdf, normalise_password(password))
        return Stretched(secret, msgspec.json.encode(kdf))

    async def open_password(self, user: User, slot: KeySlot, password: str) -> OpenPassword:
        """The user key. Raises `WrongCredentialsError`, `TamperedAccountError`."""
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
        return OpenPassword(secret, opened.user_key, opened.is_direct)

    def open_recovery(self, user: User, slot: KeySlot, code: str) -> bytes:
        """The user key. Raises `WrongRecoveryCodeError`."""
        secret = recovery_secret(code)
        if secret is None or user.is_disabled:
            raise WrongRecoveryCodeError
        try:
            return open_slot(slot, secret=secret, root=self._root).user_key
        except WrongSecretError as error:
            raise WrongRecoveryCodeError from error

    def password_slot(self, user: User, user_key: bytes, stretched: Stretched) -> KeySlot:
        """A password slot's row."""
        return new_slot(
            "password",
            user.id,
            secret=stretched.secret,
            user_key=user_key,
            generation=user.key_generation,
            root=self._root,
            kdf=stretched.kdf,
        )

    def recovery_slot(self, user: User, user_key: bytes) -> tuple[str, KeySlot]:
        """A new recovery code and its row."""
        code, secret = new_recovery_code()
        return code, new_slot(
            "recovery",
            user.id,
            secret=secret,
            user_key=user_key,
            generation=user.key_generation,
            root=self._root,
        )

    async def replace_password(
        self, session: AsyncSession, user: User, user_key: bytes, stretched: Stretched
    ) -> None:
        """Put a new password in the place of the old one, for a user that `lock_account` locked."""
        await repository.delete_slots(session, user.id, "password")
        session.add(self.password_slot(user, user_key, stretched))
