"""Keys of the users who are here: in memory, for minutes, in the processes that let them in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.core.events import Participants
from backend.vault.sealing import Sealer

STAYS_SECONDS = 300.0
"""How long a key stays after its user's last request."""

MOST = 10_000
"""Users whose keys are kept at once; of more, the ones who were seen longest ago go."""


@dataclass(frozen=True, slots=True)
class OpenKey:
    """A user's key with its generation, and the session or API key that it came with."""

    slot_id: UUID
    generation: int
    sealer: Sealer = field(repr=False)
    until: float


class OpenKeys:
    """Sealers of recently seen users, so that work of theirs can be done while they are here.

    Args:
        participants: Those who hear that a user left.
        clock: Seconds that only go up.
    """

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
        """Have a function called whenever a user comes who was not here."""
        self._listeners.append(listener)

    def seen(self, identity: Identity) -> None:
        """Somebody asked for something. Who may only look lends no key to work that writes."""
        if not identity.may("chat"):
            return
        before = self._keys.pop(identity.user_id, None)
        at = self._clock()
        # Put in at the end, so that the first in the row is the one that was seen longest ago.
        self._keys[identity.user_id] = OpenKey(
            identity.slot_id, identity.current.generation, identity.sealer, at + STAYS_SECONDS
        )
        if len(self._keys) > MOST:
            del self._keys[next(iter(self._keys))]
        if before is None or before.until <= at:
            for listener in self._listeners:
                listener()

    def drop(self, user_id: UUID) -> None:
        """Forget a user's key: at sign-out, at a new password, at the account's end."""
        self._keys.pop(user_id, None)
        for part in self._participants.find_handlers(UserSignedOut):
            part.user_signed_out(user_id)

    def users(self) -> list[UUID]:
        """Whose keys are here. Keys that have stayed long enough are forgotten."""
        at = self._clock()
        while self._keys:
            user_id, key = next(iter(self._keys.items()))
            if key.until > at:
                break
            del self._keys[user_id]
        return list(self._keys)

    def by_slot(self) -> dict[UUID, tuple[UUID, OpenKey]]:
        """The keys that are here with their users, by the session or API key they came with."""
        return {
            self._keys[user_id].slot_id: (user_id, self._keys[user_id]) for user_id in self.users()
        }

    def get(self, user_id: UUID) -> OpenKey | None:
        """A user's key, while it is here."""
        key = self._keys.get(user_id)
        return key if key is not None and key.until > self._clock() else None
