"""Positions of an entry's keys in the messages, for display after a scan."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from backend.context.macros import MacroLimitError
from backend.core.text_forms import normalize
from backend.lorebooks.activation.compiled import CompiledEntry
from backend.lorebooks.activation.keys import Key, classify, is_whole
from backend.lorebooks.activation.outcome import Scan
from backend.lorebooks.activation.selection import percentage
from backend.regex.patterns import MAX_SCAN_WORK, PATTERN_SECONDS, Pattern

LOOKUP_COST: Final = 1_000
"""Fixed cost of a search, in characters, in addition to the text that it reads."""

_WORD: Final = re.compile(r"\S*")


class KeyMatch(NamedTuple):
    """The position of a key: message number (0 is the newest) and characters in its NFC form."""

    key: str
    is_secondary: bool
    message: int
    start: int
    end: int


class PlaceFinder:
    """Find the first positions of keys in the messages of a scan, newest message first.

    A regex is searched for in each message separately. Regexes that need the evaluator process
    report only a start, so the word there is returned. All searches share the work limit of a
    scan's regexes. Keys beyond the limit get no position.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._texts = [normalize("NFC", message.text) for message in scan.messages]
        self._folded: dict[int, tuple[str, list[int]]] = {}
        self._expanded: dict[str, Key | None] = {}
        self._work_left = MAX_SCAN_WORK
        self._seconds_left = scan.process_seconds

    def places(self, entry: CompiledEntry) -> list[KeyMatch]:
        """Return the first position of each key that occurs within the entry's scan depth."""
        return [
            KeyMatch(key.raw, is_secondary, *found)
            for keys, is_secondary in ((entry.primary, False), (entry.secondary, True))
            for key in keys
            if (found := self._first(entry, key)) is not None
        ]

    def roll(self, entry: CompiledEntry) -> float | None:
        """Return the drawn percentage. The entry activates if it is below its probability."""
        stored = entry.entry
        if not stored.use_probability or stored.probability >= 100:  # noqa: PLR2004  # per cent
            return None
        return percentage(self._scan.seed, entry.entry_id)

    def _first(self, entry: CompiledEntry, key: Key) -> tuple[int, int, int] | None:
        if self._work_left <= 0:
            return None
        expanded = self._expand(key) if key.has_macro else key
        if expanded is None:
            return None
        settings = self._scan.settings
        depth = settings.scan_depth if entry.scan_depth is None else entry.scan_depth
        if settings.min_activations and not entry.has_own_depth:
            depth = len(self._texts)
        for number in range(min(depth, len(self._texts))):
            span = self._find_in_message(entry, expanded, number)
            if span is not None:
                return number, *span
        return None

    def _expand(self, key: Key) -> Key | None:
        if key.raw not in self._expanded:
            self._expanded[key.raw] = None
            with contextlib.suppress(MacroLimitError):  # already noted by the scan
                self._expanded[key.raw] = classify(self._scan.expand(key.raw))
        return self._expanded[key.raw]

    def _find_in_message(
        self, entry: CompiledEntry, key: Key, number: int
    ) -> tuple[int, int] | None:
        text = self._texts[number]
        self._work_left -= LOOKUP_COST + len(text)
        if key.pattern is not None:
            return self._find_pattern(entry, key.pattern, text)
        settings = self._scan.settings
        sensitive = settings.case_sensitive if entry.sensitive is None else entry.sensitive
        whole = settings.match_whole_words if entry.whole is None else entry.whole
        if sensitive:
            return next(self._occurrences(key.exact, text, whole=whole and key.is_word), None)
        folded, origin = self._fold(number)
        for start, end in self._occurrences(key.folded, folded, whole=whole and key.is_word):
            return origin[start], origin[end - 1] + 1
        return None

    def _find_pattern(
        self, entry: CompiledEntry, pattern: Pattern, text: str
    ) -> tuple[int, int] | None:
        data = text.encode(errors="replace")
        if pattern.is_quick(len(data)):
            self._work_left -= pattern.work(len(data))
            start, end = (len(data[:at].decode(errors="replace")) for at in pattern.span(data))
            return (start, end) if end > start else None
        if (
            self._scan.evaluator is None
            or self._seconds_left < PATTERN_SECONDS
            or pattern.digest in entry.book.given_up
        ):
            return None
        answer = self._scan.evaluator.search(
            pattern.engine, pattern.source, text, seconds=PATTERN_SECONDS
        )
        self._seconds_left -= answer.seconds
        if answer.status != "found":
            return None
        word = _WORD.match(text, answer.start)
        return answer.start, max(answer.start + 1, word.end() if word else 0)

    def _fold(self, number: int) -> tuple[str, list[int]]:
        """Return a folded message and, per character, the index in the original."""
        if number not in self._folded:
            parts = [char.casefold() for char in self._texts[number]]
            origin = [at for at, part in enumerate(parts) for _ in part]
            self._folded[number] = "".join(parts), origin
        return self._folded[number]

    def _occurrences(self, key: str, text: str, *, whole: bool) -> Iterator[tuple[int, int]]:
        start = text.find(key) if key else -1
        while start >= 0 and self._work_left > 0:
            end = start + len(key)
            if not whole or is_whole(text, start, end):
                yield start, end
            self._work_left -= LOOKUP_COST
            start = text.find(key, start + 1)
