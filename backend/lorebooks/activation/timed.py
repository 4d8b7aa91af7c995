"""State of sticky, cooldown and delay effects between the turns of a chat.

The caller stores one state with each message and passes that of the nearest ancestor, so each
branch has its own state. Effects that began at or after the current turn are ignored, so a
regenerated reply gets the same result as the first.

A speaker has only the effects of replies that it heard. So an entry may have several effects: the
last one, and earlier ones for those who did not hear its reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
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
        position: The position of the reply. None until it is stored. In old states it is usually
            `at`.
        before: The effect before it, for those who did not hear the reply.
    """

    at: int
    sticky_until: int
    cooldown_until: int | None
    keys: int = 0
    position: int | None = None
    before: TimedEffect | None = None

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

    def list_positions(self) -> set[int]:
        """Return the positions of all replies with effects."""
        return {_find_position(each) for one in self.effects.values() for each in _list_chain(one)}

    def keep_heard(self, is_heard: Callable[[int], bool]) -> Self:
        """Return the effects of a speaker. `is_heard` is true for positions that it heard."""
        found: dict[UUID, TimedEffect] = {}
        for entry_id, last in self.effects.items():
            heard = (each for each in _list_chain(last) if is_heard(_find_position(each)))
            if (effect := next(heard, None)) is not None:
                found[entry_id] = msgspec.structs.replace(effect, before=None)
        return type(self)(found)

    def replace_heard(
        self, heard: TimedState, now: TimedState, *, scanned: Collection[UUID]
    ) -> Self:
        """Return the state after a scan: the effects of others stay as they are.

        Args:
            heard: The effects that the scan began with. See `keep_heard`.
            now: Those that it ended with.
            scanned: The entries that the scan has read.
        """
        found = dict(self.effects)
        for entry_id in scanned:
            chain = _list_chain(found.pop(entry_id)) if entry_id in found else ()
            own = heard.effects.get(entry_id)
            rest = [each for each in chain if own is None or each.at != own.at]
            if (effect := now.effects.get(entry_id)) is not None:
                rest = [effect, *rest]
            if rest:
                found[entry_id] = _link_chain(rest)
        return type(self)(found)

    def place(self, position: int) -> Self:
        """Return the state with the position of the reply in its new effects."""
        return type(self)(
            {
                entry_id: msgspec.structs.replace(effect, position=position)
                if effect.position is None
                else effect
                for entry_id, effect in self.effects.items()
            }
        )

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


MAX_CHAIN = 20
"""Effects of one entry for different listeners. The oldest are dropped first."""


def _list_chain(effect: TimedEffect | None) -> Iterator[TimedEffect]:
    while effect is not None:
        yield effect
        effect = effect.before


def _link_chain(effects: list[TimedEffect]) -> TimedEffect:
    """Link effects, the last one first."""
    effects = sorted(effects, key=lambda each: -each.at)[:MAX_CHAIN]
    linked = msgspec.structs.replace(effects[-1], before=None)
    for each in effects[-2::-1]:
        linked = msgspec.structs.replace(each, before=linked)
    return linked


def _find_position(effect: TimedEffect) -> int:
    return effect.at if effect.position is None else effect.position


def fingerprint(entry: LoreEntry) -> int:
    """Return 32 bits of a hash of the entry's keys."""
    data = msgspec.msgpack.encode((entry.keys, entry.secondary_keys))
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest())


def start_effect(entry: LoreEntry, *, now: int, keys: int) -> TimedEffect:
    """Return the effect of an activation at `now`: sticky first, then cooldown."""
    sticky, cooldown = entry.sticky or 0, entry.cooldown or 0
    until = None if sticky and cooldown else now + sticky + cooldown
    return TimedEffect(now, now + sticky, until, keys)
