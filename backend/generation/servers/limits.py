"""Limits on the requests that a model's server answers at the same time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MAX_CONCURRENCY = 100
"""Requests that a server can be known, or set, to answer at the same time."""


@dataclass(frozen=True, slots=True)
class ServerLimit:
    """The limit of one server.

    Attributes:
        concurrency: Requests at the same time, at least 1.
        server: Its address and everything that identifies the client to it. Providers with equal
            values share the limit, also those of different users. Contains secrets.
        refresh: Asks the server for its limit, unless that was done recently. Never raises.
    """

    concurrency: int
    server: tuple[str, ...] = field(repr=False)
    refresh: Callable[[], Coroutine[Any, Any, None]] | None = field(
        default=None, compare=False, repr=False
    )


def identify_server(
    base_url: str | None, api_key: str | None, extra_headers: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the scheme, host and port of a server, the key, and the headers."""
    parts = urlsplit((base_url or "").lower())
    headers = (f"{name.lower()}: {extra_headers[name]}" for name in sorted(extra_headers))
    return (f"{parts.scheme}://{parts.netloc}", api_key or "", *headers)


def count_slots(answer: Any) -> int | None:
    """Count the slots in an answer of llama.cpp's `/slots`; None if it is something else."""
    if not isinstance(answer, list) or not answer:
        return None
    return min(len(answer), MAX_CONCURRENCY)  # pyright: ignore[reportUnknownArgumentType]
