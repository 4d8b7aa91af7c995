"""Markdown code in a text that is still growing: spans and fenced blocks."""

from __future__ import annotations

import re

MIN_FENCE = 3
"""The fewest backticks at the start of a line that open a fenced block."""

_PARTS = re.compile(r"`+|\n|[^`\n]+")


class CodeSpans:
    """Tracks whether the end of a growing text is inside Markdown code. Linear in the text.

    A span ends with its line at the latest, so that a single backtick affects one line. A fenced
    block ends at the next fence of at least its length.
    """

    __slots__ = ("_begins_line", "_fence", "_run", "_span")

    def __init__(self) -> None:
        self._fence = 0
        self._span = 0
        self._run = 0  # backticks at the end of the text so far
        self._begins_line = True

    def add(self, text: str) -> None:
        for match in _PARTS.finditer(text):
            part = match[0]
            if part[0] == "`":
                self._run += len(part)
                continue
            self._end_run()
            if part == "\n":
                self._span = 0
                self._begins_line = True
            elif not part.isspace():
                self._begins_line = False

    def ends_in_fence(self) -> bool:
        self._end_run()
        return self._fence > 0

    def ends_in_code(self) -> bool:
        """True if the text so far ends in a fence or a span. Call both before a non-backtick."""
        return self.ends_in_fence() or self._span > 0

    def _end_run(self) -> None:
        count, self._run = self._run, 0
        if not count:
            return
        if self._begins_line and count >= MIN_FENCE:
            if not self._fence:
                self._fence = count
            elif count >= self._fence:
                self._fence = 0
        elif not self._fence:
            if not self._span:
                self._span = count
            elif self._span == count:
                self._span = 0
        self._begins_line = False
