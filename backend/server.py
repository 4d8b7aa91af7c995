"""Uvicorn with limits for slow, idle and large connections, and a shutdown that drains."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn, LifespanSendMessage
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import backend
from backend.core.logs import get_logger
from backend.core.operating_system import allow_address_again, stop_signals
from backend.core.private_networks import LOOPBACK, PRIVATE, contains_address
from backend.core.qr_codes import draw_qr
from backend.generation.registry import KINDS, ModelRegistry
from backend.http.connections import IS_KEPT, Drain
from backend.jobs.service import JobService
from backend.jobs.worker import Worker
from backend.lan.service import LocalNetwork
from backend.operations.start_faults import find_index_fault
from backend.settings import Settings
from backend.turns.api.service import TurnService

log = get_logger(__name__)

ALWAYS_ANSWERED = frozenset({b"/health"})
"""Paths that `limit_concurrency` does not apply to."""

MAX_PIPELINED_REQUESTS = 16
"""Maximum requests of one connection that wait for earlier responses."""

LINGER_SECONDS = 10.0
"""Time limit for reading the rest of a body after the response."""

LATE_CHECK_SECONDS = 0.2
"""Interval between checks for connections that were accepted during the shutdown."""

TLS_SHUTDOWN_SECONDS = 1.0
"""Time limit for a client to confirm the end of a TLS connection. A phone may be asleep."""

ARRIVAL_SECONDS = 1.0
"""Time that a drain waits for the first request of an existing connection."""

_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection if its request is late, or its head is too large.

    A head has `header_seconds` from the start of the connection, or from the first byte of the head
    on a kept connection. A body has `body_seconds`, and one more second for each `body_rate`
    received bytes. The time stops while the application does not read. `header_bytes` is the
    maximum for a head, and for the chunk extensions or trailers between two parts of a body.
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
        super().connection_made(transport)
        self._arm(self.header_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data. Close the connection if it exceeds a limit."""
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
        elif len(self.pipeline) > MAX_PIPELINED_REQUESTS:
            self._abort()

    def on_headers_complete(self) -> None:
        """Start the timer of the body."""
        self._overhead, self._reading_head = 0, False
        self._body_bytes, self._body_allowed = 0, self.body_seconds
        self._arm(self.body_seconds, self._body_is_late)
        answered = self.url.partition(b"?")[0] in ALWAYS_ANSWERED
        self.limit_concurrency = None if answered else self.config.limit_concurrency
        before: Any = self.cycle  # None before the first request
        self.scope.setdefault("state", {})[IS_KEPT] = before is not None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the bytes of the body."""
        self._overhead = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer, because the request is complete."""
        self._overhead, self._reading_head = 0, True
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Read the rest of the body for a while, so that the client can read the response."""
        super().on_response_complete()
        if not self._reading_head and not self.transport.is_closing():
            self._arm(LINGER_SECONDS, self._abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. A connection with an unfinished request has another timer."""
        if self._timer is None:
            super().timeout_keep_alive_handler()

    def _head_is_late(self) -> None:
        self._refuse(_TIMED_OUT if self._overhead else b"")

    def _body_is_late(self) -> None:
        allowed = self.body_seconds + self._body_bytes / self.body_rate
        if self.flow.read_paused:  # the application is slow, not the client
            self._arm(1.0, self._body_is_late)
        elif allowed > self._body_allowed:
            more, self._body_allowed = allowed - self._body_allowed, allowed
            self._arm(more, self._body_is_late)
        else:
            self._abort()

    def _refuse(self, answer: bytes) -> None:
        """Close the connection with a response, unless another response is being sent."""
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


class LanProtocol(LimitedProtocol):
    """Closes connections from the public internet, which a home router may forward."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection unless its client is in a private network."""
        super().connection_made(transport)
        if self.client is None or not contains_address((*PRIVATE, *LOOPBACK), self.client[0]):
            self._abort()


def make_server_config(app: Any, settings: Settings, *, shutdown_seconds: int) -> uvicorn.Config:
    """Return Uvicorn's configuration with the limits of the settings."""
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
    """Keeps the error of a failed start.

    Litestar reports only a traceback as text, which must not be logged.
    """

    error: BaseException | None = None

    async def send(self, message: LifespanSendMessage) -> None:
        """Keep the error that Litestar is handling."""
        if message["type"] == "lifespan.startup.failed":
            self.error = sys.exception()
            message = {"type": "lifespan.startup.failed", "message": ""}
        await super().send(message)


class Server(uvicorn.Server):
    """Uvicorn with a drain before the shutdown, and a last event for each stream.

    Uvicorn waits for all responses, and cuts off those that take too long. A reply may stream for
    minutes. Running turns and jobs first get the time of a drain. Then the remaining ones are
    stopped: their text is stored, and each stream gets its last event.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        *,
        turns: TurnService,
        jobs: JobService,
        worker: Worker,
        announce: Callable[[str], None],
        lan: tuple[socket.socket, ssl.SSLContext] | None = None,
    ) -> None:
        super().__init__(config)
        self._lan = lan
        self._drain = drain
        self._turns = turns
        self._jobs = jobs
        self._worker = worker
        self._announce = announce
        self.was_interrupted = False
        """True after a SIGINT."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application. Raises the error of a failed start."""
        self.lifespan = lifespan = _Lifespan(self.config)
        try:
            await super().startup(sockets)
        except SystemExit:
            if lifespan.error is None:
                raise
            raise lifespan.error from None
        if self._lan is not None:
            await self._listen_in_lan(*self._lan)

    async def _listen_in_lan(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Listen with TLS too, because Uvicorn supports only one configuration."""
        protocol: Any = type("ConfiguredLan", (LanProtocol, self.config.http_protocol_class), {})
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            make,
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=protocol.header_seconds,
            ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
        )
        self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, drain, stop the remaining work, and close the application."""
        self._drain.begin()
        self._worker.drain()
        arrivals = self._stop_listening(sockets or [])
        arrival_end = time.monotonic() + ARRIVAL_SECONDS
        connections: set[Any] = self.server_state.connections

        def is_busy() -> bool:
            if self._turns.runs or self._worker.is_busy:
                return True
            is_early = time.monotonic() < arrival_end
            is_silent = any(each.cycle is None for each in connections)
            return is_early and (is_silent or not all(each.done() for each in arrivals))

        log.info("server.stopping", count=len(self._turns.runs))
        self._announce(self._drain.notice)
        await self._drain.finish(is_busy)
        self._jobs.close()
        closing = asyncio.create_task(self._close_late_connections())
        try:
            await asyncio.gather(super().shutdown(sockets), self._turns.close())
        finally:
            for task in (closing, *arrivals):
                task.cancel()

    def _stop_listening(self, listeners: list[socket.socket]) -> list[asyncio.Task[None]]:
        """Close the listeners, and serve the connections that wait to be accepted.

        Closing a listener resets these connections. A proxy cannot repeat the request of such a
        connection, because it does not know if the request was processed.
        """
        accepted = [each for listener in listeners for each in _accept_waiting(listener)]
        for server in self.servers:
            server.close()
        for listener in listeners:
            listener.close()
        return [asyncio.create_task(self._serve_connection(each)) for each in accepted]

    async def _serve_connection(self, connection: socket.socket) -> None:
        config: Any = self.config

        def create_protocol() -> asyncio.Protocol:
            protocol: asyncio.Protocol = config.http_protocol_class(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return protocol

        with contextlib.suppress(OSError):  # its client may have left
            await asyncio.get_running_loop().connect_accepted_socket(
                create_protocol, connection, ssl=config.ssl
            )

    async def _close_late_connections(self) -> None:
        """Close connections that were accepted late, after their responses.

        Uvicorn waits for all connections, but closes only those that exist when it stops.
        """
        while True:
            await asyncio.sleep(LATE_CHECK_SECONDS)
            for connection in list(self.server_state.connections):
                connection.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop on signals, and exit normally.

        Uvicorn raises the signal again at the end, for the previous handler. That would kill the
        process, and look like a failure to the program that started it.
        """
        with stop_signals(self._receive_signal):
            yield

    def _receive_signal(self, number: int) -> None:
        self._drain.receive_signal()
        self.should_exit = True
        self.was_interrupted |= number == signal.SIGINT
        # After the drain, Ctrl-C also stops the storing of unfinished work.
        self.force_exit = self._drain.is_over and number == signal.SIGINT


def _accept_waiting(listener: socket.socket) -> Generator[socket.socket]:
    with contextlib.suppress(OSError):  # no connection waits, or no file descriptor is free
        while True:
            connection, _ = listener.accept()
            connection.settimeout(0)
            yield connection


def open_listener(host: str, port: int) -> socket.socket:
    """Open a socket that accepts connections. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets immediately only if the protocol number is given. Without it, each
    # request on a kept connection waits 40 ms for the acknowledgement of the previous response.
    listener = socket.socket(family, proto=socket.IPPROTO_TCP)
    allow_address_again(listener)
    try:
        listener.bind((host, port))
        # From now on, clients wait for the server instead of being refused.
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def format_address(host: str, listener: socket.socket) -> str:
    """Return the URL of the server for a browser on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # shown, not bound
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def render_greeting(
    settings: Settings,
    registry: ModelRegistry,
    listener: socket.socket,
    lan: LocalNetwork,
    *,
    embeds: bool,
) -> str:
    """Return the start message of `talekeeper serve`: addresses, models, and advice."""
    lines = [
        f"Talekeeper {backend.__version__} at {format_address(settings.host, listener)}",
        f"  data folder: {settings.data_dir.absolute()}",
        f"  models: {', '.join(spec.id for spec in registry.specs())}",
    ]
    if lan.is_on:
        lines += _render_lan_addresses(lan)
    if settings.plain_http_networks:
        networks = ", ".join(map(str, settings.plain_http_networks))
        lines += [
            f"  Warning: plain http is accepted from {networks}.",
            "  Anyone who can listen there can read passwords and data.",
        ]
    if fault := find_index_fault(settings):
        lines.append(f"  No index: {fault}")
    if not embeds:
        lines += [
            "  No embedding model: memory is searched by words only. To download one, run",
            "  `talekeeper model fetch`, or use the page: Memory, Status. No API key is needed.",
        ]
    if [spec.provider for spec in registry.specs()] == ["demo"]:
        lines += [
            "  Only the built-in demo model is available. For a real one, add a provider on the",
            "  page, or set environment variables:",
            *(f"    {kind.title}: {' and '.join(kind.variables)}" for kind in KINDS.values()),
            "  `talekeeper doctor` shows the details.",
        ]
    return "\n".join(lines)


def _render_lan_addresses(lan: LocalNetwork) -> list[str]:
    """Return the addresses for phones, with a QR code if the terminal supports it."""
    origins = lan.find_origins()
    if not origins:
        return ["  This machine is not on a private network yet. Connect it to one."]
    lines = [f"  on this network: {', '.join(origins)}"]
    if sys.stdout.isatty() and "utf" in (sys.stdout.encoding or "").lower():
        lines += ["", draw_qr(origins[0])]
    return [
        *lines,
        "  Browsers warn about the certificate until the root certificate is installed on the",
        "  device. Administrators find it, with instructions, under Settings.",
    ]
