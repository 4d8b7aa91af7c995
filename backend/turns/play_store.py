"""What a played turn leaves in the database: what it changed, or, while it waits, all of it."""

from __future__ import annotations

import asyncio

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.campaigns.play.store import commit
from backend.campaigns.play.table import Table
from backend.campaigns.records import find_campaign
from backend.chats import repository as chats
from backend.chats.models import Chat, Message
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ConflictError
from backend.prompts import PromptLibrary
from backend.quotas.ledgers import add_tokens
from backend.turns.built import Built
from backend.turns.events import CHANGED, SUGGESTED
from backend.turns.models import LEASE, TURN_PLAY, Turn
from backend.turns.play import Play, SuspendedPlay
from backend.turns.prompt_context import version_of
from backend.turns.recording import store_record
from backend.turns.rows import (
    counted,
    encoded,
    replace_totals,
    sealed_events,
    segments_of,
    usage_event,
    write_reply,
)
from backend.turns.transcript import PlayEvent
from backend.turns.turn_run import TurnRun
from backend.vault.sealing import Sealer


async def commit_play(
    session: AsyncSession, play: Play, run: TurnRun, chat: Chat, message: Message
) -> list[PlayEvent]:
    """Write down what a played turn has changed, with its reply; gives back what is told of it.

    The chat's row is locked. What the campaign no longer lets it change is left out, and counted.
    """
    table, events = play.table, list[PlayEvent]()
    campaign = None
    if chat.campaign_id is not None and chat.campaign_id == table.state.campaign_id:
        campaign = await find_campaign(session, run.sealer, chat.campaign_id, lock=True)
    if campaign is not None:
        wanted = len(table.ledger)
        changes = await commit(session, run.sealer, campaign, table, message, run.turn_id)
        if wanted:
            left_out = wanted - len(changes)
            events.append(PlayEvent(CHANGED, {"changes": changes, "left_out": left_out}))
    if table.suggestions:
        events.append(PlayEvent(SUGGESTED, {"items": list(table.suggestions)}))
    return events


async def suspend(database: Database, run: TurnRun, play: Play) -> bool:
    """Store a turn that waits for its player; False where it is to end instead."""
    counts, record, spent = await asyncio.to_thread(counted, run)
    suspended = play.suspended(run.usage)
    async with database.write() as session:
        chat = await session.get(Chat, run.chat_id, with_for_update=True)
        turn = await session.get(Turn, run.turn_id, with_for_update=True)
        message = await session.get(Message, run.reply_id) if run.reply_id else None
        if chat is None or turn is None or message is None or turn.state != "running":
            run.end_waiting("interrupted")
            return False
        if turn.stop_requested:
            run.end_waiting("stopped")
            return False
        turn.state, turn.lease_until, turn.waits_for = "waiting", None, None
        turn.segments = segments_of(run)
        turn.usage = encoded(usage_event(run))
        turn.sealed_events = sealed_events(run)
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
    suspended: SuspendedPlay, built: Built, prompts: PromptLibrary, option: str
) -> tuple[Play, Built]:
    """A turn that waited, with the player's choice, and its prompt as it is now.

    Raises `ConflictError` where the chat is no longer played as it was.
    """
    fresh, table = built.loaded.table, Table.load(suspended.table)
    if fresh is None or fresh.state.campaign_id != table.state.campaign_id:
        raise ConflictError("The chat is no longer played in this campaign. Stop the turn.")
    table.names, table.viewpoint = fresh.names, fresh.viewpoint
    play = Play(
        table=table,
        prompts=prompts,
        rounds=suspended.rounds,
        used=suspended.used,
        viewpoint=suspended.viewpoint,
        earlier=suspended.earlier,
    )
    play.choose(option)
    return play, play.guide(built)


async def claim(database: Database, identity: Identity, run: TurnRun, *, before: str) -> bool:
    """Let a turn go on here; False where it does not wait any more, or its chat has changed.

    `before` are its segments as they were read: each wait has others, so that a choice that comes
    late can't be taken for that of a later wait. One statement, so one of several claims it.
    """
    loaded = run.built.loaded
    async with database.write() as session:
        chat = await chats.get_chat(session, run.chat_id, owner_id=run.user_id, lock=True)
        if version_of(chat) != version_of(loaded.chat):
            return False
        claimed = (
            update(Turn)
            .where(
                Turn.id == run.turn_id,
                Turn.user_id == identity.user_id,
                Turn.state == "waiting",
                Turn.segments == before,
            )
            .values(
                state="running",
                model=run.built.window.spec.id,
                lease_until=now() + LEASE,
                segments=segments_of(run),
                sealed_events=sealed_events(run),
                sealed_play=None,
            )
            .returning(Turn.id)
            .execution_options(synchronize_session=False)
        )
        return await session.scalar(claimed) is not None
