"""The process that serves: how it comes to its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Generator

import uvicorn

from backend.jobs.service import JobService
from backend.turns.service import TurnService


class Server(uvicorn.Server):
    """Uvicorn, with an end that streams are told of.

    Uvicorn waits until every answer is over, and cuts off in mid-body what takes too long. A reply
    may stream for minutes, so here running turns are ended first: what was said is stored, each
    stream gets its last event and ends, and nothing is left to wait for.
    """

    def __init__(self, config: uvicorn.Config, turns: TurnService, jobs: JobService) -> None:
        super().__init__(config)
        self._turns = turns
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end every turn, let the answers go out, and close the application."""
        self._jobs.close()
        await asyncio.gather(super().shutdown(sockets), self._turns.close())

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take SIGTERM for an order that was carried out.

        Uvicorn raises the signal once more at the end, for whoever handled it before: that would
        kill the process, and look like a failure to whoever started it.
        """

        def leave(*_: object) -> None:
            self.should_exit = True

        before = signal.signal(signal.SIGTERM, leave)
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(signal.SIGTERM, before)
