"""Lines of a chat's path as a model reads them, numbered, and whether they are still as read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.viewpoints import Player, read_marks
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.repository import character_ids
from backend.core.audience import (
    GM,
    NAMELESS_MARKS,
    PUBLIC,
    AudienceMarks,
    Viewpoint,
    filter_known_to,
    may_all_know,
)
from backend.database.base import skip_index
from backend.enrichment.cleaning import clip, indent_text
from backend.enrichment.models import EnrichmentMark
from backend.enrichment.reader import Reader
from backend.generation.model import Role
from backend.lorebooks.authoring import find_chronicle_book
from backend.lorebooks.links import books_for_chat
from backend.vault.sealing import Sealer

STRETCH_LINES = 24
"""Most lines that are read at a time: a run writes only so much, however many facts there are."""

_CLIPPED_AT = 3
"""Characters a token of a line that is too long: fewer than most texts have, so that it fits."""

EARLIER_LINES = 8
EARLIER_TOKENS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """A message, unsealed. `changed_at` is when its text was; None where that does not matter.

    `who_knows` says in words who knows it, where lines of several audiences stand together.
    """

    id: UUID
    position: int
    author: str
    role: Role
    text: str
    said_at: datetime
    changed_at: datetime | None = None
    who_knows: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptSlice:
    """New lines of a chat (at least one), oldest first, for one run.

    Attributes:
        earlier: What was said just before them.
        names: Who speaks in them.
        may_edit_lore: Also entries of lorebooks that the user wrote.
        books: Lorebooks in which lore is looked for.
        since: What the chat said before this is not read, not even as a memory; None: all of it.
        left_alone: Events and entries that are as good as gone: neither shown nor compared with.
        is_last: Nothing unread stands behind the lines.
        audience: Of all lines, as a column holds it.
        marks: Say who knows what is shown beside the lines.
    """

    chat_id: UUID
    chronicle_id: UUID
    earlier: Sequence[StoryLine]
    lines: Sequence[StoryLine]
    names: Sequence[str]
    may_edit_lore: bool = False
    books: Sequence[UUID] = ()
    since: datetime | None = None
    left_alone: frozenset[UUID] = frozenset()
    is_last: bool = True
    audience: str = PUBLIC
    marks: AudienceMarks = NAMELESS_MARKS

    @property
    def viewpoint(self) -> Viewpoint:
        """Whose knowledge may be shown beside the lines: what comes of them is for their audience.

        Lines for some entities are read with what everyone may know.
        """
        return GM if self.audience == GM else PUBLIC

    @property
    def first_position(self) -> int:
        """Where what is shown of the path begins."""
        return (self.earlier or self.lines)[0].position


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRange:
    """A stretch of one chat's active path, and the chronicle that tells of it."""

    owner_id: UUID
    chat_id: UUID
    chronicle_id: UUID
    from_position: int
    to_position: int


def find_author(sealer: Sealer, row: Any, player: Player | None) -> str:
    """Return the name of the author of a message.

    A line that the user wrote without a persona is by `player`, not by the account.
    """
    if (
        player is not None
        and row.role == "user"
        and row.persona_id is None
        and may_all_know(row.audience, player.audience)
    ):
        return player.name
    return sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)


def is_readable(chat: Chat) -> ColumnElement[bool]:
    """Lines of the active path but for hidden ones, and such as are being written."""
    return (
        (Message.chat_id == chat.id)
        & (Message.user_id == chat.user_id)
        & Message.is_active
        & ~Message.hidden
        & (Message.status != "streaming")
    )


async def read_unread(session: AsyncSession, reader: Reader, chat: Chat) -> TranscriptSlice | None:
    """What a chat said since the agent read last, and since its owner agreed to it.

    It ends with a reply: a user's line without one is read together with its reply, if both have
    one audience. None where
    there is nothing to read, or no chronicle to write into.
    """
    if chat.chronicle_id is None:
        return None
    first = await find_unread_position(session, chat.id)
    last = await find_last_reply(session, chat)
    if last is None or last < first:
        return None
    place = PathRange(
        owner_id=chat.user_id,
        chat_id=chat.id,
        chronicle_id=chat.chronicle_id,
        from_position=first,
        to_position=last,
    )
    return await read_range(session, reader, chat, place, since=chat.chronicle_since)


async def read_range(
    session: AsyncSession,
    reader: Reader,
    chat: Chat,
    place: PathRange,
    *,
    since: datetime | None = None,
    left_alone: frozenset[UUID] = frozenset(),
) -> TranscriptSlice | None:
    """The beginning of a range of the active path, as much as one run reads.

    All of one audience. Hidden lines and such as are being written are left out. Whoever reads on
    begins behind the last line's position. None where nothing is left.
    """
    most_tokens = reader.stretch_tokens
    inside = Message.position.between(place.from_position, place.to_position)
    rows = await _rows(session, chat, since, inside, limit=STRETCH_LINES + 1)
    fitting = _fitting(rows, STRETCH_LINES, most_tokens) or rows[:1]
    if not fitting:
        return None
    audience = fitting[0].audience
    above = Message.position < fitting[0].position
    # Lines for the same, and what all of them know.
    heard = true() if audience == GM else Message.audience.in_([PUBLIC, audience])
    before = await _rows(session, chat, since, above, heard, limit=EARLIER_LINES, backwards=True)
    kept = _within(before, EARLIER_LINES, min(EARLIER_TOKENS, most_tokens // 2))[::-1]
    marks = await read_marks(session, reader.sealer, chat.campaign_id, audience)
    # The lines are of one audience: what comes of them is for the same.
    lines = [_line(reader, row, most_tokens) for row in fitting]
    earlier = [_line(reader, row, most_tokens, marks) for row in kept]
    return TranscriptSlice(
        chat_id=chat.id,
        chronicle_id=place.chronicle_id,
        earlier=earlier,
        lines=lines,
        names=list(dict.fromkeys(line.author for line in [*earlier, *lines] if line.author)),
        may_edit_lore=reader.may_edit_lore,
        books=await _books(session, chat, place.chronicle_id),
        since=since,
        left_alone=left_alone,
        is_last=len(fitting) == len(rows),
        audience=audience,
        marks=marks,
    )


async def is_unchanged(session: AsyncSession, stretch: TranscriptSlice) -> bool:
    """Whether the lines of a stretch are all still active, shown, and as they were read."""
    ids = [line.id for line in stretch.lines]
    rows = await session.execute(
        select(Message.id, Message.updated_at).where(
            Message.id.in_(ids),
            skip_index(Message.chat_id) == stretch.chat_id,
            Message.is_active,
            ~Message.hidden,
            Message.status != "streaming",
        )
    )
    there = {row.id: row.updated_at for row in rows}
    return all(
        line.id in there and line.changed_at in {None, there[line.id]} for line in stretch.lines
    )


async def find_last_reply(session: AsyncSession, chat: Chat) -> int | None:
    """Position of the last line of the active path that is no user's; None where there is none."""
    query = select(func.max(Message.position)).where(is_readable(chat), Message.role != "user")
    return await session.scalar(query)


async def count_unread(session: AsyncSession, chat: Chat) -> int:
    """How many lines of the active path wait to be read, of those that may be."""
    unread = is_readable(chat) & (Message.position >= await find_unread_position(session, chat.id))
    if chat.chronicle_since is not None:
        unread &= Message.created_at >= chat.chronicle_since
    return await session.scalar(select(func.count()).where(unread)) or 0


async def count_lines(session: AsyncSession, chat: Chat, place: PathRange) -> int:
    """How many lines of a range are read."""
    inside = Message.position.between(place.from_position, place.to_position)
    return await session.scalar(select(func.count()).where(is_readable(chat), inside)) or 0


async def plan_batches(
    session: AsyncSession, chat: Chat, place: PathRange, *, most_tokens: int
) -> list[list[int]]:
    """The tokens of each line of each stretch into which `read_range` cuts a range."""
    rows: Sequence[Any] = (
        await session.execute(
            select(Message.tokens, Message.audience)
            .where(
                is_readable(chat),
                Message.position.between(place.from_position, place.to_position),
            )
            .order_by(Message.position)
        )
    ).all()
    batches: list[list[int]] = []
    while rows:
        batch = _fitting(rows, STRETCH_LINES, most_tokens) or rows[:1]
        batches.append([row.tokens for row in batch])
        rows = rows[len(batch) :]
    return batches


async def find_unread_position(session: AsyncSession, chat_id: UUID) -> int:
    """Position behind the deepest watermark on the active path; 0 where there is none."""
    mark = await session.scalar(
        select(func.max(EnrichmentMark.position))
        .join(Message, Message.id == EnrichmentMark.id)
        .where(EnrichmentMark.chat_id == chat_id, Message.is_active)
    )
    return 0 if mark is None else mark + 1


async def _rows(
    session: AsyncSession,
    chat: Chat,
    since: datetime | None,
    *conditions: ColumnElement[bool],
    limit: int,
    backwards: bool = False,
) -> Sequence[Any]:
    place = Message.position.desc() if backwards else Message.position
    query = (
        select(
            Message.id,
            Message.position,
            Message.role,
            Message.tokens,
            Message.created_at,
            Message.updated_at,
            Message.audience,
            Message.persona_id,
            Message.sealed_author,
            Message.sealed_content,
        )
        .where(is_readable(chat), *conditions)
        .order_by(place)
        .limit(limit)
    )
    if since is not None:
        query = query.where(Message.created_at >= since)
    return (await session.execute(query)).all()


def _fitting(rows: Sequence[Any], most_lines: int, most_tokens: int) -> Sequence[Any]:
    """The longest beginning that is within both limits, all of it for one audience."""
    same = next(
        (count for count, row in enumerate(rows) if row.audience != rows[0].audience), len(rows)
    )
    return _within(rows[:same], most_lines, most_tokens)


def _within(rows: Sequence[Any], most_lines: int, most_tokens: int) -> Sequence[Any]:
    """The longest beginning that is within both limits."""
    total = 0
    for count, row in enumerate(rows):
        total += row.tokens
        if count == most_lines or total > most_tokens:
            return rows[:count]
    return rows


def _line(
    reader: Reader, row: Any, most_tokens: int, marks: AudienceMarks | None = None
) -> StoryLine:
    sealer = reader.sealer
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    return StoryLine(
        id=row.id,
        position=row.position,
        author=find_author(sealer, row, reader.player),
        role=row.role,
        # One line is read even where it alone is too long: what fits of it.
        text=clip(text, _CLIPPED_AT * most_tokens),
        said_at=row.created_at,
        changed_at=row.updated_at,
        who_knows=marks.words(row.audience) if marks else "",
    )


async def _books(session: AsyncSession, chat: Chat, chronicle_id: UUID) -> list[UUID]:
    """The chat's lorebooks, with that of the chronicle."""
    cast = await character_ids(session, [chat.id])
    books = await books_for_chat(
        session,
        owner_id=chat.user_id,
        chat_id=chat.id,
        character_ids=cast.get(chat.id, []),
        persona_id=chat.persona_id,
    )
    own = await find_chronicle_book(session, chronicle_id, owner_id=chat.user_id)
    return list(dict.fromkeys([*(book.id for book in books), *([own.id] if own else [])]))


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
    lines = is_between(chat, after, through, viewpoint)
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


async def is_path_unchanged(
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
    lines = is_between(chat, after, last.position, viewpoint)
    query = select(Message.id, Message.updated_at).where(*lines)
    rows = await session.execute(query.order_by(Message.position))
    return [(row.id, row.updated_at) for row in rows] == list(versions)


def render_line(
    reader: Reader, row: Line | Message, most: int, marks: AudienceMarks | None = None
) -> str:
    """Render a line of the story, in at most `most` characters; `marks` say who knows it."""
    sealer = reader.sealer
    author = find_author(sealer, row, reader.player)
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    line = f"{author}: {text}" if author else text
    said = indent_text(marks.mark(line, row.audience) if marks else line, most=most)
    return f"#{row.position + 1} {said}"


def is_between(
    chat: Chat, after: int, through: int, viewpoint: Viewpoint = GM
) -> tuple[ColumnElement[bool], ...]:
    """Conditions on lines behind position `after` that a viewpoint may know."""
    place = Message.position > after, Message.position <= through
    return is_readable(chat), *place, filter_known_to(viewpoint, Message.audience)
