"""The messages that a compaction reads: of a chat's active path those without a mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.models import CampaignMark
from backend.campaigns.state.viewpoints import read_marks
from backend.chats.models import MESSAGE_AUTHOR, Chat, Message
from backend.core.audience import filter_known_to_all
from backend.enrichment.reader import CHARACTERS_A_TOKEN, Reader
from backend.enrichment.story import Version, find_last_reply, is_readable, render_line

MAX_LINES = 200
EARLIER_LINES = 4
EARLIER_CHARACTERS = 2_000

_IS_READ = select(CampaignMark.id).where(CampaignMark.id == Message.id).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Lines that were not read yet, all of one audience, and a few before them that it may know.

    `since` is when the first of them was said. `player_names` are the stored names of the user if
    the lines show the player character instead.
    """

    versions: Sequence[Version]
    positions: Sequence[int]
    earlier: Sequence[str]
    lines: Sequence[str]
    audience: str
    since: datetime
    player_names: frozenset[str] = frozenset()


async def read_window(session: AsyncSession, reader: Reader, chat: Chat) -> Window | None:
    """The first lines that one call reads, of at most `stretch_tokens` stored tokens together.

    They end with the last reply of the chat, and begin where its owner agreed that it is read. None
    where nothing is left.
    """
    most, conditions = reader.stretch_tokens, await _unread(session, chat)
    query = select(Message).where(*conditions).order_by(Message.position)
    first = (await session.execute(query.limit(1))).scalar_one_or_none()
    if first is None:
        return None
    same = query.where(Message.audience == first.audience).limit(MAX_LINES)
    rows = (await session.scalars(same)).all()
    fitting = sum(1 for total in accumulate(row.tokens for row in rows) if total <= most)
    rows = rows[: max(1, fitting)]
    marks = await read_marks(session, reader.sealer, chat.campaign_id, first.audience)
    before = (
        select(Message)
        .where(
            is_readable(chat),
            Message.position < first.position,
            filter_known_to_all(first.audience, Message.audience),
        )
        .order_by(Message.position.desc())
        .limit(EARLIER_LINES)
    )
    if chat.chronicle_since is not None:
        before = before.where(Message.created_at >= chat.chronicle_since)
    earlier = (await session.scalars(before)).all()[::-1]
    return Window(
        versions=[(row.id, row.updated_at) for row in rows],
        positions=[row.position for row in rows],
        earlier=[render_line(reader, row, EARLIER_CHARACTERS, marks) for row in earlier],
        lines=[render_line(reader, row, most * CHARACTERS_A_TOKEN) for row in rows],
        audience=first.audience,
        since=first.created_at,
        player_names=_player_names(reader, [*earlier, *rows]),
    )


def _player_names(reader: Reader, rows: Sequence[Message]) -> frozenset[str]:
    if reader.player is None:
        return frozenset()
    own = [row for row in rows if row.role == "user" and row.persona_id is None]
    return frozenset(reader.sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author) for row in own)


async def is_unread(session: AsyncSession, chat: Chat, window: Window) -> bool:
    """Whether the lines are still told, as they were read, and nobody else has read them."""
    ids = [message_id for message_id, _ in window.versions]
    query = select(Message.id, Message.updated_at).where(
        *await _unread(session, chat), Message.id.in_(ids), Message.audience == window.audience
    )
    found: dict[UUID, datetime] = {row.id: row.updated_at for row in await session.execute(query)}
    return found == dict(window.versions)


async def count_unread(session: AsyncSession, chat: Chat) -> int:
    """How many messages the next compaction would read."""
    query = select(func.count()).select_from(Message).where(*await _unread(session, chat))
    return await session.scalar(query) or 0


async def _unread(session: AsyncSession, chat: Chat) -> tuple[ColumnElement[bool], ...]:
    """A user's line without a reply is read together with its reply."""
    last = await find_last_reply(session, chat)
    conditions = is_readable(chat), ~_IS_READ, Message.position <= (-1 if last is None else last)
    if chat.chronicle_since is None:
        return conditions
    return *conditions, Message.created_at >= chat.chronicle_since
