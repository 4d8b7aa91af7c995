"""Sticky, cooldown and delay: what earlier turns of a chat mean for this one.

The state is a value. The caller keeps one with each message and hands in that of the nearest
ancestor, so it follows the message tree: another branch has another past. Effects that began at or
after the turn that is now made are not of its past, and are passed over; so a regenerated reply
comes out as the first did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Self
from uuid import UUID

import msgspec

from backend.lorebooks.entries import LoreEntry


class TimedEffect(msgspec.Struct, frozen=True, array_like=True):
    """An activation that is remembered. All counts are of messages on the path.

    Attributes:
        at: The count when it happened.
        sticky_until: The first count at which the entry is not sticky any more; `at` without.
        cooldown_until: The first count at which it may activate again; `sticky_until` without. Null
            as long as that is not known: the cooldown of what is sticky begins with the first scan
            in which it is not sticky any more.
        keys: A fingerprint of the entry's keys: an effect of other keys is void.
    """

    at: int
    sticky_until: int
    cooldown_until: int | None
    keys: int = 0

    def is_cooling(self, now: int) -> bool:
        """Whether it is sticky, or may not activate again yet."""
        return self.cooldown_until is None or now < self.cooldown_until


class TimedState(msgspec.Struct, frozen=True):
    """Effects by entry. Never changed: a scan makes the next one."""

    effects: Mapping[UUID, TimedEffect] = {}

    def encode(self) -> bytes:
        """For storage, to be sealed: fingerprints of keys tell something of them."""
        return msgspec.msgpack.encode(dict(self.effects))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` made; empty for no bytes."""
        return cls(msgspec.msgpack.decode(data, type=dict[UUID, TimedEffect]) if data else {})

    def past(self, entry_id: UUID, entry: LoreEntry, *, keys: int, now: int) -> TimedEffect | None:
        """The entry's last activation, if it was before `now` and by the same keys."""
        effect = self.effects.get(entry_id)
        if effect is None or effect.at >= now or effect.keys != keys:
            return None
        if effect.cooldown_until is None and now >= effect.sticky_until:
            return msgspec.structs.replace(effect, cooldown_until=now + (entry.cooldown or 0))
        return effect


NO_EFFECTS = TimedState()
"""Of a chat in which nothing has happened yet."""


def fingerprint(entry: LoreEntry) -> int:
    """32 bits of a hash of the entry's keys."""
    data = msgspec.msgpack.encode((entry.keys, entry.secondary_keys))
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest())


def start_effect(entry: LoreEntry, *, now: int, keys: int) -> TimedEffect:
    """The effect of an activation at `now`: sticky first, then its cooldown."""
    sticky, cooldown = entry.sticky or 0, entry.cooldown or 0
    until = None if sticky and cooldown else now + sticky + cooldown
    return TimedEffect(now, now + sticky, until, keys)
