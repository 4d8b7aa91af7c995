"""Undoing a run: one transaction, with what the index has to look at."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats.repository import get_chat
from backend.chronicles.repository import get_chronicle
from backend.database.base import now
from backend.enrichment.detail import RunDetail
from backend.enrichment.errors import NothingToUndoError, RunReplacedError, RunUndoneError
from backend.enrichment.models import ChatSummary, EnrichmentRun
from backend.enrichment.runs import (
    LaterRuns,
    get_run,
    later_runs,
    open_detail,
    sealed_detail,
)
from backend.enrichment.schemas import KeptView, UndoView, WrittenView
from backend.enrichment.undo.undoing import Undoer, Undoing
from backend.memory.outbox import IndexOutbox


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
    # The chat and the chronicle first, as whoever writes into them does.
    await get_chat(session, run.chat_id, owner_id=owner_id, lock=True)
    if run.chronicle_id is not None:
        await get_chronicle(session, run.chronicle_id, owner_id=owner_id, lock=True)
    run = await get_run(session, run_id, owner_id=owner_id, lock=True)
    if run.state == "failed":
        raise NothingToUndoError("It failed, and changed nothing.")
    if run.state == "undone" and not force:
        raise RunUndoneError
    if run.kind == "summary":
        view = await _undo_summary(session, run, force=force)
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
    later = await later_runs(session, identity.sealer, run)
    _check_replaced(detail, later)
    undoer = Undoer(session, identity.sealer, found=later.found(detail), force=force)
    outcome = await undoer.undo(detail, only=detail.kept if is_again else None)
    left = msgspec.structs.replace(detail, kept=outcome.left)
    run.sealed_detail = sealed_detail(identity.sealer, run.id, left)
    for chronicle_id, events in outcome.events.items():
        await index.changed(
            session, identity, kind="event", container_id=chronicle_id, source_ids=sorted(events)
        )
    for book_id, entries in outcome.entries.items():
        await index.changed(
            session, identity, kind="lore", container_id=book_id, source_ids=sorted(entries)
        )
    return _view(outcome)


def _check_replaced(detail: RunDetail, later: LaterRuns) -> None:
    """Raise `RunReplacedError` where what a run wrote was removed by a rebuild that stands."""
    if not detail.effects:
        raise NothingToUndoError("It found nothing to write down.")
    written = {effect.id for effect in detail.effects if not effect.what.endswith("removed")}
    replaced_by = later.removed_any(written)
    if replaced_by is not None:
        raise RunReplacedError(
            "Undo the later run first: it put other events in the place of these.",
            extra={"run_id": str(replaced_by)},
        )


async def _undo_summary(session: AsyncSession, run: EnrichmentRun, *, force: bool) -> UndoView:
    mine = ChatSummary.run_id == run.id, ChatSummary.user_id == run.user_id
    rows = list(await session.scalars(select(ChatSummary).where(*mine)))
    if run.state == "undone" and not rows:
        raise RunUndoneError
    undone = [row.id for row in rows if force or not row.is_edited]
    await session.execute(
        delete(ChatSummary)
        .where(ChatSummary.id.in_(undone))
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
            KeptView(id=row.id, title="", reason="edited") for row in rows if row.id not in undone
        ],
    )


def _view(outcome: Undoing) -> UndoView:
    return UndoView(
        undone=[WrittenView.of(effect) for effect in outcome.undone],
        kept=[
            KeptView(id=effect.id, title=effect.title, reason=reason)
            for effect, reason in outcome.kept
        ],
    )
