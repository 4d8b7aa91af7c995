"""Uvicorn with limits for connections that are slow, idle or too large, and an end for streams."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Generator
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn, LifespanSendMessage
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import backend
from backend.faults import find_index_fault
from backend.generation.registry import ModelRegistry
from backend.jobs.service import JobService
from backend.operating_system import allow_address_again
from backend.settings import Settings
from backend.turns.service import TurnService

ALWAYS_ANSWERED = frozenset({b"/health"})
"""Paths that are answered also when there are more connections than `limit_concurrency`."""

PIPELINED = 16
"""Requests of one connection that may wait for the answers before them."""

LINGER_SECONDS = 10.0
"""Seconds in which the rest of a body is taken after its request was answered."""

LATE_SECONDS = 0.2
"""Between two looks for connections that came while the server stopped."""

_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose request is not complete in time, or whose head is too large.

    A head has `header_seconds` from the connection's start, or from the head's first byte on a
    connection that is kept. A body has `body_seconds`, and a second more for each `body_rate` bytes
    that came; while the application does not read, its time stands still. Bytes that are neither a
    body's nor the end of a head (the head itself, chunk extensions, trailers) are counted, and may
    be `header_bytes` at a time.
    """

    header_bytes = 65_536
    header_seconds = 20.0
    body_seconds = 30.0
    body_rate = 2_048

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._overhead = 0
        self._body_bytes = 0
        self._body_allowed = 0.0
        self._reading_head = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first head."""
        super().connection_made(transport)
        self._arm(self.header_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every timer."""
        self._disarm()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head is too large or too much is waiting."""
        if self.transport.is_closing():
            return
        if self._reading_head and self._timer is None:
            self._arm(self.header_seconds, self._head_is_late)
        self._overhead += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._overhead > self.header_bytes:
            self._refuse(_TOO_LARGE)
        elif len(self.pipeline) > PIPELINED:
            self._abort()

    def on_headers_complete(self) -> None:
        """The body's time begins."""
        self._overhead, self._reading_head = 0, False
        self._body_bytes, self._body_allowed = 0, self.body_seconds
        self._arm(self.body_seconds, self._body_is_late)
        answered = self.url.partition(b"?")[0] in ALWAYS_ANSWERED
        self.limit_concurrency = None if answered else self.config.limit_concurrency
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count what came of the body."""
        self._overhead = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete: nothing is waited for."""
        self._overhead, self._reading_head = 0, True
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Take the rest of a body for a while, so that the client gets to read the answer."""
        super().on_response_complete()
        if not self._reading_head and not self.transport.is_closing():
            self._arm(LINGER_SECONDS, self._abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one on which a request has begun has a time of its own."""
        if self._timer is None:
            super().timeout_keep_alive_handler()

    def _head_is_late(self) -> None:
        self._refuse(_TIMED_OUT if self._overhead else b"")

    def _body_is_late(self) -> None:
        allowed = self.body_seconds + self._body_bytes / self.body_rate
        if self.flow.read_paused:  # it is the application that is slow
            self._arm(1.0, self._body_is_late)
        elif allowed > self._body_allowed:
            more, self._body_allowed = allowed - self._body_allowed, allowed
            self._arm(more, self._body_is_late)
        else:
            self._abort()

    def _refuse(self, answer: bytes) -> None:
        """Say why and close, where no other answer is on its way."""
        cycle: Any = self.cycle  # None before the first request
        if answer and (cycle is None or cycle.response_complete):
            self.transport.write(answer)
            self._disarm()
            self.transport.close()
        else:
            self._abort()

    def _abort(self) -> None:
        self._disarm()
        self.transport.abort()

    def _arm(self, seconds: float, then: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def server_config(app: Any, settings: Settings, *, shutdown_seconds: int) -> uvicorn.Config:
    """Uvicorn's configuration, with this installation's limits."""
    limits = {
        "header_bytes": settings.header_bytes,
        "header_seconds": settings.header_seconds,
        "body_seconds": settings.body_seconds,
        "body_rate": settings.body_bytes_per_second,
    }
    return uvicorn.Config(
        app,
        http=type("ConfiguredProtocol", (LimitedProtocol,), limits),
        ws="none",
        proxy_headers=True,
        forwarded_allow_ips=list(settings.trusted_proxies),
        server_header=False,
        access_log=False,
        log_config=None,
        limit_concurrency=settings.max_connections or None,
        timeout_keep_alive=round(settings.keep_alive_seconds),
        timeout_graceful_shutdown=shutdown_seconds,
    )


class _Lifespan(LifespanOn):
    """Keeps the error that ended the start.

    Litestar passes on its traceback as one text, which the log would have to withhold.
    """

    error: BaseException | None = None

    async def send(self, message: LifespanSendMessage) -> None:
        """Take the error while Litestar handles it."""
        if message["type"] == "lifespan.startup.failed":
            self.error = sys.exception()
            message = {"type": "lifespan.startup.failed", "message": ""}
        await super().send(message)


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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application. Raises the error that ends the start."""
        self.lifespan = lifespan = _Lifespan(self.config)
        try:
            await super().startup(sockets)
        except SystemExit:
            if lifespan.error is None:
                raise
            raise lifespan.error from None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end every turn, let the answers go out, and close the application."""
        self._jobs.close()
        closing = asyncio.create_task(self._close_late_connections())
        try:
            await asyncio.gather(super().shutdown(sockets), self._turns.close())
        finally:
            closing.cancel()

    async def _close_late_connections(self) -> None:
        """Close, after their answers, connections that were accepted as listening ended.

        Uvicorn tells those that it knows once, and waits for all.
        """
        while True:
            await asyncio.sleep(LATE_SECONDS)
            for connection in list(self.server_state.connections):
                connection.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take SIGTERM for an order that was carried out.

        Uvicorn raises the signal once more at the end, for the handler that was there before: that
        would kill the process, and look like a failure to the program that started it.
        """

        def leave(*_: object) -> None:
            self.should_exit = True

        before = signal.signal(signal.SIGTERM, leave)
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(signal.SIGTERM, before)


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that clients can connect to from now on. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By the protocol's number asyncio knows that it may send small packets at once; without it each
    # request of a connection that is kept waits 40 ms for the last answer's acknowledgement.
    listener = socket.socket(family, proto=socket.IPPROTO_TCP)
    allow_address_again(listener)
    try:
        listener.bind((host, port))
        # From here on a client waits until the server is up, and is not turned away.
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def address(host: str, listener: socket.socket) -> str:
    """Where a browser on this machine finds the server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # shown, not bound
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def greeting(
    settings: Settings, registry: ModelRegistry, listener: socket.socket, *, embeds: bool
) -> str:
    """What `talekeeper serve` says first: where it is, and what would make it better."""
    lines = [
        f"Talekeeper {backend.__version__} at {address(settings.host, listener)}",
        f"  models: {', '.join(spec.id for spec in registry.specs())}",
    ]
    if fault := find_index_fault(settings):
        lines.append(f"  No index: {fault}")
    if not embeds:
        lines += [
            "  No embedding model: memory is searched by words alone. `talekeeper model fetch`, or",
            "  the administrator's button under Memory, Status, brings one that takes no key.",
        ]
    if [spec.provider for spec in registry.specs()] == ["demo"]:
        lines += [
            "  Only the built-in demo model is there. For a real one set",
            "  TALEKEEPER_GEMINI_API_KEY, TALEKEEPER_ANTHROPIC_API_KEY, or",
            "  TALEKEEPER_OPENAI_BASE_URL and TALEKEEPER_OPENAI_MODELS; `talekeeper doctor`",
            "  says more.",
        ]
    return "\n".join(lines)
