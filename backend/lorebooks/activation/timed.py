"""State of sticky, cooldown and delay effects between the turns of a chat.

The caller stores one state with each message and passes that of the nearest ancestor, so each
branch has its own state. Effects that began at or after the current turn are ignored, so a
regenerated reply gets the same result as the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Self
from uuid import UUID

import msgspec

from backend.lorebooks.entries import LoreEntry


class TimedEffect(msgspec.Struct, frozen=True, array_like=True):
    """A stored activation. All counts are numbers of messages on the path.

    Attributes:
        at: The count at the activation.
        sticky_until: The first count at which the entry is no longer sticky. Equals `at` without
            sticky.
        cooldown_until: The first count at which the entry may activate again. Equals `sticky_until`
            without cooldown. None until known, because the cooldown starts with the first scan in
            which the entry is no longer sticky.
        keys: A fingerprint of the entry's keys. Effects of other keys are ignored.
    """

    at: int
    sticky_until: int
    cooldown_until: int | None
    keys: int = 0

    def is_cooling(self, now: int) -> bool:
        """True if the entry is sticky or cooling down."""
        return self.cooldown_until is None or now < self.cooldown_until


class TimedState(msgspec.Struct, frozen=True):
    """Effects by entry. Immutable: each scan returns a new state."""

    effects: Mapping[UUID, TimedEffect] = {}

    def encode(self) -> bytes:
        """Encode for storage. Seal the result, because fingerprints tell about the keys."""
        return msgspec.msgpack.encode(dict(self.effects))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(msgspec.msgpack.decode(data, type=dict[UUID, TimedEffect]) if data else {})

    def past(self, entry_id: UUID, entry: LoreEntry, *, keys: int, now: int) -> TimedEffect | None:
        """Return the entry's last activation, if it was before `now` and by the same keys."""
        effect = self.effects.get(entry_id)
        if effect is None or effect.at >= now or effect.keys != keys:
            return None
        if effect.cooldown_until is None and now >= effect.sticky_until:
            return msgspec.structs.replace(effect, cooldown_until=now + (entry.cooldown or 0))
        return effect


NO_EFFECTS = TimedState()
"""The state of a chat without activations."""


def fingerprint(entry: LoreEntry) -> int:
    """Return 32 bits of a hash of the entry's keys."""
    data = msgspec.msgpack.encode((entry.keys, entry.secondary_keys))
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest())


def start_effect(entry: LoreEntry, *, now: int, keys: int) -> TimedEffect:
    """Return the effect of an activation at `now`: sticky first, then cooldown."""
    sticky, cooldown = entry.sticky or 0, entry.cooldown or 0
    until = None if sticky and cooldown else now + sticky + cooldown
    return TimedEffect(now, now + sticky, until, keys)
