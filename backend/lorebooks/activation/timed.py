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


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """An activation that is remembered. All counts are of messages on the path.

    Attributes:
        at: The count when it happened.
        sticky_until: The first count at which the entry is not sticky any more; `at` without.
        cooldown_until: The first count at which it may activate again; `sticky_until` without.
        keys: A fingerprint of the entry's keys: an effect of other keys is void.
    """

    at: int
    sticky_until: int
    cooldown_until: int
    keys: int = 0


class TimedState(msgspec.Struct, frozen=True):
    """Effects by entry. Never changed: a scan makes the next one."""

    effects: Mapping[UUID, Effect] = {}

    def encode(self) -> bytes:
        """For storage, sealed as other text is: fingerprints of keys tell something of them."""
        return msgspec.msgpack.encode(dict(self.effects))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` made; empty for no bytes."""
        return cls(msgspec.msgpack.decode(data, type=dict[UUID, Effect]) if data else {})

    def past(self, entry_id: UUID, *, keys: int, now: int) -> Effect | None:
        """The entry's last activation, if it was before `now` and by the same keys."""
        effect = self.effects.get(entry_id)
        return effect if effect and effect.at < now and effect.keys == keys else None


NOTHING = TimedState()
"""Of a chat in which nothing has happened yet."""


def fingerprint(entry: LoreEntry) -> int:
    """32 bits of a hash of the entry's keys."""
    data = msgspec.msgpack.encode((entry.keys, entry.secondary_keys))
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest())


def begun(entry: LoreEntry, *, now: int, keys: int) -> Effect:
    """The effect of an activation at `now`: sticky first, then its cooldown."""
    sticky_until = now + (entry.sticky or 0)
    return Effect(now, sticky_until, sticky_until + (entry.cooldown or 0), keys)
