"""A lorebook made ready for scans: all the work that does not depend on the chat, done once."""

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
    # The two have no slot of their own; this is the nearest.
    "personality": "after_character",
    "scenario": "after_character",
}


class Decorators(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an entry's decorators say. Null: not said."""

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
        """Whether it matters how many replies the chat has."""
        return self.activate_only_after is not None or self.activate_only_every is not None


NO_DECORATORS = Decorators()


def split_decorators(content: str) -> tuple[Decorators, str]:
    """Take the decorators from the head of `content`: what they say, and what is left."""
    if not content.lstrip().startswith("@@"):
        return NO_DECORATORS, content
    said: dict[str, Any] = {}
    lines = content.lstrip().splitlines(keepends=True)
    settled = True  # a fallback without a decorator before it is none
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
            said.setdefault(name, value)  # of several with one name the first
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
"""What the regexes of a book may come to, in RE2's instructions; the rest are left out."""

MAX_LOOSE_KEYS: Final = 2_000
"""How many keys of a book are looked for one by one."""

MAX_NOTES: Final = 20

LONGEST_TOKEN: Final = 128
"""Characters of the longest token of any vocabulary: o200k_base has one of so many spaces."""

_MACRO_MARKS: Final = ("{{", "<USER>", "<BOT>", "<CHAR>")

Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class CompiledEntry:
    """An entry, its decorators applied and its keys classified.

    Null in `scan_depth`, `sensitive`, `whole`, `scoring` and `mode`: neither entry nor book says.
    `has_own_depth` means that `scan_depth` is the entry's own word, not the book's.
    `from_start` is set in place of `depth` by `@@reverse_depth`: messages after the chat's first.
    `keys` is a fingerprint, 0 for an entry without timed effects. `is_indexed` means that the
    automaton knows of all its keys: nothing changes for it unless that finds something. `is_plain`
    means that its keys alone decide. `has_macros` means that `content` has to be expanded; without,
    `counts` keeps its tokens by vocabulary. `least_tokens` is what it takes at least, if anything
    is left of it.
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
        """Whether an activation must be remembered."""
        return bool(self.entry.sticky or self.entry.cooldown or self.is_remembered)

    @property
    def is_remembered(self) -> bool:
        """Whether an activation means something for good."""
        return self.says.keep_activate_after_match or self.says.dont_activate_after_match


class CompiledBook:
    """A lorebook, ready to be scanned by many threads.

    Only `given_up` and the entries' `counts` ever change.

    Args:
        book_id: Its id.
        revision: Which one was compiled.
        fields: What it says of itself.
        entries: Id, place in the book, and the entry.

    Attributes:
        by_key: Entries by the automaton's number of a primary key.
        by_other_key: The same by those of their other keys.
        always: Entries that are looked at in every scan: constant ones, and those with a key that
            is not in the automaton.
        matched_fields: Fields of the cast that some entry looks into.
        levels: Levels of recursion that entries wait for.
        deepest: The largest scan depth that an entry has of its own; 0 without.
        minds_case: Whether an entry does, by its own or the book's word.
        takes_parts: Whether an entry is content with a part of a word, by its own or the book's
            word.
        is_timed: Whether an activation of some entry must be remembered.
        asks_replies: Whether a decorator counts the replies of the chat.
        asks_greeting: Whether a decorator asks which greeting the chat was opened with.
        needs_process: Whether it has regexes for which the evaluator's process should be ready.
        modes: How its entries are found, by their own or the book's word.
        given_up: Digests of regexes that took too long, which are not tried again.
        notes: What is wrong with keys, for their author.
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
        """Put an entry where scans find it. One that nothing can make active is put nowhere."""
        primary = {_find_number(key) for key in entry.primary}
        others = {
            _find_number(key) for key in (*entry.secondary, *entry.additional, *entry.excluded)
        }
        # A regex may span texts, so that a new one can complete what an older one began.
        has_patterns = any(key.pattern for key in (*entry.primary, *entry.secondary))
        entry.is_indexed = not has_patterns and -1 not in primary and -1 not in others
        if entry.entry.constant or entry.says.activate or -1 in primary:
            self.always.append(entry)
        for number in primary - {-1}:
            self.by_key[number].append(entry)
        for number in others - primary - {-1}:
            self.by_other_key.setdefault(number, []).append(entry)


def _find_number(key: Key) -> int:
    """What to look for in the automaton before the key is looked for; -1 where there is nothing."""
    return key.hint.number if key.hint is not None else key.number


class _KeyReader:
    """Classifies the keys of one book, within limits on what they may cost."""

    def __init__(self) -> None:
        self.plain: list[Key] = []
        self.notes: list[str] = []
        self.needs_process = False
        self._known: dict[str, Key | None] = {}
        self._regex_size = 0
        self._macros = 0

    def read(self, raws: Sequence[str], *, keep_all: bool = False) -> tuple[Key, ...]:
        """The keys that can match something. A key that stands twice is one object.

        `keep_all` gives a key that occurs nowhere for each that can't match.
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
        """Make keys that the automaton did not take match nothing, past a number of them."""
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
