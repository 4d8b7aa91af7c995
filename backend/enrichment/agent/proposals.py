"""What the agent proposes to write, and what that has to be like."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from backend.chronicles.events import MAX_SOURCES, EventFields
from backend.chronicles.repository import SourceMessage, StoryEvent
from backend.database.base import new_id
from backend.enrichment.agent.lookup import KnownEntry
from backend.enrichment.agent.tools import UpdateChronicleEvent, UpdateLorebookEntry
from backend.enrichment.cleaning import clean_paragraphs, to_one_line
from backend.enrichment.runs.store import RunDetail
from backend.lorebooks.entries import LoreEntry
from backend.memory.search.terms import COMMON_WORDS

MAX_ENTRY_CHARACTERS = 6_000
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
    if len(content) > max(MAX_ENTRY_CHARACTERS, len(known.entry.content)):
        raise RefusedCallError("The entry would be too long. Say it anew, in fewer words.")
    entry: LoreEntry = msgspec.structs.replace(known.entry, content=content)
    because = to_one_line(call.because)
    if isinstance(known, ProposedEntry):
        return ProposedEntry(id=known.id, entry=entry, because=because)
    return ProposedChange(
        id=known.id, book_id=known.book_id, revision=known.revision, entry=entry, because=because
    )
