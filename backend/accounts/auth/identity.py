"""The account that makes a request, with its open keys."""

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

    def may(self, scope: Scope) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    @property
    def settings(self) -> UserSettings:
        return open_user_settings(self.sealer, self.user.sealed_settings)


def make_job_identity(user: User, sealer: Sealer, job_id: UUID) -> Identity:
    """Return the identity with which a job or a command calls services for its user.

    It belongs to no session or API key: its slot is the job. It may read and write, but not change
    the account. `user` is the row at the start of the job, `sealer` the one that the job carries.
    Raises `ValueError` if the sealer is another user's.
    """
    if user.id != sealer.user_id:
        raise ValueError("The key belongs to another user.")
    return Identity(user, job_id, "session", "chat", sealer)


def open_user_settings(sealer: Sealer, sealed: bytes | None) -> UserSettings:
    """Decrypt the settings of the sealer's user. None means that the account has set nothing."""
    if sealed is None:
        return UserSettings()
    data = sealer.open_bytes(USER_SETTINGS, sealer.user_id, sealed)
    return decode_settings(data, UserSettings)
