"""Regexes of users. RE2 runs most of them in linear time. A process with a deadline runs the rest.

A running RE2 search cannot be interrupted, and linear time is long if pattern and text are large.
So expensive searches run in the process too, with either engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import re2

from backend.regex.javascript import RegexSyntaxError, Translated, translate

MAX_SOURCE = 2_000
"""Characters of a pattern."""

RE2_MEMORY = 1 << 20
"""Bytes of a compiled pattern. RE2 rejects larger ones before it allocates the memory."""

REFUSED_SIZE = 10_000
"""Size counted for a pattern that RE2 rejected, because the attempt costs about that much."""

MAX_WORK = 8_000_000
"""Limit of instructions times text bytes for one search in this process. Worst case 40 ms, if RE2
follows all instructions for each byte. Typically 0.1 ms."""

MAX_SCAN_WORK = 300_000_000
"""The same limit for all searches of a scan. Worst case below one second."""

PATTERN_SECONDS = 0.05
"""Wall clock for one pattern in one scan, including the time to kill the process."""

Engine = Literal["re2", "regex"]
Status = Literal["found", "absent", "late", "invalid", "busy", "unavailable", "many"]


class Answer(NamedTuple):
    """The result of a search.

    Attributes:
        status: `late`: timed out, and is not tried again. `busy`: did not get enough processor
            time. `unavailable`: not tried, because the process does not start. `many`: more
            matches than requested.
        start: Position of the match in characters.
        seconds: Duration in wall clock time.
        spans: Start and end of each match and its groups in characters, in one flat list; -1 for a
            missing group. Only set if matches were requested.
    """

    status: Status
    start: int = -1
    seconds: float = 0.0
    spans: Sequence[int] = ()


class Evaluator(Protocol):
    """Searches with untrusted patterns and returns before the deadline. Thread-safe."""

    def search(self, engine: Engine, pattern: str, text: str, *, seconds: float) -> Answer:
        """Search within `seconds` of wall clock. Never raises because of a pattern."""
        ...


class Pattern:
    """A compiled regex.

    Attributes:
        source: The source for the engine, including flags.
        engine: The engine.
        size: RE2's instructions. Memory and time per byte are proportional to it.
        literal: A text that all matches contain, ignoring case. May be empty.
        names: The numbers of its named groups.
        digest: Identifies the pattern in lists of abandoned patterns.
    """

    __slots__ = ("_compiled", "digest", "engine", "literal", "names", "size", "source")

    def __init__(
        self, source: str, engine: Engine, compiled: Any, size: int, translated: Translated
    ) -> None:
        self.source, self.size = source, size
        self.literal, self.names = translated.literal, translated.names
        self.engine: Engine = engine
        self._compiled = compiled
        self.digest = hashlib.blake2b(source.encode(errors="replace"), digest_size=16).digest()

    def is_quick(self, length: int) -> bool:
        """True if a text of `length` bytes may be searched in this process."""
        return self._compiled is not None and self.work(length) <= MAX_WORK

    def work(self, length: int) -> int:
        """Return the worst-case cost of a search: instructions times bytes."""
        return self.size * length

    def search(self, data: bytes) -> int:
        """Return the offset of the first match in UTF-8 text, or -1. Only if it is quick."""
        return self.span(data)[0]

    def span(self, data: bytes) -> tuple[int, int]:
        """Return start and end of the first match in bytes, or -1 and -1. Only if it is quick."""
        match = self._compiled.search(data)
        return (-1, -1) if match is None else (int(match.start()), int(match.end()))

    def matches(self, data: bytes) -> Iterator[list[int]]:
        """Yield start and end of each match and its groups, in bytes. Only if it is quick.

        All matches together may take quadratic time, so the caller must stop in time.
        """
        groups = range(self._compiled.groups + 1)
        at = 0
        # RE2's own iteration returns some empty matches twice.
        while at <= len(data) and (match := self._compiled.search(data, at)) is not None:
            start, at = match.span()
            if start == at:
                at += 1
                while at < len(data) and data[at] & 0xC0 == 0x80:  # noqa: PLR2004  # within a character
                    at += 1
            yield [place for group in groups for place in match.span(group)]


def compile_pattern(source: str, flags: str, *, captures: bool = False) -> Pattern | None:
    """Compile a regex. Return None if it is not valid.

    Set `captures` if groups are needed.

    Call `forget_compiled` after a series of calls. Otherwise RE2's module caches the last patterns,
    which are texts of users.
    """
    if len(source) > MAX_SOURCE:
        return None
    try:
        translated = translate(source, flags)
    except RegexSyntaxError:
        return None
    if translated.re2 is None:
        return Pattern(translated.regex, "regex", None, 0, translated)
    options: Any = re2.Options()
    options.max_mem = RE2_MEMORY
    options.never_capture = not captures
    options.log_errors = False
    try:
        compiled: Any = re2.compile(translated.re2.encode(errors="replace"), options)
    except re2.error:
        return Pattern(translated.regex, "regex", None, REFUSED_SIZE, translated)
    size = max(1, int(compiled.programsize))
    return Pattern(translated.re2, "re2", compiled, size, translated)


def forget_compiled() -> None:
    """Clear the pattern cache of RE2's module. Compiled patterns remain usable."""
    re2.purge()
