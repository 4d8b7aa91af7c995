"""An index that several processes share, where there is no Qdrant server: Qdrant Edge on a socket.

    python -m scripts._enrichment_index FOLDER

It says its port. `RemoteIndex` is what a process has in place of the adapter to a Qdrant server:
each call is one message there and one back (pickled: both ends are this benchmark's own).
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop

from backend.memory.index.edge import EdgeIndex, list_collections, open_edge
from backend.memory.index.protocol import (
    Floats,
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Query,
    Sparse,
)

_SIZE = 8


async def _read(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(_SIZE), "big")
    return pickle.loads(await reader.readexactly(size))  # noqa: S301  # of this benchmark's own


def _framed(value: Any) -> bytes:
    data = pickle.dumps(value)
    return len(data).to_bytes(_SIZE, "big") + data


class RemoteIndex:
    """A `VectorIndex` whose engine is in another process."""

    def __init__(self, port: int, name: str, dimension: int | None) -> None:
        self.name = name
        self.is_new = False
        self._port = port
        self._dimension = dimension

    async def collections(self) -> set[str]:
        """The names of all collections that are there. Raises `IndexUnavailableError`."""
        found: set[str] = await self._ask("collections")
        return found

    async def open(self) -> None:
        """Have it opened over there. Raises `IndexUnavailableError`."""
        self.is_new = await self._ask("open")

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        """See `VectorIndex`, here and below."""
        if instead_of:
            await self.delete_sources(points[0].payload.owner_id, instead_of)
        await self._ask("upsert", list(points))

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        """See above."""
        found: list[list[Hit]] = await self._ask("search", list(queries))
        return found

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        """See above."""
        found: dict[UUID, Floats] = await self._ask("dense_vectors", list(ids))
        return found

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        """See above."""
        found: dict[UUID, Sparse] = await self._ask("term_vectors", list(ids))
        return found

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        """See above."""
        await self._ask("delete_sources", owner_id, list(source_ids))

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        """See above."""
        await self._ask("delete_container", owner_id, container_id)

    async def delete_owner(self, owner_id: UUID) -> None:
        """See above."""
        await self._ask("delete_owner", owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        """See above; all pages come at once."""
        for page in await self._ask("scan", owner_id, container_id):
            yield page

    async def owners(self) -> set[UUID]:
        """See above."""
        found: set[UUID] = await self._ask("owners")
        return found

    async def count(self, owner_id: UUID | None = None) -> int:
        """See above."""
        found: int = await self._ask("count", owner_id)
        return found

    async def ping(self) -> None:
        """See above."""
        await self._ask("ping")

    async def aclose(self) -> None:
        """See above; it stays open over there."""

    async def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(_framed((self.name, self._dimension, method, arguments)))
                await writer.drain()
                fault, value = await _read(reader)
            finally:
                writer.close()
        except (OSError, EOFError) as error:
            raise IndexUnavailableError from error
        if fault:
            raise IndexUnavailableError(fault)
        return value


class _Shelf:
    """The collections that are open here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, EdgeIndex] = {}
        self._opening = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question."""
        try:
            name, dimension, method, arguments = await _read(reader)
            try:
                answer = "", await self._done(name, dimension, method, arguments)
            except IndexUnavailableError as error:
                answer = str(error), None
            writer.write(_framed(answer))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):  # whoever asked was killed
            pass
        finally:
            writer.close()

    async def _done(self, name: str, dimension: int | None, method: str, given: Any) -> Any:
        if method == "collections":
            return list_collections(self._folder)
        async with self._opening:
            is_new = name not in self._open
            if is_new:
                self._open[name] = await open_edge(self._folder, name, dimension)
        index = self._open[name]
        if method == "open":
            return is_new and index.is_new
        if method == "scan":
            owner_id, container_id = given
            return [page async for page in index.scan(owner_id, container_id=container_id)]
        return await getattr(index, method)(*given)


async def main(folder: Path) -> None:
    shelf = _Shelf(folder)
    server = await asyncio.start_server(shelf.serve, "127.0.0.1", 0, limit=2**26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
