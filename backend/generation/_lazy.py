"""Clients whose libraries are slow to import: made in a thread, when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """Something that `make` makes, once, off the event loop, when first asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self.made: T | None = None

    async def get(self) -> T:
        """Make it, or wait for whoever is making it. A `make` that raises is tried again."""
        async with self._making:
            if self.made is None:
                self.made = await asyncio.to_thread(self._make)
            return self.made
