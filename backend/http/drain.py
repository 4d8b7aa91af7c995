"""The end of a process: nothing new begins, and running work gets some time.

A connection that the process accepted before it closed its listener may bring its first request a
moment later. That request is served as ever, because its client could not know. On a connection
that is kept from an earlier request, no turn begins any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import UnavailableError
from backend.http.schemas import BEGINS_TURN

POLL_SECONDS = 0.05
"""Between two looks whether anything still runs."""

RETRY_SECONDS = 2
"""By then another process answers, or the next one has started."""

IS_KEPT = "talekeeper_is_kept"
"""Member of a scope's `state`: True if the connection has brought a request before."""

_CLOSE = (b"connection", b"close")


class ServerStoppingError(UnavailableError):
    """The process is about to end, and begins no more turns."""

    slug, title = "server-stopping", "The server is stopping"

    def __init__(self) -> None:
        super().__init__(
            "Nothing was changed. Send the request again in a moment.",
            headers={"Connection": "close"},
            retry_after=RETRY_SECONDS,
        )


class Drain:
    """The time between the order to end and the end.

    Args:
        seconds: Longest that running work is waited for. 0 waits for none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.requests = 0
        """The number of requests that have no answer yet."""
        self.is_over = False
        self._begun = asyncio.Event()
        self._is_cut_short = False

    @property
    def is_on(self) -> bool:
        """True from the first signal on."""
        return self._begun.is_set()

    @property
    def notice(self) -> str:
        """One line for the terminal."""
        if self.seconds:
            return (
                f"Talekeeper stops. What runs has {self.seconds:g} seconds to end; "
                "another signal ends it now."
            )
        return "Talekeeper stops at once. A reply that is cut off is kept, and can be continued."

    def receive_signal(self) -> None:
        """Begin with the first signal, and end with the second one."""
        self._is_cut_short = self.is_on
        self._begun.set()

    def begin(self) -> None:
        """Begin, unless that has happened."""
        self._begun.set()

    async def wait_for_begin(self) -> None:
        """Wait for the first signal."""
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
    """Counts requests at work. During a drain, refuses new turns and closes connections."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Answer a request. Raises `ServerStoppingError`."""
        drain, is_at_work = self._drain, True
        begins_turn = scope["route_handler"].opt.get(BEGINS_TURN, False)
        if drain.is_on and begins_turn and scope["state"].get(IS_KEPT, False):
            raise ServerStoppingError

        async def sending(message: Message) -> None:
            nonlocal is_at_work
            if message["type"] == "http.response.start":
                # A stream goes on as long as its turn or job, which count as well.
                drain.requests -= is_at_work
                is_at_work = False
                if drain.is_on:
                    message["headers"] = [*message["headers"], _CLOSE]
            await send(message)

        drain.requests += 1
        try:
            await next_app(scope, receive, sending)
        finally:
            drain.requests -= is_at_work
