"""What turns leave in the database: while they run, when they are over, and after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import USER_VARIABLES, User
from backend.chats import tree
from backend.chats.counting import CountUnit
from backend.chats.models import (
    CHAT_VARIABLES,
    MESSAGE_CONTENT,
    MESSAGE_THINKING,
    Chat,
    Message,
    MessageStatus,
)
from backend.context.macros import Variables
from backend.context.record import move_texts
from backend.database.base import Base, new_id, now
from backend.database.engine import Database
from backend.database.upsert import upsert
from backend.turns import ratios, repository
from backend.turns.models import (
    CONTEXT_RECORD,
    CONTEXT_TEXT,
    TURN_OUTPUT,
    TURN_PROBLEM,
    ContextRecord,
    ContextText,
    Turn,
)
from backend.turns.recording import record_of
from backend.turns.runs import Run, describe_usage
from backend.vault.sealing import OVERHEAD, Sealer, digest

LEASE = timedelta(seconds=30)
"""How long a running turn that no process renews is taken to be alive."""

MAX_VARIABLES_BYTES = 200_000
"""What the variables of a chat may take; what macros write beyond it is dropped."""


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A context record and its texts, sealed for storing."""

    record: bytes
    texts: dict[bytes, tuple[UUID, bytes]]


# Tables, not mapped classes: many rows at once, each by its key and a condition beside it.
_TURNS, _MESSAGES = Base.metadata.tables["turns"], Base.metadata.tables["messages"]
_RENEW = (
    update(_TURNS)
    .where(_TURNS.c.id == bindparam("key"), _TURNS.c.state == "running")
    .values(lease_until=bindparam("lease"), segments=bindparam("lengths"))
)
_STORE_REPLY = (
    update(_MESSAGES)
    .where(_MESSAGES.c.id == bindparam("key"), _MESSAGES.c.status == "streaming")
    .values(
        sealed_content=bindparam("sealed_content"),
        sealed_thinking=bindparam("sealed_thinking"),
        updated_at=bindparam("updated_at"),
    )
)


class TurnStore:
    """Writes running and finished turns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def store_progress(self, runs: Iterable[Run]) -> set[UUID]:
        """Store what running turns have said and renew their leases, in one transaction.

        Gives back the turns that another process was asked to stop.
        """
        runs = list(runs)
        lease_until = now() + LEASE
        turns = [
            {"key": run.turn_id, "lease": lease_until, "lengths": _segments(run)} for run in runs
        ]
        dirty = [run for run in runs if run.reply_id is not None and run.is_dirty]
        lengths = {run.turn_id: run.progress.transcript.length for run in dirty}
        replies = [_progress_row(run) for run in dirty]
        records = {
            run.turn_id: await asyncio.to_thread(_seal_record, run)
            for run in dirty
            if not run.record_stored
        }
        async with self._database.write() as session:
            # A turn that was concluded meanwhile is no longer running, and is left alone.
            connection = await session.connection()
            await connection.execute(_RENEW, turns)
            if replies:
                await connection.execute(_STORE_REPLY, replies)
            alive = await session.execute(
                select(Turn.id, Turn.stop_requested).where(
                    Turn.id.in_([run.turn_id for run in runs]), Turn.state == "running"
                )
            )
            stop_requested = {row.id: row.stop_requested for row in alive}
            for run in dirty:
                if run.turn_id in records and run.turn_id in stop_requested:
                    await _store_record(session, run, records[run.turn_id])
        for run in dirty:
            run.stored_length = lengths[run.turn_id]
            run.record_stored = run.record_stored or run.turn_id in records
        return {turn_id for turn_id, asked in stop_requested.items() if asked}

    async def conclude(self, run: Run) -> None:
        """Store the reply with everything that belongs to it, and fill in the closing events.

        One transaction: the reply's text, its counts, its context record, what was learned of the
        model's counts, and the turn's end. A reply without a word leaves no message behind.
        """
        outcome = run.outcome
        text = run.text
        is_reply = run.reply_id is not None and bool(text)
        counts = await asyncio.to_thread(_count_reply, run, text) if is_reply else {}
        record = await asyncio.to_thread(_seal_record, run) if is_reply else None
        problem = run.problem.to_problem() if run.problem else None
        usage = describe_usage(run.usage, run.built.spec.id) if run.usage else None
        async with self._database.write() as session:
            turn = await session.get(Turn, run.turn_id, with_for_update=True)
            if turn is not None:
                turn.state = outcome
                turn.finished_at = now()
                turn.segments = _segments(run)
                turn.usage = msgspec.json.encode(usage).decode() if usage else None
                turn.lease_until = None
                turn.sealed_problem = (
                    run.sealer.seal_bytes(TURN_PROBLEM, turn.id, msgspec.json.encode(problem))
                    if problem
                    else None
                )
                if run.reply_id is None and text:
                    turn.sealed_output = run.sealer.seal(TURN_OUTPUT, turn.id, text)
            saved = await self._conclude_reply(session, run, turn, counts)
            if saved and record is not None and not run.record_stored:
                await _store_record(session, run, record)
            if run.usage is not None and outcome == "completed":
                await ratios.learn(
                    session,
                    run.built.spec,
                    run.built.unit.tokenizer,
                    counted=run.built.assembled.tokens,
                    reported=run.usage.prompt_tokens,
                )
        progress = run.progress
        progress.usage = usage
        if saved:
            progress.saved = {"message_id": str(run.reply_id)}
        if problem is not None:
            progress.failed = {"turn_id": str(run.turn_id), **problem}
        else:
            progress.completed = completed_event(run.turn_id, outcome, run.finish)

    async def recover(self, *, all_running: bool) -> int:
        """Mark what a crash cut off as interrupted, its text kept; returns how many turns.

        Without `all_running` only turns whose lease is over, which some process ought to renew.
        """
        before = None if all_running else now()
        async with self._database.write() as session:
            turns = await repository.abandoned_turns(session, before=before)
            for turn in turns:
                turn.state = "interrupted"
                turn.finished_at = now()
                turn.lease_until = None
                await _leave_interrupted(session, turn)
            return len(turns)

    async def _conclude_reply(
        self, session: AsyncSession, run: Run, turn: Turn | None, counts: dict[str, int]
    ) -> bool:
        """Store the reply; False when there is none: nothing was said, or the chat is gone."""
        if run.reply_id is None:
            return False
        chat = await session.get(Chat, run.chat_id, with_for_update=True)
        message = await session.get(Message, run.reply_id)
        if chat is None or message is None:
            return False
        if not counts:
            if turn is not None:
                turn.reply_id = None
            await tree.remove(session, chat, message)
            return False
        for name, value in _sealed_reply(run, message.id).items():
            setattr(message, name, value)
        message.status = _status(run)
        unit = CountUnit.parse(chat.count_unit)
        message.token_counts = msgspec.json.encode(counts).decode()
        await session.flush()
        await tree.recount(session, message, counts[str(unit)])
        chat.updated_at = now()
        return True


def completed_event(turn_id: UUID, state: str, finish: str) -> dict[str, Any]:
    """The `turn.completed` event's data."""
    return {"turn_id": str(turn_id), "state": state, "finish_reason": finish or state}


async def save_variables(
    session: AsyncSession, sealer: Sealer, chat: Chat, before: Variables, after: Variables
) -> None:
    """Keep what macros wrote, within limits."""
    if after.local is not before.local:
        data = msgspec.json.encode(dict(after.local))
        if len(data) <= MAX_VARIABLES_BYTES:
            chat.sealed_variables = sealer.seal_bytes(CHAT_VARIABLES, chat.id, data)
    if after.global_ is not before.global_:
        data = msgspec.json.encode(dict(after.global_))
        if len(data) <= MAX_VARIABLES_BYTES:
            await session.execute(
                update(User)
                .where(User.id == sealer.user_id)
                .values(sealed_variables=sealer.seal_bytes(USER_VARIABLES, sealer.user_id, data))
            )


def text_digest(sealer: Sealer, text: str) -> bytes:
    """The keyed hash under which a text of a prompt is kept."""
    return digest(sealer.derived("context-texts"), text.encode())


def _status(run: Run) -> MessageStatus:
    if run.prefix and not run.progress.transcript.joined("text"):
        return run.status_before
    match run.outcome:
        case "completed":
            return "complete"
        case "failed":
            return "failed"
        case _:
            return "interrupted"


def _segments(run: Run) -> str:
    return msgspec.json.encode(run.progress.transcript.segments()).decode()


def _progress_row(run: Run) -> dict[str, Any]:
    if run.reply_id is None:
        raise ValueError("Only a reply is stored as it grows.")
    return {"key": run.reply_id, **_sealed_reply(run, run.reply_id)}


def _sealed_reply(run: Run, reply_id: UUID) -> dict[str, Any]:
    thinking = run.thinking
    return {
        "sealed_content": run.sealer.seal(MESSAGE_CONTENT, reply_id, run.text),
        "sealed_thinking": (
            run.sealer.seal(MESSAGE_THINKING, reply_id, thinking) if thinking else None
        ),
        "updated_at": now(),
    }


def _count_reply(run: Run, text: str) -> dict[str, int]:
    """Counts of the reply in the unit of its prompt and in that of its chat."""
    units = {str(run.built.unit), run.built.gathered.chat.count_unit}
    name = run.built.gathered.speaker.name
    return {unit: CountUnit.parse(unit).count(name, text) for unit in units}


def _seal_record(run: Run) -> SealedRecord:
    record = record_of(run.built)
    texts = move_texts(record, lambda text: text_digest(run.sealer, text).hex())
    sealed: dict[bytes, tuple[UUID, bytes]] = {}
    for key, text in texts.items():
        text_id = new_id()
        sealed[bytes.fromhex(key)] = text_id, run.sealer.seal(CONTEXT_TEXT, text_id, text)
    if run.reply_id is None:
        raise ValueError("Only a reply has a record.")
    blob = run.sealer.seal_bytes(CONTEXT_RECORD, run.reply_id, msgspec.json.encode(record))
    return SealedRecord(blob, sealed)


async def _store_record(session: AsyncSession, run: Run, sealed: SealedRecord) -> None:
    values = {
        "id": run.reply_id,
        "user_id": run.user_id,
        "chat_id": run.chat_id,
        "sealed_record": sealed.record,
        "created_at": now(),
    }
    known = set(
        await session.scalars(
            select(ContextText.digest).where(
                ContextText.chat_id == run.chat_id, ContextText.digest.in_(list(sealed.texts))
            )
        )
    )
    for key, (text_id, blob) in sealed.texts.items():
        if key not in known:
            row = {
                "id": text_id,
                "user_id": run.user_id,
                "chat_id": run.chat_id,
                "digest": key,
                "sealed_text": blob,
                "created_at": now(),
            }
            await upsert(session, ContextText, row, key=["chat_id", "digest"], update={})
    await upsert(session, ContextRecord, values, key=["id"], update=values)


async def _leave_interrupted(session: AsyncSession, turn: Turn) -> None:
    message = await session.get(Message, turn.reply_id) if turn.reply_id else None
    if message is None or message.status != "streaming":
        return
    if len(message.sealed_content) > OVERHEAD:
        message.status = "interrupted"
        return
    chat = await session.get_one(Chat, message.chat_id)
    turn.reply_id = None
    await tree.remove(session, chat, message)
