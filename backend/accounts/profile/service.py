"""Changes of a user's settings and key mode."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.identity import Identity, open_user_settings
from backend.accounts.keys.keyring import DEFAULT_KEY_MODE, KEY_MODES
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.rotation import lock_account, make_room, renew_user_key
from backend.accounts.keys.slots import clear_job_keys, delete_standing_slot, make_standing_slot
from backend.accounts.models import USER_SETTINGS, KeyMode, User
from backend.accounts.profile.settings import UserSettings, check_budgets, find_named_models
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ForbiddenError, ValidationError
from backend.generation.registry import ModelRegistry
from backend.http.schemas import check_revision, merge_patch, reject_unknown
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.sealing import Sealer


class FindOwned(Protocol):
    """Raises a not-found error if a row is absent or belongs to someone else."""

    async def __call__(
        self, session: AsyncSession, row_id: UUID, /, *, owner_id: UUID
    ) -> object: ...


class FindModels(Protocol):
    """Loads the models that a user can use."""

    async def __call__(
        self, session: AsyncSession, user: User, sealer: Sealer, /
    ) -> ModelRegistry: ...


class EmbeddingChanged(Protocol):
    """Called when an account's embedding model or its provider changes."""

    async def __call__(self, session: AsyncSession, identity: Identity, /) -> None:
        """Start the follow-up work, in the transaction of the change."""


class ProfileService:
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
        """Merge a patch into the settings. Return the settings and their new revision.

        Raises `ValidationError`, `SettingNotTakenError`, `UnknownModelError`, `NoEmbeddingsError`,
        `PreconditionFailedError`, and the errors of `find_persona` and `find_preset`.
        """
        async with self._database.write() as session:
            user = await session.get(User, identity.user_id, with_for_update=True)
            if user is None:
                raise ForbiddenError
            check_revision(if_match, user.settings_revision)
            before = open_user_settings(identity.sealer, user.sealed_settings)
            settings = merge_patch(before, patch)
            models = await self._find_models(session, user, identity.sealer)
            _check_models(models, settings, before)
            check_budgets([settings.budgets], self._settings, before=before.budgets)
            # Checked only if the patch names it, because one that was deleted later may stay.
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
        """Change the key mode, and the MAC that protects it.

        If it is absent, it stays. Null restores the default. Raises `ValidationError`,
        `TamperedAccountError`, and `ForbiddenError` if an API key asks for `managed`.
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
                # After this, keys that the server got in the old mode, and a copy of the old row,
                # open nothing.
                await make_room(session, user.id)
                await renew_user_key(session, user, identity.user_key, root=self._root)
        if is_new:
            self._open_keys.drop(user.id)
        await self._database.log.empty_now()
        return user

    async def _lend(self, session: AsyncSession, identity: Identity, mode: KeyMode) -> None:
        """Give the server only the keys that the mode allows."""
        if mode == "managed":
            if identity.kind != "session":
                raise ForbiddenError(
                    "API keys cannot change how the account's key is kept. Sign in to do it."
                )
            await make_standing_slot(
                session,
                identity.user_id,
                user_key=identity.user_key,
                root=self._root,
                at=now(),
            )
        else:
            await delete_standing_slot(session, identity.user_id)
        if mode == "sealed":
            await clear_job_keys(session, identity.user_id)


def _check_models(models: ModelRegistry, settings: UserSettings, before: UserSettings) -> None:
    # A deleted model that was set before must not block other changes.
    if (settings.model, settings.sampling) != (before.model, before.sampling):
        spec = models.spec(settings.model or models.default_id)
        spec.check_sampling(settings.sampling)
    named = find_named_models(settings.task_models, settings.enrichment)
    for model_id in sorted(named - find_named_models(before.task_models, before.enrichment)):
        models.spec(model_id)
    embedding = settings.task_models.embedding
    if embedding is not None and embedding != before.task_models.embedding:
        models.find_embedding(embedding)
