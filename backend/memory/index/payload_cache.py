"""Payloads of points that were found lately, so that the engine is asked for ids and scores alone.

Turning payloads into Python objects is a third of what a search takes. Most of what it finds, one
before it has found.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from msgspec.structs import replace

from backend.memory.index.edge_messages import PAYLOADS_KEPT
from backend.memory.index.protocol import Payload

Known = tuple[UUID, Payload]
"""A point's id and its payload."""


class PayloadCache:
    """Payloads by point, of a collection that this process alone writes to.

    It holds ids and numbers, nothing of a text. A point that was deleted may stay in it for a
    while: the engine finds it no more.

    Args:
        most: How many are kept, about. Those that were not asked for the longest time go first.

    Attributes:
        writes: How often something was written.
    """

    def __init__(self, most: int = PAYLOADS_KEPT) -> None:
        self._half = max(1, most // 2)
        self.writes = 0
        # By the numbers of ids: a UUID computes its hash in Python, ten times as slowly.
        self._young: dict[int, Known] = {}
        self._old: dict[int, Known] = {}
        self._ids: dict[int, UUID] = {}

    def has_room(self, count: int) -> bool:
        """Whether so many more can be kept without any of them going that were found lately."""
        return len(self._young) + count <= self._half

    def get(self, ids: Iterable[int]) -> dict[int, Known]:
        """What is kept of these points."""
        found: dict[int, Known] = {}
        for each in ids:
            known = self._young.get(each)
            if known is None and (known := self._old.get(each)) is not None:
                self._put(known)
            if known is not None:
                found[each] = known
        return found

    def add(self, points: Iterable[Known], *, writes: int) -> None:
        """Keep what was read, unless something was written since there were so many `writes`."""
        if writes == self.writes:
            for point_id, payload in points:
                self._put((point_id, self._shared(payload)))

    def write(self, points: Iterable[Known]) -> None:
        """Take note of what was written. What was not found lately is not kept for it."""
        self.writes += 1
        for point_id, payload in points:
            if point_id.int in self._young or point_id.int in self._old:
                self._put((point_id, self._shared(payload)))

    def forget(self, owner_id: UUID) -> None:
        """Drop all of a user's."""
        self.writes += 1
        self._ids.pop(owner_id.int, None)
        for kept in (self._young, self._old):
            for each in [each for each, (_, known) in kept.items() if known.owner_id == owner_id]:
                del kept[each]

    def _put(self, known: Known) -> None:
        if len(self._young) >= self._half:
            self._old, self._young, self._ids = self._young, {}, {}
        self._young[known[0].int] = known

    def _shared(self, payload: Payload) -> Payload:
        """With one object for each id that many payloads name: half the memory."""
        share, scene_id = self._ids.setdefault, payload.scene_id
        return replace(
            payload,
            owner_id=share(payload.owner_id.int, payload.owner_id),
            container_id=share(payload.container_id.int, payload.container_id),
            scene_id=None if scene_id is None else share(scene_id.int, scene_id),
        )
