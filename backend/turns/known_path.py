"""Token sums along the lines of a path that a viewpoint may know."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class KnownPath:
    """Converts stored tokens from the root: those of all lines, and those of known lines alone.

    A history of known lines is cut by their own sums: lines that the viewpoint may not know take
    no room in it.

    Attributes:
        begins: For each line that is not known, the tokens of all lines before it, in order.
        totals: For each of these lines, and after the last one, the tokens of those before it.
    """

    begins: tuple[int, ...] = ()
    totals: tuple[int, ...] = (0,)

    @classmethod
    def without(cls, lines: Iterable[tuple[int, int]]) -> KnownPath:
        """Return the path without some lines: (tokens of all lines before it, its own tokens)."""
        rows = list(lines)
        return cls(
            tuple(begin for begin, _ in rows),
            tuple(accumulate((tokens for _, tokens in rows), initial=0)),
        )

    def to_known(self, path_tokens: int) -> int:
        """Return the tokens of known lines among the first `path_tokens` of the path."""
        return path_tokens - self.totals[bisect_left(self.begins, path_tokens)]

    def to_path(self, known_tokens: int) -> int:
        """Return the tokens of all lines down to where known lines have `known_tokens`."""
        place = bisect_left(
            range(len(self.begins)),
            known_tokens,
            key=lambda number: self.begins[number] - self.totals[number],
        )
        return known_tokens + self.totals[place]
