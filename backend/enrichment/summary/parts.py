"""What the rolling summary takes in next: how far it has to reach, and the lines up to there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.repository import first_behind
from backend.context.budget import eviction_point, step_of
from backend.enrichment.cleaning import shown
from backend.enrichment.study import CHARACTERS_A_TOKEN
from backend.enrichment.summary.stored import StoredSummary
from backend.vault.sealing import Sealer

LEAST_BETWEEN = 4
"""Messages, two exchanges: however small the history is, no summary is asked for more often."""

LAST_EXCHANGE = 2
"""Messages that are swiped and edited most: they are not summed up ahead of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPart:
    """What one call of the model brings in: the lines behind `previous`, oldest first.

    `versions` says of each line which message it is and when its text changed; `goal` is the
    position that has to be reached in the end.
    """

    previous: StoredSummary | None
    versions: Sequence[tuple[UUID, datetime]]
    lines: Sequence[str]
    first_position: int
    last_position: int
    goal: int

    @property
    def message_ids(self) -> list[UUID]:
        """Of its lines."""
        return [message_id for message_id, _ in self.versions]


async def find_goal(
    session: AsyncSession,
    chat_id: UUID,
    current: StoredSummary | None,
    *,
    history_budget: int,
    interval: int,
    is_begun: bool,
) -> int | None:
    """The position through which the path should be summarised by now; None where it is.

    That is all that the history loses with its next step, and `interval` messages at least, as far
    as they are in the older half of the history. Until there are as many new ones it waits, unless
    the history has lost some already: then `LEAST_BETWEEN` are enough, of whichever half.

    `current` is what is summarised, `history_budget` in stored tokens. With `is_begun` a summary on
    the way there was just stored: the rest does not wait.
    """
    query = (
        select(Message.path_tokens, Message.position)
        .where(Message.chat_id == chat_id, Message.is_active, Message.status != "streaming")
        .order_by(Message.position.desc())
        .limit(1)
    )
    last = (await session.execute(query)).one_or_none()
    if last is None:
        return None
    leaf = last.path_tokens
    reached, covered = (current.position, current.path_tokens) if current else (-1, 0)
    next_begin = eviction_point(leaf + step_of(history_budget), history_budget)
    needed = await _last_before(session, chat_id, next_begin)
    if needed is None or needed <= reached:
        return None
    middle = max(next_begin, leaf - history_budget // 2)
    older = await _last_before(session, chat_id, middle, at_most=reached + interval)
    goal = max(needed, needed if older is None else older)
    if is_begun or goal - reached >= interval:
        return goal
    if covered >= eviction_point(leaf, history_budget):
        return None
    least = min(LEAST_BETWEEN, interval)
    goal = max(goal, min(reached + least, last.position - LAST_EXCHANGE))
    return goal if goal - reached >= least else None


async def read_part(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    previous: StoredSummary | None,
    *,
    goal: int,
    most: int,
) -> SummaryPart | None:
    """The next lines towards a goal, of at most `most` stored tokens; None where there are none.

    A line that is longer than that stands alone, and is cut.
    """
    reached, covered = (previous.position, previous.path_tokens) if previous else (-1, 0)
    query = _lines(chat.id).where(Message.position > reached, Message.position <= goal)
    query = query.order_by(Message.position)
    rows = (await session.execute(query.where(Message.path_tokens <= covered + most))).all()
    if not rows:
        rows = (await session.execute(query.limit(1))).all()
    if not rows:
        return None
    return SummaryPart(
        previous=previous,
        versions=[(row.id, row.updated_at) for row in rows],
        lines=[_told(sealer, row, most * CHARACTERS_A_TOKEN) for row in rows],
        first_position=rows[0].position,
        last_position=rows[-1].position,
        goal=goal,
    )


async def is_as_read(session: AsyncSession, chat_id: UUID, part: SummaryPart) -> bool:
    """Whether the active path still says where a part is what it said: no line more, none less."""
    reached = part.previous.position if part.previous else -1
    inside = Message.position > reached, Message.position <= part.last_position
    query = _lines(chat_id).with_only_columns(Message.id, Message.updated_at).where(*inside)
    rows = await session.execute(query.order_by(Message.position))
    return [(row.id, row.updated_at) for row in rows] == list(part.versions)


async def _last_before(
    session: AsyncSession, chat_id: UUID, begin: int, *, at_most: int | None = None
) -> int | None:
    """Position of the last line that a history which begins at `begin` tokens does not hold."""
    first = await first_behind(session, chat_id, from_sum=begin)
    query = (
        select(Message.position)
        .where(
            Message.chat_id == chat_id,
            Message.is_active,
            ~Message.hidden,
            Message.status != "streaming",
        )
        .order_by(Message.position.desc())
        .limit(1)
    )
    if first is not None:
        query = query.where(Message.position < first)
    if at_most is not None:
        query = query.where(Message.position <= at_most)
    return await session.scalar(query)


def _lines(
    chat_id: UUID,
) -> Select[UUID, int, bytes, bytes, datetime]:
    return select(
        Message.id,
        Message.position,
        Message.sealed_author,
        Message.sealed_content,
        Message.updated_at,
    ).where(
        Message.chat_id == chat_id,
        Message.is_active,
        ~Message.hidden,
        Message.status != "streaming",
    )


def _told(sealer: Sealer, row: Row[UUID, int, bytes, bytes, datetime], most: int) -> str:
    """A line of the story as data, of at most `most` characters."""
    author = sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    said = shown(f"{author}: {text}" if author else text, most=most)
    return f"#{row.position + 1} {said}"
