"""The HTTP client under all vendors' SDKs: made late, and it goes nowhere but where it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import httpx2

    from backend.generation.network import NetworkPolicy

T = TypeVar("T")

_opened: ContextVar[list[httpx2.Response] | None] = ContextVar("opened_responses", default=None)


_PLAIN_HEADERS = frozenset(
    {
        *("host", "connection", "user-agent", "accept", "accept-encoding"),
        *("content-type", "content-length", "transfer-encoding"),
    }
)


def make_http_client(
    *, connect_timeout: float, headers: dict[str, str], network: NetworkPolicy | None = None
) -> httpx2.AsyncClient:
    """A client that follows no redirect and no proxy variable, and sends no header but ours.

    The SDKs read organisations, projects and whole headers out of the process's environment, and
    add a description of this machine; a key would follow a redirect to another origin.

    Args:
        connect_timeout: Seconds for a connection to come about. There is no other limit here:
            silence is timed by the code that waits for the next chunk.
        headers: What goes out beside the plain headers of HTTP: the key.
        network: Where it may connect; None for servers that the operator named.
    """
    import httpx2  # noqa: PLC0415 - a tenth of a second: not at start-up

    from backend.generation._transport import ACCEPT_ENCODING, Transport  # noqa: PLC0415 - likewise

    timeout = httpx2.Timeout(None, connect=connect_timeout)

    async def tidy(request: httpx2.Request) -> None:
        for name in set(request.headers) - _PLAIN_HEADERS:
            del request.headers[name]
        request.headers.update({**headers, "accept-encoding": ACCEPT_ENCODING})
        # google-genai passes `timeout=None` with each request, which would switch ours off.
        request.extensions["timeout"] = timeout.as_dict()

    async def remember(response: httpx2.Response) -> None:
        if (opened := _opened.get()) is not None:
            opened.append(response)

    return httpx2.AsyncClient(
        transport=Transport(network),
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        event_hooks={"request": [tidy], "response": [remember]},
    )


@contextmanager
def noting_responses(opened: list[httpx2.Response]) -> Generator[None, None, None]:
    """Append to `opened` each response that this task receives within the block.

    google-genai gives no handle on the response behind a stream, and its generators refer to each
    other in a circle, so that closing the outermost leaves the connection open until the garbage
    collector comes by. To hang up, close the response itself. Do not yield inside.
    """
    token = _opened.set(opened)
    try:
        yield
    finally:
        _opened.reset(token)


class Lazy(Generic[T]):
    """Something that `make` makes in a thread, once, when first asked for: SDKs import slowly."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self.made: T | None = None

    async def get(self) -> T:
        """Make it, or wait until another task has made it. A `make` that raises is tried again."""
        async with self._making:
            if self.made is None:
                self.made = await asyncio.to_thread(self._make)
            return self.made
