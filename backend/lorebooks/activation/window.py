"""What keys are looked for in: messages, fields of the cast, and entries that are already in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.lorebooks.activation.keys import Hits, Key, classify
from backend.lorebooks.activation.outcome import Scan
from backend.lorebooks.activation.patterns import Pattern
from backend.lorebooks.activation.searching import PatternSearch
from backend.lorebooks.activation.words import Folded
from backend.lorebooks.entries import MatchedField

MAX_SCANNED: Final = 1_000_000
"""Characters of messages that are read in a scan; older messages are not looked at."""

MESSAGE_START: Final = "\x01"
"""Stands before each message for regexes that name it, as in SillyTavern."""

_MARK_NAMES: Final = (r"\x{1}", r"\U00000001")  # in RE2's syntax and in that of `regex`

_FIELD_NAMES: Final[dict[MatchedField, str]] = {
    "persona_description": "the persona's description",
    "character_description": "the character's description",
    "character_personality": "the character's personality",
    "character_depth_prompt": "the character's note",
    "scenario": "the scenario",
    "creator_notes": "the creator's notes",
}


class Part:
    """Texts of one kind, in order, and which keys of each book occur in them."""

    def __init__(self, kind: str, books: Sequence[CompiledBook]) -> None:
        self.kind = kind
        self.texts: list[Folded] = []
        self.labels: list[str] = []
        self.hits = {book: Hits() for book in books}


class Look(NamedTuple):
    """Where and how the keys of an entry are looked for.

    Attributes:
        parts: Texts that count, what the book's keys hit in them, and how many of them.
        sensitive: Whether case counts.
        whole: Whether single words must stand as words.
        process: Whether a regex that RE2 does not take may be tried now.
    """

    parts: Sequence[tuple[Part, Hits, int]]
    sensitive: bool
    whole: bool
    process: bool


class Window:
    """The scanned texts. They only ever become more, and each is read once."""

    def __init__(self, scan: Scan) -> None:
        self.notes: list[str] = []
        self._scan = scan
        self._messages = Part("messages", scan.books)
        self._entries = Part("entries", scan.books)
        self._fields: dict[MatchedField, Part] = {}
        self._expanded: dict[str, Key | None] = {}
        self._joined: dict[tuple[int, bool], tuple[str, list[int]]] = {}
        self._patterns = PatternSearch(scan, self.notes)
        self._characters = 0
        for name, text in scan.fields.items():
            books = [book for book in scan.books if name in book.matched_fields]
            if books and text:
                self._fields[name] = Part(name, scan.books)
                self._add(self._fields[name], text, _FIELD_NAMES[name], books)

    def read(self, depth: int) -> None:
        """Read the newest `depth` messages, those that were not read yet."""
        for message in self._scan.messages[len(self._messages.texts) : depth]:
            if self._characters > MAX_SCANNED:
                return
            named = self._scan.settings.include_names and message.name
            text = f"{message.name}: {message.text}" if named else message.text
            self._characters += len(text)
            self._add(self._messages, text, message.label, self._scan.books)

    def add_entry(self, title: str, content: str, step: int) -> None:
        """Read the content of an entry that is in, for the next step of recursion."""
        label = f'entry "{title}" (recursion {step})'
        self._add(self._entries, content, label, self._scan.books)

    def fresh(self) -> tuple[set[CompiledEntry], set[CompiledEntry]]:
        """Entries of which something was found since the last call: a primary key; another key."""
        primary: set[CompiledEntry] = set()
        other: set[CompiledEntry] = set()
        for book in self._scan.books:
            for part in (self._messages, self._entries, *self._fields.values()):
                numbers = part.hits[book].fresh
                for number in numbers:
                    primary.update(book.by_key[number])
                    if number in book.by_other_key:
                        other.update(book.by_other_key[number])
                numbers.clear()
        return primary, other

    def look(self, entry: CompiledEntry, depth: int, *, recursion: bool, process: bool) -> Look:
        """Where to look for keys of `entry`: so many of the newest messages, and what it opted for.

        `recursion` adds the entries that are in.
        """
        settings, book = self._scan.settings, entry.book
        parts = [(self._messages, self._messages.hits[book], depth)]
        if entry.entry.match_fields:
            opted = [self._fields.get(name) for name in entry.entry.match_fields]
            parts += [(part, part.hits[book], 1) for part in opted if part is not None]
        if recursion and self._entries.texts:
            parts.append((self._entries, self._entries.hits[book], len(self._entries.texts)))
        sensitive = settings.case_sensitive if entry.sensitive is None else entry.sensitive
        whole = settings.match_whole_words if entry.whole is None else entry.whole
        return Look(parts, sensitive, whole, process)

    def where(self, entry: CompiledEntry, key: Key, look: Look) -> str | None:
        """What `key` occurs in, in words; null where it does not."""
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

    def _where_loose(self, key: Key, look: Look) -> str | None:
        for part, _, limit in look.parts:
            for place, text in enumerate(part.texts[:limit]):
                if key.is_in(text, sensitive=look.sensitive, whole=look.whole):
                    return part.labels[place]
        return None

    def _where_pattern(
        self, entry: CompiledEntry, key: Key, pattern: Pattern, look: Look
    ) -> str | None:
        """Messages are one text to a regex, so that it may span them; the rest are one each."""
        for part, hits, limit in look.parts:
            if key.hint is not None and key.hint.number >= 0:
                place = hits.text.get(key.hint.number)
                if place is None or place >= limit:
                    continue
            if part is self._messages:
                depth = min(limit, len(part.texts))
                place = self._place_in_messages(entry, pattern, depth, process=look.process)
            else:
                place = self._place_in_texts(entry, pattern, part, process=look.process)
            if place is not None:
                return part.labels[place]
        return None

    def _place_in_messages(
        self, entry: CompiledEntry, pattern: Pattern, depth: int, *, process: bool
    ) -> int | None:
        if not depth:
            return None
        is_marked = any(mark in pattern.source for mark in _MARK_NAMES)
        text, starts = self._join(depth, is_marked=is_marked)
        where = ("marked" if is_marked else "messages", depth)
        at = self._patterns.find(entry, pattern, where, text, process=process)
        return None if at is None else max(0, bisect_right(starts, at) - 1)

    def _place_in_texts(
        self, entry: CompiledEntry, pattern: Pattern, part: Part, *, process: bool
    ) -> int | None:
        for place, text in enumerate(part.texts):
            at = self._patterns.find(entry, pattern, (part.kind, place), text.raw, process=process)
            if at is not None:
                return place
        return None

    def _join(self, depth: int, *, is_marked: bool) -> tuple[str, list[int]]:
        """The newest messages as one text, newest first, and where each starts in it."""
        cached = self._joined.get((depth, is_marked))
        if cached is None:
            mark = MESSAGE_START if is_marked else ""
            texts = [mark + text.raw for text in self._messages.texts[:depth]]
            starts: list[int] = []
            at = 0
            for text in texts:
                starts.append(at)
                at += len(text) + 1
            cached = self._joined[depth, is_marked] = ("\n".join(texts), starts)
        return cached

    def _expand(self, key: Key) -> Key | None:
        if key.raw not in self._expanded:
            self._expanded[key.raw] = classify(self._scan.expand(key.raw))
        return self._expanded[key.raw]

    def _add(self, part: Part, text: str, label: str, books: Sequence[CompiledBook]) -> None:
        folded = Folded(text)
        place = len(part.texts)
        part.texts.append(folded)
        part.labels.append(label)
        for book in books:
            spelling = book.minds_case or self._scan.settings.case_sensitive
            within = book.takes_parts or not self._scan.settings.match_whole_words
            book.index.scan(folded, place, part.hits[book], spelling=spelling, within=within)
            if folded.is_changed:
                book.index.scan_hints(folded.raw, place, part.hits[book])
