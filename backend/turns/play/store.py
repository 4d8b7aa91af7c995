"""What a played turn leaves in the database: what it changed, or, while it waits, all of it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.records import find_campaign
from backend.campaigns.play.store import record_table, view_changes
from backend.campaigns.play.table import Table
from backend.chats import repository as chats
from backend.chats.models import Chat, Message
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ConflictError
from backend.prompts import PromptLibrary
from backend.quotas.ledgers import add_tokens
from backend.turns.api.schemas import ChoiceRequest
from backend.turns.models import LEASE_DURATION, TURN_PLAY, Turn
from backend.turns.play.played_turn import Play, SuspendedPlay
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.context import get_version
from backend.turns.prompt.record import store_record
from backend.turns.run.events import STATE_CHANGED, SUGGESTIONS, PlayEvent
from backend.turns.run.store import (
    count_reply,
    encode_json,
    encode_segments,
    make_usage_data,
    replace_totals,
    seal_events,
    write_reply,
)
from backend.turns.run.turn_run import TurnRun
from backend.vault.sealing import Sealer


class _Recorded(NamedTuple):
    """Changes that were written: their ids, and how many were not possible any more."""

    ids: list[UUID]
    left_out: int


async def close_play(
    session: AsyncSession, play: Play, run: TurnRun, chat: Chat, message: Message
) -> list[PlayEvent]:
    """Write the changes of a played turn with its reply, and return the events of that.

    A turn that did not complete keeps only those that a choice has stored. The chat's row is
    locked. Changes that are not possible any more are left out, and counted.
    """
    table, events = play.table, list[PlayEvent]()
    is_complete = run.outcome == "completed"
    new = await _record(session, table, run, chat, message) if is_complete else _Recorded([], 0)
    stored = table.state.stored
    ids, left_out = [*stored.ids, *new.ids], stored.left_out + new.left_out
    if ids or left_out:
        changes = await view_changes(session, run.sealer, ids)
        events.append(PlayEvent(STATE_CHANGED, {"changes": changes, "left_out": left_out}))
    if is_complete and table.suggestions:
        events.append(PlayEvent(SUGGESTIONS, {"items": list(table.suggestions)}))
    return events


async def _record(
    session: AsyncSession, table: Table, run: TurnRun, chat: Chat, message: Message
) -> _Recorded:
    """Write the changes of a table that are not stored. The chat's row is locked."""
    if chat.campaign_id is None or chat.campaign_id != table.state.campaign_id:
        return _Recorded([], 0)
    campaign = await find_campaign(session, run.sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return _Recorded([], 0)
    wanted = len(table.ledger)
    ids = await record_table(session, run.sealer, campaign, table, message, run.turn_id)
    return _Recorded(ids, wanted - len(ids))


async def suspend(database: Database, run: TurnRun, play: Play) -> bool:
    """Store a turn that waits for its player; False where it is to end instead."""
    counts, record, spent = await asyncio.to_thread(count_reply, run)
    suspended = play.suspended(run.usage)
    async with database.write() as session:
        chat = await session.get(Chat, run.chat_id, with_for_update=True)
        turn = await session.get(Turn, run.turn_id, with_for_update=True)
        message = await session.get(Message, run.reply_id) if run.reply_id else None
        if (
            chat is None
            or turn is None
            or message is None
            or not turn.is_run_by(database.process_id)
        ):
            run.end_waiting("interrupted")
            return False
        if turn.stop_requested:
            run.end_waiting("stopped")
            return False
        turn.state = "waiting"
        turn.lease_owner = turn.lease_until = turn.waits_for = None
        turn.segments = encode_segments(run)
        turn.usage = encode_json(make_usage_data(run))
        turn.sealed_events = seal_events(run)
        turn.sealed_play = run.sealer.seal_bytes(TURN_PLAY, turn.id, suspended)
        if run.refused:
            replace_totals(run, turn)
        write_reply(run, chat, message, counts)
        if record is not None:
            await store_record(session, run, record)
        chat.updated_at = now()
        await add_tokens(session, run.user_id, spent)
    run.progress.is_waiting = True
    return True


def read_suspended(sealer: Sealer, turn: Turn) -> SuspendedPlay:
    """What a turn that waits goes on with."""
    if turn.sealed_play is None:
        raise ValueError("It does not wait.")
    data = sealer.open_bytes(TURN_PLAY, turn.id, turn.sealed_play)
    return msgspec.json.decode(data, type=SuspendedPlay)


def resume_play(
    suspended: SuspendedPlay, built: BuiltPrompt, prompts: PromptLibrary, choice: ChoiceRequest
) -> tuple[Play, BuiltPrompt]:
    """A turn that waited, with the player's choice, and its prompt as it is now.

    Raises `ConflictError` where the chat is no longer played as it was, and `ValidationError` for
    a choice that the turn does not wait for.
    """
    fresh, table = built.loaded.table, Table.load(suspended.table)
    if fresh is None or fresh.state.campaign_id != table.state.campaign_id:
        raise ConflictError("The chat is no longer played in this campaign. Stop the turn.")
    table.names, table.viewpoint = fresh.names, fresh.viewpoint
    table.state.shown_place = fresh.state.shown_place
    table.state.shows_people = fresh.state.shows_people
    play = Play(
        table=table,
        prompts=prompts,
        rounds=suspended.rounds,
        used=suspended.used,
        viewpoint=suspended.viewpoint,
        earlier=suspended.earlier,
    )
    play.choose(choice)
    return play, play.guide(built)


async def claim(database: Database, run: TurnRun, play: Play, *, before: str) -> bool:
    """Let a turn go on here; False where it does not wait any more, or its chat has changed.

    All changes of the table are written in the same transaction, as changes of the reply. So the
    choice counts, even if the rest of the turn is lost.

    `before` are its segments as they were read: each wait has others, so that a choice that comes
    late can't be taken for that of a later wait. One statement, so one of several claims it.
    """
    loaded = run.built.loaded
    async with database.write() as session:
        chat = await chats.get_chat(session, run.chat_id, owner_id=run.user_id, lock=True)
        if get_version(chat) != get_version(loaded.chat):
            return False
        claimed = (
            update(Turn)
            .where(
                Turn.id == run.turn_id,
                Turn.user_id == run.user_id,
                Turn.state == "waiting",
                Turn.segments == before,
            )
            .values(
                state="running",
                model=run.built.window.spec.id,
                lease_owner=database.process_id,
                lease_until=now() + LEASE_DURATION,
                segments=encode_segments(run),
                sealed_events=seal_events(run),
                sealed_play=None,
            )
            .returning(Turn.id)
            .execution_options(synchronize_session=False)
        )
        if await session.scalar(claimed) is None:
            return False
        reply = await session.get_one(Message, run.reply_id)
        new = await _record(session, play.table, run, chat, reply)
    play.table.note_stored(new.ids, left_out=new.left_out)
    return True
