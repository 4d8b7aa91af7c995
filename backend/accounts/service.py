"""Accounts: signing up, signing in, passwords, recovery, deletion."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hmac import compare_digest
from uuid import UUID

import msgspec
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import (
    InvitationError,
    LastAdministratorError,
    NameTakenError,
    RegistrationClosedError,
    TamperedAccountError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
)
from backend.accounts.identity import Identity
from backend.accounts.keyring import new_data_key, settings_mac
from backend.accounts.models import DataKey, KeySlot, User
from backend.accounts.names import InstanceKeys
from backend.accounts.passwords import Stretcher, check_password, normalise_password
from backend.accounts.throttle import Throttle
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.sealing import KEY_BYTES
from backend.vault.slots import (
    PasswordKdf,
    WrongSecretError,
    lookup_hash,
    new_recovery_code,
    recovery_secret,
    token_secret,
    unwrap_with_password,
    unwrap_with_secret,
    wrap_with_password,
    wrap_with_secret,
)

MAX_NAME_LENGTH = 64
INVITATION_PREFIX = "inv_"


@dataclass(frozen=True, slots=True)
class Unlocked:
    """An account whose user key was just unwrapped or made."""

    user: User
    name: str
    user_key: bytes
    recovery_code: str = ""


class AccountService:
    """Makes accounts and opens them. Sessions are made by `SessionService` from what this opens."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        instance: InstanceKeys,
        settings: Settings,
        *,
        kdf: PasswordKdf,
    ) -> None:
        self._database = database
        self._root = root
        self._instance = instance
        self._settings = settings
        self._kdf = kdf
        self._stretcher = Stretcher()
        self._throttle = Throttle(database)

    async def sign_up(self, name: str, password: str, *, invitation: str | None) -> Unlocked:
        """Make an account; the first one administers.

        Raises `RegistrationClosedError`, `InvitationError`, `NameTakenError`, `WeakPasswordError`.
        """
        name = name.strip()
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise ValidationError(
                f"A name has 1 to {MAX_NAME_LENGTH} characters that can be printed."
            )
        password = check_password(password, name=name)
        kdf = self._kdf.fresh()
        stretched = await self._stretcher.stretch(kdf, password)

        user_id, user_key = new_id(), os.urandom(KEY_BYTES)
        kdf_blob = msgspec.json.encode(kdf)
        user = User(
            id=user_id,
            name_lookup=self._instance.find_name(name),
            wrapped_name=self._instance.wrap_name(user_id, name),
            key_mode="per_job",
            settings_mac=settings_mac(user_key, key_mode="per_job", kdf=kdf_blob),
        )
        code, recovery = self._recovery_slot(user_id, user_key)
        async with self._database.write() as session:
            await repository.lock_accounts(session)
            user.is_administrator = await repository.count_users(session) == 0
            if not user.is_administrator:
                await self._check_may_join(session, invitation)
            if await repository.find_user(session, user.name_lookup):
                raise NameTakenError("Choose another name.")
            session.add(user)
            await session.flush()
            session.add_all(
                (
                    new_data_key(user_id, 1, user_key=user_key),
                    self._password_slot(user_id, user_key, stretched, kdf_blob),
                    recovery,
                )
            )
        return Unlocked(user, name, user_key, code)

    async def unlock(self, name: str, password: str, *, address: str) -> Unlocked:
        """Open an account with its password.

        Raises `WrongCredentialsError`, `TooManyAttemptsError`, `TamperedAccountError`. An unknown
        name takes as long as a wrong password.
        """
        account_key = self._instance.find_throttle("account", name)
        address_key = self._instance.find_throttle("address", address)
        await self._throttle.admit([account_key, address_key])
        async with self._database.read() as session:
            user = await repository.find_user(session, self._instance.find_name(name))
            slot = await repository.slot_of_kind(session, user.id, "password") if user else None
        kdf = _kdf_of(slot) if slot else self._kdf
        stretched = await self._stretcher.stretch(kdf, normalise_password(password))
        if user is None or slot is None:
            raise WrongCredentialsError
        user_key = self._unwrap(user, slot, stretched)
        await self._throttle.forgive(account=account_key, address=address_key)
        return Unlocked(user, name.strip(), user_key)

    async def recover(self, name: str, code: str, new_password: str, *, address: str) -> Unlocked:
        """Set a new password with the recovery code; every session ends, a new code is made.

        Raises `WrongRecoveryCodeError`, `TooManyAttemptsError`, `WeakPasswordError`.
        """
        new_password = check_password(new_password, name=name)
        account_key = self._instance.find_throttle("recovery", name)
        address_key = self._instance.find_throttle("address", address)
        await self._throttle.admit([account_key, address_key])
        secret = recovery_secret(code)
        async with self._database.read() as session:
            user = await repository.find_user(session, self._instance.find_name(name))
            slot = await repository.slot_of_kind(session, user.id, "recovery") if user else None
        kdf = self._kdf.fresh()
        stretched = await self._stretcher.stretch(kdf, new_password)
        if user is None or slot is None or secret is None or user.is_disabled:
            raise WrongRecoveryCodeError
        try:
            user_key = unwrap_with_secret(
                "recovery", slot.id, user.id, secret=secret, blob=slot.wrapped
            )
        except WrongSecretError as error:
            raise WrongRecoveryCodeError from error
        new_code, recovery = self._recovery_slot(user.id, user_key)
        async with self._database.write() as session:
            await repository.delete_slots(session, user.id, "recovery")
            await repository.delete_slots(session, user.id, "session")
            session.add(recovery)
            await self._replace_password(session, user.id, user_key, stretched, kdf)
        await self._throttle.forgive(account=account_key, address=address_key)
        return Unlocked(user, name.strip(), user_key, new_code)

    async def change_password(self, identity: Identity, current: str, new: str) -> list[UUID]:
        """Replace the password; returns the ids of the other sessions, which it ended.

        Raises `WrongCredentialsError`, `WeakPasswordError`, `TooManyAttemptsError`.
        """
        new = check_password(new, name=self.name_of(identity))
        await self.confirm_password(identity, current)
        kdf = self._kdf.fresh()
        stretched = await self._stretcher.stretch(kdf, new)
        async with self._database.write() as session:
            await self._replace_password(
                session, identity.user_id, identity.user_key, stretched, kdf
            )
            return await repository.delete_slots(
                session, identity.user_id, "session", but=identity.slot_id
            )

    async def new_recovery_code(self, identity: Identity, password: str) -> str:
        """Replace the recovery code, the old one being lost. Raises `WrongCredentialsError`."""
        await self.confirm_password(identity, password)
        code, slot = self._recovery_slot(identity.user_id, identity.user_key)
        async with self._database.write() as session:
            await repository.delete_slots(session, identity.user_id, "recovery")
            session.add(slot)
        return code

    async def confirm_password(self, identity: Identity, password: str) -> None:
        """Raise `WrongCredentialsError` unless it is the account's password."""
        account_key = self._instance.find_throttle("confirm", identity.user_id.hex)
        await self._throttle.admit([account_key])
        async with self._database.read() as session:
            user = await repository.get_user(session, identity.user_id)
            slot = await repository.slot_of_kind(session, user.id, "password")
        if slot is None:
            raise WrongCredentialsError
        stretched = await self._stretcher.stretch(_kdf_of(slot), normalise_password(password))
        self._unwrap(user, slot, stretched)
        await self._throttle.forgive(account=account_key, address=account_key)

    async def delete(self, user_id: UUID) -> None:
        """Delete an account: first what opens its texts, then the texts.

        Raises `LastAdministratorError` while others would be left with no administrator.
        """
        async with self._database.write() as session:
            await repository.lock_accounts(session)
            user = await repository.get_user(session, user_id)
            others = await repository.count_users(session) - 1
            if user.is_administrator and others and not user.is_disabled:
                await _keep_one_administrator(session)
            await session.execute(delete(KeySlot).where(KeySlot.user_id == user_id))
            await session.execute(delete(DataKey).where(DataKey.user_id == user_id))
        async with self._database.write() as session:
            await session.execute(delete(User).where(User.id == user_id))

    def name_of(self, identity: Identity) -> str:
        """The account's name."""
        return self._instance.unwrap_name(identity.user_id, identity.wrapped_name)

    def _unwrap(self, user: User, slot: KeySlot, stretched: bytes) -> bytes:
        if user.is_disabled or slot.root_version is None or slot.kdf is None:
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
        mac = settings_mac(user_key, key_mode=user.key_mode, kdf=slot.kdf)
        if not compare_digest(mac, user.settings_mac):
            raise TamperedAccountError("Ask the administrator to look at the database.")
        return user_key

    async def _check_may_join(self, session: AsyncSession, invitation: str | None) -> None:
        if self._settings.registration == "open":
            return
        if self._settings.registration == "closed" or invitation is None:
            raise RegistrationClosedError("Ask the administrator for an invitation.")
        secret = token_secret(invitation.strip(), INVITATION_PREFIX)
        if secret is None or not await repository.use_invitation(
            session, lookup_hash(secret), now()
        ):
            raise InvitationError("It is unknown, used or expired. Ask for a new one.")

    def _password_slot(
        self, user_id: UUID, user_key: bytes, stretched: bytes, kdf: bytes
    ) -> KeySlot:
        slot_id = new_id()
        version, wrapped = wrap_with_password(
            slot_id, user_id, stretched=stretched, user_key=user_key, root=self._root
        )
        return KeySlot(
            id=slot_id,
            user_id=user_id,
            kind="password",
            wrapped=wrapped,
            kdf=kdf,
            root_version=version,
        )

    def _recovery_slot(self, user_id: UUID, user_key: bytes) -> tuple[str, KeySlot]:
        code, secret = new_recovery_code()
        slot_id = new_id()
        wrapped = wrap_with_secret("recovery", slot_id, user_id, secret=secret, user_key=user_key)
        return code, KeySlot(id=slot_id, user_id=user_id, kind="recovery", wrapped=wrapped)

    async def _replace_password(
        self,
        session: AsyncSession,
        user_id: UUID,
        user_key: bytes,
        stretched: bytes,
        kdf: PasswordKdf,
    ) -> None:
        kdf_blob = msgspec.json.encode(kdf)
        user = await repository.get_user(session, user_id)
        user.settings_mac = settings_mac(user_key, key_mode=user.key_mode, kdf=kdf_blob)
        await repository.delete_slots(session, user_id, "password")
        session.add(self._password_slot(user_id, user_key, stretched, kdf_blob))


async def _keep_one_administrator(session: AsyncSession) -> None:
    if await repository.count_administrators(session) <= 1:
        raise LastAdministratorError("Make somebody else an administrator first.")


def _kdf_of(slot: KeySlot) -> PasswordKdf:
    return msgspec.json.decode(slot.kdf or b"{}", type=PasswordKdf)
