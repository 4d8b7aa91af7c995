"""A TCP proxy between a server and a dependency: it cuts, refuses, delays or forwards."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Literal, Self

Mode = Literal["through", "refuse", "silence", "truncate"]
Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

PIECE = 65_536


@dataclass
class Proxy:
    """Listens on a free port of this machine.

    `refuse` closes new connections at once, `silence` lets nothing through, `truncate` cuts a
    connection in the middle of an answer. `delay` is waited before each piece, in seconds.
    """

    target: Address
    mode: Mode = "through"
    delay: float = 0.0
    port: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.cut()

    async def cut(self) -> int:
        """Cut every connection that there is; gives back how many."""
        cut = list(self._connections)
        for each in cut:
            each.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        return len(cut)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.mode == "refuse":
                return
            if isinstance(self.target, str):
                far_reader, far_writer = await asyncio.open_unix_connection(self.target)
            else:
                far_reader, far_writer = await asyncio.open_connection(*self.target)
            try:
                there = asyncio.create_task(self._pump(reader, far_writer, answers=False))
                back = asyncio.create_task(self._pump(far_reader, writer, answers=True))
                try:
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    there.cancel()
                    back.cancel()
            finally:
                far_writer.transport.abort()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                while self.mode == "silence":
                    await asyncio.sleep(0.05)
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.mode == "truncate" and answers:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()
