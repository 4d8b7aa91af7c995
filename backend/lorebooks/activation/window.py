"""The texts in which keys are searched: messages, fields of the cast and active entries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from backend.context.macros import MacroLimitError
from backend.core.reasons import FoundIn
from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.lorebooks.activation.keys import Folded, Hits, Key, classify
from backend.lorebooks.activation.outcome import TOO_MANY_MACROS, Scan
from backend.lorebooks.entries import MatchedField
from backend.regex.patterns import MAX_SCAN_WORK, PATTERN_SECONDS, Pattern

MIN_PATTERN_SECONDS: Final = 0.03
"""Minimum remaining time to try a pattern. With less, an answer would come too late."""

MAX_NOTES: Final = 50

MAX_SCANNED: Final = 1_000_000
"""Characters of messages that a scan reads. Older messages are ignored."""

MAX_WINDOW_WORK: Final = 100_000_000
"""Characters that all books of a scan read together, in about 0.2 s."""

BOOK_WORK: Final = 1_000
"""Fixed cost of searching a text with a book, in characters."""

MESSAGE_START: Final = "\x01"
"""Precedes each message for regexes that refer to it, as in SillyTavern."""

_MARK_NAMES: Final = (r"\x{1}", r"\U00000001", r"\A(?:")
"""The marker in RE2's syntax, in the syntax of `regex`, and a prefix that only flag y creates."""


class PatternSearch:
    """Search texts with patterns. Results are cached for the scan."""

    def __init__(self, scan: Scan, notes: list[str]) -> None:
        self._evaluator = scan.evaluator
        self._seconds_left = scan.process_seconds
        self._unanswered: set[bytes] = set()
        self._work_left = MAX_SCAN_WORK
        self._notes = notes
        self._found: dict[tuple[bytes, int], int | None] = {}
        self._encoded: dict[int, bytes] = {}

    def find(
        self, entry: CompiledEntry, pattern: Pattern, number: int, text: str, *, process: bool
    ) -> int | None:
        """Return the position of the first match in characters, or None if not found or unknown.

        Args:
            entry: The entry, for notes and for the abandoned patterns of its book.
            pattern: The pattern.
            number: The number of the text, which identifies it in the cache.
            text: The text.
            process: True if the slower evaluator process may be used.
        """
        key = (pattern.digest, number)
        if key in self._found:
            return self._found[key]
        data = self._encoded.get(number)
        if data is None:
            data = self._encoded[number] = text.encode(errors="replace")
        if pattern.is_quick(len(data)):
            found = self._search(entry, pattern, data)
        elif not process or (
            pattern.digest in entry.book.given_up or pattern.digest in self._unanswered
        ):
            return None
        else:
            found = self._ask(entry, pattern, text)
        self._found[key] = found
        return found

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
        if self._seconds_left < MIN_PATTERN_SECONDS:
            self._note(entry, "was not tried: others took the time there is for such patterns")
            return None
        seconds = min(PATTERN_SECONDS, self._seconds_left)
        answer = self._evaluator.search(pattern.engine, pattern.source, text, seconds=seconds)
        self._seconds_left -= answer.seconds
        if answer.status == "late":
            entry.book.given_up.add(pattern.digest)
            self._note(entry, "took too long, and is not tried again until the book changes")
        elif answer.status == "invalid":
            entry.book.given_up.add(pattern.digest)
            self._note(entry, "is not a valid pattern")
        elif answer.status == "unavailable":
            self._unanswered.add(pattern.digest)
            self._note(entry, "was not tried: the process for such patterns does not start")
        elif answer.status == "busy":
            self._unanswered.add(pattern.digest)
            self._note(
                entry, "was not answered: the machine, or the process for such patterns, was busy"
            )
        return answer.start if answer.status == "found" else None

    def _note(self, entry: CompiledEntry, problem: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(f'A regex of entry "{entry.title}" {problem}.')


class WindowPart:
    """Texts of one kind, in order, and the matching keys of each book."""

    def __init__(self, kind: str, books: Sequence[CompiledBook]) -> None:
        self.kind = kind
        self.texts: list[Folded] = []
        self.labels: list[FoundIn] = []
        self.hits = {book: Hits() for book in books}


class Look(NamedTuple):
    """The texts to search for an entry's keys, and the search options.

    Attributes:
        parts: Per kind, the texts, the hits of the book in them, and how many texts count.
        sensitive: True if the search is case-sensitive.
        whole: True if keys of one word match only whole words.
        process: True if a regex that RE2 does not support may be tried now.
    """

    parts: Sequence[tuple[WindowPart, Hits, int]]
    sensitive: bool
    whole: bool
    process: bool


class _JointText(NamedTuple):
    """Texts joined into one, its number, and the offset of each text."""

    number: int
    text: str
    starts: list[int]
    labels: list[FoundIn]


class ScanWindow:
    """The scanned texts. Texts are only added, and each is read once."""

    def __init__(self, scan: Scan) -> None:
        self.notes: list[str] = []
        self._scan = scan
        self._messages = WindowPart("messages", scan.books)
        self._entries = WindowPart("entries", scan.books)
        self._note = WindowPart("note", scan.books)
        self._fields: dict[MatchedField, WindowPart] = {}
        self._expanded: dict[str, Key | None] = {}
        self._joined: dict[tuple[bool, tuple[tuple[str, int], ...]], _JointText] = {}
        self._patterns = PatternSearch(scan, self.notes)
        self._characters = 0
        self._work_left = MAX_WINDOW_WORK
        for name, text in scan.fields.items():
            books = [book for book in scan.books if name in book.matched_fields]
            if books and text:
                self._fields[name] = WindowPart(name, scan.books)
                self._add(self._fields[name], text, FoundIn(name), books)
        if scan.note:
            self._add(self._note, scan.note, FoundIn("authors_note"), scan.books)

    def read(self, depth: int) -> None:
        """Read the newest `depth` messages, except those already read."""
        for message in self._scan.messages[len(self._messages.texts) : depth]:
            if self._characters > MAX_SCANNED:
                return
            named = self._scan.settings.include_names and message.name
            text = f"{message.name}: {message.text}" if named else message.text
            self._characters += len(text)
            self._add(self._messages, text, message.label, self._scan.books)

    def add_entry(self, title: str, content: str, step: int) -> None:
        """Add the content of an active entry, for the next recursion step."""
        self._add(self._entries, content, FoundIn("entry", step, title), self._scan.books)

    def fresh(self) -> tuple[set[CompiledEntry], set[CompiledEntry]]:
        """Return entries with new matches of primary keys and of other keys since the last call."""
        primary: set[CompiledEntry] = set()
        other: set[CompiledEntry] = set()
        for book in self._scan.books:
            for part in (self._messages, self._note, self._entries, *self._fields.values()):
                numbers = part.hits[book].fresh
                for number in numbers:
                    primary.update(book.by_key[number])
                    other.update(book.by_other_key.get(number, ()))
                numbers.clear()
        return primary, other

    def look(self, entry: CompiledEntry, depth: int, *, recursion: bool, process: bool) -> Look:
        """Return the search for keys of `entry` in the newest `depth` messages and opted fields.

        If `recursion` is set, the contents of active entries are included.
        """
        settings, book = self._scan.settings, entry.book
        parts = [(self._messages, self._messages.hits[book], depth)]
        opted = [self._fields.get(name) for name in entry.entry.match_fields]
        parts += [(part, part.hits[book], 1) for part in opted if part is not None]
        if self._note.texts:
            parts.append((self._note, self._note.hits[book], 1))
        if recursion and self._entries.texts:
            parts.append((self._entries, self._entries.hits[book], len(self._entries.texts)))
        sensitive = settings.case_sensitive if entry.sensitive is None else entry.sensitive
        whole = settings.match_whole_words if entry.whole is None else entry.whole
        return Look(parts, sensitive, whole, process)

    def where(self, entry: CompiledEntry, key: Key, look: Look) -> FoundIn | None:
        """Return the label of the first text that contains `key`, or None."""
        if key.has_macro:
            expanded = self._expand(key)
            if expanded is None:
                return None
            key = expanded
        if key.pattern is not None:
            return self._where_pattern(entry, key, key.pattern, look)
        if key.number < 0:
            return self._where_loose(key, look)
        parts, sensitive, whole, _ = look
        for part, hits, limit in parts:
            place = hits.place(key, sensitive=sensitive, whole=whole)
            if place is not None and place < limit:
                return part.labels[place]
        return None

    def _where_loose(self, key: Key, look: Look) -> FoundIn | None:
        for part, _, limit in look.parts:
            for place, text in enumerate(part.texts[:limit]):
                if key.occurs_in(text, sensitive=look.sensitive, whole=look.whole):
                    return part.labels[place]
        return None

    def _where_pattern(
        self, entry: CompiledEntry, key: Key, pattern: Pattern, look: Look
    ) -> FoundIn | None:
        """Join all texts for a regex, because it may match across messages."""
        if (hint := key.hint) is not None and hint.number >= 0:
            places = ((hits.text.get(hint.number), limit) for _, hits, limit in look.parts)
            if not any(place is not None and place < limit for place, limit in places):
                return None
        joined = self._join(look, is_marked=any(mark in pattern.source for mark in _MARK_NAMES))
        if not joined.starts:
            return None
        at = self._patterns.find(entry, pattern, joined.number, joined.text, process=look.process)
        return None if at is None else joined.labels[max(0, bisect_right(joined.starts, at) - 1)]

    def _join(self, look: Look, *, is_marked: bool) -> _JointText:
        """Return the texts of a search as one, newest message first."""
        kind = is_marked, tuple((part.kind, limit) for part, _, limit in look.parts)
        joined = self._joined.get(kind)
        if joined is None:
            mark = MESSAGE_START if is_marked else ""
            texts: list[str] = []
            labels: list[FoundIn] = []
            for part, _, limit in look.parts:
                texts += [mark + text.raw for text in part.texts[:limit]]
                labels += part.labels[:limit]
            starts = list(accumulate((len(text) + 1 for text in texts[:-1]), initial=0))
            joined = self._joined[kind] = _JointText(
                len(self._joined), "\n".join(texts), starts if texts else [], labels
            )
        return joined

    def _expand(self, key: Key) -> Key | None:
        if key.raw not in self._expanded:
            self._expanded[key.raw] = None
            try:
                self._expanded[key.raw] = classify(self._scan.expand(key.raw))
            except MacroLimitError:
                self.notes.append(TOO_MANY_MACROS)
        return self._expanded[key.raw]

    def _add(
        self, part: WindowPart, text: str, label: FoundIn, books: Sequence[CompiledBook]
    ) -> None:
        folded = Folded(text)
        place = len(part.texts)
        part.texts.append(folded)
        part.labels.append(label)
        for book in books:
            self._work_left -= len(text) + BOOK_WORK
            if self._work_left < 0:
                self.notes.append("So many books are too much to look for in so much text.")
                return
            spelling = book.minds_case or self._scan.settings.case_sensitive
            within = book.takes_parts or not self._scan.settings.match_whole_words
            book.index.scan(folded, place, part.hits[book], spelling=spelling, within=within)
            if folded.is_changed:
                book.index.scan_hints(folded.raw, place, part.hits[book])
