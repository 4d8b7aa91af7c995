"""Open keys of users who were recently active, in this process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.core.events import Participants
from backend.vault.sealing import Sealer

RETENTION_SECONDS = 300.0
"""Time that a key stays open after its user's last request."""

MAX_USERS = 10_000
"""Maximum number of users. The least recently active ones are dropped first."""


@dataclass(frozen=True, slots=True)
class OpenKey:
    slot_id: UUID
    generation: int
    sealer: Sealer = field(repr=False)
    until: float


class OpenKeys:
    """Sealers of recently active users, so that their jobs can run. `clock` is monotonic."""

    def __init__(
        self,
        participants: Participants | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._participants = participants or Participants()
        self._clock = clock
        self._keys: dict[UUID, OpenKey] = {}
        self._listeners: list[Callable[[], None]] = []

    def on_arrival(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a key is opened for a user without an open key."""
        self._listeners.append(listener)

    def keep(self, identity: Identity) -> None:
        """Keep the key of an identity that may write. A key that may only read opens no jobs."""
        if not identity.may("chat"):
            return
        before = self._keys.pop(identity.user_id, None)
        at = self._clock()
        # Inserted at the end, so that the first entry is the least recently active user.
        self._keys[identity.user_id] = OpenKey(
            identity.slot_id, identity.current.generation, identity.sealer, at + RETENTION_SECONDS
        )
        if len(self._keys) > MAX_USERS:
            del self._keys[next(iter(self._keys))]
        if before is None or before.until <= at:
            for listener in self._listeners:
                listener()

    def drop(self, user_id: UUID) -> None:
        """Drop a user's key: at sign-out, with a new password, or with the account's deletion."""
        self._keys.pop(user_id, None)
        for part in self._participants.find_handlers(UserSignedOut):
            part.user_signed_out(user_id)

    def users(self) -> list[UUID]:
        """Return the users with open keys. Drops expired keys."""
        at = self._clock()
        while self._keys:
            user_id, key = next(iter(self._keys.items()))
            if key.until > at:
                break
            del self._keys[user_id]
        return list(self._keys)

    def group_by_slot(self) -> dict[UUID, tuple[UUID, OpenKey]]:
        return {
            self._keys[user_id].slot_id: (user_id, self._keys[user_id]) for user_id in self.users()
        }

    def get(self, user_id: UUID) -> OpenKey | None:
        key = self._keys.get(user_id)
        return key if key is not None and key.until > self._clock() else None
