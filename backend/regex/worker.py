"""The program of the process that searches with untrusted patterns.

It imports little of the backend, so that it starts quickly. If a search exceeds its time, its
parent (process.py) kills it and starts another.

Messages use one socket. Each begins with its length in four bytes, big-endian. A request is
`(engine, pattern, text, seconds, most)`, marshalled. An answer is eight bytes with a status, then
numbers of eight bytes: the processor time of the process so far in nanoseconds, a start, and spans.
If `most` is 0, `start` is the position of the first match. Otherwise `start` is the number of the
pattern's groups, and `spans` are the starts and ends of each match and its groups in characters, -1
for a missing group. With more matches than `most` the answer is `many`. If `most` is 1, only the
first match is searched. The first message is `ready`.

A search is `late` only if it got its time on a processor. On an overloaded machine it is `busy`,
and nothing is known about the pattern.
"""

from __future__ import annotations

import marshal
import socket
import time
from array import array
from itertools import accumulate
from typing import Any

import re2
import regex  # type: ignore[import-untyped]  # it brings no stubs

from backend.core.operating_system import (
    connect_to_parent,
    forbid_core_dumps,
    ignore_stop_signals,
    limit_memory,
    lower_priority,
    set_alarm,
)

MAX_MEMORY = 1 << 28
"""Bytes of memory. A search that needs more is aborted."""

FAIR_SHARE = 0.5
"""Share of its time that a search must have run on a processor to be called late."""

MAX_SECONDS_OVERDUE = 1.0
"""Seconds of wall clock after its deadline that end a search, even if it could hardly run."""


NICENESS = 5
"""Added niceness, because the waiting parent must wake up in time to report a timeout."""


def main() -> None:
    """Answer requests until the parent closes the socket or ends."""
    lower_priority(NICENESS)
    ignore_stop_signals()
    forbid_core_dumps()
    limit_memory(MAX_MEMORY)
    parent = connect_to_parent()
    _send(parent, ["ready", -1, []])
    while size := _read(parent, 4):
        request = _read(parent, int.from_bytes(size))
        engine, pattern, text, seconds, most = marshal.loads(request)  # noqa: S302  # from the parent
        set_alarm(seconds + MAX_SECONDS_OVERDUE)
        answer = _search(engine, pattern, text, seconds, most)
        regex.purge()
        re2.purge()
        set_alarm(0)
        _send(parent, answer)


def _search(engine: str, pattern: str, text: str, seconds: float, most: int) -> list[Any]:
    begun = time.process_time()
    try:
        if engine == "re2":
            return _search_re2(pattern, text, most)
        compiled = regex.compile(pattern, regex.VERSION0)
        if most:
            return _spans(compiled, text, most, timeout=seconds)
        match = compiled.search(text, timeout=seconds)
    except TimeoutError:
        had_its_time = time.process_time() - begun >= seconds * FAIR_SHARE
        return ["late" if had_its_time else "busy", -1, []]
    except MemoryError:
        return ["late", -1, []]
    except (regex.error, re2.error, RecursionError, OverflowError, ValueError):
        return ["invalid", -1, []]
    return ["absent", -1, []] if match is None else ["found", match.start(), []]


def _search_re2(pattern: str, text: str, most: int) -> list[Any]:
    chosen = re2.Options()
    chosen.never_capture = not most
    chosen.log_errors = False
    data = text.encode(errors="replace")
    compiled = re2.compile(pattern.encode(errors="replace"), chosen)
    if most:
        answer = _spans(compiled, data, most)
        if not text.isascii():
            # The number of bytes before each byte that begin a character.
            counts = [0, *accumulate(byte & 0xC0 != 0x80 for byte in data)]  # noqa: PLR2004
            answer[2] = [at if at < 0 else counts[at] for at in answer[2]]
        return answer
    match = compiled.search(data)
    if match is None:
        return ["absent", -1, []]
    return ["found", len(data[: match.start()].decode(errors="replace")), []]


def _spans(compiled: Any, text: str | bytes, most: int, **options: Any) -> list[Any]:
    spans: list[int] = []
    count = at = 0
    # As in JavaScript: after an empty match the search continues one character later.
    while at <= len(text) and (match := compiled.search(text, at, **options)) is not None:
        if count == most:
            return ["many", compiled.groups, []]
        count += 1
        start, at = match.span()
        if start == at:
            at += 1
            while isinstance(text, bytes) and at < len(text) and text[at] & 0xC0 == 0x80:  # noqa: PLR2004
                at += 1
        for group in range(compiled.groups + 1):
            spans += match.span(group)
        if most == 1:
            break
    return ["found" if spans else "absent", compiled.groups, spans]


def _read(parent: socket.socket, count: int) -> bytes:
    """Return `count` bytes, or none if the parent has closed the socket."""
    data = b""
    while len(data) < count:
        piece = parent.recv(count - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _send(parent: socket.socket, answer: list[Any]) -> None:
    status, start, spans = answer
    data = status.encode().ljust(8) + array("q", [time.process_time_ns(), start, *spans]).tobytes()
    parent.sendall(len(data).to_bytes(4) + data)
