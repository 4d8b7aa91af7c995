"""An index that may not be there yet: a server that starts later, or comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import UUID

from backend.memory.index.protocol import (
    Floats,
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Query,
    VectorIndex,
)

AGAIN_AFTER = 5.0
"""Seconds between two attempts to open it: a turn must not wait for each."""


class LazyIndex:
    """A `VectorIndex` that is opened when it is first needed, and again while that fails."""

    def __init__(
        self,
        name: str,
        opener: Callable[[], Awaitable[VectorIndex]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._opener = opener
        self._clock = clock
        self._index: VectorIndex | None = None
        self._failed: tuple[float, IndexUnavailableError] | None = None
        self._opening = asyncio.Lock()

    @property
    def is_new(self) -> bool:
        """It was made by this process; False while it is not open."""
        return self._index is not None and self._index.is_new

    async def opened(self) -> VectorIndex:
        """The index itself.

        Raises `IndexUnavailableError`, at once while the last attempt is only just over.
        """
        if self._index is not None:
            return self._index
        async with self._opening:
            if self._index is None:
                if self._failed and self._clock() - self._failed[0] < AGAIN_AFTER:
                    raise IndexUnavailableError(self._failed[1].detail)
                try:
                    self._index = await self._opener()
                except IndexUnavailableError as error:
                    self._failed = self._clock(), error
                    raise
            return self._index

    async def upsert(self, points: Sequence[Point]) -> None:
        """See `VectorIndex`, as all that follows."""
        await (await self.opened()).upsert(points)

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """Answer all queries at once."""
        return await (await self.opened()).search(queries)

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """The `dense` vectors of points."""
        return await (await self.opened()).dense_vectors(ids)

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        """Delete every point of these rows."""
        await (await self.opened()).delete_sources(owner_id, source_ids)

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """Delete every point of a container."""
        await (await self.opened()).delete_container(owner_id, container_id)

    async def delete_owner(self, owner_id: UUID) -> None:
        """Delete every point of a user's."""
        await (await self.opened()).delete_owner(owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """Every point of a user's, in pages."""
        async for page in (await self.opened()).scan(owner_id, container_id=container_id):
            yield page

    async def owners(self) -> set[UUID]:
        """Everybody who has points."""
        return await (await self.opened()).owners()

    async def count(self, owner_id: UUID | None = None) -> int:
        """How many points there are."""
        return await (await self.opened()).count(owner_id)

    async def ping(self) -> None:
        """Raise `IndexUnavailableError` unless it answers."""
        await (await self.opened()).ping()

    async def aclose(self) -> None:
        """Let go, where it was opened."""
        if self._index is not None:
            await self._index.aclose()
