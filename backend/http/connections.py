"""Connections of clients: disconnects, and the graceful shutdown.

During a shutdown no new turns begin, and running work gets time to finish. The first request of a
connection is always served, because the client could not know about the shutdown. A later request
on the same connection cannot begin a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from litestar.enums import HttpMethod, ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from backend.core.cpu_pool import client_gone
from backend.errors import UnavailableError
from backend.http.schemas import BEGINS_TURN, ENDS_WITH_CLIENT


class DisconnectMiddleware(ASGIMiddleware):
    """Signals to `CpuPool` that the client of an `ENDS_WITH_CLIENT` route has disconnected.

    Only work in the pool stops. A running transaction is never interrupted. Place this after all
    middlewares that read the body, because it reads all messages after the body.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        if not scope["route_handler"].opt.get(ENDS_WITH_CLIENT, False):
            await next_app(scope, receive, send)
            return
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch: asyncio.Task[None] | None = None

        async def watch_connection() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set_result(None)

        async def receive_and_watch() -> Any:
            nonlocal watch
            if watch is not None:
                await asyncio.shield(gone)
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                watch = asyncio.create_task(watch_connection())
            return message

        if scope.get("method") == HttpMethod.GET:  # without a body, no one reads
            watch = asyncio.create_task(watch_connection())
        token = client_gone.set(gone)
        try:
            await next_app(scope, receive_and_watch, send)
        finally:
            client_gone.reset(token)
            if watch is not None:
                watch.cancel()


POLL_SECONDS = 0.05

RETRY_SECONDS = 2
"""Time until another process answers, or the next one has started."""

IS_KEPT = "talekeeper_is_kept"
"""Member of a scope's `state`: True if the connection has had a request before."""

_CLOSE = (b"connection", b"close")


class ServerStoppingError(UnavailableError):
    """The process is shutting down and does not begin new turns."""

    slug, title = "server-stopping", "The server is stopping"

    def __init__(self) -> None:
        super().__init__(
            "Nothing was changed. Send the request again in a moment.",
            headers={"Connection": "close"},
            retry_after=RETRY_SECONDS,
        )


class Drain:
    """The shutdown of a process. It waits for running work for up to `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.requests = 0
        self.is_over = False
        self._begun = asyncio.Event()
        self._is_cut_short = False

    @property
    def is_on(self) -> bool:
        """True after the first signal."""
        return self._begun.is_set()

    @property
    def notice(self) -> str:
        if self.seconds:
            return (
                f"Talekeeper is stopping. Running work has {self.seconds:g} seconds to finish. "
                "Send another signal to stop now."
            )
        return "Talekeeper is stopping. Unfinished replies are stored and can be continued."

    def receive_signal(self) -> None:
        """Begin the shutdown, or end it at once if it has begun."""
        self._is_cut_short = self.is_on
        self._begun.set()

    def begin(self) -> None:
        self._begun.set()

    async def wait_for_begin(self) -> None:
        await self._begun.wait()

    async def finish(self, is_busy: Callable[[], bool]) -> None:
        """Wait until nothing runs, the time is up, or a second signal comes."""
        end = time.monotonic() + self.seconds
        while (is_busy() or self.requests) and not self._is_cut_short:
            if time.monotonic() >= end:
                break
            await asyncio.sleep(POLL_SECONDS)
        self.is_over = True


class DrainMiddleware(ASGIMiddleware):
    """Counts running requests. During a shutdown, refuses new turns and closes connections."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Raises `ServerStoppingError`."""
        drain, is_at_work = self._drain, True
        begins_turn = scope["route_handler"].opt.get(BEGINS_TURN, False)
        if drain.is_on and begins_turn and scope["state"].get(IS_KEPT, False):
            raise ServerStoppingError

        async def send_and_count(message: Message) -> None:
            nonlocal is_at_work
            if message["type"] == "http.response.start":
                # The turn or job of a stream is counted separately.
                drain.requests -= is_at_work
                is_at_work = False
                if drain.is_on:
                    message["headers"] = [*message["headers"], _CLOSE]
            await send(message)

        drain.requests += 1
        try:
            await next_app(scope, receive, send_and_count)
        finally:
            drain.requests -= is_at_work
