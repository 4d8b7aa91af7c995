"""Queries for turns and context records. They do not commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, delete, exists, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.models import Campaign, CampaignItem
from backend.chats import repository as chats
from backend.chats.models import Chat, Message
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.database.base import skip_index, split_chunks
from backend.llm.token_ratios import TokenRatio
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.turns.errors import TurnNotFoundError
from backend.turns.models import (
    NOT_BUILT,
    OPEN_STATES,
    ContextText,
    StoredContextRecord,
    Turn,
    TurnState,
)


async def find_turn(session: AsyncSession, turn_id: UUID, *, owner_id: UUID) -> Turn | None:
    """Return a turn. None if it is absent or belongs to another user."""
    return await session.scalar(_TURN, {"turn_id": turn_id, "owner_id": owner_id})


async def get_turn(session: AsyncSession, turn_id: UUID, *, owner_id: UUID) -> Turn:
    """Return a turn. Raises `TurnNotFoundError` if it is absent or belongs to another user."""
    turn = await find_turn(session, turn_id, owner_id=owner_id)
    if turn is None:
        raise TurnNotFoundError
    return turn


_TURN = (
    select(Turn)
    .where(
        Turn.id == bindparam("turn_id"),
        Turn.user_id == bindparam("owner_id"),
        exists().where(Chat.id == Turn.chat_id, Chat.is_ready),
    )
    .execution_options(populate_existing=True)
)
_CHAT = select(Chat).where(Chat.id == bindparam("chat_id"), Chat.is_ready).with_for_update()
_TURN_AND_REPLY = (
    select(Turn, Message, TokenRatio)
    .outerjoin(Message, Message.id == Turn.reply_id)
    .outerjoin(
        TokenRatio,
        and_(TokenRatio.user_id == Turn.user_id, TokenRatio.model == bindparam("ratio_key")),
    )
    .where(Turn.id == bindparam("turn_id"))
    .with_for_update(of=Turn)
)


class LockedTurn(NamedTuple):
    """A turn with its chat, its reply, and the user's ratio for its model. None if absent."""

    chat: Chat | None
    turn: Turn | None = None
    reply: Message | None = None
    ratio: TokenRatio | None = None


async def lock_turn(
    session: AsyncSession, chat_id: UUID, turn_id: UUID, *, ratio_key: str
) -> LockedTurn:
    """Lock a chat and one of its turns, and return them with its reply and ratio."""
    chat = await session.scalar(_CHAT, {"chat_id": chat_id})
    values = {"turn_id": turn_id, "ratio_key": ratio_key}
    row = (await session.execute(_TURN_AND_REPLY, values)).one_or_none()
    return LockedTurn(chat, *row) if row else LockedTurn(chat)


async def find_open_turn(session: AsyncSession, chat_id: UUID, *, owner_id: UUID) -> Turn | None:
    """Return the turn of a chat that runs or waits."""
    return await session.scalar(
        select(Turn).where(
            Turn.chat_id == chat_id, Turn.user_id == owner_id, Turn.state.in_(OPEN_STATES)
        )
    )


async def find_open_turn_of_chain(session: AsyncSession, chain_id: UUID) -> Turn | None:
    """Return the turn of a chain that runs, waits or is reserved. The caller locks the chat."""
    return await session.scalar(
        select(Turn)
        .where(Turn.chain_id == chain_id, Turn.state.in_(OPEN_STATES))
        .with_for_update()
        .execution_options(populate_existing=True)
    )


async def list_following_turns(session: AsyncSession, turn: Turn) -> list[Turn]:
    """Return the turns that have followed a turn by themselves, in order."""
    if turn.chain_id is None or not turn.replies_left:
        return []
    query = select(Turn).where(
        Turn.chain_id == turn.chain_id,
        Turn.user_id == turn.user_id,
        Turn.replies_left < turn.replies_left,
    )
    return list(await session.scalars(query.order_by(Turn.replies_left.desc())))


async def find_next_turn(session: AsyncSession, turn: Turn) -> Turn | None:
    """Return the turn that follows a turn by itself."""
    return await session.scalar(
        select(Turn).where(
            Turn.chain_id == turn.chain_id,
            Turn.user_id == turn.user_id,
            Turn.replies_left == turn.replies_left - 1,
        )
    )


async def find_chain_number(session: AsyncSession, turn: Turn) -> int:
    """Return the place of a turn in its chain, from 1. 0 for a turn without a chain."""
    if turn.chain_id is None:
        return 0
    if turn.chain_id == turn.id:
        return 1
    first = select(Turn.replies_left).where(Turn.id == turn.chain_id)
    return (await session.scalar(first) or 0) - turn.replies_left + 1


async def delete_reserved_turn(session: AsyncSession, turn_id: UUID) -> bool:
    """Delete a turn that has not begun. False if it has, or is gone."""
    deleted = delete(Turn).where(
        Turn.id == turn_id, Turn.state == "running", Turn.totals == NOT_BUILT
    )
    return await session.scalar(deleted.returning(Turn.id)) is not None


async def list_turns(
    session: AsyncSession,
    chat_id: UUID,
    *,
    owner_id: UUID,
    state: TurnState | None,
    after: UUID | None,
    limit: int,
) -> list[Turn]:
    """Return turns of a chat after `after`, newest first.

    Clients may choose ids, so time orders.
    """
    place = tuple_(Turn.created_at, Turn.id)
    query = (
        select(Turn)
        .where(Turn.chat_id == chat_id, Turn.user_id == owner_id)
        .order_by(Turn.created_at.desc(), Turn.id.desc())
        .limit(limit)
    )
    if state is not None:
        query = query.where(Turn.state == state)
    if after is not None:
        last = select(Turn.created_at, Turn.id).where(
            Turn.id == after, Turn.chat_id == chat_id, Turn.user_id == owner_id
        )
        query = query.where(place < last.scalar_subquery())
    return list(await session.scalars(query))


async def find_abandoned_turns(session: AsyncSession, *, at: datetime) -> Sequence[Turn]:
    is_over = or_(Turn.lease_until.is_(None), Turn.lease_until <= at)
    return list(await session.scalars(select(Turn).where(Turn.state == "running", is_over)))


async def find_record(
    session: AsyncSession, message_id: UUID, *, owner_id: UUID
) -> StoredContextRecord | None:
    return await session.scalar(
        select(StoredContextRecord).where(
            StoredContextRecord.id == message_id, StoredContextRecord.user_id == owner_id
        )
    )


async def find_texts(
    session: AsyncSession, chat_id: UUID, digests: Sequence[bytes]
) -> Sequence[ContextText]:
    found: list[ContextText] = []
    for part in split_chunks(digests):
        query = select(ContextText).where(
            ContextText.chat_id == chat_id, ContextText.digest.in_(part)
        )
        found += await session.scalars(query)
    return found


async def find_last_recorded(
    session: AsyncSession, leaf: Message, *, owner_id: UUID, look_back: int
) -> Message | None:
    query = (
        select(Message)
        .join(StoredContextRecord, StoredContextRecord.id == Message.id)
        .where(Message.user_id == owner_id)
        .order_by(Message.position.desc())
        .limit(1)
    )
    if leaf.is_active:
        query = query.where(
            Message.chat_id == leaf.chat_id,
            Message.is_active,
            Message.position <= leaf.position,
            Message.position > leaf.position - look_back,
        )
    else:
        path = (await chats.list_path(session, leaf))[-look_back:]
        query = query.where(Message.id.in_([row.id for row in path]))
    return await session.scalar(query)


async def list_active_messages(
    session: AsyncSession, chat_id: UUID, *, owner_id: UUID, first: int, last: int
) -> Iterable[Message]:
    """Return the messages of the active path from `first` to `last`, including hidden ones."""
    return await session.scalars(
        select(Message)
        .where(
            Message.chat_id == chat_id,
            Message.user_id == owner_id,
            Message.is_active,
            Message.position.between(first, last),
        )
        .order_by(Message.position)
    )


async def find_usage(session: AsyncSession, message: Message, *, owner_id: UUID) -> str | None:
    """Return the usage of the last turn that wrote or continued a reply."""
    return await session.scalar(
        select(Turn.usage)
        .where(
            Turn.chat_id == message.chat_id,
            Turn.user_id == owner_id,
            Turn.reply_id == message.id,
            # A turn that wrote only thoughts has not changed the reply and its record.
            Turn.segments.contains('"text"'),
        )
        .order_by(Turn.created_at.desc(), Turn.id.desc())
        .limit(1)
    )


async def find_containers(
    session: AsyncSession,
    *,
    entry_ids: Collection[UUID],
    event_ids: Collection[UUID],
    item_ids: Collection[UUID],
    owner_id: UUID,
) -> dict[UUID, UUID]:
    """Return the lorebook, chronicle or campaign of each row, by its id."""
    found: dict[UUID, UUID] = {}
    for row, row_container, container, ids in (
        (LoreEntryRow, LoreEntryRow.lorebook_id, Lorebook, entry_ids),
        (ChronicleEvent, ChronicleEvent.chronicle_id, Chronicle, event_ids),
        (CampaignItem, CampaignItem.campaign_id, Campaign, item_ids),
    ):
        if not ids:
            continue
        query = (
            select(row.id, row_container)
            .join(container, container.id == row_container)
            .where(
                row.id.in_(ids),
                skip_index(row.user_id) == owner_id,
                container.deleted_at.is_(None),
            )
        )
        found.update((source, holder) for source, holder in await session.execute(query))
    return found
