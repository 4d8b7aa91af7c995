"""Regex keys in a scan: each pattern once a text, and within the time that there is."""

from __future__ import annotations

from typing import Final

from backend.lorebooks.activation.compiled import CompiledEntry
from backend.lorebooks.activation.outcome import Scan
from backend.regex.patterns import MAX_SCAN_WORK, PATTERN_SECONDS, Answer, Pattern

LEAST_SECONDS: Final = 0.03
"""With less left of the scan's time a pattern is not tried: it could not be answered."""

MAX_NOTES: Final = 50


class PatternSearch:
    """Searches texts with patterns, and remembers what it found for as long as the scan."""

    def __init__(self, scan: Scan, notes: list[str]) -> None:
        self._evaluator = scan.evaluator
        self._seconds_left = scan.process_seconds
        self._unanswered: set[bytes] = set()
        self._work_left = MAX_SCAN_WORK
        self._notes = notes
        self._found: dict[tuple[bytes, int], int | None] = {}
        self._encoded: dict[int, bytes] = {}

    def find(
        self,
        entry: CompiledEntry,
        pattern: Pattern,
        number: int,
        text: str,
        *,
        process: bool,
    ) -> int | None:
        """Where `pattern` is found in `text`, in characters; null where it is not, or not known.

        Args:
            entry: For notes, and for what its book has given up.
            pattern: What to look for.
            number: Which text it is: the same number means the same text.
            text: The text.
            process: Whether it may be tried in the process, which takes time.
        """
        key = (pattern.digest, number)
        if key in self._found:
            return self._found[key]
        data = self._encode(number, text)
        if pattern.is_quick(len(data)):
            found = self._search(entry, pattern, data)
        elif not process or self._is_given_up(entry, pattern):
            return None
        else:
            found = self._ask(entry, pattern, text)
        self._found[key] = found
        return found

    def _is_given_up(self, entry: CompiledEntry, pattern: Pattern) -> bool:
        return pattern.digest in entry.book.given_up or pattern.digest in self._unanswered

    def _encode(self, number: int, text: str) -> bytes:
        data = self._encoded.get(number)
        if data is None:
            data = self._encoded[number] = text.encode(errors="replace")
        return data

    def _search(self, entry: CompiledEntry, pattern: Pattern, data: bytes) -> int | None:
        self._work_left -= pattern.work(len(data))
        if self._work_left < 0:
            self._note(entry, "was not tried: the regexes before it took what a scan may take")
            return None
        at = pattern.search(data)
        return None if at < 0 else len(data[:at].decode(errors="replace"))

    def _ask(self, entry: CompiledEntry, pattern: Pattern, text: str) -> int | None:
        if self._evaluator is None:
            self._note(entry, "was not tried: there is no process for such patterns")
            return None
        if self._seconds_left < LEAST_SECONDS:
            self._note(entry, "was not tried: others took the time there is for such patterns")
            return None
        answer = self._evaluator.search(
            pattern.engine,
            pattern.source,
            text,
            seconds=min(PATTERN_SECONDS, self._seconds_left),
        )
        self._seconds_left -= answer.seconds
        return self._read(entry, pattern, answer)

    def _read(self, entry: CompiledEntry, pattern: Pattern, answer: Answer) -> int | None:
        if answer.status == "found":
            return answer.start
        if answer.status == "late":
            entry.book.given_up.add(pattern.digest)
            self._note(entry, "took too long, and is not tried again until the book changes")
        elif answer.status == "invalid":
            entry.book.given_up.add(pattern.digest)
            self._note(entry, "is not a valid pattern")
        elif answer.status == "busy":
            self._unanswered.add(pattern.digest)
            self._note(
                entry, "was not answered: the machine, or the process for such patterns, was busy"
            )
        return None

    def _note(self, entry: CompiledEntry, what: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(f'A regex of entry "{entry.title}" {what}.')
