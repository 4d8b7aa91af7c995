"""Rows of chats and messages.

No function commits. If a row does not exist or belongs to another user, a `get_` function raises a
not-found error, and a `find_` function returns None. No function finds a chat that an import is
storing. `lock` blocks other transactions that change the chat's tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased
from sqlalchemy.types import NullType

from backend.chats.errors import (
    ChatNotFoundError,
    MessageBusyError,
    MessageNotFoundError,
    PresenceMessageError,
)
from backend.chats.members import filter_heard
from backend.chats.models import Chat, ChatCharacter, Message
from backend.chats.tree import make_ancestors
from backend.core.audience import GM, Viewpoint
from backend.database.base import skip_index, split_chunks
from backend.generation.model import Role

PAGE_SIZE = 500
"""Number of rows in one fetch or query."""


_CHAT = select(Chat).where(
    Chat.id == bindparam("chat_id"), Chat.user_id == bindparam("owner_id"), Chat.is_ready
)
_LOCKED_CHAT = _CHAT.with_for_update()
_LOCKED_CHAT_OF = (
    select(Chat)
    .where(
        Chat.id
        == select(Message.chat_id)
        .where(Message.id == bindparam("message_id"), Message.user_id == bindparam("owner_id"))
        .scalar_subquery(),
        Chat.user_id == bindparam("owner_id"),
        Chat.is_ready,
    )
    .with_for_update()
)
_MESSAGE = (
    select(Message)
    .where(
        Message.id == bindparam("message_id"),
        Message.user_id == bindparam("owner_id"),
        exists().where(Chat.id == Message.chat_id, Chat.is_ready),
    )
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
"""The statements of every turn are built once, because building takes longer than running."""

MAX_POSITION = 2**31 - 1
"""The largest value of the column."""


async def get_chat(
    session: AsyncSession, chat_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Chat:
    chat = await find_chat(session, chat_id, owner_id=owner_id, lock=lock)
    if chat is None:
        raise ChatNotFoundError
    return chat


async def find_chat(
    session: AsyncSession, chat_id: UUID, *, owner_id: UUID, lock: bool = False
) -> Chat | None:
    query = _LOCKED_CHAT if lock else _CHAT
    return await session.scalar(query, {"chat_id": chat_id, "owner_id": owner_id})


async def lock_trees(session: AsyncSession, chat_ids: Iterable[UUID]) -> None:
    """Block changes of these chats' trees.

    Every change of a chat locks it first, so that two transactions cannot deadlock. SQLite has one
    writer at a time and no row locks.
    """
    await session.execute(
        select(Chat.id)
        .where(Chat.id.in_(chat_ids))
        .order_by(Chat.id)
        .with_for_update(read=True, key_share=True)
    )


async def find_leaf_position(session: AsyncSession, chat: Chat) -> int | None:
    """Return the position of the chat's leaf, or None if it has no messages."""
    return await session.scalar(select(Message.position).where(Message.id == chat.leaf_id))


async def get_message(session: AsyncSession, message_id: UUID, *, owner_id: UUID) -> Message:
    message = await session.scalar(_MESSAGE, {"message_id": message_id, "owner_id": owner_id})
    if message is None:
        raise MessageNotFoundError
    return message


async def lock_message(
    session: AsyncSession, message_id: UUID, *, owner_id: UUID
) -> tuple[Message, Chat]:
    """Lock the tree of a message's chat, then load the message."""
    named = {"message_id": message_id, "owner_id": owner_id}
    chat = await session.scalar(_LOCKED_CHAT_OF, named)
    if chat is None:
        raise MessageNotFoundError
    return await get_message(session, message_id, owner_id=owner_id), chat


def check_finished(message: Message) -> None:
    if message.status == "streaming":
        raise MessageBusyError("Stop it first, or wait until it is finished.")


def check_no_presence(message: Message) -> None:
    """Raise `PresenceMessageError` for a change of presence, which stays as it is."""
    if message.presence is not None:
        raise PresenceMessageError("Delete it, or change the member's presence again.")


async def list_character_ids(
    session: AsyncSession, chat_ids: Sequence[UUID]
) -> dict[UUID, list[UUID]]:
    """Return the characters in each chat, in order."""
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
    """Return the end of the active path above position `before`, oldest first."""
    query = _ACTIVE if with_hidden else _ACTIVE_AND_SHOWN
    if viewpoint != GM:
        query = query.where(filter_heard(viewpoint, chat_id))
    end = MAX_POSITION if before is None else before
    found = await session.scalars(query, {"chat_id": chat_id, "before": end, "limit": limit})
    return list(found)[::-1]


_AT_POSITIONS = (
    select(Message)
    .where(Message.chat_id == bindparam("chat_id"), Message.is_active)
    .where(Message.position.in_(bindparam("positions", expanding=True)))
    .order_by(Message.position)
    .execution_options(populate_existing=True)
)


async def list_at_positions(
    session: AsyncSession, chat_id: UUID, positions: Sequence[int]
) -> list[Message]:
    """Return messages of the active path by position, in order."""
    values = {"chat_id": chat_id, "positions": positions}
    return list(await session.scalars(_AT_POSITIONS, values)) if positions else []


async def number_siblings(
    session: AsyncSession, messages: Sequence[Message]
) -> dict[UUID, tuple[int, int]]:
    """Return the number of each message among its siblings, from 1, and the count of siblings.

    The messages are of one chat. Siblings are in the order of creation, and those that were removed
    do not count. The database counts them, because there may be hundreds.
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
    """Select numbers among the roots of a chat, among the children of other messages, or both."""
    place = func.row_number().over(partition_by=Message.parent_id, order_by=Message.id)
    count = func.count().over(partition_by=Message.parent_id)
    families: list[ColumnElement[bool]] = []
    if roots:
        families.append((Message.chat_id == bindparam("chat_id")) & (Message.position == 0))
    if others:
        families.append(Message.parent_id.in_(bindparam("parents", expanding=True)))
    ids: BindParameter[Any] = bindparam("ids", expanding=True)
    family = (
        select(Message.id, place.label("place"), count.label("count"))
        .where(or_(*families), or_(Message.removed_at.is_(None), Message.id.in_(ids)))
        .subquery()
    )
    return select(family.c.id, family.c.place, family.c.count).where(family.c.id.in_(ids))


async def count_chats(session: AsyncSession, owner_id: UUID) -> int:
    query = select(func.count()).select_from(Chat).where(Chat.user_id == owner_id, Chat.is_ready)
    return await session.scalar(query) or 0


async def count_messages(session: AsyncSession, leaf: Message, role: Role) -> int:
    """Count the messages of a role on the active path, up to and including `leaf`.

    Removed ones do not count.
    """
    query = select(func.count()).where(
        Message.chat_id == leaf.chat_id,
        Message.is_active,
        Message.position <= leaf.position,
        Message.role == role,
        Message.removed_at.is_(None),
    )
    return await session.scalar(query) or 0


async def has_message(session: AsyncSession, leaf: Message, role: Role) -> bool:
    """True if a message of a role is on the active path, up to and including `leaf`."""
    query = select(Message.id).where(
        Message.chat_id == leaf.chat_id,
        Message.is_active,
        Message.position <= leaf.position,
        Message.role == role,
        Message.removed_at.is_(None),
    )
    return await session.scalar(query.limit(1)) is not None


async def has_removed(
    session: AsyncSession, message_ids: Collection[UUID], *, owner_id: UUID
) -> bool:
    """True if the text of one of a user's messages was deleted."""
    if not message_ids:
        return False
    query = select(Message.id).where(
        Message.id.in_(message_ids),
        skip_index(Message.user_id) == owner_id,
        Message.removed_at.is_not(None),
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
    .limit(bindparam("limit"))
)


async def list_round_starts(session: AsyncSession, leaf: Message, *, limit: int) -> list[int]:
    """Return the stored tokens before the start of each of the last rounds, the last one first.

    A round is a message of the user and all replies to it.
    """
    values = {"chat": leaf.chat_id, "leaf": leaf.position, "limit": limit}
    return list(await session.scalars(_ROUND_STARTS, values))


async def list_heard_positions(
    session: AsyncSession, chat_id: UUID, positions: Collection[int], viewpoint: Viewpoint
) -> set[int]:
    """Return those of the positions of the active path at which a viewpoint knows the message."""
    query = select(Message.position).where(
        Message.chat_id == chat_id,
        Message.is_active,
        Message.position.in_(positions),
        filter_heard(viewpoint, chat_id),
    )
    return set(await session.scalars(query))


async def find_greeting_number(session: AsyncSession, chat_id: UUID) -> int | None:
    """Return the index of the active first message, or None for an empty chat."""
    query = (
        select(Message.is_active)
        .where(Message.chat_id == chat_id, Message.position == 0, Message.presence.is_(None))
        .order_by(Message.id)
    )
    flags = list(await session.scalars(query))
    return flags.index(True) if True in flags else None


async def list_path(session: AsyncSession, message: Message) -> list[Message]:
    climb = make_ancestors(message.id)
    query = select(Message).join(climb, climb.c.id == Message.id).order_by(Message.position)
    return list(await session.scalars(query))


async def stream_path(session: AsyncSession, message: Message) -> AsyncIterator[Sequence[Any]]:
    """Yield all columns of a message and its ancestors in pages, from the root down.

    The session must not be used for anything else until the last page.
    """
    climb = make_ancestors(message.id)
    is_on_it = climb.c.id == Message.id
    query = select(Message.__table__).join(climb, is_on_it).order_by(Message.position)
    result = await session.stream(query.execution_options(yield_per=PAGE_SIZE))
    async for page in result.partitions():
        yield page


async def stream_tree(session: AsyncSession, chat_id: UUID) -> AsyncIterator[Sequence[Any]]:
    """Yield all columns of a chat's messages in pages, parents first and siblings in order.

    The session must not be used for anything else until the last page.
    """
    query = (
        select(Message.__table__)
        .where(Message.chat_id == chat_id)
        .order_by(Message.position, Message.id)
    )
    result = await session.stream(query.execution_options(yield_per=PAGE_SIZE))
    async for page in result.partitions():
        yield page


async def check_no_reply_streams(session: AsyncSession, chat_id: UUID) -> None:
    """Raise `MessageBusyError` while a reply of the chat is being written."""
    streaming = select(Message.id).where(Message.chat_id == chat_id, Message.status == "streaming")
    if await session.scalar(streaming.limit(1)) is not None:
        raise MessageBusyError("Stop it first, or wait until it is finished.")


async def is_streaming_below(session: AsyncSession, message: Message) -> bool:
    query = select(Message.id).where(
        Message.chat_id == message.chat_id, Message.status == "streaming"
    )
    for message_id in (await session.scalars(query)).all():
        climb = make_ancestors(message_id)
        if await session.scalar(select(climb.c.id).where(climb.c.id == message.id)):
            return True
    return False


_NEWEST = aliased(Message)
_NEWEST_SHOWN = (
    select(_NEWEST.id)
    .where(
        _NEWEST.chat_id == Chat.id,
        _NEWEST.is_active,
        ~_NEWEST.hidden,
        _NEWEST.removed_at.is_(None),
    )
    .order_by(_NEWEST.position.desc())
    .limit(1)
    .correlate(Chat)
    .scalar_subquery()
)
_LAST_SHOWN = select(Message.chat_id, Message.id, Message.sealed_content, Message.created_at).where(
    Message.id.in_(select(_NEWEST_SHOWN).where(Chat.id.in_(bindparam("chat_ids", expanding=True))))
)


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message of a chat that is in its prompts."""

    id: UUID
    sealed_content: bytes
    created_at: datetime


async def find_last_messages(
    session: AsyncSession, chat_ids: Sequence[UUID]
) -> dict[UUID, LastMessage]:
    """Return the last message of each chat's path, without hidden and removed ones."""
    rows = await session.execute(_LAST_SHOWN, {"chat_ids": chat_ids})
    return {row.chat_id: LastMessage(row.id, row.sealed_content, row.created_at) for row in rows}


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """Messages of a history for the prompt builder, as columns of equal length.

    The first texts may be in `opened` already. `sealed_contents` are the others. The same applies
    to authors, which are empty if they were not read.

    Columns and raw ids are used because a full window has thousands of rows. Building an object
    with a UUID for each took three times as long as reading them.
    """

    ids: Sequence[bytes] = ()
    positions: Sequence[int] = ()
    roles: Sequence[Role] = ()
    tokens: Sequence[int] = ()
    audiences: Sequence[str] = ()
    sealed_contents: Sequence[bytes] = ()
    sealed_authors: Sequence[bytes] = ()
    opened: Sequence[str] = ()
    opened_authors: Sequence[str] = ()

    def slice(self, first: int, last: int | None = None) -> HistoryColumns:
        """Return unsealed messages from the place `first` to before `last`."""
        part = slice(first, last)
        return HistoryColumns(
            ids=self.ids[part],
            positions=self.positions[part],
            roles=self.roles[part],
            tokens=self.tokens[part],
            audiences=self.audiences[part],
            opened=self.opened[part],
            opened_authors=self.opened_authors[part],
        )

    def select(self, places: Sequence[int]) -> HistoryColumns:
        """Return messages by their places, without texts and authors."""
        if isinstance(places, range):
            whole = replace(self, opened=(), opened_authors=())
            return whole.slice(places.start, places.stop)
        return HistoryColumns(
            ids=[self.ids[at] for at in places],
            positions=[self.positions[at] for at in places],
            roles=[self.roles[at] for at in places],
            tokens=[self.tokens[at] for at in places],
            audiences=[self.audiences[at] for at in places],
        )

    def join(self, later: HistoryColumns) -> HistoryColumns:
        """Return these unsealed messages, and sealed ones after them."""
        return HistoryColumns(
            ids=[*self.ids, *later.ids],
            positions=[*self.positions, *later.positions],
            roles=[*self.roles, *later.roles],
            tokens=[*self.tokens, *later.tokens],
            audiences=[*self.audiences, *later.audiences],
            sealed_contents=later.sealed_contents,
            sealed_authors=later.sealed_authors,
            opened=self.opened,
            opened_authors=self.opened_authors,
        )


_IS_AFTER = and_(
    Message.chat_id == bindparam("chat_id"),
    Message.is_active,
    Message.path_tokens > bindparam("from_sum"),
    Message.path_tokens - Message.tokens >= bindparam("from_sum"),
)


def _select_messages(*columns: InstrumentedAttribute[Any]) -> Select[*tuple[Any, ...]]:
    # `+ 0` prevents PostgreSQL from reading the whole path by the index on positions.
    # With `NullType`, SQLAlchemy does not convert the driver's values.
    return (
        select(*(type_coerce(column, NullType()) for column in columns))
        .where(_IS_AFTER, Message.position + 0 <= bindparam("to_position"), ~Message.hidden)
        .order_by(Message.path_tokens)
    )


_PLACES = (Message.id, Message.position, Message.role, Message.tokens, Message.audience)
_BARE_MESSAGES = _select_messages(*_PLACES)
_MESSAGES = _select_messages(*_PLACES, Message.sealed_content)
_MESSAGES_WITH_AUTHORS = _select_messages(*_PLACES, Message.sealed_content, Message.sealed_author)
_FIRST_AFTER = select(Message.position).where(_IS_AFTER).order_by(Message.path_tokens).limit(1)


async def find_first_after(session: AsyncSession, chat_id: UUID, *, from_sum: int) -> int | None:
    """Return the position of the first active message after `from_sum` tokens."""
    return await session.scalar(_FIRST_AFTER, {"chat_id": chat_id, "from_sum": from_sum})


async def load_active_messages(
    session: AsyncSession,
    chat_id: UUID,
    *,
    from_sum: int,
    to_position: int,
    authors: bool,
    texts: bool = True,
    viewpoint: Viewpoint = GM,
) -> HistoryColumns:
    """Load messages of the active path that begin at or after `from_sum` tokens from the root.

    They end with `to_position`, oldest first, without hidden messages and those that the viewpoint
    may not know. It is one range of an index. `texts` and `authors` are read only if requested.
    """
    query = _BARE_MESSAGES
    if texts:
        query = _MESSAGES_WITH_AUTHORS if authors else _MESSAGES
    if viewpoint != GM:
        query = query.where(filter_heard(viewpoint, chat_id))
    values = {"chat_id": chat_id, "from_sum": from_sum, "to_position": to_position}
    rows = (await session.execute(query, values)).all()
    if not rows:
        return HistoryColumns()
    ids, *rest = ([row[place] for row in rows] for place in range(len(rows[0])))
    # The driver of SQLite returns bytes, that of PostgreSQL a UUID.
    raw = ids if isinstance(ids[0], bytes) else [each.bytes for each in ids]
    return HistoryColumns(raw, *rest)


def select_history(
    rows: Sequence[Message], *, from_sum: int, authors: bool
) -> HistoryColumns | None:
    """Return the result of `load_active_messages` for the end of the active path.

    `rows` are the last visible messages, oldest first. Returns None if they are too few.
    """
    if not rows or rows[0].path_tokens - rows[0].tokens > from_sum:
        return None
    found = [
        row
        for row in rows
        if row.path_tokens > from_sum and row.path_tokens - row.tokens >= from_sum
    ]
    return HistoryColumns(
        ids=[row.id.bytes for row in found],
        positions=[row.position for row in found],
        roles=[row.role for row in found],
        tokens=[row.tokens for row in found],
        audiences=[row.audience for row in found],
        sealed_contents=[row.sealed_content for row in found],
        sealed_authors=[row.sealed_author for row in found] if authors else (),
    )
