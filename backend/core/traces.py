"""The trace of a request, as W3C Trace Context names it in the header `traceparent`.

A request that came with one is found by its trace id in the log, and passes it on to model servers.
Requests without one start no trace, and `tracestate` is not passed on: it belongs to other systems.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "traceparent"

_FORM = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(-.*)?"
)
"""Later versions may add parts at the end. Version ff is invalid."""

_MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Trace:
    """The id of a trace, 32 hexadecimal digits, and its flags, 2 of them."""

    id: str
    flags: str

    def make_header(self) -> str:
        """Return the header of a request to another server, which is a new span of the trace."""
        return f"00-{self.id}-{secrets.token_hex(8)}-{self.flags}"


TRACE: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""The trace of the current request, and of the tasks that it has started."""


@contextmanager
def bind(trace: Trace | None) -> Generator[None]:
    """Set the trace of the block and of the tasks started in it."""
    token = TRACE.set(trace)
    try:
        yield
    finally:
        TRACE.reset(token)


def parse_traceparent(text: str) -> Trace | None:
    """Return the trace of a header, or None if it is absent or invalid."""
    found = _FORM.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if found is None or not found["trace"].strip("0") or not found["parent"].strip("0"):
        return None
    if text.startswith("00-") and found[4] is not None:
        return None
    # Version 00 knows one flag, sampled.
    return Trace(found["trace"], f"{int(found['flags'], 16) & 1:02x}")
