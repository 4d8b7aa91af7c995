"""Taking back what a run wrote: all of it that nobody has changed since.

What a run left is compared with what stands there now. It counts as unchanged when its revision is
the one that the run left it at, and also when what changed it then was undone itself: then it says
what that found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chronicles import writing
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.writing import is_there, supersede_again
from backend.database.base import chunks
from backend.enrichment.detail import RunDetail, RunEffect
from backend.enrichment.schemas import KeptBecause
from backend.lorebooks import authoring
from backend.lorebooks import repository as lore
from backend.lorebooks.errors import LorebookNotFoundError
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.vault.sealing import Sealer

NOT_CONTENT = frozenset({"revision", "place", "superseded_by", "supersedes"})
"""What of a snapshot may differ without anybody having said something else."""


@dataclass(slots=True)
class Undoing:
    """What has become of a run's effects: what was taken back, what was left and why.

    `left` are the places of `kept` among the effects. `events` and `entries` are the ids that the
    index has to look at, by their container.
    """

    undone: list[RunEffect] = field(default_factory=list[RunEffect])
    kept: list[tuple[RunEffect, KeptBecause]] = field(default_factory=list[Any])
    left: list[int] = field(default_factory=list[int])
    events: dict[UUID, set[UUID]] = field(default_factory=dict[UUID, set[UUID]])
    entries: dict[UUID, set[UUID]] = field(default_factory=dict[UUID, set[UUID]])


@dataclass(frozen=True, slots=True)
class _Mark:
    """By what an event of a chronicle is superseded."""

    chronicle_id: UUID
    by: UUID | None


class Undoer:
    """Takes back the effects of one run, within the caller's transaction.

    Args:
        found: Of each thing that this run and later ones changed, what they found: its snapshots.
        force: Take back also what was changed since.
    """

    def __init__(
        self,
        session: AsyncSession,
        sealer: Sealer,
        *,
        found: Mapping[UUID, Sequence[dict[str, Any]]],
        force: bool,
    ) -> None:
        self._session = session
        self._sealer = sealer
        self._found = found
        self._force = force
        self._removed: set[UUID] = set()
        self.outcome = Undoing()

    async def undo(self, detail: RunDetail, *, only: Collection[int] | None = None) -> Undoing:
        """Take the effects back, the last one first. Raises `LorebookFullError`.

        `only` names the places of those that are left of an earlier undoing; None: all.
        """
        marks = await self._marks(detail)
        for place, effect in reversed(list(enumerate(detail.effects))):
            if only is not None and place not in only:
                continue
            if effect.what.startswith("event"):
                reason = await self._event(effect)
            else:
                reason = await self._entry(effect)
            if reason is None:
                self.outcome.undone.append(effect)
            else:
                self.outcome.kept.append((effect, reason))
                self.outcome.left.append(place)
        await self._inherit(marks)
        return self.outcome

    async def _event(self, effect: RunEffect) -> KeptBecause | None:
        session, chronicle_id = self._session, effect.container_id
        row = await session.scalar(
            select(ChronicleEvent)
            .where(
                ChronicleEvent.id == effect.id,
                ChronicleEvent.chronicle_id == chronicle_id,
                ChronicleEvent.user_id == self._sealer.user_id,
            )
            .execution_options(populate_existing=True)
        )
        touched = self.outcome.events.setdefault(chronicle_id, set())
        if effect.what == "event_removed":
            return await self._put_back_event(effect) if row is None else None
        if row is None:
            return "gone" if effect.what == "event_changed" else None
        now = await writing.snapshot(session, self._sealer, row)
        if not self._is_as_left(effect, now):
            return "edited" if row.is_edited or row.is_pinned else "changed"
        if effect.what == "event_changed":
            return await self._put_back_event(effect)
        await writing.remove_events(session, [row.id], owner_id=self._sealer.user_id)
        self._removed.add(row.id)
        touched.update({row.id, *(UUID(each) for each in now["supersedes"])})
        return None

    async def _put_back_event(self, effect: RunEffect) -> KeptBecause | None:
        if effect.before is None:
            return "gone"
        await writing.restore(self._session, self._sealer, effect.container_id, effect.before)
        touched = self.outcome.events[effect.container_id]
        touched.update({effect.id, *(UUID(each) for each in effect.before["supersedes"])})
        return None

    async def _marks(self, detail: RunDetail) -> dict[UUID, _Mark]:
        """Which event supersedes which, as it stands: what the run made, and what that took on."""
        made = [effect.id for effect in detail.effects if effect.what == "event_created"]
        marks: dict[UUID, _Mark] = {}
        for ids in chunks(made):
            rows = await self._session.execute(
                select(
                    ChronicleEvent.id, ChronicleEvent.chronicle_id, ChronicleEvent.superseded_by
                ).where(
                    ChronicleEvent.id.in_(ids) | ChronicleEvent.superseded_by.in_(ids),
                    ChronicleEvent.user_id == self._sealer.user_id,
                )
            )
            marks |= {row.id: _Mark(row.chronicle_id, row.superseded_by) for row in rows}
        return marks

    async def _inherit(self, marks: Mapping[UUID, _Mark]) -> None:
        """What an event that went had superseded is superseded by what superseded that one.

        Else two would count of which one says that the other is no longer so.
        """
        for event_id, mark in marks.items():
            if event_id in self._removed or mark.by not in self._removed:
                continue
            heir: UUID | None = mark.by
            while heir is not None and heir in self._removed:
                heir = marks[heir].by
            if heir is not None and await is_there(self._session, mark.chronicle_id, heir):
                await supersede_again(self._session, mark.chronicle_id, [event_id], heir)

    async def _entry(self, effect: RunEffect) -> KeptBecause | None:
        session, sealer = self._session, self._sealer
        try:
            book = await lore.get_book(
                session, effect.container_id, owner_id=sealer.user_id, lock=True
            )
        except LorebookNotFoundError:
            return None if effect.what == "entry_created" else "gone"
        row = await session.scalar(
            select(LoreEntryRow)
            .where(LoreEntryRow.id == effect.id, LoreEntryRow.lorebook_id == book.id)
            .execution_options(populate_existing=True)
        )
        self.outcome.entries.setdefault(book.id, set()).add(effect.id)
        if effect.what == "entry_removed":
            return await self._put_back_entry(book, effect) if row is None else None
        if row is None:
            return "gone" if effect.what == "entry_changed" else None
        if not self._is_as_left(effect, authoring.snapshot(sealer, row)):
            return "changed" if authoring.is_own(row) else "edited"
        if effect.what == "entry_changed":
            return await self._put_back_entry(book, effect)
        await authoring.remove_entry(session, book, row)
        return None

    async def _put_back_entry(self, book: Lorebook, effect: RunEffect) -> KeptBecause | None:
        if effect.before is None:
            return "gone"
        await authoring.restore(self._session, self._sealer, book, effect.before)
        return None

    def _is_as_left(self, effect: RunEffect, now: dict[str, Any]) -> bool:
        if self._force or now["revision"] == effect.revision:
            return True
        return any(
            found["revision"] == effect.revision and _content(found) == _content(now)
            for found in self._found.get(effect.id, ())
        )


def _content(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot says, to be compared: of an entry also whether it is the agent's own."""
    content = {name: value for name, value in snapshot.items() if name not in NOT_CONTENT}
    if "agent_revision" in content:
        content["agent_revision"] = content["agent_revision"] == snapshot["revision"]
    if "sources" in content:  # in no order of their own
        content["sources"] = sorted(content["sources"], key=lambda each: each["message_id"])
    return content
