"""How a server stops."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
import uvicorn

from backend.drain import Drain
from backend.server import Server

pytestmark = pytest.mark.anyio


class LateConnection:
    """A connection that uvicorn's one round of closing missed."""

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
    """Answers nothing."""


async def test_a_connection_that_came_as_listening_ended_is_closed_too() -> None:
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    turns: Any = Turns()
    jobs: Any = Jobs()
    worker: Any = Worker()
    server = Server(
        config, Drain(0), turns=turns, jobs=jobs, worker=worker, announce=lambda _: None
    )
    server.lifespan = config.lifespan_class(config)
    server.servers = []
    connections: set[Any] = server.server_state.connections
    connections.add(LateConnection(connections))
    async with asyncio.timeout(60):
        await server.shutdown()
    assert not connections
