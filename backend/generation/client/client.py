"""The HTTP client of the adapters, which sends JSON and receives JSON or server-sent events."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from backend.core import traces
from backend.generation.json_text import clean_text, mapping, sequence
from backend.generation.model import ModelMalformedAnswerError

if TYPE_CHECKING:
    import httpx2

    from backend.generation.client.network import NetworkPolicy

DONE = object()
"""The event `[DONE]`, the end of a stream of OpenAI-compatible servers."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_ENDS = (b"\n", b"\r")
_DONE_DATA = b"[DONE]"


class EventReader:
    """Parses a stream of server-sent events in linear time.

    It follows the standard: a byte order mark, comments, and lines that end in CR, LF or CRLF. It
    also accepts deviations of servers: a last event without a blank line, two JSON values in one
    event, and the `error:` line of older versions of llama.cpp. Data that is not JSON is skipped.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # an incomplete line
        self._data: list[bytes] = []
        self._after_return = False
        self._is_first = True

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the value of each event that a chunk completes: JSON, or `DONE`."""
        for line in self._lines(chunk):
            if line:
                self._read_line(line)
            else:
                yield from self._complete()

    def close(self) -> Iterator[Any]:
        """Yield the value of a last event without a blank line."""
        if self._begun:
            self._read_line(b"".join(self._begun))
            self._begun = []
        yield from self._complete()

    def _lines(self, chunk: bytes) -> list[bytes]:
        # CR and LF are one line end, also if they come in different chunks.
        text = chunk[1:] if self._after_return and chunk.startswith(b"\n") else chunk
        self._after_return = chunk.endswith(b"\r") if chunk else self._after_return
        lines = text.splitlines()
        rest = lines.pop() if lines and not text.endswith(_LINE_ENDS) else b""
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun = []
        if rest:
            self._begun.append(rest)
        if lines and self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return lines

    def _read_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"error":
            self._data.append(b'{"error":%b}' % value)

    def _complete(self) -> Iterator[Any]:
        data, self._data = self._data, []
        if not data:
            return
        if len(data) > 1:
            try:
                yield parse_json_bytes(b"\n".join(data))
            except ValueError:
                pass  # each line may be a value
            else:
                return
        for line in data:
            if line.strip().startswith(_DONE_DATA):
                yield DONE
                continue
            try:
                yield parse_json_bytes(line)
            except ValueError:
                continue


def read_json_lines(data: bytes) -> list[Any]:
    """Return the values of lines of JSON or `[DONE]`, with or without the prefix `data:`.

    Some proxies remove the framing of events, or send one JSON value and `[DONE]`. Return an empty
    list if a line is neither.
    """
    values: list[Any] = []
    for line in data.splitlines():
        text = line.removeprefix(b"data:").strip()
        if text == _DONE_DATA:
            values.append(DONE)
        elif text:
            try:
                values.append(parse_json_bytes(text))
            except ValueError:
                return []
    return values


def parse_json_bytes(data: bytes) -> Any:
    """Parse JSON. Raises `ValueError` if it is not JSON or is nested too deeply.

    Split characters become lone surrogates, which `CharacterJoiner` joins: halves of surrogate
    pairs are unchanged, and bytes of an incomplete UTF-8 sequence become U+DC80 to U+DCFF.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(data.decode("utf-8", "surrogateescape"))
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None


class CharacterJoiner:
    """Joins characters that are split between two pieces of text.

    A model's token can be a part of a character. Servers send these parts as halves of surrogate
    pairs or as incomplete UTF-8 sequences.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the held part and the text, up to the last complete character.

        A part that cannot be completed becomes U+FFFD.
        """
        text, self._held = self._held + text, ""
        if text.isascii() or not _SURROGATE.search(text):
            return text
        # UTF-16 joins the two halves of a pair.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        end = len(text)
        if "\ud800" <= text[-1] <= "\udbff":
            end -= 1
        else:
            tail = text[-_MAX_INCOMPLETE_BYTES:]
            cut = tail[len(tail.rstrip(_ESCAPED_BYTES)) :]
            end += _decode(cut, is_complete=False)[1] - len(cut)
        self._held = text[end:]
        text = _CUT_BYTES.sub(lambda run: _decode(run[0])[0], text[:end])
        return clean_text(text)

    def close(self) -> str:
        """Return U+FFFD if an incomplete character is left."""
        held, self._held = self._held, ""
        return "\N{REPLACEMENT CHARACTER}" if held else ""


_SURROGATE = re.compile("[\ud800-\udfff]")
_CUT_BYTES = re.compile("[\udc80-\udcff]+")
_ESCAPED_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))
"""The characters to which `surrogateescape` decodes bytes that are not UTF-8."""

_MAX_INCOMPLETE_BYTES = 3
"""Maximum length of an incomplete UTF-8 sequence."""


def _decode(cut: str, *, is_complete: bool = True) -> tuple[str, int]:
    """Decode escaped bytes. Return the text and the number of bytes that it contains."""
    data = cut.encode("utf-8", "surrogateescape")
    return codecs.utf_8_decode(data, "replace", is_complete)


END_SECONDS = 0.1
"""Time for a server to close its answer after the last event; then the connection is closed."""

_JSON_HEADERS = {"accept": "application/json", "content-type": "application/json"}

_PLAIN_HEADERS = frozenset(
    {
        *("host", "connection", "user-agent", "accept", "accept-encoding"),
        *("content-type", "content-length", "transfer-encoding"),
    }
)

_BLANK = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may precede an answer: a byte order mark and white space."""

_UNFRAMED = (b"{", b"[", b"<")
"""The first bytes of JSON or a web page instead of a stream of events."""

MAX_RESOURCE_BYTES = 2**20
"""Maximum size of a resource, such as a list of models. A few hundred models take half of it."""

MAX_VALUE_BYTES = 4 * 2**20
"""Maximum size of an answer that is one JSON value."""

_MAX_ERROR_BYTES = 2**16
"""Maximum size of a parsed error. Only the beginning of a larger one is used, as text."""

_MAX_ERROR_TEXT_BYTES = 4_000


class ServerError(Exception):
    """An error response of a server, or a response that is not an answer.

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
        """The innermost member `error` of the body."""
        fault = mapping(self.body)
        while inner := mapping(fault.get("error")):
            fault = inner
        return fault

    @property
    def text(self) -> str:
        """The whole body as text. It may quote the prompt or the key."""
        if isinstance(self.body, str):
            return self.body
        return msgspec.json.encode(self.body).decode(errors="replace")

    @property
    def is_web_page(self) -> bool:
        return isinstance(self.body, str) and self.body.lstrip().startswith("<")


class AnswerTooLargeError(ModelMalformedAnswerError):
    """The answer exceeds the size limit."""

    def __init__(self) -> None:
        super().__init__("The model's server sent an answer that is too large.")


class ModelClient:
    """Sends requests to one server. Errors of the HTTP library are not converted.

    `http` is the result of `make_http_client`.
    """

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def post(self, url: str, body: Mapping[str, Any]) -> Any:
        """Send a request and return the JSON of its answer. Raises `ServerError`."""
        response = await self.open(url, body)
        async with aclosing(response):
            value = _parse_answer(response, await _read_at_most(response, MAX_VALUE_BYTES))
        return _check_value(response, value)

    async def post_raw(self, url: str, body: Mapping[str, Any]) -> bytes:
        """Send a request and return the bytes of its answer. Raises `ServerError`."""
        response = await self.open(url, body)
        async with aclosing(response):
            return await response.aread()

    async def get(self, url: str) -> Any:
        """Return the JSON of a resource. Raises `ServerError`, `AnswerTooLargeError`."""
        async with self.http.stream("GET", url, headers=_JSON_HEADERS) as response:
            data = await _read_at_most(response, MAX_RESOURCE_BYTES)
        if not response.is_success:
            raise _make_server_error(response, data)
        return _parse_answer(response, data)

    async def open(self, url: str, body: Mapping[str, Any]) -> httpx2.Response:
        """Send a request and return its answer with an unread body. Raises `ServerError`."""
        # msgspec encodes 900 messages in 0.8 ms, the HTTP library in 3.5 ms.
        content = msgspec.json.encode(body)
        response = await self._send(url, content)
        if response.is_success:
            return response
        async with aclosing(response):
            raise _make_server_error(response, await _read_at_most(response, MAX_VALUE_BYTES))

    async def _send(self, url: str, content: bytes) -> httpx2.Response:
        """Send a request. Repeat it once if the server has closed an idle connection."""
        import httpx2  # noqa: PLC0415 - slow at start-up

        def make_request() -> httpx2.Request:
            return self.http.build_request("POST", url, content=content, headers=_JSON_HEADERS)

        try:
            return await self.http.send(make_request(), stream=True)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError) as error:
            is_answer = isinstance(error, httpx2.RemoteProtocolError)
            if is_answer and "disconnected" not in str(error):  # unreadable response headers
                raise
            return await self.http.send(make_request(), stream=True)

    @asynccontextmanager
    async def stream(self, url: str, body: Mapping[str, Any]) -> AsyncGenerator[AnswerStream]:
        """Send a request for a stream. Leaving the context ends it. Raises `ServerError`."""
        response = await self.open(url, body)
        async with aclosing(response):
            yield AnswerStream(response)

    async def aclose(self) -> None:
        await self.http.aclose()


class AnswerStream:
    """A streamed answer.

    Attributes:
        is_whole: True if the server sent one JSON value instead of a stream.
        is_done: True if the stream ended with `[DONE]`.
        is_empty: True if no event was received.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.is_whole = self.is_done = False
        self.is_empty = True

    async def events(self) -> AsyncGenerator[Any, None]:
        """Yield the JSON of each event, and None for bytes that complete no event.

        One JSON value and lines of JSON are also accepted, whatever the headers say. Raises
        `ServerError` for an event that is an error, and for a web page.
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
        """Yield the bytes of the answer. A connection lost before the first event ends it.

        llama-cpp-python closes the connection if it cannot begin a stream.
        """
        import httpx2  # noqa: PLC0415 - slow at start-up

        try:
            # The transport decompresses.
            async for part in self._response.aiter_raw():
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
    """Return the value of an answer or event. Raises `ServerError` if it is an error."""
    first = next(iter(sequence(value)), value)  # Gemini sends a list outside of streams
    members = mapping(first)
    if members.get("error") or members.get("object") == "error":
        raise ServerError(response.status_code, first, response.headers, in_stream=in_stream)
    return value


def _parse_answer(response: httpx2.Response, data: bytes) -> Any:
    """Return the JSON of an answer. Raises `ServerError` if it is not JSON."""
    try:
        return parse_json_bytes(data.lstrip(_BLANK))
    except ValueError:
        raise _make_server_error(response, data) from None


def _make_server_error(response: httpx2.Response, data: bytes) -> ServerError:
    body: Any = data[:_MAX_ERROR_TEXT_BYTES].decode(errors="replace").strip()
    if len(data) <= _MAX_ERROR_BYTES:
        with suppress(ValueError):  # for example a proxy's web page
            body = parse_json_bytes(data)
    return ServerError(response.status_code, body, response.headers)


async def _read_at_most(response: httpx2.Response, most: int) -> bytes:
    """Return at most `most` bytes of an answer. Raises `AnswerTooLargeError`."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            raise AnswerTooLargeError
        parts.append(part)
    return b"".join(parts)


async def _read_rest(received: AsyncIterator[bytes]) -> None:
    """Read the rest of the answer, so that its connection can be reused."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            async for _ in received:
                pass


def make_http_client(
    *, connect_timeout: float, headers: Mapping[str, str], network: NetworkPolicy | None = None
) -> httpx2.AsyncClient:
    """Make a client that follows no redirects, uses no proxy, and sends only known headers.

    A redirect would take the key to another server, and google-genai adds headers from the
    environment.

    Args:
        connect_timeout: Seconds. The code that reads the answer limits the silence.
        headers: Sent in addition to the standard headers of HTTP.
        network: The allowed addresses; None for servers that the operator configured.
    """
    import httpx2  # noqa: PLC0415 - takes 0.1 s

    from backend.generation.client.transport import ACCEPT_ENCODING, ProviderTransport  # noqa: PLC0415 - imports httpx2

    timeout = httpx2.Timeout(None, connect=connect_timeout)

    async def keep_plain(request: httpx2.Request) -> None:
        for name in set(request.headers) - _PLAIN_HEADERS:
            del request.headers[name]
        request.headers.update({**headers, "accept-encoding": ACCEPT_ENCODING})
        if trace := traces.TRACE.get():
            request.headers[traces.HEADER] = trace.make_header()
        # google-genai sends `timeout=None` with each request, which would disable this one.
        request.extensions["timeout"] = timeout.as_dict()

    return httpx2.AsyncClient(
        transport=ProviderTransport(network),
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        event_hooks={"request": [keep_plain]},
    )
