"""What an event or an entry says once the agent has mended it."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.chronicles.limits import MAX_SOURCES
from backend.chronicles.reading import SourceMessage, StoryEvent
from backend.database.base import new_id
from backend.enrichment.agent.checks import RefusedCallError, content_of, pinned, said_of, words_of
from backend.enrichment.agent.knowledge_lookup import KnownEntry
from backend.enrichment.agent.tools import UpdateChronicleEvent, UpdateLorebookEntry
from backend.enrichment.cleaning import one_line
from backend.enrichment.study import ProposedChange, ProposedEntry, ProposedEvent
from backend.lorebooks.entries import LoreEntry

MAX_ENTRY = 6_000
"""Characters of an entry that grows by what is added to it."""


def mended_event(
    event: StoryEvent | ProposedEvent, call: UpdateChronicleEvent, *, source: SourceMessage
) -> ProposedEvent:
    """An event that says it better and takes the place of the one that is there.

    That one stands behind it: should `source`, the last of the new lines, be swiped away, it is as
    it was. What this run proposed itself is proposed differently. Raises `RefusedCallError`.
    """
    if isinstance(event, StoryEvent) and event.is_pinned:
        raise pinned(call.event)
    if isinstance(event, StoryEvent) and event.is_users:
        raise RefusedCallError(
            f"{call.event} is the user's own: it is not changed. If it is no longer true, create "
            "an event that supersedes it."
        )
    changes: dict[str, Any] = {
        "summary": None if call.summary is None else said_of(call.summary, "summary"),
        "kind": call.kind,
        "day": call.story_day,
        "time": None if call.story_time is None else one_line(call.story_time),
        "where": None if call.where is None else one_line(call.where),
        "who": None if call.who is None else words_of(call.who),
        "keywords": None if call.keywords is None else words_of(call.keywords),
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
        because=one_line(call.because),
    )


def mended_entry(
    known: KnownEntry | ProposedEntry, call: UpdateLorebookEntry
) -> ProposedChange | ProposedEntry:
    """An entry said anew, or with something added. Raises `RefusedCallError`."""
    if (call.content is None) == (call.append is None):
        raise RefusedCallError("Give either content or append.")
    if call.content is not None:
        content = content_of(call.content)
    else:
        content = f"{known.entry.content.rstrip()}\n{content_of(call.append or '')}"
    if len(content) > max(MAX_ENTRY, len(known.entry.content)):
        raise RefusedCallError("The entry would be too long. Say it anew, in fewer words.")
    entry: LoreEntry = msgspec.structs.replace(known.entry, content=content)
    because = one_line(call.because)
    if isinstance(known, ProposedEntry):
        return ProposedEntry(id=known.id, entry=entry, because=because)
    return ProposedChange(
        id=known.id, book_id=known.book_id, revision=known.revision, entry=entry, because=because
    )
