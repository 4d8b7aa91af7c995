"""The HTTP transport to providers, which checks addresses and limits the size of answers.

Import it lazily, because it imports the HTTP library.
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
"""Maximum size of a stream of events: several times the longest reply with its thoughts."""

MAX_EVENT_BYTES = 2**20

MAX_ANSWER_BYTES = 8 * 2**20
"""Maximum size of other answers. Parsing so much JSON blocks the event loop for 0.1 s."""

MAX_TRUSTED_ANSWER_BYTES = 64 * 2**20
"""The maximum of servers that the operator configured: 2,048 vectors written as numbers."""

_BYTES_PER_PART = 64
"""Added for each received part, because a server may send single bytes."""

_INFLATED_BYTES = 2**16
_GZIP = frozenset({"gzip", "x-gzip"})
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_ADDRESS_SECONDS = 2.0
"""Time limit of a connection to an address if there is another one to try."""

_is_plain: ContextVar[bool] = ContextVar("is_plain", default=True)


class ProviderTransport(httpx2.AsyncHTTPTransport):
    """The transport of one provider's client. httpcore limits headers to 100 KiB.

    `network` checks addresses; None allows all.
    """

    def __init__(self, network: NetworkPolicy | None) -> None:
        context = httpx2.create_ssl_context(trust_env=False)
        # Unlimited, because each streamed reply needs a connection and turns are limited elsewhere.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        super().__init__(verify=context, trust_env=False, limits=limits)
        self._network = network
        self._max_bytes = MAX_TRUSTED_ANSWER_BYTES
        if network is not None:
            self._max_bytes = MAX_ANSWER_BYTES
            # httpx has no other way to set the network backend of httpcore.
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=context,
                max_connections=limits.max_connections,
                max_keepalive_connections=limits.max_keepalive_connections,
                keepalive_expiry=limits.keepalive_expiry,
                network_backend=_CheckedNetwork(network),
            )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises `AddressRefusedError`."""
        if self._network is not None:
            self._network.check_url(str(request.url))
        # Connections are opened in the task of the request, so a context variable reaches them.
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
    """Connects to the first reachable address that a policy allows.

    httpcore passes the host's name for each new connection, and uses that name for TLS.
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
        raise AddressRefusedError("A provider cannot be at a Unix socket.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _BoundedBody(httpx2.AsyncByteStream):
    """The decompressed body of an answer, with a size limit.

    Raises `ModelMalformedAnswerError` if it is too large or uses another compression than gzip.
    """

    def __init__(self, response: httpx2.Response, *, max_bytes: int) -> None:
        headers = response.headers
        self._body = cast("httpx2.AsyncByteStream", response.stream)
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._max_bytes = MAX_STREAM_BYTES if self._is_stream else max_bytes
        self._whole = self._event = 0
        self._last = b""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity", *_GZIP}:
            raise ModelMalformedAnswerError(
                "The model's server used a compression that was not offered."
            )
        self._decompressor = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding in _GZIP else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            for piece in self._decompress(part):
                self._count(piece)
                yield piece

    async def aclose(self) -> None:
        await self._body.aclose()

    def _decompress(self, part: bytes) -> Iterator[bytes]:
        """Yield small pieces, so that a highly compressed part uses little memory."""
        if self._decompressor is None:
            yield part
            return
        try:
            while piece := self._decompressor.decompress(part, _INFLATED_BYTES):
                yield piece
                part = self._decompressor.unconsumed_tail
        except zlib.error:
            raise ModelMalformedAnswerError("The model's server sent a damaged answer.") from None

    def _count(self, piece: bytes) -> None:
        self._whole += len(piece) + _BYTES_PER_PART
        if self._is_stream:
            seen = self._last + piece  # a blank line may be split between pieces
            self._last = seen[-3:]
            end = max(map(seen.rfind, _BLANK_LINES))
            self._event = len(seen) - end if end >= 0 else self._event + len(piece)
        if self._whole > self._max_bytes or self._event > MAX_EVENT_BYTES:
            raise ModelMalformedAnswerError("The model's server sent an answer that is too large.")
