"""Regexes of users: RE2 where it can, which is linear; the rest in a process with a deadline.

RE2 can't be stopped once it runs, and linear is not little where pattern and text are both large.
So what may take long is sent to the process too, whichever engine it is for.
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
"""Bytes that one compiled pattern may take; RE2 refuses more before it uses it."""

REFUSED_SIZE = 10_000
"""What a pattern that RE2 refused counts as, in instructions: finding out costs about that."""

MAX_WORK = 8_000_000
"""Instructions times bytes of text that one search in this process may come to: 40 ms at the very
worst, where RE2 must follow all of them for each byte; mostly it need not, and takes 0.1."""

MAX_SCAN_WORK = 300_000_000
"""The same for all searches of a scan in this process: less than a second at the very worst."""

PATTERN_SECONDS = 0.05
"""Wall clock for one pattern in one scan, killing the process included."""

Engine = Literal["re2", "regex"]
Status = Literal["found", "absent", "late", "invalid", "busy", "unavailable", "many"]


class Answer(NamedTuple):
    """The result of a search.

    Attributes:
        status: `late` ran out of time, and is not tried again. `busy` had no chance to run, or to
            end. `unavailable` was not tried: the process does not start. `many` has more matches
            than were asked for.
        start: Where it was found, in characters.
        seconds: What it took, wall clock.
        spans: Where each match and its groups begin and end, in characters, one behind the other;
            -1 for a group that is not there. Only where matches were asked for.
    """

    status: Status
    start: int = -1
    seconds: float = 0.0
    spans: Sequence[int] = ()


class Evaluator(Protocol):
    """Searches with patterns that can't be trusted, and is back in time. Thread-safe."""

    def search(self, engine: Engine, pattern: str, text: str, *, seconds: float) -> Answer:
        """Search within `seconds` of wall clock. Never raises for what the pattern does."""
        ...


class Pattern:
    """A regex, ready to search.

    Attributes:
        source: What goes to the engine, flags included.
        engine: Which one that is.
        size: RE2's instructions, a measure of memory and of time for each byte.
        literal: What stands in every text that it matches, but for case; may be empty.
        names: The numbers of its named groups.
        digest: By which it is remembered when it was given up.
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
        """Whether a text of so many bytes may be searched in this process."""
        return self._compiled is not None and self.work(length) <= MAX_WORK

    def work(self, length: int) -> int:
        """What searching a text of so many bytes comes to at worst: instructions times bytes."""
        return self.size * length

    def search(self, data: bytes) -> int:
        """Where it is found in a text of UTF-8, in bytes; -1 where not. Only if it is quick."""
        return self.span(data)[0]

    def span(self, data: bytes) -> tuple[int, int]:
        """The same, with where that ends."""
        match = self._compiled.search(data)
        return (-1, -1) if match is None else (int(match.start()), int(match.end()))

    def matches(self, data: bytes) -> Iterator[list[int]]:
        """Each match in turn: where it and its groups begin and end, in bytes. Only if it is quick.

        Together they may take the square of what one search takes: the caller has to stop in time.
        """
        groups = range(self._compiled.groups + 1)
        at = 0
        # Not its own iteration, which gives some empty matches twice.
        while at <= len(data) and (match := self._compiled.search(data, at)) is not None:
            start, at = match.span()
            if start == at:
                at += 1
                while at < len(data) and data[at] & 0xC0 == 0x80:  # noqa: PLR2004  # within a character
                    at += 1
            yield [place for group in groups for place in match.span(group)]


def compile_pattern(source: str, flags: str, *, captures: bool = False) -> Pattern | None:
    """Make a regex ready; null for what is no regular expression.

    `captures` is for those whose groups are asked for.

    Call `forget_compiled` after a run of these: RE2's module keeps the last patterns otherwise,
    and they are a user's text.
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
    """Empty the cache that RE2's module keeps of its own; compiled patterns stay usable."""
    re2.purge()
