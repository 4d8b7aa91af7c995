"""Search for events, lore and old messages that are related to new lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from sqlalchemy import select

from backend.campaigns.state.listeners import Listeners
from backend.chats.members import filter_heard
from backend.chats.models import Message
from backend.chronicles.events import EventFields
from backend.chronicles.repository import (
    StoryEvent,
    current_events,
    get_events,
    read_message_events,
)
from backend.core.audience import GM
from backend.core.cpu_pool import CpuPool
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.agent.tools import KNOWLEDGE, Knowledge
from backend.enrichment.story import TranscriptSlice
from backend.lorebooks.activation.compiled import split_decorators
from backend.lorebooks.activation.keys import Folded, Hits, Key, KeyIndex
from backend.lorebooks.authoring import inactive_entries
from backend.lorebooks.entries import LoreEntry
from backend.lorebooks.models import ENTRY, Lorebook, LoreEntryRow
from backend.lorebooks.records import LORE_ENTRY
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.vault.sealing import Sealer

MAX_LATEST_EVENTS = 60
"""Latest events that a new one is always compared with, because the index may lag behind."""

MAX_LORE = 5_000
"""Maximum lorebook entries whose names are searched for in new lines."""

_SEARCH_CHARACTERS = 3_000
"""Characters of one search, because a whole chapter as a query is close to nothing."""
_MAX_SEARCHES = 4

_ENTRIES = select(
    LoreEntryRow.id,
    LoreEntryRow.lorebook_id,
    LoreEntryRow.revision,
    LoreEntryRow.sealed_entry,
    (LoreEntryRow.agent_revision == LoreEntryRow.revision).label("is_own"),
    Lorebook.chronicle_id,
).join(Lorebook, (Lorebook.id == LoreEntryRow.lorebook_id) & Lorebook.deleted_at.is_(None))

_KINDS: dict[Knowledge, Kind] = {"events": "event", "lore": "lore", "messages": "message"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEntry:
    """A current lorebook entry. `text` is its content without decorators.

    `may_edit` is True for entries that the agent created for this chronicle and nobody has changed,
    and for others with the user's consent.
    """

    id: UUID
    book_id: UUID
    revision: int
    entry: LoreEntry
    may_edit: bool
    text: str

    @property
    def names(self) -> list[str]:
        """The title and the plain keys, casefolded."""
        words = (each.strip().casefold() for each in [self.entry.title, *self.entry.keys])
        return [each for each in words if each and not each.startswith("/")]


@dataclass(slots=True)
class LookupResult:
    """Search results without duplicates, the best first."""

    events: dict[UUID, StoryEvent] = field(default_factory=dict[UUID, StoryEvent])
    entries: dict[UUID, KnownEntry] = field(default_factory=dict[UUID, KnownEntry])
    messages: dict[UUID, MemoryItem] = field(default_factory=dict[UUID, MemoryItem])


@dataclass(slots=True)
class KnowledgeLookup:
    """Searches the memory of one user for one slice. No transaction stays open between searches.

    Results are limited to what everyone in the slice's audience may know, except for those of
    `list_unknown`.
    """

    database: Database
    search: MemorySearch
    sealer: Sealer
    stretch: TranscriptSlice
    pool: CpuPool
    _lore: Sequence[KnownEntry] | None = field(default=None, init=False)

    async def list_latest(self) -> list[StoryEvent]:
        """Return the latest current events from the database, oldest first."""
        async with self.database.read() as session:
            events = await current_events(
                session,
                self.sealer,
                self.stretch.chronicle_id,
                limit=MAX_LATEST_EVENTS,
                viewpoint=self.stretch.listeners,
            )
        return [event for event in events if event.id not in self.stretch.left_alone]

    async def list_recorded(self) -> list[StoryEvent]:
        """Return the events that are currently recorded from the new lines.

        A compaction reads the same lines, and may write events while the agent works.
        """
        stretch = self.stretch
        async with self.database.read() as session:
            events = await read_message_events(
                session,
                self.sealer,
                stretch.chronicle_id,
                [line.id for line in stretch.lines],
                viewpoint=stretch.listeners,
            )
        return [event for event in events if event.id not in stretch.left_alone]

    async def find_related(self, *, count: int) -> LookupResult:
        """Return lore that the new lines name, and results of a few searches for parts of them.

        There are about `count` results of each kind.
        """
        text = "\n".join(line.text for line in self.stretch.lines)
        named = await self.pool.run(
            self.sealer.user_id, partial(find_named, text, await self.list_lore()), is_job=True
        )
        merged = LookupResult(entries={entry.id: entry for entry in named[:count]})
        groups = self._split_lines()
        share = max(2, count // len(groups))
        for group in groups:
            found = await self.find(group, limit=3 * count, min_relevance=None)
            merged.events |= islice(found.events.items(), share)
            merged.entries |= islice(found.entries.items(), share)
            merged.messages |= islice(found.messages.items(), share)
        return merged

    async def list_lore(self) -> Sequence[KnownEntry]:
        """Return all active entries of the slice's lorebooks. They are read once a run."""
        if self._lore is None:
            owner_id, rows = self.sealer.user_id, list[Any]()
            async with self.database.read() as session:
                for book_id in self.stretch.books:
                    mine = LoreEntryRow.lorebook_id == book_id, LoreEntryRow.user_id == owner_id
                    query = _ENTRIES.where(*mine).order_by(LoreEntryRow.place)
                    rows += await session.execute(query.limit(MAX_LORE - len(rows)))
                gone = await inactive_entries(session, self.stretch.books, owner_id=owner_id)
            gone |= self.stretch.left_alone
            # Thousands of entries are decrypted in the pool, because turns stream on the event
            # loop.
            left = [row for row in rows if row.id not in gone]
            known = await self.pool.run(owner_id, partial(self._decrypt, left), is_job=True)
            self._lore = [entry for entry in known if entry.entry.enabled and entry.text]
        return self._lore

    async def find(
        self,
        text: str,
        *,
        limit: int,
        sources: Collection[Knowledge] = KNOWLEDGE,
        min_relevance: float | None = 0,
    ) -> LookupResult:
        """Search some kinds for a text. `limit` is for all kinds together.

        `min_relevance` is as in `SearchRequest`. The default of 0 suits names, which are compared
        later.
        """
        parts = self._build_scope(sources)
        if not parts:
            return LookupResult()
        ask = SearchRequest(
            text=text,
            names=self.stretch.names,
            parts=parts,
            kinds=[_KINDS[each] for each in sources],
            limit=limit,
            min_relevance=min_relevance,
            now=now(),
            viewpoint=self.stretch.listeners[0],
        )
        result = await self.search.find(self.sealer, ask)
        memories = await self.search.recall(self.database, self.sealer, result)
        recalled = [memory.recalled for memory in memories]
        return LookupResult(
            await self._load_events(
                [each.source_id for each in recalled if each.kind == "event"],
                self.stretch.listeners,
            ),
            await self._load_entries([each for each in recalled if each.kind == "lore"]),
            await self._select_heard([each for each in recalled if self._may_read(each)]),
        )

    async def list_unknown(self, fields: EventFields) -> list[StoryEvent]:
        """Return events similar to this one that some of the slice's audience do not know.

        No text for this audience may be written from them.
        """
        stretch = self.stretch
        if stretch.listeners == (GM,):
            return []
        async with self.database.read() as session:
            latest = await current_events(
                session,
                self.sealer,
                stretch.chronicle_id,
                limit=MAX_LATEST_EVENTS,
                unknown_to=stretch.listeners,
            )
        if not latest:
            return []
        ask = SearchRequest(
            text=fields.summary,
            names=stretch.names,
            parts=self._build_scope(["events"]),
            kinds=["event"],
            limit=MAX_LATEST_EVENTS,
            min_relevance=0,
            now=now(),
        )
        result = await self.search.find(self.sealer, ask)
        memories = await self.search.recall(self.database, self.sealer, result)
        found = [memory.recalled.source_id for memory in memories]
        everything = await self._load_events(found, (GM,))
        known = await self._load_events(found, stretch.listeners)
        others = {key: event for key, event in everything.items() if key not in known}
        others |= {event.id: event for event in latest if event.id not in stretch.left_alone}
        return list(others.values())

    async def _select_heard(self, messages: Sequence[MemoryItem]) -> dict[UUID, MemoryItem]:
        """Return the messages that everyone in the slice's audience has heard."""
        stretch = self.stretch
        if not messages:
            return {}
        heard = [filter_heard(each, stretch.chat_id) for each in stretch.listeners]
        query = select(Message.id).where(
            Message.id.in_([each.source_id for each in messages]),
            Message.user_id == self.sealer.user_id,
            *heard,
        )
        async with self.database.read() as session:
            known = set(await session.scalars(query))
        return {each.source_id: each for each in messages if each.source_id in known}

    def _may_read(self, recalled: MemoryItem) -> bool:
        since = self.stretch.since
        said_at = recalled.said_at
        return recalled.kind == "message" and (
            since is None or (said_at is not None and said_at >= since)
        )

    def _build_scope(self, sources: Collection[Knowledge]) -> list[ScopePart]:
        stretch = self.stretch
        parts: list[ScopePart] = []
        if "events" in sources:
            parts.append(ScopePart(containers=[stretch.chronicle_id], kinds=("event",)))
        if "lore" in sources and stretch.books:
            parts.append(ScopePart(containers=stretch.books, kinds=("lore",)))
        if "messages" in sources and stretch.first_position:
            parts.append(
                ScopePart(
                    containers=[stretch.chat_id],
                    before_position=stretch.first_position,
                    kinds=("message",),
                )
            )
        return parts

    async def _load_events(
        self, ids: Sequence[UUID], listeners: Listeners
    ) -> dict[UUID, StoryEvent]:
        wanted = [each for each in ids if each not in self.stretch.left_alone]
        if not wanted:
            return {}
        async with self.database.read() as session:
            found = await get_events(session, self.sealer, wanted, viewpoint=listeners)
        return {each: found[each] for each in wanted if each in found and found[each].is_current}

    async def _load_entries(self, recalled: Sequence[MemoryItem]) -> dict[UUID, KnownEntry]:
        recalled = [each for each in recalled if each.source_id not in self.stretch.left_alone]
        if not recalled:
            return {}
        wanted = LoreEntryRow.id.in_([each.source_id for each in recalled])
        query = _ENTRIES.where(wanted, LoreEntryRow.user_id == self.sealer.user_id)
        async with self.database.read() as session:
            rows = {row.id: row for row in await session.execute(query)}
        known = self._decrypt([rows[each.source_id] for each in recalled if each.source_id in rows])
        return {entry.id: entry for entry in known}

    def _decrypt(self, rows: Sequence[Any]) -> list[KnownEntry]:
        stretch, found = self.stretch, list[KnownEntry]()
        for row in rows:
            sealed = self.sealer.open_bytes(ENTRY, row.id, row.sealed_entry)
            entry = LORE_ENTRY.decode(sealed)
            found.append(
                KnownEntry(
                    id=row.id,
                    book_id=row.lorebook_id,
                    revision=row.revision,
                    entry=entry,
                    may_edit=stretch.may_edit_lore
                    or (bool(row.is_own) and row.chronicle_id == stretch.chronicle_id),
                    text=split_decorators(entry.content)[1].strip(),
                )
            )
        return found

    def _split_lines(self) -> list[str]:
        groups: list[str] = [""]
        for line in self.stretch.lines:
            if groups[-1] and len(groups[-1]) + len(line.text) > _SEARCH_CHARACTERS:
                groups.append("")
            groups[-1] = f"{groups[-1]}\n{line.text}"[: 2 * _SEARCH_CHARACTERS]
        step = max(1, len(groups) / _MAX_SEARCHES)
        return [groups[int(place * step)] for place in range(min(len(groups), _MAX_SEARCHES))]


def find_named(text: str, entries: Sequence[KnownEntry]) -> list[KnownEntry]:
    """Return entries whose title or plain key is a word of the text, the longest name first."""
    names = {name: Key(name) for entry in entries for name in entry.names}
    # One pass finds all names, because there may be hundreds of thousands.
    index, hits = KeyIndex(names.values()), Hits()
    index.scan(Folded(text), 0, hits, spelling=False, within=False)
    found: list[tuple[int, KnownEntry]] = []
    for entry in entries:
        said = (name for name in entry.names if _is_hit(hits, names[name]))
        longest = max(map(len, said), default=0)
        if longest:
            found.append((longest, entry))
    return [entry for _, entry in sorted(found, key=lambda each: -each[0])]


def _is_hit(hits: Hits, key: Key) -> bool:
    return hits.place(key, sensitive=False, whole=True) is not None
