from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.credentials import Credentials, check_password
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.names import InstanceKeys
from backend.accounts.auth.throttle import Throttle, forget_addresses
from backend.accounts.errors import (
    InvitationError,
    LastAdministratorError,
    NameTakenError,
    RegistrationClosedError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
)
from backend.accounts.events import AccountClosed, AccountDeleted
from backend.accounts.keys.keyring import (
    DEFAULT_KEY_MODE,
    UserKey,
    make_data_key,
    protect,
    wrap_derivation_key,
)
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.rotation import lock_account, make_room, renew_user_key
from backend.accounts.keys.slots import (
    clear_job_keys,
    delete_jobs,
    delete_standing_slot,
    refuse_older_root,
    wrap_directly,
)
from backend.accounts.models import DataKey, KeySlot, SecondFactor, User
from backend.core.events import Participants
from backend.core.logs import get_logger
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.sealing import KEY_BYTES
from backend.vault.slots import PasswordKdf, SlotKind, hash_for_lookup, parse_token

log = get_logger(__name__)

MAX_NAME_LENGTH = 64
NAME_LOOKUP_BYTES = 32
INVITATION_PREFIX = "inv_"

SignUpState = Literal["first", "open", "invitation", "closed"]


@dataclass(frozen=True, slots=True)
class UnlockedAccount:
    user: User
    name: str
    current: UserKey
    recovery_code: str = ""


class AccountService:
    def __init__(
        self,
        database: Database,
        root: RootKeys,
        instance: InstanceKeys,
        settings: Settings,
        *,
        kdf: PasswordKdf,
        open_keys: OpenKeys | None = None,
        participants: Participants | None = None,
    ) -> None:
        self._participants = participants or Participants()
        self._database = database
        self._open_keys = open_keys or OpenKeys()
        self._root = root
        self._instance = instance
        self._settings = settings
        self._credentials = Credentials(root, kdf)
        self._throttle = Throttle(database, instance)

    async def find_sign_up_state(self) -> SignUpState:
        """Return who may sign up. If there is no account, anyone may, despite the settings."""
        async with self._database.read() as session:
            has_users = await repository.has_users(session)
        return self._settings.registration if has_users else "first"

    async def sign_up(
        self, name: str, password: str, *, invitation: str | None, address: str
    ) -> UnlockedAccount:
        """Make an account. The first one becomes an administrator.

        Raises `RegistrationClosedError`, `InvitationError`, `NameTakenError`, `WeakPasswordError`,
        `TooManyAttemptsError`, `BusyError`.
        """
        name = name.strip()
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise ValidationError(f"A name must have 1 to {MAX_NAME_LENGTH} printable characters.")
        password = check_password(password, name=name)
        attempt = await self._throttle.admit_sign_up(address=address)
        async with self._database.read() as session:
            # Before the slow hash, so that people who may not sign up cannot cause it.
            await self._check_may_join(session, invitation)
            await self._check_is_free(session, name)
        stretched = await self._credentials.stretch_new(password)

        user_id, current = new_id(), UserKey(os.urandom(KEY_BYTES), generation=1)
        user = User(
            id=user_id,
            name_lookup=self._instance.hash_name(name),
            wrapped_name=self._instance.wrap_name(user_id, name),
            key_mode=DEFAULT_KEY_MODE,
            key_generation=current.generation,
            newest_data_key=1,
        )
        wrap_derivation_key(user, os.urandom(KEY_BYTES), user_key=current.key)
        protect(user, current.key, kdf=stretched.kdf)
        code, recovery = self._credentials.make_recovery_slot(user_id, current)
        async with self._database.write() as session:
            await repository.lock_accounts(session)
            await refuse_older_root(session, self._root)
            await self._check_may_join(session, invitation, use=True)
            user.is_administrator = not await repository.has_users(session)
            await self._check_is_free(session, name)
            session.add(user)
            await session.flush()
            session.add_all(
                (
                    make_data_key(user_id, 1, user_key=current.key),
                    self._credentials.make_password_slot(user_id, current, stretched),
                    recovery,
                )
            )
        await self._throttle.forgive(attempt)
        await self._throttle.remember(user_id, name, address=address)
        return UnlockedAccount(user, name, current, code)

    async def unlock(self, name: str, password: str, *, address: str) -> UnlockedAccount:
        """Open an account with its password.

        Raises `WrongCredentialsError`, `TooManyAttemptsError`, `TamperedAccountError`, `BusyError`.
        An unknown name takes as long as a wrong password. The caller still has to check the second
        factor (`SecondFactorGate`).
        """
        attempt = await self._throttle.admit_sign_in("account", name, address=address)
        found = await self._find(name, "password")
        if found is None:
            # As slow as for an account, so that the time does not reveal if the name exists.
            await self._credentials.stretch_new(password)
            raise WrongCredentialsError
        user, slot = found
        secret, opened = await self._credentials.open_password(user, slot, password)
        current = UserKey(opened.user_key, user.key_generation)
        if not opened.is_direct:
            await wrap_directly(self._database, slot, current, secret=secret, root=self._root)
        await self._throttle.forgive(attempt)
        return UnlockedAccount(user, self._instance.read_name(user), current)

    async def recover(
        self, name: str, code: str, new_password: str, *, address: str
    ) -> UnlockedAccount:
        """Set a new password with the recovery code, and make a new code.

        Every session and API key ends, because someone else may have had access to the account. The
        keys that the server may open end too, and `managed` changes to the default mode. Second
        factors are switched off, because the code alone proves ownership.

        Raises `WrongRecoveryCodeError`, `TooManyAttemptsError`, `WeakPasswordError`,
        `TamperedAccountError`, `BusyError`.
        """
        new_password = check_password(new_password, name=name)
        attempt = await self._throttle.admit_sign_in("recovery", name, address=address)
        found = await self._find(name, "recovery")
        stretched = await self._credentials.stretch_new(new_password)
        if found is None:
            raise WrongRecoveryCodeError
        user, slot = found
        current = UserKey(self._credentials.open_recovery(user, slot, code), user.key_generation)
        async with self._database.write() as session:
            user = await lock_account(session, user.id, current, root=self._root)
            if slot.id not in await repository.delete_slots(session, user.id, "recovery"):
                raise WrongRecoveryCodeError  # used by another request at the same time
            await repository.delete_slots(session, user.id, "session")
            await repository.delete_slots(session, user.id, "api_key")
            await delete_standing_slot(session, user.id)
            await clear_job_keys(session, user.id)
            await forget_addresses(session, user.id)
            await session.execute(delete(SecondFactor).where(SecondFactor.user_id == user.id))
            user.factors_digest = None
            if user.key_mode == "managed":
                user.key_mode = DEFAULT_KEY_MODE
            new_code, recovery = self._credentials.make_recovery_slot(user.id, current)
            session.add(recovery)
            await self._credentials.replace_password(session, user.id, current, stretched)
            renewed = await renew_user_key(session, user, current.key, root=self._root)
        self._open_keys.drop(user.id)
        await self._database.log.empty_now()
        await self._throttle.forgive(attempt)
        await self._throttle.remember(user.id, name, address=address)
        return UnlockedAccount(user, self._instance.read_name(user), renewed, new_code)

    async def change_password(self, identity: Identity, current: str, new: str) -> None:
        """Replace the password. Other sessions end.

        Raises `WrongCredentialsError`, `WeakPasswordError`, `TooManyAttemptsError`,
        `TamperedAccountError`, `BusyError`.
        """
        new = check_password(new, name=self.name_of(identity))
        confirmed = await self.confirm_password(identity, current)
        stretched = await self._credentials.stretch_new(new)
        user_id = identity.user_id
        async with self._database.write() as session:
            user = await lock_account(session, user_id, identity.current, root=self._root)
            slot = await repository.find_slot(session, user_id, "password")
            if slot is None or slot.id != confirmed:
                raise WrongCredentialsError  # replaced by another request at the same time
            await self._credentials.replace_password(session, user_id, identity.current, stretched)
            await repository.delete_slots(session, user_id, "session", but=identity.slot_id)
            await renew_user_key(session, user, identity.user_key, root=self._root)
        self._open_keys.drop(user_id)
        await self._database.log.empty_now()

    async def replace_recovery_code(self, identity: Identity, password: str) -> str:
        """Replace the recovery code. Raises the errors of `confirm_password`."""
        await self.confirm_password(identity, password)
        async with self._database.write() as session:
            await lock_account(session, identity.user_id, identity.current, root=self._root)
            code, slot = self._credentials.make_recovery_slot(identity.user_id, identity.current)
            await repository.delete_slots(session, identity.user_id, "recovery")
            session.add(slot)
        await self._database.log.empty_now()
        return code

    async def renew(self, user_id: UUID, current: UserKey) -> UserKey:
        """Replace the user key of an account. Nothing ends.

        Raises `TooManyDataKeysError`, `KeysChangedError`, `TamperedAccountError`.
        """
        async with self._database.write() as session:
            user = await lock_account(session, user_id, current, root=self._root)
            await make_room(session, user_id)
            renewed = await renew_user_key(session, user, current.key, root=self._root)
        self._open_keys.drop(user_id)
        await self._database.log.empty_now()
        return renewed

    async def confirm_password(self, identity: Identity, password: str) -> UUID:
        """Check the account's password. Return the id of its slot.

        Raises `WrongCredentialsError`, `TooManyAttemptsError`, `TamperedAccountError`, `BusyError`.
        """
        attempt = await self._throttle.admit_confirmation(identity.user_id)
        async with self._database.read() as session:
            user = await repository.get_user(session, identity.user_id)
            slot = await repository.find_slot(session, user.id, "password")
        if slot is None:
            raise WrongCredentialsError
        await self._credentials.open_password(user, slot, password)
        await self._throttle.forgive(attempt)
        return slot.id

    async def delete(self, user_id: UUID) -> None:
        """Delete an account: first its name and the keys to its texts, then the texts.

        `AccountClosed` handlers delete the rows in many transactions, for large accounts later.

        Raises `LastAdministratorError` if other accounts would be left without an administrator.
        """
        async with self._database.write() as session:
            await repository.lock_accounts(session)
            user = await repository.get_user(session, user_id, lock=True)
            is_needed = user.is_administrator and not user.is_disabled
            has_others = await repository.has_users(session, other_than=user_id)
            if is_needed and has_others and await repository.count_administrators(session) <= 1:
                raise LastAdministratorError("Make another user an administrator first.")
            await delete_jobs(session, user_id)
            for part in self._participants.find_handlers(AccountDeleted):
                await part.account_deleted(session, user_id)
            await session.execute(delete(KeySlot).where(KeySlot.user_id == user_id))
            await session.execute(delete(DataKey).where(DataKey.user_id == user_id))
            await session.execute(
                update(User)
                .where(User.id == user_id)
                .values(
                    sealed_settings=None,
                    sealed_variables=None,
                    sealed_scripts=None,
                    name_lookup=os.urandom(NAME_LOOKUP_BYTES),  # the name is free again
                    wrapped_name=self._instance.wrap_name(user_id, ""),
                    is_administrator=False,
                    is_disabled=True,
                    deleted_at=now(),
                )
            )
        self._open_keys.drop(user_id)
        await self._database.log.empty_now()  # it may still have the keys
        for handler in self._participants.find_handlers(AccountClosed):
            await handler.account_closed(user_id)
        await self._database.log.empty_now()  # and the texts that are deleted now

    def name_of(self, identity: Identity) -> str:
        return self._instance.read_name(identity.user)

    async def _find(self, name: str, kind: SlotKind) -> tuple[User, KeySlot] | None:
        async with self._database.read() as session:
            user = await repository.find_user(session, self._instance.hash_name(name))
            slot = await repository.find_slot(session, user.id, kind) if user else None
        return (user, slot) if user and slot else None

    async def _check_is_free(self, session: AsyncSession, name: str) -> None:
        if await repository.find_user(session, self._instance.hash_name(name)):
            raise NameTakenError("Choose another name.")

    async def _check_may_join(
        self, session: AsyncSession, invitation: str | None, *, use: bool = False
    ) -> None:
        """Raise unless this person may sign up. `use` marks the invitation as used."""
        if self._settings.registration == "open" or not await repository.has_users(session):
            return
        if self._settings.registration == "closed" or invitation is None:
            raise RegistrationClosedError("Ask the administrator for an invitation.")
        secret = parse_token(invitation.strip(), INVITATION_PREFIX)
        if secret is None or not await repository.has_invitation(
            session, hash_for_lookup(secret), now(), use=use
        ):
            raise InvitationError("It is unknown, used or expired. Ask for a new invitation.")
