"""Undoing runs that wrote texts beside lines: summaries, and questions that lines answer."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats.questions import drop_questions
from backend.enrichment.errors import NothingToUndoError, RunUndoneError
from backend.enrichment.models import ChatSummary, EnrichmentRun
from backend.enrichment.schemas import KeptView, UndoView, WrittenView
from backend.memory.outbox import IndexOutbox


async def undo_summary(session: AsyncSession, run: EnrichmentRun, *, force: bool) -> UndoView:
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
        raise NothingToUndoError("No message has questions from this run.")
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
