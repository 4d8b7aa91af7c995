"""Lorebooks compiled for scans. Work that does not depend on the chat is done once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import LoreMode
from backend.context.macros import may_hold_macros
from backend.generation.model import Role
from backend.lorebooks.activation.keys import Key, KeyIndex, classify, find_hint
from backend.lorebooks.activation.timed import fingerprint
from backend.lorebooks.entries import BookFields, LoreEntry, Position, find_mode
from backend.regex.javascript import parse_key
from backend.regex.patterns import REFUSED_SIZE, forget_compiled

_LINE = re.compile(r"(@{2,3}+)(\w++)(?:[ \t]++(.*+))?")
_MAX_NUMBER = 100_000
_MAX_WORDS = 200
_POSITIONS: dict[str, Position] = {
    "before_desc": "before_character",
    "after_desc": "after_character",
    # Prompts have no slots for these two, so the nearest slot is used.
    "personality": "after_character",
    "scenario": "after_character",
}


class Decorators(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings from the decorators of an entry. None means that a decorator is absent."""

    activate_only_after: int | None = None
    activate_only_every: int | None = None
    keep_activate_after_match: bool = False
    dont_activate_after_match: bool = False
    activate: bool = False
    dont_activate: bool = False
    is_greeting: int | None = None
    scan_depth: int | None = None
    additional_keys: tuple[str, ...] = ()
    exclude_keys: tuple[str, ...] = ()
    position: Position | None = None
    depth: int | None = None
    reverse_depth: int | None = None
    role: Role | None = None
    ignore_on_max_context: bool = False
    disable_ui_prompt: str = ""

    @property
    def counts_replies(self) -> bool:
        """True if the number of replies in the chat matters."""
        return self.activate_only_after is not None or self.activate_only_every is not None


NO_DECORATORS = Decorators()


def split_decorators(content: str) -> tuple[Decorators, str]:
    """Split `content` into the decorators at its start and the remaining text."""
    if not content.lstrip().startswith("@@"):
        return NO_DECORATORS, content
    said: dict[str, Any] = {}
    lines = content.lstrip().splitlines(keepends=True)
    settled = True  # an `@@@` line is a fallback only after a decorator that failed
    used = 0
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            break
        used += 1
        marks, name, text = match.groups("")
        if marks == "@@@" and settled:
            continue
        read = _READERS.get(name)
        value = read(text.strip()) if read else None
        settled = value is not None
        if settled:
            said.setdefault(name, value)  # the first decorator of a name counts
    if not used:
        return NO_DECORATORS, content
    return Decorators(**said), "".join(lines[used:])


def _flag(text: str) -> bool | None:
    return None if text else True


def _number(text: str) -> int | None:
    try:
        return max(0, min(_MAX_NUMBER, int(float(text))))
    except (ValueError, OverflowError):
        return None


def _positive(text: str) -> int | None:
    return _number(text) or None


def _words(text: str) -> tuple[str, ...] | None:
    return (
        tuple(word for part in text.split(",", _MAX_WORDS)[:_MAX_WORDS] if (word := part.strip()))
        or None
    )


def _role(text: str) -> str | None:
    return text.lower() if text.lower() in {"system", "user", "assistant"} else None


def _position(text: str) -> str | None:
    return _POSITIONS.get(text.strip("\"'").lower())


def _text(text: str) -> str | None:
    return text.strip("\"'")[:200] or None


_READERS: dict[str, Callable[[str], object]] = {
    "activate_only_after": _number,
    "activate_only_every": _positive,
    "keep_activate_after_match": _flag,
    "dont_activate_after_match": _flag,
    "activate": _flag,
    "dont_activate": _flag,
    "is_greeting": _number,
    "scan_depth": _number,
    "additional_keys": _words,
    "exclude_keys": _words,
    "position": _position,
    "depth": _number,
    "reverse_depth": _number,
    "role": _role,
    "ignore_on_max_context": _flag,
    "disable_ui_prompt": _text,
}


MAX_REGEX_SIZE: Final = 1_000_000
"""Total size of a book's regexes, in RE2 instructions. Regexes beyond it are ignored."""

MAX_LOOSE_KEYS: Final = 2_000
"""Keys of a book that are searched for individually."""

MAX_NOTES: Final = 20

LONGEST_TOKEN: Final = 128
"""Characters of the longest token of any vocabulary: o200k_base has a token of 128 spaces."""

_MACRO_MARKS: Final = ("{{", "<USER>", "<BOT>", "<CHAR>")

Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class CompiledEntry:
    """An entry with its decorators applied and its keys classified.

    `scan_depth`, `sensitive`, `whole`, `scoring` and `mode` are None if neither entry nor book sets
    them. `has_own_depth` is True if `scan_depth` comes from the entry, not from the book.
    `from_start` replaces `depth` if `@@reverse_depth` is set: messages after the first of the chat.
    `keys` is a fingerprint, or 0 if the entry has no timed effects. `is_indexed` is True if the
    automaton contains all keys of the entry, so only a match there can change its result.
    `is_plain` is True if the keys alone decide. If `has_macros` is set, `content` must be expanded.
    Otherwise `counts` caches its token counts by vocabulary. `least_tokens` is the minimum number
    of tokens of a non-empty content.
    """

    book: CompiledBook
    entry_id: UUID
    place: int
    entry: LoreEntry
    title: str
    content: str
    says: Decorators
    primary: tuple[Key, ...]
    secondary: tuple[Key, ...]
    additional: tuple[Key, ...]
    excluded: tuple[Key, ...]
    groups: tuple[str, ...]
    position: Position
    depth: int
    from_start: int | None
    role: Role
    scan_depth: int | None
    has_own_depth: bool
    sensitive: bool | None
    whole: bool | None
    scoring: bool | None
    mode: LoreMode | None
    has_macros: bool
    least_tokens: int
    keys: int = 0
    is_indexed: bool = True
    is_plain: bool = False
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_timed(self) -> bool:
        """True if an activation must be stored."""
        return bool(self.entry.sticky or self.entry.cooldown or self.is_remembered)

    @property
    def is_remembered(self) -> bool:
        """True if an activation has a permanent effect."""
        return self.says.keep_activate_after_match or self.says.dont_activate_after_match


class CompiledBook:
    """A compiled lorebook that many threads can scan.

    Only `given_up` and the `counts` of the entries ever change.

    Args:
        book_id: The id of the book.
        revision: The compiled revision.
        fields: The settings of the book.
        entries: The id, position in the book and data of each entry.

    Attributes:
        by_key: Entries by the automaton's number of a primary key.
        by_other_key: Entries by the automaton's number of any other key.
        always: Entries that every scan checks: constant entries and entries with a key that is
            not in the automaton.
        matched_fields: Fields of the cast that some entry searches.
        levels: Recursion levels of delayed entries.
        deepest: The largest scan depth that an entry sets itself, or 0.
        minds_case: True if some entry is case-sensitive by its own or the book's setting.
        takes_parts: True if some entry accepts parts of words by its own or the book's setting.
        is_timed: True if activations of some entry must be stored.
        asks_replies: True if a decorator counts the replies of the chat.
        asks_greeting: True if a decorator depends on the greeting of the chat.
        needs_process: True if some regexes need the evaluator process.
        modes: Activation modes of the entries by their own or the book's setting.
        given_up: Digests of regexes that timed out. They are not tried again.
        notes: Problems with keys, addressed to the author.
    """

    def __init__(
        self,
        book_id: UUID,
        revision: int,
        fields: BookFields,
        entries: Iterable[tuple[UUID, int, LoreEntry]],
    ) -> None:
        self.book_id, self.revision, self.fields = book_id, revision, fields
        reader = _KeyReader()
        self.entries = [
            _compile_entry(self, reader, entry_id, place, entry)
            for entry_id, place, entry in entries
        ]
        forget_compiled()
        self.by_id = {entry.entry_id: entry for entry in self.entries}
        self.index = KeyIndex(reader.plain)
        reader.drop_loose()
        self.always: list[CompiledEntry] = []
        self.by_key: list[list[CompiledEntry]] = [[] for _ in range(self.index.size)]
        self.by_other_key: dict[int, list[CompiledEntry]] = {}
        for entry in self.entries:
            self._enlist(entry)
        stored = [entry.entry for entry in self.entries]
        self.matched_fields = {name for entry in stored for name in entry.match_fields}
        self.levels = {entry.delay_until_recursion for entry in stored} - {0}
        self.deepest = max(
            (entry.scan_depth or 0 for entry in self.entries if entry.has_own_depth), default=0
        )
        self.takes_parts = any(entry.whole is False for entry in self.entries)
        self.minds_case = any(entry.sensitive for entry in self.entries)
        self.is_timed = any(entry.is_timed for entry in self.entries)
        self.asks_replies = any(entry.says.counts_replies for entry in self.entries)
        self.asks_greeting = any(entry.says.is_greeting is not None for entry in self.entries)
        self.modes = {entry.mode for entry in self.entries}
        self.needs_process = reader.needs_process
        self.notes = reader.notes
        self.given_up: set[bytes] = set()

    def _enlist(self, entry: CompiledEntry) -> None:
        """Add the entry to the indexes. Skip it if nothing can activate it."""
        primary = {_find_number(key) for key in entry.primary}
        others = {
            _find_number(key) for key in (*entry.secondary, *entry.additional, *entry.excluded)
        }
        # A regex can match across texts, so a new text can complete an earlier one.
        has_patterns = any(key.pattern for key in (*entry.primary, *entry.secondary))
        entry.is_indexed = not has_patterns and -1 not in primary and -1 not in others
        if entry.entry.constant or entry.says.activate or -1 in primary:
            self.always.append(entry)
        for number in primary - {-1}:
            self.by_key[number].append(entry)
        for number in others - primary - {-1}:
            self.by_other_key.setdefault(number, []).append(entry)


def _find_number(key: Key) -> int:
    """Return the number of the key, or of the hint of a regex, in the automaton; -1 if none."""
    return key.hint.number if key.hint is not None else key.number


class _KeyReader:
    """Classify the keys of one book within cost limits."""

    def __init__(self) -> None:
        self.plain: list[Key] = []
        self.notes: list[str] = []
        self.needs_process = False
        self._known: dict[str, Key | None] = {}
        self._regex_size = 0
        self._macros = 0

    def read(self, raws: Sequence[str], *, keep_all: bool = False) -> tuple[Key, ...]:
        """Return the keys that can match. Equal keys are one object.

        If `keep_all` is set, each key that cannot match is replaced by one that occurs nowhere.
        """
        keys: list[Key] = []
        for raw in raws:
            if raw not in self._known:
                self._known[raw] = self._classify(raw)
            key = self._known[raw]
            if key is None and keep_all:
                key = Key(raw)
                key.match_nothing()
            if key is not None:
                keys.append(key)
        return tuple(keys)

    def _classify(self, raw: str) -> Key | None:
        if any(mark in raw for mark in _MACRO_MARKS):
            self._macros += 1
            return Key(raw, has_macro=True) if self._macros <= MAX_LOOSE_KEYS else None
        is_regex = raw.lstrip().startswith("/") and parse_key(raw.strip()) is not None
        if is_regex and self._regex_size > MAX_REGEX_SIZE:
            self._note(f"The regex {raw} is left out: the book's regexes are too large together.")
            return None
        key = classify(raw)
        if key is None:
            return None
        if key.pattern is not None:
            self._regex_size += max(key.pattern.size, 16)
            self.needs_process |= key.pattern.engine == "regex"
            key.hint = find_hint(key.pattern)
            if key.hint is not None:
                self.plain.append(key.hint)
            return key
        if is_regex:
            self._regex_size += REFUSED_SIZE
            self._note(f"The key {raw} looks like a regex, but is none: it is taken as text.")
        self.plain.append(key)
        return key

    def drop_loose(self) -> None:
        """Disable the keys beyond MAX_LOOSE that are not in the automaton."""
        loose = [key for key in self.plain if key.number < 0]
        for key in loose[MAX_LOOSE_KEYS:]:
            key.match_nothing()
        if len(loose) > MAX_LOOSE_KEYS:
            self._note("Too many keys are endings of each other: some are left out.")

    def _note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)


def _compile_entry(
    book: CompiledBook, reader: _KeyReader, entry_id: UUID, place: int, entry: LoreEntry
) -> CompiledEntry:
    fields = book.fields
    says, content = split_decorators(entry.content)
    has_depth = says.position is None and says.depth is not None
    has_reverse = not has_depth and says.position is None and says.reverse_depth is not None
    has_macros = may_hold_macros(content)
    length = 0 if has_macros else len(content)
    compiled = CompiledEntry(
        book=book,
        entry_id=entry_id,
        place=place,
        entry=entry,
        title=entry.title or next(iter(entry.keys), "") or f"Entry {place + 1}",
        content=content,
        says=says,
        primary=reader.read(entry.keys),
        secondary=reader.read(entry.secondary_keys, keep_all=True) if entry.selective else (),
        additional=reader.read(says.additional_keys),
        excluded=reader.read(says.exclude_keys),
        groups=tuple(name for part in entry.group.split(",") if (name := part.strip())),
        position="at_depth" if has_depth or has_reverse else says.position or entry.position,
        depth=says.depth if has_depth and says.depth is not None else entry.depth,
        from_start=says.reverse_depth if has_reverse else None,
        role=says.role or entry.role,
        scan_depth=_first(says.scan_depth, entry.scan_depth, fields.scan_depth),
        has_own_depth=says.scan_depth is not None or entry.scan_depth is not None,
        sensitive=_first(entry.case_sensitive, fields.case_sensitive),
        whole=_first(entry.match_whole_words, fields.match_whole_words),
        scoring=_first(entry.use_group_scoring, fields.use_group_scoring),
        mode=find_mode(entry, fields),
        has_macros=has_macros,
        least_tokens=max(1, length // LONGEST_TOKEN) if content.strip() else 0,
    )
    if compiled.is_timed:
        compiled.keys = fingerprint(entry)
    compiled.is_plain = (
        says is NO_DECORATORS
        and entry.enabled
        and not (entry.constant or entry.triggers or entry.delay or compiled.is_timed)
        and not (entry.exclude_recursion or entry.delay_until_recursion)
        and not (entry.character_filter.names or entry.character_filter.tags)
    )
    return compiled


def _first(*values: Value | None) -> Value | None:
    return next((value for value in values if value is not None), None)
