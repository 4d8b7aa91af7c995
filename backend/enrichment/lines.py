"""Lines of a chat's path as a model reads them, numbered, and whether they are still as read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import GM, AudienceMarks, Viewpoint, known_to
from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.enrichment.cleaning import shown
from backend.enrichment.llm_selection import Reader
from backend.enrichment.story import find_author, readable
from backend.generation.model import Role

Line = Row[UUID, int, bytes, bytes, str, datetime, Role, UUID | None]
"""Id, position, sealed author, sealed text, audience, time of the last change, role, persona."""

Version = tuple[UUID, datetime]
"""Which message a line is, and when its text changed."""


async def read_lines(
    session: AsyncSession,
    chat: Chat,
    *,
    after: int,
    through: int,
    most: int,
    viewpoint: Viewpoint = GM,
) -> Sequence[Line]:
    """Lines of the active path behind position `after` that a viewpoint may know, oldest first.

    They have at most `most` stored tokens together; one that is longer stands alone.
    """
    lines = lines_between(chat, after, through, viewpoint)
    total = func.sum(Message.tokens).over(order_by=Message.position)
    sums = select(Message.id, total.label("total")).where(*lines).subquery()
    fitting = select(sums.c.id).where(sums.c.total <= most)
    query = (
        select(
            Message.id,
            Message.position,
            Message.sealed_author,
            Message.sealed_content,
            Message.audience,
            Message.updated_at,
            Message.role,
            Message.persona_id,
        )
        .where(*lines)
        .order_by(Message.position)
    )
    rows = (await session.execute(query.where(Message.id.in_(fitting)))).all()
    return rows or (await session.execute(query.limit(1))).all()


async def is_as_read(
    session: AsyncSession,
    chat: Chat,
    versions: Sequence[Version],
    *,
    after: int,
    viewpoint: Viewpoint = GM,
) -> bool:
    """Whether the path says what it said behind position `after`: no line more, none less."""
    last = await session.get(Message, versions[-1][0])
    if last is None:
        return False
    lines = lines_between(chat, after, last.position, viewpoint)
    query = select(Message.id, Message.updated_at).where(*lines)
    rows = await session.execute(query.order_by(Message.position))
    return [(row.id, row.updated_at) for row in rows] == list(versions)


def told(reader: Reader, row: Line | Message, most: int, marks: AudienceMarks | None = None) -> str:
    """Render a line of the story, in at most `most` characters; `marks` say who knows it."""
    sealer = reader.sealer
    author = find_author(sealer, row, reader.player)
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    line = f"{author}: {text}" if author else text
    said = shown(marks.mark(line, row.audience) if marks else line, most=most)
    return f"#{row.position + 1} {said}"


def lines_between(
    chat: Chat, after: int, through: int, viewpoint: Viewpoint = GM
) -> tuple[ColumnElement[bool], ...]:
    """Conditions on lines behind position `after` that a viewpoint may know."""
    place = Message.position > after, Message.position <= through
    return readable(chat), *place, known_to(viewpoint, Message.audience)
