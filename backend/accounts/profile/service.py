"""A user's own settings and key mode."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.identity import Identity, open_settings
from backend.accounts.keys.keyring import DEFAULT_KEY_MODE, KEY_MODES
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.server_held import end_job_keys, end_standing, give_standing
from backend.accounts.keys.user_keys import lock_account, make_room, renew_user_key
from backend.accounts.models import USER_SETTINGS, KeyMode, User
from backend.accounts.profile.settings import UserSettings, check_budgets, named_models
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ForbiddenError, ValidationError
from backend.generation.registry import ModelRegistry
from backend.http.schemas import check_revision, merge_patch, reject_unknown
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.sealing import Sealer


class FindOwned(Protocol):
    """Raises a not-found error for a thing of users' that is absent or someone else's."""

    async def __call__(self, session: AsyncSession, row_id: UUID, /, *, owner_id: UUID) -> object:
        """Find it."""
        ...


class FindModels(Protocol):
    """Gives the models that a user may ask."""

    async def __call__(self, session: AsyncSession, user: User, sealer: Sealer, /) -> ModelRegistry:
        """Find them."""
        ...


class EmbeddingChanged(Protocol):
    """Hears that an account names another embedding model, or has another provider for it."""

    async def __call__(self, session: AsyncSession, identity: Identity, /) -> None:
        """See to what follows, in the transaction that changes it."""


class ProfileService:
    """Settings and key mode of the account that asks."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        settings: Settings,
        open_keys: OpenKeys,
        *,
        find_models: FindModels,
        find_persona: FindOwned,
        find_preset: FindOwned,
        embedding_changed: EmbeddingChanged,
    ) -> None:
        self._embedding_changed = embedding_changed
        self._find_persona = find_persona
        self._find_preset = find_preset
        self._database = database
        self._open_keys = open_keys
        self._root = root
        self._settings = settings
        self._find_models = find_models

    async def patch_settings(
        self, identity: Identity, patch: dict[str, Any], *, if_match: str | None
    ) -> tuple[UserSettings, int]:
        """Merge a patch into the settings: (settings, new revision).

        Raises `ValidationError`, `SettingNotTakenError`, `UnknownModelError`, `NoEmbeddingsError`,
        `PreconditionFailedError`, and what `find_persona` and `find_preset` raise.
        """
        async with self._database.write() as session:
            user = await session.get(User, identity.user_id, with_for_update=True)
            if user is None:
                raise ForbiddenError
            check_revision(if_match, user.settings_revision)
            before = open_settings(identity.sealer, user.sealed_settings)
            settings = merge_patch(before, patch)
            models = await self._find_models(session, user, identity.sealer)
            _check_models(models, settings, before)
            check_budgets([settings.budgets], self._settings, before=before.budgets)
            # One that was deleted later may stay: only what is named now has to be there.
            if "persona_id" in patch and settings.persona_id is not None:
                await self._find_persona(session, settings.persona_id, owner_id=user.id)
            if "preset_id" in patch and settings.preset_id is not None:
                await self._find_preset(session, settings.preset_id, owner_id=user.id)
            user.sealed_settings = identity.sealer.seal_bytes(
                USER_SETTINGS, user.id, msgspec.json.encode(settings)
            )
            user.settings_revision += 1
            if settings.task_models.embedding != before.task_models.embedding:
                await self._embedding_changed(session, identity)
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
                raise ForbiddenError(
                    "API keys cannot change how the account's key is kept. Sign in to do it."
                )
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


def _check_models(models: ModelRegistry, settings: UserSettings, before: UserSettings) -> None:
    # One that is gone keeps nothing else from being set.
    if (settings.model, settings.sampling) != (before.model, before.sampling):
        spec = models.spec(settings.model or models.default_id)
        spec.check_sampling(settings.sampling)
    named = named_models(settings.task_models, settings.enrichment)
    for model_id in sorted(named - named_models(before.task_models, before.enrichment)):
        models.spec(model_id)
    embedding = settings.task_models.embedding
    if embedding is not None and embedding != before.task_models.embedding:
        models.embedding_server(embedding)
