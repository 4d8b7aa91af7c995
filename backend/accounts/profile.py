"""A user's own settings and key mode, and what administrators do with accounts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import InvitationNotFoundError, LastAdministratorError
from backend.accounts.identity import Identity, open_settings
from backend.accounts.keyring import (
    DEFAULT_KEY_MODE,
    KEY_MODES,
)
from backend.accounts.models import USER_SETTINGS, Invitation, KeyMode, User
from backend.accounts.open_keys import OpenKeys
from backend.accounts.server_held_keys import end_job_keys, end_standing, give_standing
from backend.accounts.service import INVITATION_PREFIX
from backend.accounts.settings import UserSettings, check_budgets
from backend.accounts.user_keys import lock_account, make_room, renew_user_key
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ForbiddenError, ValidationError
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import check_taken
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.slots import lookup_hash, new_token
from backend.wire import check_revision, merge_patch, page_of, reject_unknown


class FindPersona(Protocol):
    """Raises a not-found error for a persona that is absent or someone else's."""

    async def __call__(self, session: AsyncSession, persona_id: UUID, *, owner_id: UUID) -> object:
        """Find it."""
        ...


class ProfileService:
    """Settings and key mode of the account that asks."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        settings: Settings,
        registry: ModelRegistry,
        open_keys: OpenKeys,
        *,
        find_persona: FindPersona,
    ) -> None:
        self._find_persona = find_persona
        self._database = database
        self._open_keys = open_keys
        self._root = root
        self._settings = settings
        self._registry = registry

    async def patch_settings(
        self, identity: Identity, patch: dict[str, Any], *, if_match: str | None
    ) -> tuple[UserSettings, int]:
        """Merge a patch into the settings: (settings, new revision).

        Raises `ValidationError`, `SettingNotTakenError`, `UnknownModelError`,
        `PreconditionFailedError`, and what `find_persona` raises.
        """
        async with self._database.write() as session:
            user = await session.get(User, identity.user_id, with_for_update=True)
            if user is None:
                raise ForbiddenError
            check_revision(if_match, user.settings_revision)
            before = open_settings(identity.sealer, user.sealed_settings)
            settings = merge_patch(before, patch)
            self._check_model(settings)
            check_budgets([settings.budgets], self._settings, before=before.budgets)
            # One that was deleted later may stay: only what is named now has to be there.
            if "persona_id" in patch and settings.persona_id is not None:
                await self._find_persona(session, settings.persona_id, owner_id=user.id)
            user.sealed_settings = identity.sealer.seal_bytes(
                USER_SETTINGS, user.id, msgspec.json.encode(settings)
            )
            user.settings_revision += 1
        return settings, user.settings_revision

    async def patch_account(self, identity: Identity, patch: dict[str, Any]) -> User:
        """Change the key mode, with the MAC that keeps it from being changed by other hands.

        What is absent stays, null goes back to the default. Raises `ValidationError`,
        `TamperedAccountError`, `ForbiddenError` for an API key that asks for `managed`.
        """
        reject_unknown(patch, frozenset({"key_mode"}))
        if "key_mode" not in patch:
            async with self._database.read() as session:
                return await repository.get_user(session, identity.user_id)
        mode = DEFAULT_KEY_MODE if patch["key_mode"] is None else patch["key_mode"]
        if mode not in KEY_MODES:
            raise ValidationError(f"key_mode is one of {', '.join(KEY_MODES)}.")
        async with self._database.write() as session:
            user = await lock_account(session, identity.user_id, identity.current, root=self._root)
            is_new = user.key_mode != mode
            user.key_mode = mode
            await self._lend(session, identity, mode)
            if is_new:
                # What the old mode lent out, and a copy of the row that allowed it, open nothing.
                await make_room(session, user.id)
                await renew_user_key(session, user, identity.user_key, root=self._root)
        if is_new:
            self._open_keys.drop(user.id)
        await self._database.log.empty_now()
        return user

    async def _lend(self, session: AsyncSession, identity: Identity, mode: KeyMode) -> None:
        """Let the server have what the mode allows it, and nothing else."""
        if mode == "managed":
            if identity.kind != "session":
                raise ForbiddenError("An API key can't lend the account's key. Sign in to do it.")
            await give_standing(
                session,
                identity.user_id,
                user_key=identity.user_key,
                root=self._root,
                at=now(),
            )
        else:
            await end_standing(session, identity.user_id)
        if mode == "sealed":
            await end_job_keys(session, identity.user_id)

    def _check_model(self, settings: UserSettings) -> None:
        spec = self._registry.spec(settings.model or self._registry.default_id)
        check_taken(settings.sampling, accepts=spec.accepts, model_id=spec.id)
        if settings.enrichment.model is not None:
            self._registry.spec(settings.enrichment.model)


class AdministrationService:
    """Accounts and invitations, for administrators."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_users(self, *, after: UUID | None, limit: int) -> tuple[list[User], str | None]:
        """A page of all accounts, oldest first."""
        query = select(User).order_by(User.id).limit(limit + 1)
        if after is not None:
            query = query.where(User.id > after)
        async with self._database.read() as session:
            return page_of(list(await session.scalars(query)), limit)

    async def change_user(
        self, user_id: UUID, *, is_administrator: bool | None, is_disabled: bool | None
    ) -> User:
        """Change what an account may do. Raises `UserNotFoundError`, `LastAdministratorError`."""
        async with self._database.write() as session:
            await repository.lock_accounts(session)
            user = await repository.get_user(session, user_id)
            if is_administrator is not None:
                user.is_administrator = is_administrator
            if is_disabled is not None:
                user.is_disabled = is_disabled
            await session.flush()
            if await repository.count_administrators(session) == 0:
                raise LastAdministratorError("Somebody must be left who can administer.")
            if user.is_disabled:
                await repository.delete_slots(session, user_id, "session")
        return user

    async def invite(self, identity: Identity, *, days: int) -> tuple[str, Invitation]:
        """Make an invitation: (code, its row)."""
        code, secret = new_token(INVITATION_PREFIX)
        invitation = Invitation(
            created_by=identity.user_id,
            lookup=lookup_hash(secret),
            expires_at=now() + timedelta(days=days),
        )
        async with self._database.write() as session:
            session.add(invitation)
        return code, invitation

    async def list_invitations(
        self, *, after: UUID | None, limit: int
    ) -> tuple[list[Invitation], str | None]:
        """A page of all invitations, newest first."""
        query = select(Invitation).order_by(Invitation.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(Invitation.id < after)
        async with self._database.read() as session:
            return page_of(list(await session.scalars(query)), limit)

    async def withdraw_invitation(self, invitation_id: UUID) -> None:
        """Make an invitation useless. Raises `InvitationNotFoundError`."""
        async with self._database.write() as session:
            gone = await session.scalar(
                delete(Invitation).where(Invitation.id == invitation_id).returning(Invitation.id)
            )
            if gone is None:
                raise InvitationNotFoundError
