"""The messages of a chat's active path as numbered lines for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.listeners import (
    Listeners,
    WitnessFinder,
    find_listeners,
    read_group_marks,
)
from backend.campaigns.state.viewpoints import Player
from backend.chats.members import filter_heard, load_group
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.repository import list_character_ids
from backend.core.audience import (
    GM,
    NAMELESS_MARKS,
    PUBLIC,
    AudienceMarks,
    Viewpoint,
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
"""Maximum lines of one run, because a run writes only a limited number of facts."""

_CHARACTERS_PER_TOKEN = 3
"""Characters per token for cutting a long line. Most texts have more, so that the rest fits."""

EARLIER_LINES = 8
EARLIER_TOKENS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """A decrypted message. `changed_at` is the time of its last edit; None if it is not needed.

    `who_knows` describes the audience in words, if lines of several audiences are shown together.
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
    """New lines of a chat for one run: at least one, oldest first.

    Attributes:
        earlier: The lines just before them.
        names: The names of their authors.
        may_edit_lore: True if entries that the user wrote may be changed.
        books: Lorebooks to search.
        since: Earlier messages are not read, not even as memories; None for no limit.
        left_alone: Events and entries that are about to be replaced. They are never shown.
        is_last: True if no unread lines follow.
        audience: The audience of all lines, without members who were not there, in the form of the
            database column.
        listeners: The viewpoints of this audience. All texts in the prompt must be known to each.
        marks: Labels for the audience of other texts in the prompt.
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
    listeners: Listeners = (PUBLIC,)
    marks: AudienceMarks = NAMELESS_MARKS

    @property
    def first_position(self) -> int:
        """The position of the first line that is shown."""
        return (self.earlier or self.lines)[0].position


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRange:
    """A range of one chat's active path, and the chronicle that records it."""

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
    """Return the condition for finished, visible messages of the active path."""
    return (
        (Message.chat_id == chat.id)
        & (Message.user_id == chat.user_id)
        & Message.is_active
        & ~Message.hidden
        & (Message.status != "streaming")
    )


async def read_unread(session: AsyncSession, reader: Reader, chat: Chat) -> TranscriptSlice | None:
    """Read the messages since the agent's last run and the owner's consent.

    The slice ends with a reply. A user's line without one is read together with its reply, if both
    have the same audience. Returns None without new messages or without a chronicle.
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
    """Read the beginning of a range of the active path, limited to the capacity of one run.

    All lines were heard by the same. Hidden and unfinished messages are skipped. Returns None if
    there are none.
    """
    most_tokens = reader.stretch_tokens
    inside = Message.position.between(place.from_position, place.to_position)
    rows = await _read_rows(session, chat, since, inside, limit=STRETCH_LINES + 1)
    group = await load_group(session, chat.id)
    witnesses = WitnessFinder(group)
    fitting = _take_same_audience(rows, witnesses, STRETCH_LINES, most_tokens) or rows[:1]
    if not fitting:
        return None
    audience = witnesses.find(fitting[0].position, fitting[0].audience)
    listeners = await find_listeners(session, reader.sealer, chat, group, audience)
    above = Message.position < fitting[0].position
    heard = [filter_heard(each, chat.id) for each in listeners]
    before = await _read_rows(
        session, chat, since, above, *heard, limit=EARLIER_LINES, backwards=True
    )
    kept = _take_within(before, EARLIER_LINES, min(EARLIER_TOKENS, most_tokens // 2))[::-1]
    marks = await read_group_marks(session, reader.sealer, chat, group, audience)
    lines = [_build_line(reader, row, most_tokens) for row in fitting]
    earlier = [
        _build_line(
            reader,
            row,
            most_tokens,
            who_knows=marks.words(witnesses.find(row.position, row.audience)),
        )
        for row in kept
    ]
    return TranscriptSlice(
        chat_id=chat.id,
        chronicle_id=place.chronicle_id,
        earlier=earlier,
        lines=lines,
        names=list(dict.fromkeys(line.author for line in [*earlier, *lines] if line.author)),
        may_edit_lore=reader.may_edit_lore,
        books=await _find_books(session, chat, place.chronicle_id),
        since=since,
        left_alone=left_alone,
        is_last=len(fitting) == len(rows),
        audience=audience,
        listeners=listeners,
        marks=marks,
    )


async def is_unchanged(session: AsyncSession, stretch: TranscriptSlice) -> bool:
    """True if all lines are still active, visible and unedited."""
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
    """Return the position of the last message that is not by the user; None if there is none."""
    query = select(func.max(Message.position)).where(is_readable(chat), Message.role != "user")
    return await session.scalar(query)


async def count_unread(session: AsyncSession, chat: Chat) -> int:
    """Count the messages of the active path that the agent has not read and may read."""
    unread = is_readable(chat) & (Message.position >= await find_unread_position(session, chat.id))
    if chat.chronicle_since is not None:
        unread &= Message.created_at >= chat.chronicle_since
    return await session.scalar(select(func.count()).where(unread)) or 0


async def count_lines(session: AsyncSession, chat: Chat, place: PathRange) -> int:
    """Count the readable messages of a range."""
    inside = Message.position.between(place.from_position, place.to_position)
    return await session.scalar(select(func.count()).where(is_readable(chat), inside)) or 0


async def plan_batches(
    session: AsyncSession, chat: Chat, place: PathRange, *, most_tokens: int
) -> list[list[int]]:
    """Return the batches that `read_range` makes of a range, each as the tokens of its lines."""
    witnesses = WitnessFinder(await load_group(session, chat.id))
    rows: Sequence[Any] = (
        await session.execute(
            select(Message.tokens, Message.audience, Message.position)
            .where(
                is_readable(chat),
                Message.position.between(place.from_position, place.to_position),
            )
            .order_by(Message.position)
        )
    ).all()
    batches: list[list[int]] = []
    while rows:
        batch = _take_same_audience(rows, witnesses, STRETCH_LINES, most_tokens) or rows[:1]
        batches.append([row.tokens for row in batch])
        rows = rows[len(batch) :]
    return batches


async def find_unread_position(session: AsyncSession, chat_id: UUID) -> int:
    """Return the position after the deepest watermark on the active path; 0 without one."""
    mark = await session.scalar(
        select(func.max(EnrichmentMark.position))
        .join(Message, Message.id == EnrichmentMark.id)
        .where(EnrichmentMark.chat_id == chat_id, Message.is_active)
    )
    return 0 if mark is None else mark + 1


async def _read_rows(
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


def _take_same_audience(
    rows: Sequence[Any], witnesses: WitnessFinder, most_lines: int, most_tokens: int
) -> Sequence[Any]:
    """Return the longest start within both limits that the same viewpoints have heard."""
    start = _take_within(rows, most_lines, most_tokens)
    heard = [witnesses.find(row.position, row.audience) for row in start]
    same = next((count for count, each in enumerate(heard) if each != heard[0]), len(heard))
    return start[:same]


def _take_within(rows: Sequence[Any], most_lines: int, most_tokens: int) -> Sequence[Any]:
    """Return the longest start within both limits."""
    total = 0
    for count, row in enumerate(rows):
        total += row.tokens
        if count == most_lines or total > most_tokens:
            return rows[:count]
    return rows


def _build_line(reader: Reader, row: Any, most_tokens: int, *, who_knows: str = "") -> StoryLine:
    sealer = reader.sealer
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    return StoryLine(
        id=row.id,
        position=row.position,
        author=find_author(sealer, row, reader.player),
        role=row.role,
        # A single line that is too long is cut, because one line is always read.
        text=clip(text, _CHARACTERS_PER_TOKEN * most_tokens),
        said_at=row.created_at,
        changed_at=row.updated_at,
        who_knows=who_knows,
    )


async def _find_books(session: AsyncSession, chat: Chat, chronicle_id: UUID) -> list[UUID]:
    """Return the ids of the chat's lorebooks and of the chronicle's lorebook."""
    cast = await list_character_ids(session, [chat.id])
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
"""The id of a message and the time of its last edit."""


async def read_lines(
    session: AsyncSession,
    chat: Chat,
    *,
    after: int,
    through: int,
    most: int,
    viewpoint: Viewpoint = GM,
    is_newest_first: bool = False,
) -> Sequence[Line]:
    """Return lines of the active path after position `after` that a viewpoint may know, in order.

    They have at most `most` stored tokens in total: the first ones, or with `is_newest_first` the
    last ones. A longer line is returned alone.
    """
    lines = is_between(chat, after, through, viewpoint)
    direction = Message.position.desc() if is_newest_first else Message.position
    total = func.sum(Message.tokens).over(order_by=direction)
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
    return rows or (await session.execute(query.order_by(None).order_by(direction).limit(1))).all()


async def is_path_unchanged(
    session: AsyncSession,
    chat: Chat,
    versions: Sequence[Version],
    *,
    after: int,
    viewpoint: Viewpoint = GM,
) -> bool:
    """True if the active path is unchanged after position `after`, up to the last version."""
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
    """Render a line of the story in at most `most` characters. `marks` label its audience."""
    sealer = reader.sealer
    author = find_author(sealer, row, reader.player)
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    line = f"{author}: {text}" if author else text
    said = indent_text(marks.mark(line, row.audience) if marks else line, most=most)
    return f"#{row.position + 1} {said}"


def is_between(
    chat: Chat, after: int, through: int, viewpoint: Viewpoint = GM
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for lines after position `after` that a viewpoint may know."""
    place = Message.position > after, Message.position <= through
    return is_readable(chat), *place, filter_heard(viewpoint, chat.id)
