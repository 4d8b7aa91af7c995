"""Undoing a run: one transaction takes back all that it wrote and nobody has changed since.

What a run left is compared with what stands there now. It counts as unchanged when its revision is
the one that the run left it at, and also when what changed it then was undone itself: then it says
what that found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger.records import find_campaign
from backend.chats.questions import drop_questions
from backend.chats.repository import get_chat
from backend.chronicles import event_writer as writing
from backend.chronicles.event_writer import is_there, supersede_again
from backend.chronicles.models import ChronicleEvent
from backend.chronicles.repository import get_chronicle
from backend.database.base import now, split_chunks
from backend.enrichment.errors import NothingToUndoError, RunReplacedError, RunUndoneError
from backend.enrichment.models import ChatSummary, EnrichmentRun
from backend.enrichment.runs.effects import Changed, update_index
from backend.enrichment.runs.store import RunDetail, RunEffect, get_run, open_detail, seal_detail
from backend.enrichment.schemas import KeptBecause, KeptView, UndoView, WrittenView
from backend.lorebooks import authoring
from backend.lorebooks import repository as lore
from backend.lorebooks.errors import LorebookNotFoundError
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.sealing import Sealer


async def undo_summary_run(session: AsyncSession, run: EnrichmentRun, *, force: bool) -> UndoView:
    """Take back the summaries that a run wrote; those that were edited since only with `force`."""
    mine = ChatSummary.run_id == run.id, ChatSummary.user_id == run.user_id
    rows = list(await session.scalars(select(ChatSummary).where(*mine)))
    if run.state == "undone" and not rows:
        raise RunUndoneError
    undone = [row.message_id for row in rows if force or not row.is_edited]
    await session.execute(
        delete(ChatSummary)
        .where(ChatSummary.run_id == run.id, ChatSummary.message_id.in_(undone))
        .execution_options(synchronize_session=False)
    )
    return UndoView(
        undone=[
            WrittenView(
                what="summary_written", id=each, container_id=run.chat_id, title="", because=""
            )
            for each in undone
        ],
        kept=[
            KeptView(id=row.message_id, title="", reason="edited")
            for row in rows
            if row.message_id not in undone
        ],
    )


async def undo_questions(
    session: AsyncSession, index: IndexOutbox, identity: Identity, run: EnrichmentRun
) -> UndoView:
    """Take back the questions that a run wrote. Raises `NothingToUndoError` where none is left."""
    gone = await drop_questions(session, run.chat_id, run.id, owner_id=run.user_id)
    if not gone:
        raise NothingToUndoError("No line has questions of this run.")
    await index.changed(
        session, identity, kind="message", container_id=run.chat_id, source_ids=gone
    )
    written = [
        WrittenView(
            what="questions_written", id=each, container_id=run.chat_id, title="", because=""
        )
        for each in gone
    ]
    return UndoView(undone=written, kept=[])


_NOT_CONTENT = frozenset({"revision", "place", "superseded_by", "supersedes"})
"""What of a snapshot may differ without anybody having said something else."""


async def undo_run(
    session: AsyncSession, index: IndexOutbox, identity: Identity, run_id: UUID, *, force: bool
) -> UndoView:
    """Take back all that a run wrote; what was changed since only with `force`.

    With `force` also what an earlier undoing of it has kept.

    Raises `RunNotFoundError`, `RunUndoneError`, `NothingToUndoError`, `RunReplacedError`, and
    `LorebookFullError` where an entry that the run removed has no room any more.
    """
    owner_id = identity.user_id
    run = await get_run(session, run_id, owner_id=owner_id)
    # Chat, campaign, chronicle: all code that writes into them locks them in this order.
    await get_chat(session, run.chat_id, owner_id=owner_id, lock=True)
    if run.campaign_id is not None:
        await find_campaign(session, identity.sealer, run.campaign_id, lock=True)
    if run.chronicle_id is not None:
        await get_chronicle(session, run.chronicle_id, owner_id=owner_id, lock=True)
    run = await get_run(session, run_id, owner_id=owner_id, lock=True)
    if run.state == "failed":
        raise NothingToUndoError("It failed, and changed nothing.")
    if run.kind in {"rephrasing", "suggestions"}:
        raise NothingToUndoError("It wrote nothing down.")
    if run.kind in {"glossary", "scene", "chapter"}:
        raise NothingToUndoError("Its changes are taken back one by one, in the campaign's ledger.")
    if run.state == "undone" and not force:
        raise RunUndoneError
    if run.kind == "summary":
        view = await undo_summary_run(session, run, force=force)
    elif run.kind == "questions":
        view = await undo_questions(session, index, identity, run)
    else:
        view = await _undo_effects(session, index, identity, run, force=force)
    run.state, run.undone_at = "undone", now()
    return view


async def _undo_effects(
    session: AsyncSession,
    index: IndexOutbox,
    identity: Identity,
    run: EnrichmentRun,
    *,
    force: bool,
) -> UndoView:
    detail = open_detail(identity.sealer, run)
    is_again = run.state == "undone"
    if is_again and not detail.kept:
        raise RunUndoneError
    if not detail.effects:
        raise NothingToUndoError("It found nothing to write down.")
    later = await _later_runs(session, identity.sealer, run)
    _check_replaced(detail, later)
    undoer = _Undoer(session, identity.sealer, _found(detail, later), force)
    await undoer.undo(detail, only=detail.kept if is_again else None)
    left = msgspec.structs.replace(detail, kept=undoer.left)
    run.sealed_detail = seal_detail(identity.sealer, run.id, left)
    await update_index(session, index, identity, undoer.changed)
    return UndoView(undone=undoer.undone, kept=undoer.kept)


Later = Sequence[tuple[EnrichmentRun, RunDetail]]
"""Runs into one chronicle that came after another run and did not fail, the first one first."""


async def _later_runs(session: AsyncSession, sealer: Sealer, run: EnrichmentRun) -> Later:
    if run.chronicle_id is None:
        return ()
    rows = await session.scalars(
        select(EnrichmentRun)
        .where(
            EnrichmentRun.chronicle_id == run.chronicle_id,
            EnrichmentRun.user_id == run.user_id,
            EnrichmentRun.id > run.id,
            EnrichmentRun.state != "failed",
        )
        .order_by(EnrichmentRun.id)
    )
    return [(row, open_detail(sealer, row)) for row in rows]


def _found(detail: RunDetail, later: Later) -> dict[UUID, list[dict[str, Any]]]:
    """Of each thing that a run and later ones changed, what they found: its snapshots.

    Also what those found that were undone: it tells what was there before.
    """
    found: defaultdict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for each in (detail, *(later_detail for _, later_detail in later)):
        for effect in each.effects:
            if effect.before is not None:
                found[effect.id].append(effect.before)
    return found


def _check_replaced(detail: RunDetail, later: Later) -> None:
    """Raise `RunReplacedError` where what a run wrote was removed by a rebuild that stands."""
    written = {effect.id for effect in detail.effects if not effect.what.endswith("removed")}
    for run, each in reversed(later):
        removed = {effect.id for effect in each.effects if effect.what.endswith("removed")}
        if run.state == "done" and not removed.isdisjoint(written):
            raise RunReplacedError(
                "Undo the later run first: it put other events in the place of these.",
                extra={"run_id": str(run.id)},
            )


@dataclass(slots=True)
class _Undoer:
    """Takes back the effects of one run, within the caller's transaction.

    Attributes:
        found: Of each thing that this run and later ones changed, what they found: its snapshots.
        force: Take back also what was changed since.
        left: The places of what was kept among the effects.
        changed: What the index has to look at.
    """

    session: AsyncSession
    sealer: Sealer
    found: Mapping[UUID, Sequence[dict[str, Any]]]
    force: bool
    undone: list[WrittenView] = field(default_factory=list[WrittenView])
    kept: list[KeptView] = field(default_factory=list[KeptView])
    left: list[int] = field(default_factory=list[int])
    changed: Changed = field(default_factory=lambda: defaultdict(set))
    removed: set[UUID] = field(default_factory=set[UUID])

    async def undo(self, detail: RunDetail, *, only: Collection[int] | None) -> None:
        """Take the effects back, the last one first. Raises `LorebookFullError`.

        `only` names the places of those that are left of an earlier undoing; None: all.
        """
        superseded = await self._superseded(detail)
        for place, effect in reversed(list(enumerate(detail.effects))):
            if only is not None and place not in only:
                continue
            take_back = {"event": self._event, "entry": self._entry, "item": self._item}[
                effect.what.partition("_")[0]
            ]
            reason = await take_back(effect)
            if reason is None:
                self.undone.append(WrittenView.of(effect))
            else:
                self.kept.append(KeptView(id=effect.id, title=effect.title, reason=reason))
                self.left.append(place)
        await self._inherit(superseded)

    async def _event(self, effect: RunEffect) -> KeptBecause | None:
        session, chronicle_id = self.session, effect.container_id
        row = await session.scalar(
            select(ChronicleEvent)
            .where(
                ChronicleEvent.id == effect.id,
                ChronicleEvent.chronicle_id == chronicle_id,
                ChronicleEvent.user_id == self.sealer.user_id,
            )
            .execution_options(populate_existing=True)
        )
        if effect.what == "event_removed":
            return await self._put_back_event(effect) if row is None else None
        if row is None:
            return "gone" if effect.what == "event_changed" else None
        now = await writing.snapshot(session, self.sealer, row)
        if not self._is_as_left(effect, now):
            return "edited" if row.is_edited or row.is_pinned else "changed"
        if effect.what == "event_changed":
            return await self._put_back_event(effect)
        await writing.remove_events(session, [row.id], owner_id=self.sealer.user_id)
        self.removed.add(row.id)
        self._note_event(effect, now)
        return None

    async def _put_back_event(self, effect: RunEffect) -> KeptBecause | None:
        if effect.before is None:
            return "gone"
        await writing.restore(self.session, self.sealer, effect.container_id, effect.before)
        self._note_event(effect, effect.before)
        return None

    def _note_event(self, effect: RunEffect, snapshot: dict[str, Any]) -> None:
        """The index has to look at an event, and at what it supersedes."""
        superseded = (UUID(each) for each in snapshot["supersedes"])
        self.changed["event", effect.container_id].update((effect.id, *superseded))

    async def _superseded(self, detail: RunDetail) -> dict[UUID, Row[UUID, UUID, UUID | None]]:
        """By what events are superseded: what the run made, and what that superseded."""
        made = [effect.id for effect in detail.effects if effect.what == "event_created"]
        found: dict[UUID, Row[UUID, UUID, UUID | None]] = {}
        for ids in split_chunks(made):
            rows = await self.session.execute(
                select(
                    ChronicleEvent.id, ChronicleEvent.chronicle_id, ChronicleEvent.superseded_by
                ).where(
                    ChronicleEvent.id.in_(ids) | ChronicleEvent.superseded_by.in_(ids),
                    ChronicleEvent.user_id == self.sealer.user_id,
                )
            )
            found |= {row.id: row for row in rows}
        return found

    async def _inherit(self, superseded: Mapping[UUID, Row[UUID, UUID, UUID | None]]) -> None:
        """What an event that went had superseded is superseded by what superseded that one.

        Else two would count of which one says that the other is no longer so.
        """
        for event_id, row in superseded.items():
            heir = row.superseded_by
            if event_id in self.removed or heir not in self.removed:
                continue
            while heir is not None and heir in self.removed:
                heir = superseded[heir].superseded_by
            if heir is not None and await is_there(self.session, row.chronicle_id, heir):
                await supersede_again(self.session, row.chronicle_id, [event_id], heir)

    async def _item(self, effect: RunEffect) -> KeptBecause | None:
        """A change of a campaign: it counts no longer, and what was changed since stays."""
        campaign = await find_campaign(self.session, self.sealer, effect.container_id, lock=True)
        if campaign is None:
            return "gone"
        await ledger_paths.undo(self.session, self.sealer, campaign, effect.id)
        return None

    async def _entry(self, effect: RunEffect) -> KeptBecause | None:
        session, sealer = self.session, self.sealer
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
        self.changed["lore", book.id].add(effect.id)
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
        await authoring.restore(self.session, self.sealer, book, effect.before)
        return None

    def _is_as_left(self, effect: RunEffect, now: dict[str, Any]) -> bool:
        if self.force or now["revision"] == effect.revision:
            return True
        return any(
            found["revision"] == effect.revision and _content(found) == _content(now)
            for found in self.found.get(effect.id, ())
        )


def _content(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot says, to be compared: of an entry also whether it is the agent's own."""
    content = {name: value for name, value in snapshot.items() if name not in _NOT_CONTENT}
    if "agent_revision" in content:
        content["agent_revision"] = content["agent_revision"] == snapshot["revision"]
    if "sources" in content:  # in no order of their own
        content["sources"] = sorted(content["sources"], key=lambda each: each["message_id"])
    return content
