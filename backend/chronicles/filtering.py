"""Which events of a chronicle a list shows."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement

from backend.chronicles.events import EventFields, EventKind
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.reading import current
from backend.chronicles.repository import comes_from


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """What events have to be like; what says nothing lets all through.

    `q` are words, each of which occurs in the summary, the place, a name or a keyword, and `who` is
    part of a name, whatever the case. Kind, words and names are sealed: no index finds them.
    """

    current: bool = True
    q: str = ""
    kind: EventKind | None = None
    who: str = ""
    pinned: bool | None = None
    min_significance: int = 1
    chat_id: UUID | None = None

    @property
    def reads_texts(self) -> bool:
        """Whether events have to be opened to know."""
        return bool(self.q.split() or self.who.strip() or self.kind)

    def conditions(self) -> list[ColumnElement[bool]]:
        """What the database can tell."""
        found: list[ColumnElement[bool]] = []
        if self.pinned is not None:
            found.append(ChronicleEvent.is_pinned.is_(self.pinned))
        if self.min_significance > 1:
            found.append(ChronicleEvent.significance >= self.min_significance)
        if self.chat_id is not None:
            found.append(comes_from(self.chat_id))
        if self.current:
            found.append(current())
        return found

    def matches(self, fields: EventFields) -> bool:
        """What the texts tell."""
        if self.kind is not None and fields.kind != self.kind:
            return False
        who = self.who.strip().casefold()
        if who and not any(who in name.casefold() for name in fields.who):
            return False
        texts = (fields.summary, fields.where, *fields.who, *fields.keywords)
        text = "\n".join(texts).casefold()
        return all(word in text for word in self.q.casefold().split())
