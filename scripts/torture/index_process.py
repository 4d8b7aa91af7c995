"""An index that several processes share without a Qdrant server: Qdrant Edge on a socket.

    python -m scripts.torture.index_process FOLDER

It prints its port. `RemoteIndex` replaces the adapter to a Qdrant server in other processes. Each
call is one pickled message in each direction.
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

from backend.memory.index.edge import EdgeIndex, folders_in, open_edge
from backend.memory.index.protocol import (
    Floats,
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Query,
    Sparse,
)

_SIZE_BYTES = 8


async def _read(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(_SIZE_BYTES), "big")
    return pickle.loads(await reader.readexactly(size))  # noqa: S301  # both ends are torture's


def _frame(value: Any) -> bytes:
    data = pickle.dumps(value)
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


class RemoteIndex:
    """A `VectorIndex` with its engine in another process. See `VectorIndex` for its methods."""

    def __init__(self, port: int, name: str, dimension: int | None) -> None:
        self.name = name
        self.is_new = False
        self._port = port
        self._dimension = dimension

    async def collections(self) -> set[str]:
        """Return the names of all collections. Raises `IndexUnavailableError`."""
        found: set[str] = await self._ask("collections")
        return found

    async def open(self) -> None:
        """Open the index in its process. Raises `IndexUnavailableError`."""
        self.is_new = await self._ask("open")

    async def upsert(self, points: Sequence[Point], *, instead_of: Sequence[UUID] = ()) -> None:
        if instead_of:
            await self.delete_sources(points[0].payload.owner_id, instead_of)
        await self._ask("upsert", list(points))

    async def search(self, queries: Sequence[Query]) -> list[list[Hit]]:
        found: list[list[Hit]] = await self._ask("search", list(queries))
        return found

    async def dense_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Floats]:
        found: dict[UUID, Floats] = await self._ask("dense_vectors", list(ids))
        return found

    async def term_vectors(self, ids: Sequence[UUID]) -> dict[UUID, Sparse]:
        found: dict[UUID, Sparse] = await self._ask("term_vectors", list(ids))
        return found

    async def delete_sources(self, owner_id: UUID, source_ids: Sequence[UUID]) -> None:
        await self._ask("delete_sources", owner_id, list(source_ids))

    async def delete_container(self, owner_id: UUID, container_id: UUID) -> None:
        await self._ask("delete_container", owner_id, container_id)

    async def delete_owner(self, owner_id: UUID) -> None:
        await self._ask("delete_owner", owner_id)

    async def scan(
        self, owner_id: UUID, *, container_id: UUID | None = None
    ) -> AsyncIterator[Sequence[tuple[UUID, Payload]]]:
        for page in await self._ask("scan", owner_id, container_id):
            yield page

    async def owners(self) -> set[UUID]:
        found: set[UUID] = await self._ask("owners")
        return found

    async def count(self, owner_id: UUID | None = None) -> int:
        found: int = await self._ask("count", owner_id)
        return found

    async def ping(self) -> None:
        await self._ask("ping")

    async def aclose(self) -> None:
        """Do nothing, because other processes use the index."""

    async def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(_frame((self.name, self._dimension, method, arguments)))
                await writer.drain()
                fault, value = await _read(reader)
            finally:
                writer.close()
        except (OSError, EOFError) as error:
            raise IndexUnavailableError from error
        if fault:
            raise IndexUnavailableError(fault)
        return value


class _IndexServer:
    """The open collections of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, EdgeIndex] = {}
        self._opening = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            name, dimension, method, arguments = await _read(reader)
            try:
                answer = "", await self._execute(name, dimension, method, arguments)
            except IndexUnavailableError as error:
                answer = str(error), None
            writer.write(_frame(answer))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):  # the client was killed
            pass
        finally:
            writer.close()

    async def _execute(self, name: str, dimension: int | None, method: str, given: Any) -> Any:
        if method == "collections":
            return folders_in(self._folder)
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
    indexes = _IndexServer(folder)
    server = await asyncio.start_server(indexes.serve, "127.0.0.1", 0, limit=2**26)
    print(f"index on :{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
