"""Who asks: the account behind a request, with its keys at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from backend.accounts.keyring import UserKey
from backend.accounts.models import USER_SETTINGS, KeyMode
from backend.accounts.settings import UserSettings
from backend.vault.sealing import Sealer

Scope = Literal["read", "chat", "manage"]
TokenKind = Literal["session", "api_key"]
SCOPES: tuple[Scope, ...] = ("read", "chat", "manage")
"""Each includes the ones before it: look; write and play; change the account."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One signed-in account, for as long as one request or one turn."""

    user_id: UUID
    slot_id: UUID
    kind: TokenKind
    scope: Scope
    is_administrator: bool
    key_mode: KeyMode
    sealer: Sealer = field(repr=False)
    user_key: bytes = field(repr=False)
    sealed_settings: bytes | None = field(repr=False)
    settings_revision: int
    created_at: datetime
    wrapped_name: bytes = field(repr=False)
    key_generation: int = 0

    @property
    def current(self) -> UserKey:
        """The user key with its generation."""
        return UserKey(self.user_key, self.key_generation)

    def may(self, scope: Scope) -> bool:
        """Whether the session or key reaches as far as `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    @property
    def settings(self) -> UserSettings:
        """The account's settings, unsealed."""
        return open_settings(self.sealer, self.sealed_settings)


def open_settings(sealer: Sealer, sealed: bytes | None) -> UserSettings:
    """The settings of the sealer's user; None is an account that has set nothing."""
    if sealed is None:
        return UserSettings()
    data = sealer.open_bytes(USER_SETTINGS, sealer.user_id, sealed)
    return msgspec.json.decode(data, type=UserSettings)
