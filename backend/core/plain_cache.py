"""A cache of users' decrypted texts."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

V = TypeVar("V")


class _Kept(NamedTuple, Generic[V]):
    user_id: UUID
    value: V
    size: int
    used_at: float


class PlainCache(Generic[V]):
    """The most recently used values, by id. Thread-safe.

    A value is dropped after `seconds` without use, when its user signs out (`forget`), or to make
    room for others. `most` is the maximum size of all values together. `clock` returns monotonic
    seconds.
    """

    def __init__(
        self, *, most: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._most, self._seconds = clock, most, seconds
        self._lock = threading.Lock()
        self._kept: OrderedDict[UUID, _Kept[V]] = OrderedDict()  # used longest ago, first
        self.size = 0

    def get(self, user_id: UUID, key: UUID) -> V | None:
        with self._lock:
            self._sweep()
            kept = self._kept.get(key)
            if kept is None or kept.user_id != user_id:
                return None
            self._kept[key] = kept._replace(used_at=self._clock())
            self._kept.move_to_end(key)
            return kept.value

    def put(self, user_id: UUID, key: UUID, value: V, *, size: int) -> None:
        """Store or replace a value. Its size counts as at least 1."""
        with self._lock:
            self._drop(key)
            if size > self._most:
                return
            kept = self._kept[key] = _Kept(user_id, value, max(1, size), self._clock())
            self.size += kept.size
            self._sweep()
            while self.size > self._most:
                self._drop(next(iter(self._kept)))

    def forget(self, user_id: UUID) -> None:
        with self._lock:
            for key in [key for key, kept in self._kept.items() if kept.user_id == user_id]:
                self._drop(key)

    def sweep(self) -> None:
        """Drop unused values, as `get` and `put` do. Needed while there are no requests."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        oldest = self._clock() - self._seconds
        while self._kept and next(iter(self._kept.values())).used_at < oldest:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: UUID) -> None:
        kept = self._kept.pop(key, None)
        if kept:
            self.size -= kept.size
