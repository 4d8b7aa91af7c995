"""Undo a run in one transaction: its effects on items that are unchanged since.

An item is unchanged if it still has the revision that the run gave it. It is also unchanged if all
later changes were undone, so that its content is what they found.
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
from backend.chats.repository import get_chat
from backend.chronicles import event_writer as writing
from backend.chronicles.event_writer import has_event, supersede_again
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
    """Delete the summaries that a run wrote; edited ones only with `force`."""
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


_NOT_CONTENT = frozenset({"revision", "place", "superseded_by", "supersedes"})
"""Members of a snapshot that may differ although the content is the same."""

_TOLD = frozenset({"sources", "audience"})
"""Members of a snapshot that change if an event is told again."""


async def undo_run(
    session: AsyncSession, index: IndexOutbox, identity: Identity, run_id: UUID, *, force: bool
) -> UndoView:
    """Undo the effects of a run; items that were changed since only with `force`.

    `force` also undoes what an earlier undo of the run has kept.

    Raises `RunNotFoundError`, `RunUndoneError`, `NothingToUndoError`, `RunReplacedError`, and
    `LorebookFullError` if a deleted entry no longer fits into its lorebook.
    """
    owner_id = identity.user_id
    run = await get_run(session, run_id, owner_id=owner_id)
    # All writers lock in this order: chat, campaign, chronicle.
    await get_chat(session, run.chat_id, owner_id=owner_id, lock=True)
    if run.campaign_id is not None:
        await find_campaign(session, identity.sealer, run.campaign_id, lock=True)
    if run.chronicle_id is not None:
        await get_chronicle(session, run.chronicle_id, owner_id=owner_id, lock=True)
    run = await get_run(session, run_id, owner_id=owner_id, lock=True)
    if run.state == "failed":
        raise NothingToUndoError("The run failed and changed nothing.")
    if run.kind in {"rephrasing", "speaker", "suggestions", "briefing"}:
        raise NothingToUndoError("Runs of this kind store nothing.")
    if run.kind == "title":
        raise NothingToUndoError("Change the title of the chat instead.")
    if run.kind in {"glossary", "scene", "chapter"}:
        raise NothingToUndoError("Undo its changes one by one in the change log of the campaign.")
    if run.state == "undone" and not force:
        raise RunUndoneError
    if run.kind == "summary":
        view = await undo_summary_run(session, run, force=force)
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
    if run.sealed_detail is None:
        raise NothingToUndoError("The details of the run were deleted, because it is too old.")
    if not detail.effects:
        raise NothingToUndoError("The run found nothing to record.")
    later = await _later_runs(session, identity.sealer, run)
    _check_replaced(detail, later)
    undoer = _Undoer(session, identity.sealer, _find_snapshots(detail, later), force)
    await undoer.undo(detail, only=detail.kept if is_again else None)
    left = msgspec.structs.replace(detail, kept=undoer.left)
    run.sealed_detail = seal_detail(identity.sealer, run.id, left)
    await update_index(session, index, identity, undoer.changed)
    return UndoView(undone=undoer.undone, kept=undoer.kept)


Later = Sequence[tuple[EnrichmentRun, RunDetail]]
"""Later successful runs that wrote into the same chronicle, oldest first."""


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


def _find_snapshots(detail: RunDetail, later: Later) -> dict[UUID, list[dict[str, Any]]]:
    """Return the snapshots of items before this run and before later ones, by item.

    Undone runs are included, because their snapshots show the content before them.
    """
    found: defaultdict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for each in (detail, *(later_detail for _, later_detail in later)):
        for effect in each.effects:
            if effect.before is not None:
                found[effect.id].append(effect.before)
    return found


def _check_replaced(detail: RunDetail, later: Later) -> None:
    """Raise `RunReplacedError` if a rebuild has deleted something that the run wrote."""
    written = {effect.id for effect in detail.effects if not effect.what.endswith("removed")}
    for run, each in reversed(later):
        removed = {effect.id for effect in each.effects if effect.what.endswith("removed")}
        if run.state == "done" and not removed.isdisjoint(written):
            raise RunReplacedError(
                "Undo the later run first, because it replaced these events.",
                extra={"run_id": str(run.id)},
            )


@dataclass(slots=True)
class _Undoer:
    """Undoes the effects of one run in the caller's transaction.

    Attributes:
        found: The snapshots of items before this run and before later ones, by item.
        force: True to undo items that were changed since, too.
        left: The indexes of the effects that were kept.
        changed: The items to index again.
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
        """Undo the effects, the last one first. Raises `LorebookFullError`.

        `only` are the indexes of effects to undo; None for all.
        """
        superseded = await self._find_superseded(detail)
        for place, effect in reversed(list(enumerate(detail.effects))):
            if only is not None and place not in only:
                continue
            take_back = {
                "event": self._undo_event,
                "entry": self._undo_entry,
                "item": self._undo_change,
            }[effect.what.partition("_")[0]]
            reason = await take_back(effect)
            if reason is None:
                self.undone.append(WrittenView.from_effect(effect))
            else:
                self.kept.append(KeptView(id=effect.id, title=effect.title, reason=reason))
                self.left.append(place)
        await self._inherit(superseded)

    async def _undo_event(self, effect: RunEffect) -> KeptBecause | None:
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
        telling = self._find_telling(effect, row, now)
        if telling is None and not self._is_as_left(effect, now):
            return "edited" if row.is_edited or row.is_pinned else "changed"
        if telling is None and effect.what == "event_changed":
            return await self._put_back_event(effect)
        if telling is None or not await writing.remove_telling(
            session, row, telling, before=_find_earlier_audience(effect, now)
        ):
            await writing.remove_events(session, [row.id], owner_id=self.sealer.user_id)
            self.removed.add(row.id)
        self._note_event(effect, now)
        return None

    def _find_telling(
        self, effect: RunEffect, row: ChronicleEvent, now: dict[str, Any]
    ) -> int | None:
        """Return the telling to take back if others are kept. None to undo the whole event."""
        if effect.telling is not None:
            return effect.telling if self.force or not row.is_edited else None
        return 0 if effect.what == "event_created" and self._was_told_again(effect, now) else None

    def _was_told_again(self, effect: RunEffect, now: dict[str, Any]) -> bool:
        """True if all that happened to an event since is that it was told to others."""
        tellings = {each.get("telling", 0) for each in now["sources"]}
        return len(tellings) > 1 and any(
            found["revision"] == effect.revision
            and _read_content(found, besides=_TOLD) == _read_content(now, besides=_TOLD)
            for found in self.found.get(effect.id, ())
        )

    async def _put_back_event(self, effect: RunEffect) -> KeptBecause | None:
        if effect.before is None:
            return "gone"
        await writing.restore(self.session, self.sealer, effect.container_id, effect.before)
        self._note_event(effect, effect.before)
        return None

    def _note_event(self, effect: RunEffect, snapshot: dict[str, Any]) -> None:
        """Queue the indexing of an event and of the events that it supersedes."""
        superseded = (UUID(each) for each in snapshot["supersedes"])
        self.changed["event", effect.container_id].update((effect.id, *superseded))

    async def _find_superseded(self, detail: RunDetail) -> dict[UUID, Row[UUID, UUID, UUID | None]]:
        """Return which events are superseded by which, as far as the run is involved."""
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
        """Let the superseder of a deleted event supersede the events that it superseded.

        Otherwise two events that contradict each other would be current.
        """
        for event_id, row in superseded.items():
            heir = row.superseded_by
            if event_id in self.removed or heir not in self.removed:
                continue
            while heir is not None and heir in self.removed:
                heir = superseded[heir].superseded_by
            if heir is not None and await has_event(self.session, row.chronicle_id, heir):
                await supersede_again(self.session, row.chronicle_id, [event_id], heir)

    async def _undo_change(self, effect: RunEffect) -> KeptBecause | None:
        """Undo a change of a campaign. Later changes are kept."""
        campaign = await find_campaign(self.session, self.sealer, effect.container_id, lock=True)
        if campaign is None:
            return "gone"
        await ledger_paths.undo_change(self.session, self.sealer, campaign, effect.id)
        return None

    async def _undo_entry(self, effect: RunEffect) -> KeptBecause | None:
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
            found["revision"] == effect.revision and _read_content(found) == _read_content(now)
            for found in self.found.get(effect.id, ())
        )


def _find_earlier_audience(effect: RunEffect, now: dict[str, Any]) -> str | None:
    """Return the audience before a telling, if the event was not told again since."""
    if effect.before is None or effect.telling is None:
        return None
    tellings = {each.get("telling", 0) for each in now["sources"]} - {effect.telling}
    earlier = {each.get("telling", 0) for each in effect.before["sources"]}
    audience: str = effect.before["audience"]
    return audience if tellings == earlier else None


def _read_content(snapshot: dict[str, Any], *, besides: Collection[str] = ()) -> dict[str, Any]:
    """Return the members of a snapshot to compare. For entries, ownership counts, too."""
    left_out = {*_NOT_CONTENT, *besides}
    content = {name: value for name, value in snapshot.items() if name not in left_out}
    if "agent_revision" in content:
        content["agent_revision"] = content["agent_revision"] == snapshot["revision"]
    if "sources" in content:  # their order does not matter
        content["sources"] = sorted(content["sources"], key=lambda each: each["message_id"])
    return content
