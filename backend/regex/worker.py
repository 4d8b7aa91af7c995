"""The program of the process that searches with patterns which can't be trusted.

It is started as a file, isolated, with an empty environment, and imports nothing of the backend.
It does no search itself: it forks a child that does, and another when that one is gone, which takes
some milliseconds where starting Python would take a hundred.

Standard input brings requests, standard output takes answers: four bytes of length, big-endian,
then msgpack: `[engine, pattern, text, seconds, most]` and `[status, start, spans]`. With `most` 0
it says where the pattern is found first. Else `start` is how many groups the pattern has, and
`spans` are the beginnings and ends of each match and its groups, one behind the other, in
characters, -1 where a group is not there. With more matches than `most` the answer is `many`; with
1 the first match alone is looked for.

A new child says `ready`; in the place of an answer that means that the child before it died of the
request. It dies by an alarm that nothing catches: that also ends what is deep in C, and needs no
parent that is still there.

`late` is said only of what had its time on a processor. On a machine that has none to give, a
search is `busy`: nothing is known of the pattern then.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from itertools import accumulate
from typing import Any

import msgspec
import re2
import regex  # type: ignore[import-untyped]  # it brings no stubs

MAX_MEMORY = 1 << 28
"""Bytes of address space. A pattern that needs more is given up."""

GRACE = 0.004
"""Seconds of processor time after a search should have ended by itself, until the alarm."""

LONGEST = 1.0
"""Seconds of wall clock after that time, which end a search however little it was given to run."""

FAIR_SHARE = 0.5
"""What a search must have had of its time, on a processor, for it to be called late."""

NICENESS = 5
"""How far it stands back: the process that waits must wake in time to say that it is late."""

_IN, _OUT = 0, 1


def main() -> None:
    """Keep a child at work until one finds that standard input has ended."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while True:
        child = os.fork()
        if child == 0:
            _work()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return


def _work() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _send(["ready", -1, []])
    while size := _read(4):
        engine, pattern, text, seconds, most = msgspec.msgpack.decode(
            _read(int.from_bytes(size)), type=tuple[str, str, str, float, int]
        )
        signal.setitimer(signal.ITIMER_PROF, seconds + GRACE)
        signal.setitimer(signal.ITIMER_REAL, seconds + LONGEST)
        answer = _search(engine, pattern, text, seconds, most)
        regex.purge()
        re2.purge()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answer)


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
            # Bytes that begin a character, counted up to each byte.
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
    # As in JavaScript: behind an empty match it goes on one character later.
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


def _read(count: int) -> bytes:
    """So many bytes, or none where the input has ended."""
    data = b""
    while len(data) < count:
        piece = os.read(_IN, count - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _send(answer: list[Any]) -> None:
    data = msgspec.msgpack.encode(answer)
    os.write(_OUT, len(data).to_bytes(4) + data)


if __name__ == "__main__":
    main()
    sys.exit(0)
