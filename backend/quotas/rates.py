"""Requests per minute: a token bucket for each account, or address, in this process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

SWEEP_EVERY = 60.0
"""Seconds between two looks for buckets that are full again, and so can be forgotten."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """Lets `per_minute` requests through at once, and as many more in each minute; 0 is no limit.

    A bucket holds `per_minute` tokens, a request takes one, and they come back evenly. With several
    processes, each counts what it serves itself.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: dict[Hashable, _Bucket] = {}
        self._swept_at = clock()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Hashable) -> float:
        """Take a token: 0.0, or the seconds until there is one, and then none was taken."""
        if not self.per_minute:
            return 0.0
        at = self._clock()
        if at - self._swept_at >= SWEEP_EVERY:
            self._sweep(at)
        bucket = self._buckets.setdefault(key, _Bucket(self.per_minute, at))
        self._refill(bucket, at)
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * 60 / self.per_minute
        bucket.tokens -= 1
        return 0.0

    def used(self, key: Hashable) -> int:
        """Tokens that are out of a bucket now."""
        bucket = self._buckets.get(key)
        if bucket is None or not self.per_minute:
            return 0
        self._refill(bucket, self._clock())
        return round(self.per_minute - bucket.tokens)

    def seconds_until_full(self, key: Hashable) -> float:
        """Seconds until all of a bucket's tokens are back."""
        return self.used(key) * 60 / self.per_minute if self.per_minute else 0.0

    def _refill(self, bucket: _Bucket, at: float) -> None:
        back = (at - bucket.at) * self.per_minute / 60
        bucket.tokens, bucket.at = min(self.per_minute, bucket.tokens + back), at

    def _sweep(self, at: float) -> None:
        self._swept_at = at
        for key, bucket in list(self._buckets.items()):
            self._refill(bucket, at)
            if bucket.tokens >= self.per_minute:
                del self._buckets[key]
