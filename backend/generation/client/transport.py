"""Connections to providers: where they go is checked, and how much comes back is bounded.

Imports the HTTP library: import this module late.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextvars import ContextVar
from typing import cast

import httpcore2
import httpx2

from backend.generation.client.network import AddressRefusedError, NetworkPolicy
from backend.generation.model import ModelMalformedAnswerError

ACCEPT_ENCODING = "gzip"

MAX_STREAM_BYTES = 64 * 2**20
"""Of a whole stream of events: several times the longest reply with its thinking."""

MAX_EVENT_BYTES = 2**20
"""Of one event in it."""

MAX_ANSWER_BYTES = 8 * 2**20
"""Of any other answer. What is parsed at once holds up the event loop: 0.1 s for so much JSON."""

MAX_TRUSTED_ANSWER_BYTES = 64 * 2**20
"""The same for servers that the operator named: 2,048 vectors written as numbers."""

_BYTES_PER_PART = 64
"""What each received part counts for beside its bytes: a server may send them one by one."""

_INFLATED_BYTES = 2**16
_GZIP = frozenset({"gzip", "x-gzip"})
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_ADDRESS_SECONDS = 2.0
"""Seconds for a connection to an address, if there is another one to try."""

_is_plain: ContextVar[bool] = ContextVar("is_plain", default=True)


class ProviderTransport(httpx2.AsyncHTTPTransport):
    """The transport of one provider's client. Heads of answers are capped by httpcore, at 100 KiB.

    Args:
        network: Where it may connect; None for everywhere.
    """

    def __init__(self, network: NetworkPolicy | None) -> None:
        context = httpx2.create_ssl_context(trust_env=False)
        # Each reply that is being streamed holds a connection; the turns are limited elsewhere.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        super().__init__(verify=context, trust_env=False, limits=limits)
        self._network = network
        self._max_bytes = MAX_TRUSTED_ANSWER_BYTES
        if network is not None:
            self._max_bytes = MAX_ANSWER_BYTES
            # The one way to give httpcore a network of our own below httpx.
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=context,
                max_connections=limits.max_connections,
                max_keepalive_connections=limits.max_keepalive_connections,
                keepalive_expiry=limits.keepalive_expiry,
                network_backend=_CheckedNetwork(network),
            )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it. Raises `AddressRefusedError` where it may not go there."""
        if self._network is not None:
            self._network.check_url(str(request.url))
        # A connection is opened by the first request that needs it, in that request's task.
        opening = _is_plain.set(request.url.scheme == "http")
        try:
            response = await super().handle_async_request(request)
        finally:
            _is_plain.reset(opening)
        try:
            response.stream = _BoundedBody(response, max_bytes=self._max_bytes)
        except ModelMalformedAnswerError:
            await response.aclose()
            raise
        response.headers.pop("content-encoding", None)
        return response


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses that a policy has checked, one after the other.

    httpcore asks for each new connection by the host's name, and goes on to use that for TLS.
    """

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """See `AsyncNetworkBackend`. Raises `AddressRefusedError`, `ModelUnavailableError`."""
        try:
            async with asyncio.timeout(timeout):
                *others, last = await self._policy.addresses(host, port, is_plain=_is_plain.get())
                for address in others:
                    try:
                        return await self._network.connect_tcp(
                            address, port, _ADDRESS_SECONDS, local_address, socket_options
                        )
                    except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                        continue
                return await self._network.connect_tcp(
                    last, port, None, local_address, socket_options
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None

    async def connect_unix_socket(
        self,
        path: str,  # noqa: ARG002 - httpcore's own signature
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - likewise
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002 - likewise
    ) -> httpcore2.AsyncNetworkStream:
        """Always refused."""
        raise AddressRefusedError("A provider cannot be at a Unix socket.")

    async def sleep(self, seconds: float) -> None:
        """See `AsyncNetworkBackend`."""
        await asyncio.sleep(seconds)


class _BoundedBody(httpx2.AsyncByteStream):
    """An answer's body, unpacked, which ends in an error when it is too large.

    Raises `ModelMalformedAnswerError` if it is packed in another way than was asked for.
    """

    def __init__(self, response: httpx2.Response, *, max_bytes: int) -> None:
        headers = response.headers
        self._body = cast("httpx2.AsyncByteStream", response.stream)
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._most = MAX_STREAM_BYTES if self._is_stream else max_bytes
        self._whole = self._event = 0
        self._last = b""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity", *_GZIP}:
            raise ModelMalformedAnswerError(
                "The model's server used a compression that was not offered."
            )
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding in _GZIP else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            for piece in self._unpacked(part):
                self._count(piece)
                yield piece

    async def aclose(self) -> None:
        """Close the connection, or give it back."""
        await self._body.aclose()

    def _unpacked(self, part: bytes) -> Iterator[bytes]:
        """What a part holds, in pieces that are small however well it was packed."""
        if self._unpacker is None:
            yield part
            return
        try:
            while piece := self._unpacker.decompress(part, _INFLATED_BYTES):
                yield piece
                part = self._unpacker.unconsumed_tail
        except zlib.error:
            raise ModelMalformedAnswerError("The model's server sent a damaged answer.") from None

    def _count(self, piece: bytes) -> None:
        self._whole += len(piece) + _BYTES_PER_PART
        if self._is_stream:
            seen = self._last + piece  # a blank line may be cut in two
            self._last = seen[-3:]
            end = max(map(seen.rfind, _BLANK_LINES))
            self._event = len(seen) - end if end >= 0 else self._event + len(piece)
        if self._whole > self._most or self._event > MAX_EVENT_BYTES:
            raise ModelMalformedAnswerError("The model's server sent an answer that is too large.")
