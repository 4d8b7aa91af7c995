"""The marks by which a model names what it was shown: made up for one run, and good in it alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from backend.chronicles.events import told
from backend.chronicles.repository import StoryEvent
from backend.core.audience import NAMELESS_MARKS, AudienceMarks, put_mark
from backend.enrichment.agent.lookup import KnownEntry
from backend.enrichment.agent.proposals import ProposedEntry, ProposedEvent
from backend.enrichment.cleaning import indent_text
from backend.enrichment.story import StoryLine
from backend.memory.indexing.sources import Recalled

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


class References:
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
        return f"{mark}{mine}: {indent_text(title, most=_NAME)}: {indent_text(entry.text, most=_ENTRY)}"

    def message(self, message: Recalled) -> str:
        """A message that was said long ago."""
        self.messages.add(message.source_id)
        text = self._marks.mark(message.text, message.audience)
        return said(message.position, message.title, text, most=_MESSAGE)

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


def line_shown(line: StoryLine) -> str:
    """A line of the story, behind its mark."""
    return said(line.position, line.author, put_mark(line.text, line.who_knows), most=_LINE)


def said(position: int, author: str, text: str, *, most: int) -> str:
    """What somebody said, behind the mark of its place."""
    name = " ".join(indent_text(author, most=_NAME).split()) or "Narrator"
    return f"{_place(position)} {name}: {indent_text(text, most=most)}"


def line_mark(mark: str) -> str:
    """`#12` of `12` and `#12`."""
    return f"#{int(mark.strip().removeprefix('#'))}"


def _place(position: int) -> str:
    return f"#{position + 1}"
