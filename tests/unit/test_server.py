"""How a server stops."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar

import pytest
import uvicorn

from backend.drain import Drain
from backend.server import Server, open_listener

pytestmark = pytest.mark.anyio


class LateConnection:
    """A connection that uvicorn's one round of closing missed."""

    cycle = None

    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections
        self._missed = False

    def shutdown(self) -> None:
        if self._missed:
            self._connections.discard(self)
        self._missed = True


class Turns:
    """Turns, of which none runs."""

    runs: ClassVar[list[Any]] = []

    async def close(self) -> None:
        return


class Jobs:
    """Nobody follows any."""

    def close(self) -> None:
        return


class Worker:
    """A worker without jobs."""

    is_busy = False

    def drain(self) -> None:
        return


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers that all is well."""
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    await send(head)
    await send({"type": "http.response.body", "body": b""})


def made_server(drain: Drain) -> Server:
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    turns: Any = Turns()
    jobs: Any = Jobs()
    worker: Any = Worker()
    server = Server(config, drain, turns=turns, jobs=jobs, worker=worker, announce=lambda _: None)
    server.lifespan = config.lifespan_class(config)
    server.servers = []
    return server


async def test_a_connection_that_came_as_listening_ended_is_closed_too() -> None:
    server = made_server(Drain(0))
    connections: set[Any] = server.server_state.connections
    connections.add(LateConnection(connections))
    async with asyncio.timeout(60):
        await server.shutdown()
    assert not connections


async def test_a_request_on_a_connection_that_was_not_accepted_yet_is_answered() -> None:
    loop, server = asyncio.get_running_loop(), made_server(Drain(60))
    listener = open_listener("127.0.0.1", 0)
    address = listener.getsockname()
    await server.startup([listener])
    with socket.create_connection(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        client.settimeout(0)
        async with asyncio.timeout(60):
            # Nothing was awaited since the client connected, so the server does not know of it.
            _, answer = await asyncio.gather(
                server.shutdown([listener]), loop.sock_recv(client, 100)
            )
    assert answer.startswith(b"HTTP/1.1 200 ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
