"""Who asks: the account behind a request, with its keys at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from backend.accounts.keys.keyring import UserKey
from backend.accounts.models import USER_SETTINGS, KeyMode, User
from backend.accounts.profile.settings import UserSettings, decode_settings
from backend.vault.sealing import Sealer

Scope = Literal["read", "chat", "manage"]
TokenKind = Literal["session", "api_key"]
SCOPES: tuple[Scope, ...] = ("read", "chat", "manage")
"""Each includes the ones before it: look; write and play; change the account."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One signed-in account, for as long as one request or one turn.

    `user` is its row as it was when the request came.
    """

    user: User = field(repr=False)
    slot_id: UUID
    kind: TokenKind
    scope: Scope
    sealer: Sealer = field(repr=False)

    @property
    def user_id(self) -> UUID:
        """The account's id."""
        return self.user.id

    @property
    def user_key(self) -> bytes:
        """What the account's other keys are wrapped under."""
        return self.sealer.user_key

    @property
    def current(self) -> UserKey:
        """The user key with its generation."""
        return UserKey(self.user_key, self.user.key_generation)

    @property
    def key_mode(self) -> KeyMode:
        """When work may run on the account's keys while its user is away."""
        return self.user.key_mode

    def may(self, scope: Scope) -> bool:
        """Whether the session or key reaches as far as `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    @property
    def settings(self) -> UserSettings:
        """The account's settings, unsealed."""
        return open_settings(self.sealer, self.user.sealed_settings)


def open_settings(sealer: Sealer, sealed: bytes | None) -> UserSettings:
    """The settings of the sealer's user; None is an account that has set nothing."""
    if sealed is None:
        return UserSettings()
    data = sealer.open_bytes(USER_SETTINGS, sealer.user_id, sealed)
    return decode_settings(data, UserSettings)
