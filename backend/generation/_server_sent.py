"""Server-sent events as an HTTP client receives them.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

_LINE_ENDS = (b"\n", b"\r")


class EventReader:
    """Takes a stream apart, chunk by chunk: linear in what comes, however it is cut."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # a line that has no end yet
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that ends in a chunk; what else events have is passed over."""
        # CR and LF are one end of a line, also where they come apart.
        text = chunk[1:] if self._after_return and chunk.startswith(b"\n") else chunk
        self._after_return = chunk.endswith(b"\r")
        lines = text.splitlines()
        rest = lines.pop() if lines and not text.endswith(_LINE_ENDS) else b""
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun = []
        if rest:
            self._begun.append(rest)
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data


def parse_event(data: bytes) -> Any:
    """The JSON value that an event's data is. Raises `ValueError`.

    What msgspec refuses may be what servers send all the same, such as halves of characters.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)
