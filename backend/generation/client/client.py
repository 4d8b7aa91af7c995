"""The HTTP client of the adapters: JSON goes out, and JSON or a stream of events comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from backend.generation.json_text import mapping, sequence
from backend.generation.model import ModelMalformedAnswerError

if TYPE_CHECKING:
    import httpx2

    from backend.generation.client.network import NetworkPolicy

END_SECONDS = 0.1
"""Seconds for a server to close its answer after the last event. A server that does not loses its
connection."""

_JSON_HEADERS = {"accept": "application/json", "content-type": "application/json"}

_PLAIN_HEADERS = frozenset(
    {
        *("host", "connection", "user-agent", "accept", "accept-encoding"),
        *("content-type", "content-length", "transfer-encoding"),
    }
)

_BLANK = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may stand before an answer: a byte order mark and white space."""

_UNFRAMED = (b"{", b"[", b"<")
"""Beginnings of an answer that is not a stream of events: JSON, or a web page."""

MAX_RESOURCE_BYTES = 2**20
"""The size of a resource, such as a list of models. Some hundred models take half of it."""

MAX_VALUE_BYTES = 4 * 2**20
"""The size of an answer that is one value, which is parsed at once."""

_MAX_ERROR_BYTES = 2**16
"""The size of an error that is parsed. Only the beginning of a larger one is read, as text."""

_MAX_ERROR_TEXT_BYTES = 4_000
"""Bytes of an error that is not JSON: enough to tell what it is."""


class ServerError(Exception):
    """A server answered with an error, or with something that is not an answer.

    Attributes:
        status: The HTTP status; 200 if the error came in the body of an answer or in a stream.
        body: The parsed JSON of the error, or its text if that is not JSON.
        headers: The headers of the answer.
        in_stream: True if parts of the reply may have come before it.
    """

    def __init__(
        self, status: int, body: Any, headers: Mapping[str, str], *, in_stream: bool = False
    ) -> None:
        super().__init__(f"HTTP status {status}")
        self.status, self.body, self.headers, self.in_stream = status, body, headers, in_stream

    @property
    def fault(self) -> Mapping[str, Any]:
        """The object that describes the error: the innermost `error` of the body."""
        fault = mapping(self.body)
        while inner := mapping(fault.get("error")):
            fault = inner
        return fault

    @property
    def text(self) -> str:
        """All words of the body, for searching; they may quote the prompt or the key."""
        if isinstance(self.body, str):
            return self.body
        return msgspec.json.encode(self.body).decode(errors="replace")

    @property
    def is_web_page(self) -> bool:
        """True if the body is a web page instead of an answer."""
        return isinstance(self.body, str) and self.body.lstrip().startswith("<")


class AnswerTooLargeError(ModelMalformedAnswerError):
    """The answer is larger than any of its kind should be."""

    def __init__(self) -> None:
        super().__init__("The model's server sent an answer that is too large.")


class ModelClient:
    """Sends requests to one server.

    `http` comes from `make_http_client`. Errors of the HTTP library pass through; what a server
    answers in place of an answer is a `ServerError`.
    """

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def post(self, url: str, body: Mapping[str, Any]) -> Any:
        """Send a request and return the JSON of its answer. Raise `ServerError`."""
        response = await self.open(url, body)
        async with aclosing(response):
            value = _parse_answer(response, await _read_at_most(response, MAX_VALUE_BYTES))
        return _check_value(response, value)

    async def post_raw(self, url: str, body: Mapping[str, Any]) -> bytes:
        """Send a request and return the bytes of its answer, unparsed. Raise `ServerError`."""
        response = await self.open(url, body)
        async with aclosing(response):
            return await response.aread()

    async def get(self, url: str) -> Any:
        """Return the JSON of a resource. Raise `ServerError`, `AnswerTooLargeError`."""
        async with self.http.stream("GET", url, headers=_JSON_HEADERS) as response:
            data = await _read_at_most(response, MAX_RESOURCE_BYTES)
        if not response.is_success:
            raise _make_server_error(response, data)
        return _parse_answer(response, data)

    async def open(self, url: str, body: Mapping[str, Any]) -> httpx2.Response:
        """Send a request and return its answer, whose body is unread. Raise `ServerError`."""
        # Encoding by msgspec: 900 messages take 0.8 ms, by the HTTP library's own 3.5.
        content = msgspec.json.encode(body)
        response = await self._send(url, content)
        if response.is_success:
            return response
        async with aclosing(response):
            raise _make_server_error(response, await _read_at_most(response, MAX_VALUE_BYTES))

    async def _send(self, url: str, content: bytes) -> httpx2.Response:
        """Send a request. If the connection was closed before an answer, send it once more.

        Servers close connections that are kept open, some at the end of a stream that failed.
        """
        import httpx2  # noqa: PLC0415 - imported by now; slow at start-up

        def make_request() -> httpx2.Request:
            return self.http.build_request("POST", url, content=content, headers=_JSON_HEADERS)

        try:
            return await self.http.send(make_request(), stream=True)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError) as error:
            is_answer = isinstance(error, httpx2.RemoteProtocolError)
            if is_answer and "disconnected" not in str(error):  # a head that cannot be read
                raise
            return await self.http.send(make_request(), stream=True)

    @asynccontextmanager
    async def stream(self, url: str, body: Mapping[str, Any]) -> AsyncGenerator[AnswerStream]:
        """Send a request whose answer is a stream. Leaving the context hangs up.

        Raise `ServerError` if the server refuses the request.
        """
        response = await self.open(url, body)
        async with aclosing(response):
            yield AnswerStream(response)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()


class AnswerStream:
    """An answer that comes event by event.

    Attributes:
        is_whole: True if the server sent one JSON value instead of a stream.
        is_done: True if the stream ended with `[DONE]`.
        is_empty: True if no event has come.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.is_whole = self.is_done = False
        self.is_empty = True

    async def events(self) -> AsyncGenerator[Any, None]:
        """Yield the JSON of each event, and None for bytes that complete no event.

        An answer that is one JSON value is read as that, even if its headers call it a stream, and
        JSON lines are read as events. Raise `ServerError` for an event that is an error, and for a
        web page.
        """
        async with aclosing(self._receive()) as received:
            head = b""
            async for begun in received:
                if head := begun.lstrip(_BLANK):
                    break
                yield None
            read = self._read_unframed if head[:1] in _UNFRAMED else self._read_events
            async with aclosing(read(head, received)) as values:
                async for value in values:
                    yield value

    async def _receive(self) -> AsyncGenerator[bytes]:
        """Yield the bytes of the answer. A connection that is lost before an event ends them.

        llama-cpp-python closes the connection in this way if it cannot begin a stream.
        """
        import httpx2  # noqa: PLC0415 - imported by now; slow at start-up

        try:
            async for part in self._response.aiter_bytes():
                yield part
        except (httpx2.ReadError, httpx2.RemoteProtocolError):
            if not self.is_empty:
                raise

    async def _read_events(
        self, head: bytes, rest: AsyncIterator[bytes]
    ) -> AsyncGenerator[Any, None]:
        reader = EventReader()
        part: bytes | None = head
        while part is not None:
            has_event = False
            for value in reader.feed(part):
                if value is DONE:
                    self.is_done = True
                    await _read_rest(rest)
                    return
                has_event, self.is_empty = True, False
                yield _check_value(self._response, value, in_stream=True)
            if not has_event:
                yield None
            part = await anext(rest, None)
        for value in reader.close():
            if value is DONE:
                self.is_done = True
                return
            self.is_empty = False
            yield _check_value(self._response, value, in_stream=True)

    async def _read_unframed(
        self, head: bytes, rest: AsyncIterator[bytes]
    ) -> AsyncGenerator[Any, None]:
        parts, size = [head], len(head)
        async for part in rest:
            size += len(part)
            if size > MAX_VALUE_BYTES:
                raise AnswerTooLargeError
            parts.append(part)
            yield None
        data = b"".join(parts)
        try:
            values = [parse_json_bytes(data)]
            self.is_whole = True
        except ValueError:
            values = read_json_lines(data)
        if not values:
            raise _make_server_error(self._response, data)
        for value in values:
            if value is DONE:
                self.is_done = True
                return
            self.is_empty = False
            yield _check_value(self._response, value, in_stream=not self.is_whole)


def _check_value(response: httpx2.Response, value: Any, *, in_stream: bool = False) -> Any:
    """Return the value of an answer or event. Raise `ServerError` if it is an error."""
    first = next(iter(sequence(value)), value)  # Gemini sends a list outside of streams
    members = mapping(first)
    if members.get("error") or members.get("object") == "error":
        raise ServerError(response.status_code, first, response.headers, in_stream=in_stream)
    return value


def _parse_answer(response: httpx2.Response, data: bytes) -> Any:
    """Return the JSON of an answer. Raise `ServerError` if it is something else."""
    try:
        return parse_json_bytes(data.lstrip(_BLANK))
    except ValueError:
        raise _make_server_error(response, data) from None


def _make_server_error(response: httpx2.Response, data: bytes) -> ServerError:
    """Return the error for an answer that is one by its status, or that is not JSON."""
    body: Any = data[:_MAX_ERROR_TEXT_BYTES].decode(errors="replace").strip()
    if len(data) <= _MAX_ERROR_BYTES:
        with suppress(ValueError):  # a web page of a proxy
            body = parse_json_bytes(data)
    return ServerError(response.status_code, body, response.headers)


async def _read_at_most(response: httpx2.Response, most: int) -> bytes:
    """Return the bytes of an answer. Raise `AnswerTooLargeError` if there are more than `most`."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            raise AnswerTooLargeError
        parts.append(part)
    return b"".join(parts)


async def _read_rest(received: AsyncIterator[bytes]) -> None:
    """Read what follows the end of a reply, so that its connection can be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            async for _ in received:
                pass


def make_http_client(
    *, connect_timeout: float, headers: Mapping[str, str], network: NetworkPolicy | None = None
) -> httpx2.AsyncClient:
    """Make a client that follows no redirect and no proxy variable, and sends our headers alone.

    A key would follow a redirect to another origin, and google-genai reads projects and whole
    headers out of the environment.

    Args:
        connect_timeout: Seconds for a connection to be made. There is no other limit here: the
            code that waits for the next chunk times the silence.
        headers: What is sent beside the plain headers of HTTP: the key.
        network: Where it may connect; None for servers that the operator named.
    """
    import httpx2  # noqa: PLC0415 - a tenth of a second: not at start-up

    from backend.generation.client.transport import ACCEPT_ENCODING, ProviderTransport  # noqa: PLC0415 - likewise

    timeout = httpx2.Timeout(None, connect=connect_timeout)

    async def keep_plain(request: httpx2.Request) -> None:
        for name in set(request.headers) - _PLAIN_HEADERS:
            del request.headers[name]
        request.headers.update({**headers, "accept-encoding": ACCEPT_ENCODING})
        # google-genai passes `timeout=None` with each request, which would switch ours off.
        request.extensions["timeout"] = timeout.as_dict()

    return httpx2.AsyncClient(
        transport=ProviderTransport(network),
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        event_hooks={"request": [keep_plain]},
    )
