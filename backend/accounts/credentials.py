"""Password and recovery slots: made, opened, and put in the place of older ones."""

from __future__ import annotations

from uuid import UUID

import msgspec
from argon2.exceptions import HashingError
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import (
    TamperedAccountError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
)
from backend.accounts.keyring import check_settings_mac, settings_mac
from backend.accounts.models import KeySlot, User
from backend.accounts.passwords import Stretcher, normalise_password
from backend.database.base import new_id
from backend.vault.root import RootKeys
from backend.vault.slots import (
    PasswordKdf,
    WrongSecretError,
    new_recovery_code,
    recovery_secret,
    unwrap_with_password,
    unwrap_with_secret,
    wrap_with_password,
    wrap_with_secret,
)


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
        kdf = self._kdf.fresh()
        secret = await self._stretcher.stretch(kdf, normalise_password(password))
        return Stretched(secret, msgspec.json.encode(kdf))

    async def open_password(self, user: User, slot: KeySlot, password: str) -> bytes:
        """The user key. Raises `WrongCredentialsError`, `TamperedAccountError`."""
        try:
            kdf = msgspec.json.decode(slot.kdf or b"", type=PasswordKdf)
            stretched = await self._stretcher.stretch(kdf, normalise_password(password))
        except (msgspec.DecodeError, HashingError) as error:
            raise TamperedAccountError("Ask the administrator to look at the database.") from error
        if user.is_disabled or slot.root_version is None:
            raise WrongCredentialsError
        try:
            user_key = unwrap_with_password(
                slot.id,
                user.id,
                stretched=stretched,
                blob=slot.wrapped,
                root_version=slot.root_version,
                root=self._root,
            )
        except WrongSecretError as error:
            raise WrongCredentialsError from error
        check_settings_mac(user, user_key, kdf=slot.kdf)
        return user_key

    def open_recovery(self, user: User, slot: KeySlot, code: str) -> bytes:
        """The user key. Raises `WrongRecoveryCodeError`."""
        secret = recovery_secret(code)
        if secret is None or user.is_disabled:
            raise WrongRecoveryCodeError
        try:
            return unwrap_with_secret(
                "recovery", slot.id, user.id, secret=secret, blob=slot.wrapped
            )
        except WrongSecretError as error:
            raise WrongRecoveryCodeError from error

    def password_slot(self, user_id: UUID, user_key: bytes, stretched: Stretched) -> KeySlot:
        """A password slot's row."""
        slot_id = new_id()
        version, wrapped = wrap_with_password(
            slot_id, user_id, stretched=stretched.secret, user_key=user_key, root=self._root
        )
        return KeySlot(
            id=slot_id,
            user_id=user_id,
            kind="password",
            wrapped=wrapped,
            kdf=stretched.kdf,
            root_version=version,
        )

    def recovery_slot(self, user_id: UUID, user_key: bytes) -> tuple[str, KeySlot]:
        """A new recovery code and its row."""
        code, secret = new_recovery_code()
        slot_id = new_id()
        wrapped = wrap_with_secret("recovery", slot_id, user_id, secret=secret, user_key=user_key)
        return code, KeySlot(id=slot_id, user_id=user_id, kind="recovery", wrapped=wrapped)

    async def replace_password(
        self, session: AsyncSession, user: User, user_key: bytes, stretched: Stretched
    ) -> None:
        """Put a new password in the place of the old one, for a user whose row is locked.

        Raises `TamperedAccountError`.
        """
        old = await repository.slot_of_kind(session, user.id, "password")
        # The new MAC must not lend its authority to a key mode that other hands have set.
        check_settings_mac(user, user_key, kdf=old.kdf if old else None)
        user.settings_mac = settings_mac(user_key, key_mode=user.key_mode, kdf=stretched.kdf)
        await repository.delete_slots(session, user.id, "password")
        session.add(self.password_slot(user.id, user_key, stretched))
