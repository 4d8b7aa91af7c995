"""Payloads of points that were found lately, so that the engine is asked for ids and scores alone.

Turning payloads into Python objects is a third of what a search takes. Most of what it finds, one
before it has found.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from uuid import UUID

from msgspec.structs import replace

from backend.memory.index.protocol import Payload

MOST = 40_000
"""Payloads that are kept: 20 MB."""


class PayloadCache:
    """Payloads by point, of a collection that this process alone writes to.

    Threads may share it. It holds ids and numbers, nothing of a text. A point that was deleted may
    stay in it for a while: the engine finds it no more.

    Args:
        most: How many are kept, about. Those that were not asked for the longest time go first.
    """

    def __init__(self, most: int = MOST) -> None:
        self._half = max(1, most // 2)
        self._lock = Lock()
        self._writes = 0
        # By the numbers of ids: a UUID computes its hash in Python, ten times as slowly.
        self._young: dict[int, Payload] = {}
        self._old: dict[int, Payload] = {}
        self._ids: dict[int, UUID] = {}

    def get(self, ids: Iterable[int]) -> tuple[dict[int, Payload], int]:
        """The payloads that are kept of these points, and the number of writes so far."""
        with self._lock:
            found: dict[int, Payload] = {}
            for each in ids:
                payload = self._young.get(each)
                if payload is None and (payload := self._old.get(each)) is not None:
                    self._put(each, payload)
                if payload is not None:
                    found[each] = payload
            return found, self._writes

    def add(self, payloads: Iterable[tuple[UUID, Payload]], *, writes: int) -> None:
        """Keep what was read, unless something was written since `get` said `writes`."""
        with self._lock:
            if writes == self._writes:
                for point_id, payload in payloads:
                    self._put(point_id.int, self._shared(payload))

    def write(self, payloads: Iterable[tuple[UUID, Payload]]) -> None:
        """Take note of what was written. What was not found lately is not kept for it."""
        with self._lock:
            self._writes += 1
            for point_id, payload in payloads:
                if point_id.int in self._young or point_id.int in self._old:
                    self._put(point_id.int, self._shared(payload))

    def forget(self, owner_id: UUID) -> None:
        """Drop all of a user's."""
        with self._lock:
            self._writes += 1
            self._ids.pop(owner_id.int, None)
            for kept in (self._young, self._old):
                for each in [each for each, known in kept.items() if known.owner_id == owner_id]:
                    del kept[each]

    def _put(self, number: int, payload: Payload) -> None:
        if len(self._young) >= self._half:
            self._old, self._young, self._ids = self._young, {}, {}
        self._young[number] = payload

    def _shared(self, payload: Payload) -> Payload:
        """With one object for each id that many payloads name: half the memory."""
        share, scene_id = self._ids.setdefault, payload.scene_id
        return replace(
            payload,
            owner_id=share(payload.owner_id.int, payload.owner_id),
            container_id=share(payload.container_id.int, payload.container_id),
            scene_id=None if scene_id is None else share(scene_id.int, scene_id),
        )
