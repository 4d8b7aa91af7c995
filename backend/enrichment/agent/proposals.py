"""What the agent proposes to write, and what that has to be like."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec

from backend.chronicles.events import MAX_SOURCES, EventFields, told
from backend.chronicles.repository import SourceMessage, StoryEvent
from backend.core.audience import NAMELESS_MARKS, AudienceMarks, put_mark
from backend.database.base import new_id
from backend.enrichment.agent.lookup import KnownEntry
from backend.enrichment.agent.tools import UpdateChronicleEvent, UpdateLorebookEntry
from backend.enrichment.cleaning import clean_paragraphs, indent_text, to_one_line
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import StoryLine
from backend.lorebooks.entries import LoreEntry
from backend.memory.indexing.sources import Recalled
from backend.memory.search.terms import COMMON_WORDS

MAX_ENTRY = 6_000
"""Characters of an entry that grows by what is added to it."""

_SHORTEST_KEY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedEvent:
    """An event to write. `id` stands for it until it has a row.

    `supersedes` is the event, or the proposal of the same run, that is not true any more with it.
    Where it says that one better, `mends` is the revision that was read of it.
    """

    id: UUID
    fields: EventFields
    significance: int
    sources: Sequence[SourceMessage]
    happened_at: datetime
    place: int
    supersedes: UUID | None = None
    mends: int | None = None
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedEntry:
    """An entry to write into the chronicle's own lorebook; `id` as of a proposed event."""

    id: UUID
    entry: LoreEntry
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """An entry to be said anew: `id` and `revision` are those of the row as it was read."""

    id: UUID
    book_id: UUID
    revision: int
    entry: LoreEntry
    because: str = ""


Proposal = ProposedEvent | ProposedEntry | ProposedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The result of reading some messages: proposals, and the rest of the run as `detail`.

    `seen` are the events that those proposed were compared with.
    """

    detail: RunDetail
    proposals: Sequence[Proposal] = ()
    seen: Collection[UUID] = ()


class RefusedCallError(Exception):
    """A call that comes to nothing. The text is what the model is told: it may act on it."""

    def __init__(self, reason: str, *, duplicate_of: UUID | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.duplicate_of = duplicate_of


def refuse_pinned(mark: str) -> RefusedCallError:
    """What is said of an event that stands in every prompt because its user wants it there."""
    return RefusedCallError(
        f"{quote_mark(mark)} was pinned by the user: it is neither changed nor superseded."
    )


def read_text(text: str, name: str) -> str:
    """A line that says something. Raises `RefusedCallError`."""
    line = to_one_line(text)
    if not any(map(str.isalnum, line)):
        raise RefusedCallError(f"{name} says nothing.")
    return line


def read_content(text: str) -> str:
    """What an entry says. Raises `RefusedCallError`."""
    content = clean_paragraphs(text)
    if not any(map(str.isalnum, content)):
        raise RefusedCallError("The content says nothing.")
    return content


def read_words(words: Sequence[str]) -> list[str]:
    """Names or keywords, each once, cleaned."""
    return list(dict.fromkeys(filter(None, map(to_one_line, words))))


def read_keys(keys: Sequence[str]) -> list[str]:
    """Keys of an entry: plain words that do not occur everywhere. Raises `RefusedCallError`."""
    cleaned = read_words(keys)
    for key in cleaned:
        if key.startswith("/"):
            raise RefusedCallError(f"The key {key} is a pattern. Keys are plain words.")
        if not any(map(str.isalnum, key)):
            raise RefusedCallError(f"The key {key} is no word.")
        is_short = len(key) < _SHORTEST_KEY and key.isascii()
        if is_short or key.casefold() in COMMON_WORDS:
            raise RefusedCallError(f"The key {key} occurs everywhere. Take a name.")
    if not cleaned:
        raise RefusedCallError("There is no key.")
    return cleaned


def quote_mark(text: str) -> str:
    """A mark that a model made up, as an answer quotes it."""
    return to_one_line(text)[:10] or "Nothing"


def apply_to_event(
    event: StoryEvent | ProposedEvent, call: UpdateChronicleEvent, *, source: SourceMessage
) -> ProposedEvent:
    """An event that says it better and takes the place of the one that is there.

    That one stands behind it: should `source`, the last of the new lines, be swiped away, it is as
    it was. What this run proposed itself is proposed differently. Raises `RefusedCallError`.
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
        raise RefusedCallError(f"{call.event} says that already.")
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
    """An entry said anew, or with something added. Raises `RefusedCallError`."""
    if (call.content is None) == (call.append is None):
        raise RefusedCallError("Give either content or append.")
    if call.content is not None:
        content = read_content(call.content)
    else:
        content = f"{known.entry.content.rstrip()}\n{read_content(call.append or '')}"
    if len(content) > max(MAX_ENTRY, len(known.entry.content)):
        raise RefusedCallError("The entry would be too long. Say it anew, in fewer words.")
    entry: LoreEntry = msgspec.structs.replace(known.entry, content=content)
    because = to_one_line(call.because)
    if isinstance(known, ProposedEntry):
        return ProposedEntry(id=known.id, entry=entry, because=because)
    return ProposedChange(
        id=known.id, book_id=known.book_id, revision=known.revision, entry=entry, because=because
    )


MARK = re.compile(r"(?:#|E|L)[0-9]{1,9}")
"""The form of a mark of a line, an event or an entry."""

_EVENT = 900
_ENTRY = 1_500
_MESSAGE = 800
_LINE = 24_000
_NAME = 100
"""Characters of each that are shown."""


class _Known(Protocol):
    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=_Known)


class Marks(Generic[T]):
    """Things by their marks, a letter and a number, in the order in which they were shown."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self._of: dict[UUID, str] = {}
        self._things: dict[str, T] = {}

    def show(self, thing: T) -> str:
        """A thing's mark. What has one stays as it is now: the run may have changed it."""
        return self._of.get(thing.id) or self.put(thing)

    def put(self, thing: T) -> str:
        """The same for a thing as it is from now on."""
        mark = self._of.setdefault(thing.id, f"{self._letter}{len(self._of) + 1}")
        self._things[mark] = thing
        return mark

    def get(self, mark: str) -> T | None:
        """What has a mark; None for one that was not shown."""
        return self._things.get(mark.strip().upper())

    def of(self, thing_id: UUID) -> str:
        """The mark of something that was shown; empty for anything else."""
        return self._of.get(thing_id, "")

    @property
    def things(self) -> list[T]:
        """All that has a mark."""
        return list(self._things.values())


class ShownReferences:
    """Everything that a model was shown in one run."""

    def __init__(self, lines: Iterable[StoryLine], marks: AudienceMarks = NAMELESS_MARKS) -> None:
        self._marks = marks
        self.events: Marks[StoryEvent | ProposedEvent] = Marks("E")
        self.entries: Marks[KnownEntry | ProposedEntry] = Marks("L")
        self.messages: set[UUID] = set()
        self.lines: Mapping[str, StoryLine] = {_place(line.position): line for line in lines}

    def event(self, event: StoryEvent) -> str:
        """An event, as a line that begins with its mark; what may not be done to it is said."""
        mark = self.events.show(event)
        text = self._marks.mark(told(event.fields), event.audience)
        return f"{mark}{_kept(event)}: {indent_text(text, most=_EVENT)}"

    def summary(self, event: StoryEvent | ProposedEvent) -> str:
        """An event in a sentence, for an answer to the model."""
        text = event.fields.summary
        if isinstance(event, StoryEvent):
            text = self._marks.mark(text, event.audience)
        return indent_text(text, most=_EVENT)

    def entry(self, entry: KnownEntry) -> str:
        """An entry; what may be changed of it is marked as such."""
        mark = self.entries.show(entry)
        title = entry.entry.title or ", ".join(entry.entry.keys[:3])
        mine = " (yours)" if entry.may_edit else ""
        name, text = indent_text(title, most=_NAME), indent_text(entry.text, most=_ENTRY)
        return f"{mark}{mine}: {name}: {text}"

    def message(self, message: Recalled) -> str:
        """A message that was said long ago."""
        self.messages.add(message.source_id)
        text = self._marks.mark(message.text, message.audience)
        return render_message(message.position, message.title, text, most=_MESSAGE)

    @property
    def memory_ids(self) -> list[UUID]:
        """Rows that were shown, proposals aside."""
        events = [each.id for each in self.events.things if isinstance(each, StoryEvent)]
        entries = [each.id for each in self.entries.things if isinstance(each, KnownEntry)]
        return [*events, *entries, *self.messages]


def _kept(event: StoryEvent | ProposedEvent) -> str:
    if not isinstance(event, StoryEvent):
        return ""
    if event.is_pinned:
        return " (pinned)"
    return " (user's)" if event.is_users else ""


def render_story_line(line: StoryLine) -> str:
    """A line of the story, behind its mark."""
    return render_message(
        line.position, line.author, put_mark(line.text, line.who_knows), most=_LINE
    )


def render_message(position: int, author: str, text: str, *, most: int) -> str:
    """What somebody said, behind the mark of its place."""
    name = " ".join(indent_text(author, most=_NAME).split()) or "Narrator"
    return f"{_place(position)} {name}: {indent_text(text, most=most)}"


def normalize_line_mark(mark: str) -> str:
    """`#12` of `12` and `#12`."""
    return f"#{int(mark.strip().removeprefix('#'))}"


def _place(position: int) -> str:
    return f"#{position + 1}"
