"""Proposals of the agent, their validation, and the marks of items that the model was shown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import msgspec

from backend.chronicles.events import MAX_SOURCES, EventFields, render_event
from backend.chronicles.repository import SourceMessage, StoryEvent
from backend.core.audience import NAMELESS_MARKS, AudienceMarks, put_mark
from backend.database.base import new_id
from backend.enrichment.agent.lookup import KnownEntry
from backend.enrichment.agent.tools import UpdateChronicleEvent, UpdateLorebookEntry
from backend.enrichment.cleaning import clean_paragraphs, indent_text, to_one_line
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import StoryLine
from backend.lorebooks.entries import LoreEntry
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.terms import COMMON_WORDS

MAX_ENTRY_CHARACTERS = 6_000
"""Maximum characters of an entry that text is appended to."""

_MIN_KEY_LENGTH = 2


class Retelling(NamedTuple):
    """An event that is told again to others, at the revision that was compared."""

    event_id: UUID
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedEvent:
    """An event to write. `id` is provisional until it is stored.

    `supersedes` is an event, or a proposal of the same run, that is no longer true. `mends` is the
    revision of that event if the new one only corrects it. `retells` is an existing event with the
    same facts that some of the audience did not know: it gets the messages of this one.
    """

    id: UUID
    fields: EventFields
    significance: int
    sources: Sequence[SourceMessage]
    happened_at: datetime
    place: int
    supersedes: UUID | None = None
    mends: int | None = None
    retells: Retelling | None = None
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedEntry:
    """An entry to write into the chronicle's own lorebook. `id` is provisional."""

    id: UUID
    entry: LoreEntry
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """A new version of an entry. `id` and `revision` are those of the row that was read."""

    id: UUID
    book_id: UUID
    revision: int
    entry: LoreEntry
    because: str = ""


Proposal = ProposedEvent | ProposedEntry | ProposedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The result of reading some messages: the proposals and the details of the run.

    `seen` are the ids of the events that the proposals were compared with.
    """

    detail: RunDetail
    proposals: Sequence[Proposal] = ()
    seen: Collection[UUID] = ()


class RefusedCallError(Exception):
    """A tool call is refused. The model receives the reason and can react to it."""

    def __init__(self, reason: str, *, duplicate_of: UUID | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.duplicate_of = duplicate_of


def refuse_pinned(mark: str) -> RefusedCallError:
    """Return the error for changing an event that the user has pinned."""
    return RefusedCallError(
        f"{quote_mark(mark)} was pinned by the user: it is neither changed nor superseded."
    )


def read_text(text: str, name: str) -> str:
    """Return a text as one line. Raises `RefusedCallError` if it has no letters or digits."""
    line = to_one_line(text)
    if not any(map(str.isalnum, line)):
        raise RefusedCallError(f"{name} is empty.")
    return line


def read_content(text: str) -> str:
    """Return the content of an entry. Raises `RefusedCallError` if it has no letters or digits."""
    content = clean_paragraphs(text)
    if not any(map(str.isalnum, content)):
        raise RefusedCallError("The content is empty.")
    return content


def read_words(words: Sequence[str]) -> list[str]:
    """Return names or keywords, cleaned and without duplicates."""
    return list(dict.fromkeys(filter(None, map(to_one_line, words))))


def read_keys(keys: Sequence[str]) -> list[str]:
    """Return the keys of an entry. Raises `RefusedCallError` for patterns and very common words."""
    cleaned = read_words(keys)
    for key in cleaned:
        if key.startswith("/"):
            raise RefusedCallError(f"The key {key} is a pattern. Keys are plain words.")
        if not any(map(str.isalnum, key)):
            raise RefusedCallError(f"The key {key} is not a word.")
        is_short = len(key) < _MIN_KEY_LENGTH and key.isascii()
        if is_short or key.casefold() in COMMON_WORDS:
            raise RefusedCallError(f"The key {key} occurs everywhere. Take a name.")
    if not cleaned:
        raise RefusedCallError("There is no key.")
    return cleaned


def quote_mark(text: str) -> str:
    """Return an invalid mark of the model in a form that can be quoted."""
    return to_one_line(text)[:10] or "Nothing"


def apply_to_event(
    event: StoryEvent | ProposedEvent, call: UpdateChronicleEvent, *, source: SourceMessage
) -> ProposedEvent:
    """Return an event with the changes of a call, which supersedes the existing event.

    If `source`, the last new line, is swiped away, the existing event is current again. A proposal
    of this run is replaced. Raises `RefusedCallError`.
    """
    if isinstance(event, StoryEvent) and event.is_pinned:
        raise refuse_pinned(call.event)
    if isinstance(event, StoryEvent) and event.is_users:
        raise RefusedCallError(
            f"{call.event} is the user's own: it is not changed. If it is no longer true, create "
            "an event that supersedes it."
        )
    changes: dict[str, Any] = {
        "summary": None if call.summary is None else read_text(call.summary, "summary"),
        "kind": call.kind,
        "day": call.story_day,
        "time": None if call.story_time is None else to_one_line(call.story_time),
        "where": None if call.where is None else to_one_line(call.where),
        "who": None if call.who is None else read_words(call.who),
        "keywords": None if call.keywords is None else read_words(call.keywords),
    }
    named = {name: value for name, value in changes.items() if value is not None}
    fields = msgspec.structs.replace(event.fields, **named)
    significance = call.significance or event.significance
    if fields == event.fields and significance == event.significance:
        raise RefusedCallError(f"{call.event} already says that.")
    is_stored = isinstance(event, StoryEvent)
    return ProposedEvent(
        id=new_id() if is_stored else event.id,
        fields=fields,
        significance=significance,
        sources=[*event.sources, source][-MAX_SOURCES:] if is_stored else event.sources,
        happened_at=event.happened_at,
        place=event.place,
        supersedes=event.id if isinstance(event, StoryEvent) else event.supersedes,
        mends=event.revision if isinstance(event, StoryEvent) else event.mends,
        because=to_one_line(call.because),
    )


def apply_to_entry(
    known: KnownEntry | ProposedEntry, call: UpdateLorebookEntry
) -> ProposedChange | ProposedEntry:
    """Return an entry with replaced or appended content. Raises `RefusedCallError`."""
    if (call.content is None) == (call.append is None):
        raise RefusedCallError("Give either content or append.")
    if call.content is not None:
        content = read_content(call.content)
    else:
        content = f"{known.entry.content.rstrip()}\n{read_content(call.append or '')}"
    if len(content) > max(MAX_ENTRY_CHARACTERS, len(known.entry.content)):
        raise RefusedCallError("The entry would be too long. Rewrite it in fewer words.")
    entry: LoreEntry = msgspec.structs.replace(known.entry, content=content)
    because = to_one_line(call.because)
    if isinstance(known, ProposedEntry):
        return ProposedEntry(id=known.id, entry=entry, because=because)
    return ProposedChange(
        id=known.id, book_id=known.book_id, revision=known.revision, entry=entry, because=because
    )


MARK = re.compile(r"(?:#|E|L)[0-9]{1,9}")
"""The form of marks of lines, events and entries."""

_MAX_EVENT = 900
_MAX_ENTRY = 1_500
_MAX_MESSAGE = 800
_MAX_LINE = 24_000
_MAX_NAME = 100
"""Maximum characters of each in a prompt."""


class _HasId(Protocol):
    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=_HasId)


class Marks(Generic[T]):
    """Items by mark, a letter and a number, in the order in which they were shown."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self._of: dict[UUID, str] = {}
        self._things: dict[str, T] = {}

    def show(self, thing: T) -> str:
        """Return the mark of an item. If it has one, the known version of the item is kept."""
        return self._of.get(thing.id) or self.put(thing)

    def put(self, thing: T) -> str:
        """Return the mark of an item, and store this version of it."""
        mark = self._of.setdefault(thing.id, f"{self._letter}{len(self._of) + 1}")
        self._things[mark] = thing
        return mark

    def get(self, mark: str) -> T | None:
        """Return the item with a mark; None if it was not shown."""
        return self._things.get(mark.strip().upper())

    def find_mark(self, thing_id: UUID) -> str:
        """Return the mark of an item; an empty string if it was not shown."""
        return self._of.get(thing_id, "")

    @property
    def things(self) -> list[T]:
        """All items that have marks."""
        return list(self._things.values())


class ShownReferences:
    """Everything that the model was shown in one run."""

    def __init__(self, lines: Iterable[StoryLine], marks: AudienceMarks = NAMELESS_MARKS) -> None:
        self._marks = marks
        self.events: Marks[StoryEvent | ProposedEvent] = Marks("E")
        self.entries: Marks[KnownEntry | ProposedEntry] = Marks("L")
        self.messages: set[UUID] = set()
        self.lines: Mapping[str, StoryLine] = {_build_mark(line.position): line for line in lines}

    def render_event(self, event: StoryEvent) -> str:
        """Render an event as a line with its mark and any restrictions."""
        mark = self.events.show(event)
        text = self._marks.mark(render_event(event.fields), event.audience)
        return f"{mark}{_render_restriction(event)}: {indent_text(text, most=_MAX_EVENT)}"

    def render_summary(self, event: StoryEvent | ProposedEvent) -> str:
        text = event.fields.summary
        if isinstance(event, StoryEvent):
            text = self._marks.mark(text, event.audience)
        return indent_text(text, most=_MAX_EVENT)

    def render_entry(self, entry: KnownEntry) -> str:
        """Render an entry as a line with its mark. "(yours)" means that it may be changed."""
        mark = self.entries.show(entry)
        title = entry.entry.title or ", ".join(entry.entry.keys[:3])
        mine = " (yours)" if entry.may_edit else ""
        name, text = indent_text(title, most=_MAX_NAME), indent_text(entry.text, most=_MAX_ENTRY)
        return f"{mark}{mine}: {name}: {text}"

    def render_message(self, message: MemoryItem) -> str:
        self.messages.add(message.source_id)
        text = self._marks.mark(message.text, message.audience)
        return render_message(message.position, message.title, text, most=_MAX_MESSAGE)

    @property
    def memory_ids(self) -> list[UUID]:
        """Ids of stored items that were shown."""
        events = [each.id for each in self.events.things if isinstance(each, StoryEvent)]
        entries = [each.id for each in self.entries.things if isinstance(each, KnownEntry)]
        return [*events, *entries, *self.messages]


def _render_restriction(event: StoryEvent | ProposedEvent) -> str:
    if not isinstance(event, StoryEvent):
        return ""
    if event.is_pinned:
        return " (pinned)"
    return " (user's)" if event.is_users else ""


def render_story_line(line: StoryLine) -> str:
    return render_message(
        line.position, line.author, put_mark(line.text, line.who_knows), most=_MAX_LINE
    )


def render_message(position: int, author: str, text: str, *, most: int) -> str:
    name = " ".join(indent_text(author, most=_MAX_NAME).split()) or "Narrator"
    return f"{_build_mark(position)} {name}: {indent_text(text, most=most)}"


def normalize_line_mark(mark: str) -> str:
    """Return `#12` for `12` and `#12`."""
    return f"#{int(mark.strip().removeprefix('#'))}"


def _build_mark(position: int) -> str:
    return f"#{position + 1}"
