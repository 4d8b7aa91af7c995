"""The account that makes a request, with its open keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self
from uuid import UUID

from backend.accounts.keys.keyring import UserKey
from backend.accounts.models import USER_SETTINGS, KeyMode, User
from backend.accounts.profile.settings import UserSettings, decode_settings
from backend.vault.sealing import Sealer

Scope = Literal["read", "chat", "manage"]
TokenKind = Literal["session", "api_key"]
SCOPES: tuple[Scope, ...] = ("read", "chat", "manage")
"""Each scope includes those before it: read; write and play; change the account."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A signed-in account during one request or one turn.

    `user` is its row at the start of the request.
    """

    user: User = field(repr=False)
    slot_id: UUID
    kind: TokenKind
    scope: Scope
    sealer: Sealer = field(repr=False)

    @property
    def user_id(self) -> UUID:
        return self.user.id

    @property
    def user_key(self) -> bytes:
        """The key under which the account's other keys are wrapped."""
        return self.sealer.user_key

    @property
    def current(self) -> UserKey:
        return UserKey(self.user_key, self.user.key_generation)

    @property
    def key_mode(self) -> KeyMode:
        """The setting that allows work on the account's keys while its user is away."""
        return self.user.key_mode

    @classmethod
    def for_job(cls, user: User, sealer: Sealer) -> Self:
        """Return the identity of background work that its user has started."""
        return cls(user, slot_id=user.id, kind="session", scope="manage", sealer=sealer)

    def may(self, scope: Scope) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    @property
    def settings(self) -> UserSettings:
        return open_user_settings(self.sealer, self.user.sealed_settings)


def open_user_settings(sealer: Sealer, sealed: bytes | None) -> UserSettings:
    """Decrypt the settings of the sealer's user. None means that the account has set nothing."""
    if sealed is None:
        return UserSettings()
    data = sealer.open_bytes(USER_SETTINGS, sealer.user_id, sealed)
    return decode_settings(data, UserSettings)
