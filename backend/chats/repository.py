"""Rows of chats and messages. Nothing here commits; what is someone else's does not exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.types import NullType

from backend.chats.errors import ChatNotFoundError, MessageNotFoundError
from backend.chats.models import Chat, ChatCharacter, Message
from backend.chats.tree import make_ancestors
from backend.core.audience import GM, PUBLIC, Viewpoint, filter_known_to
from backend.database.base import split_chunks
from backend.generation.model import Role

PAGE_SIZE = 500
"""Rows that are made of what a driver gives at a time."""


_CHAT = select(Chat).where(Chat.id == bindparam("chat_id"), Chat.user_id == bindparam("owner_id"))
_LOCKED_CHAT = _CHAT.with_for_update()
_LOCKED_CHAT_OF = (
    select(Chat)
    .where(
        Chat.id
        == select(Message.chat_id)
        .where(Message.id == bindparam("message_id"), Message.user_id == bindparam("owner_id"))
        .scalar_subquery(),
        Chat.user_id == bindparam("owner_id"),
    )
    .with_for_update()
)
_MESSAGE = (
    select(Message)
    .where(Message.id == bindparam("message_id"), Message.user_id == bindparam("owner_id"))
    .execution_options(populate_existing=True)
)
_CAST = (
    select(ChatCharacter.chat_id, ChatCharacter.character_id)
    .where(ChatCharacter.chat_id.in_(bindparam("chat_ids", expanding=True)))
    .order_by(ChatCharacter.place)
)
_ACTIVE = (
    select(Message)
    .where(Message.chat_id == bindparam("chat_id"), Message.is_active)
    .where(Message.position < bindparam("before"))
    .order_by(Message.position.desc())
    .limit(bindparam("limit"))
    .execution_options(populate_existing=True)
)
_ACTIVE_AND_SHOWN = _ACTIVE.where(~Message.hidden)
"""What every turn reads is built once: building a statement costs more than running it."""

MAX_POSITION = 2**31 - 1
"""A position that no path reaches."""


async def get_chat(
    session: AsyncSession, chat_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Chat:
    """Raises `ChatNotFoundError`, both when absent and when someone else's.

    `lock` lets one transaction at a time change the chat's tree.
    """
    chat = await find_chat(session, chat_id, owner_id=owner_id, lock=lock)
    if chat is None:
        raise ChatNotFoundError
    return chat


async def find_chat(
    session: AsyncSession, chat_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Chat | None:
    """Return a chat, locked as by `get_chat`; None if it is absent or someone else's."""
    query = _LOCKED_CHAT if lock else _CHAT
    return await session.scalar(query, {"chat_id": chat_id, "owner_id": owner_id})


async def lock_trees(session: AsyncSession, chat_ids: Iterable[UUID]) -> None:
    """Keep changes of these chats' trees waiting.

    All changes of a chat lock it first, so that no two wait for each other. SQLite has one writer
    at a time and no such locks.
    """
    await session.execute(
        select(Chat.id)
        .where(Chat.id.in_(chat_ids))
        .order_by(Chat.id)
        .with_for_update(read=True, key_share=True)
    )


async def find_leaf_position(session: AsyncSession, chat: Chat) -> int | None:
    """Where a chat's path ends; None while it has no messages."""
    return await session.scalar(select(Message.position).where(Message.id == chat.leaf_id))


async def get_message(session: AsyncSession, message_id: UUID, *, owner_id: UUID) -> Message:
    """Raises `MessageNotFoundError`, both when absent and when someone else's."""
    message = await session.scalar(_MESSAGE, {"message_id": message_id, "owner_id": owner_id})
    if message is None:
        raise MessageNotFoundError
    return message


async def lock_message(
    session: AsyncSession, message_id: UUID, *, owner_id: UUID
) -> tuple[Message, Chat]:
    """A message, read once nobody else is changing its chat's tree. Raises as `get_message`."""
    named = {"message_id": message_id, "owner_id": owner_id}
    chat = await session.scalar(_LOCKED_CHAT_OF, named)
    if chat is None:
        raise MessageNotFoundError
    return await get_message(session, message_id, owner_id=owner_id), chat


async def list_character_ids(
    session: AsyncSession, chat_ids: Sequence[UUID]
) -> dict[UUID, list[UUID]]:
    """Who takes part in each chat, in order."""
    rows = await session.execute(_CAST, {"chat_ids": chat_ids})
    found: dict[UUID, list[UUID]] = defaultdict(list)
    for chat_id, character_id in rows:
        found[chat_id].append(character_id)
    return found


async def list_active_page(
    session: AsyncSession,
    chat_id: UUID,
    *,
    before: int | None,
    limit: int,
    with_hidden: bool = True,
    viewpoint: Viewpoint = GM,
) -> list[Message]:
    """The end of the active path above position `before`, oldest first."""
    query = _ACTIVE if with_hidden else _ACTIVE_AND_SHOWN
    if viewpoint != GM:
        query = query.where(filter_known_to(viewpoint, Message.audience))
    end = MAX_POSITION if before is None else before
    found = await session.scalars(query, {"chat_id": chat_id, "before": end, "limit": limit})
    return list(found)[::-1]


async def number_siblings(
    session: AsyncSession, messages: Sequence[Message]
) -> dict[UUID, tuple[int, int]]:
    """For each of a chat's messages its place among its siblings, from 1, and how many they are.

    In the order they were made. The database counts: there may be hundreds of each.
    """
    if not messages:
        return {}
    parents = {row.parent_id for row in messages}
    query = _select_sibling_numbers(roots=None in parents, others=bool(parents - {None}))
    family = {"chat_id": messages[0].chat_id, "parents": list(parents - {None})}
    found: dict[UUID, tuple[int, int]] = {}
    for ids in split_chunks([row.id for row in messages], PAGE_SIZE):
        rows = await session.execute(query, {**family, "ids": ids})
        found |= {row.id: (row.place, row.count) for row in rows}
    return found


@cache
def _select_sibling_numbers(*, roots: bool, others: bool) -> Select[*tuple[Any, ...]]:
    """The places of messages among their siblings: of a chat's roots, of the children of others."""
    place = func.row_number().over(partition_by=Message.parent_id, order_by=Message.id)
    count = func.count().over(partition_by=Message.parent_id)
    families: list[ColumnElement[bool]] = []
    if roots:
        families.append((Message.chat_id == bindparam("chat_id")) & (Message.position == 0))
    if others:
        families.append(Message.parent_id.in_(bindparam("parents", expanding=True)))
    family = (
        select(Message.id, place.label("place"), count.label("count"))
        .where(or_(*families))
        .subquery()
    )
    is_asked = family.c.id.in_(bindparam("ids", expanding=True))
    return select(family.c.id, family.c.place, family.c.count).where(is_asked)


async def count_chats(session: AsyncSession, owner_id: UUID) -> int:
    """How many chats a user has."""
    query = select(func.count()).select_from(Chat).where(Chat.user_id == owner_id)
    return await session.scalar(query) or 0


async def count_messages(session: AsyncSession, leaf: Message, role: Role) -> int:
    """How many messages of a role there are on the active path, down to and with `leaf`."""
    query = select(func.count()).where(
        Message.chat_id == leaf.chat_id,
        Message.is_active,
        Message.position <= leaf.position,
        Message.role == role,
    )
    return await session.scalar(query) or 0


async def has_message(session: AsyncSession, leaf: Message, role: Role) -> bool:
    """Whether there is a message of a role on the active path, down to and with `leaf`."""
    query = select(Message.id).where(
        Message.chat_id == leaf.chat_id,
        Message.is_active,
        Message.position <= leaf.position,
        Message.role == role,
    )
    return await session.scalar(query.limit(1)) is not None


_ROUND_STARTS = (
    select(Message.path_tokens - Message.tokens)
    .where(
        Message.chat_id == bindparam("chat"),
        Message.is_active,
        Message.position <= bindparam("leaf"),
        Message.role == "user",
        ~Message.hidden,
    )
    .order_by(Message.position.desc())
    .limit(bindparam("most"))
)


async def list_round_starts(
    session: AsyncSession, leaf: Message, *, limit: int, viewpoint: Viewpoint = GM
) -> list[int]:
    """Stored tokens from the root to where each of the last rounds begins, the last one first.

    A round is a line of the user's, which the viewpoint may know, and all replies to it.
    """
    query = _ROUND_STARTS
    if viewpoint != GM:
        query = query.where(filter_known_to(viewpoint, Message.audience))
    asked = {"chat": leaf.chat_id, "leaf": leaf.position, "most": limit}
    return list(await session.scalars(query, asked))


_RESTRICTED = (
    select(Message.path_tokens - Message.tokens, Message.tokens)
    .where(
        Message.chat_id == bindparam("chat"),
        Message.is_active,
        Message.position <= bindparam("leaf"),
        Message.audience != PUBLIC,
        ~Message.hidden,
    )
    .order_by(Message.position)
)


async def list_unknown_messages(
    session: AsyncSession, leaf: Message, viewpoint: Viewpoint
) -> Sequence[tuple[int, int]]:
    """Lines down to `leaf` that a viewpoint may not know: (stored tokens before it, its own)."""
    if viewpoint == GM:
        return []
    query = _RESTRICTED.where(~filter_known_to(viewpoint, Message.audience))
    rows = await session.execute(query, {"chat": leaf.chat_id, "leaf": leaf.position})
    return [(before, tokens) for before, tokens in rows]


async def find_greeting_number(session: AsyncSession, chat_id: UUID) -> int | None:
    """Which of its first messages a chat was opened with, from 0; None for an empty chat."""
    query = (
        select(Message.is_active)
        .where(Message.chat_id == chat_id, Message.position == 0)
        .order_by(Message.id)
    )
    flags = list(await session.scalars(query))
    return flags.index(True) if True in flags else None


async def list_path(session: AsyncSession, message: Message) -> list[Message]:
    """A message and its ancestors, from the root down."""
    climb = make_ancestors(message.id)
    query = select(Message).join(climb, climb.c.id == Message.id).order_by(Message.position)
    return list(await session.scalars(query))


async def stream_path(session: AsyncSession, message: Message) -> AsyncIterator[Sequence[Any]]:
    """All columns of a message and of its ancestors, from the root down, some hundred at a time.

    Nothing else is asked of the session until the last page has come.
    """
    climb = make_ancestors(message.id)
    is_on_it = climb.c.id == Message.id
    query = select(Message.__table__).join(climb, is_on_it).order_by(Message.position)
    result = await session.stream(query.execution_options(yield_per=PAGE_SIZE))
    async for page in result.partitions():
        yield page


async def is_streaming_below(session: AsyncSession, message: Message) -> bool:
    """Whether a reply is being written at or below a message."""
    query = select(Message.id).where(
        Message.chat_id == message.chat_id, Message.status == "streaming"
    )
    for message_id in (await session.scalars(query)).all():
        climb = make_ancestors(message_id)
        if await session.scalar(select(climb.c.id).where(climb.c.id == message.id)):
            return True
    return False


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """What the prompt builder needs of a stretch of messages: columns of one length.

    What the first ones say may be `opened` already: `sealed_contents` are those of the others.

    Columns and raw ids, because a full window holds thousands of rows: making an object of each,
    with a UUID in it, took three times as long as reading them.
    """

    ids: Sequence[bytes] = ()
    positions: Sequence[int] = ()
    roles: Sequence[Role] = ()
    tokens: Sequence[int] = ()
    audiences: Sequence[str] = ()
    sealed_contents: Sequence[bytes] = ()
    sealed_authors: Sequence[bytes] = ()
    opened: Sequence[str] = ()


_IS_AFTER = and_(
    Message.chat_id == bindparam("chat_id"),
    Message.is_active,
    Message.path_tokens > bindparam("from_sum"),
    Message.path_tokens - Message.tokens >= bindparam("from_sum"),
)


def _select_messages(*columns: InstrumentedAttribute[Any]) -> Select[*tuple[Any, ...]]:
    # `+ 0` keeps PostgreSQL from reading all of the path by the index on positions.
    # Without a type SQLAlchemy hands on what the driver gives, untouched.
    return (
        select(*(type_coerce(column, NullType()) for column in columns))
        .where(_IS_AFTER, Message.position + 0 <= bindparam("to_position"), ~Message.hidden)
        .order_by(Message.path_tokens)
    )


_COLUMNS = (
    Message.id,
    Message.position,
    Message.role,
    Message.tokens,
    Message.audience,
    Message.sealed_content,
)
_MESSAGES = _select_messages(*_COLUMNS)
_MESSAGES_WITH_AUTHORS = _select_messages(*_COLUMNS, Message.sealed_author)
_FIRST_AFTER = select(Message.position).where(_IS_AFTER).order_by(Message.path_tokens).limit(1)


async def find_first_after(session: AsyncSession, chat_id: UUID, *, from_sum: int) -> int | None:
    """Position of the first line of the active path that stands wholly behind `from_sum` tokens."""
    return await session.scalar(_FIRST_AFTER, {"chat_id": chat_id, "from_sum": from_sum})


async def load_active_messages(
    session: AsyncSession,
    chat_id: UUID,
    *,
    from_sum: int,
    to_position: int,
    authors: bool,
    viewpoint: Viewpoint = GM,
) -> HistoryColumns:
    """The active path's lines that stand wholly behind `from_sum` tokens from the root.

    Up to and with `to_position`, oldest first, without hidden ones and those that the viewpoint
    may not know: one range on an index.
    `authors` are read only where they are asked for.
    """
    query = _MESSAGES_WITH_AUTHORS if authors else _MESSAGES
    if viewpoint != GM:
        query = query.where(filter_known_to(viewpoint, Message.audience))
    values = {"chat_id": chat_id, "from_sum": from_sum, "to_position": to_position}
    rows = (await session.execute(query, values)).all()
    if not rows:
        return HistoryColumns()
    ids, *rest = ([row[place] for row in rows] for place in range(len(rows[0])))
    # SQLite's driver gives bytes, PostgreSQL's a UUID.
    raw = ids if isinstance(ids[0], bytes) else [each.bytes for each in ids]
    return HistoryColumns(raw, *rest)
