"""The message tree: all operations that change it or the active path.

Invariants, which each operation preserves in the caller's transaction:

- the active messages are one path from a root to the chat's leaf;
- the position of a root is 0, that of another message its parent's plus one;
- `path_tokens` is the parent's sum plus the message's tokens, unless the message is hidden;
- at most one sibling is selected: the one on the active path, or on it most recently.

The ancestors of a message never change, so an operation updates only the rows that differ: to
choose another leaf, it climbs from there to the first active message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Row,
    Select,
    bindparam,
    delete,
    exists,
    func,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.chats.drafts import place_in_scene
from backend.chats.models import Chat, Message
from backend.database.base import UNSYNCHRONIZED, get_table, split_chunks
from backend.database.types import Id

INSERT_BATCH_SIZE = 100
"""Number of rows in one flush."""

_CHILD = aliased(Message)
_PARENT = select(
    Message.path_tokens, exists().where(_CHILD.parent_id == Message.id, _CHILD.is_selected)
).where(Message.id == bindparam("message_id"))


async def attach_message(
    session: AsyncSession, chat: Chat, message: Message, *, parent: Message | None
) -> int | None:
    """Add a message below `parent` (None: as a root), and make it the leaf.

    Sets position, sums and flags; the caller sets `tokens` and the sealed columns. Returns the
    position from which the active path has changed, or None if it only became longer.
    """
    message.chat_id, message.user_id = chat.id, chat.user_id
    message.parent_id = parent.id if parent else None
    message.position = parent.position + 1 if parent else 0
    place_in_scene(message, parent)
    own = 0 if message.hidden else message.tokens
    before, may_be_left = await _read_parent(session, parent)
    message.path_tokens = before + own
    if chat.leaf_id == message.parent_id:
        # The common case, a message at the end: only an earlier sibling may need an update.
        if may_be_left:
            await _deselect(session, chat, [message.parent_id])
        message.is_active = message.is_selected = True
        chat.leaf_id = message.id
        session.add(message)
        return None
    message.is_active = message.is_selected = False
    session.add(message)
    await session.flush()
    return await choose_leaf(session, chat, message.id)


async def attach_greetings(session: AsyncSession, chat: Chat, messages: Sequence[Message]) -> None:
    """Add the first messages of an empty chat as siblings, and make the first one active.

    Equivalent to `attach_message` for each of them, but with inserts only.
    """
    for message in messages:
        message.chat_id, message.user_id = chat.id, chat.user_id
        message.parent_id, message.position = None, 0
        place_in_scene(message, None)
        message.path_tokens = 0 if message.hidden else message.tokens
        message.is_active = message.is_selected = message is messages[0]
    chat.leaf_id = messages[0].id if messages else None
    for part in split_chunks(messages, INSERT_BATCH_SIZE):
        session.add_all(part)
        await session.flush()


async def choose_leaf(session: AsyncSession, chat: Chat, leaf_id: UUID | None) -> int:
    """Make the path to `leaf_id` the active one. None: the chat has no active path.

    Returns the position from which the path has changed.
    """
    await session.flush()
    branch, junction = await _climb(session, leaf_id)
    await leave_path(session, chat.id, above=junction + 1)
    await _deselect(session, chat, [row.parent_id for row in branch])
    for ids in split_chunks([row.id for row in branch]):
        await session.execute(_TAKE, {"ids": ids})
    chat.leaf_id = leaf_id
    return junction + 1


async def find_last_leaf(session: AsyncSession, message_id: UUID) -> UUID:
    """Return the last leaf of the path through a message, by following selected children."""
    found: UUID = (await session.scalars(_LAST_BELOW, {"start": message_id})).one()
    return found


async def set_hidden(session: AsyncSession, chat: Chat, message: Message, *, hidden: bool) -> None:
    """Exclude a message from prompts, or include it again, and update the sums below it."""
    if message.hidden == hidden:
        return
    message.hidden = hidden
    chat.hidden_changes += 1
    await session.flush()
    change = -message.tokens if hidden else message.tokens
    await _add_to_sums(session, message.id, change)


async def set_tokens(session: AsyncSession, message: Message, tokens: int) -> None:
    """Set the tokens of a message, and update the sums below it."""
    change = 0 if message.hidden else tokens - message.tokens
    message.tokens = tokens
    await session.flush()
    if change:
        await _add_to_sums(session, message.id, change)


async def add_to_sums(session: AsyncSession, chat: Chat, changes: Mapping[UUID, int]) -> None:
    """Add the changes of messages' costs to their sums and to those below them.

    All changes are made in one pass over the messages below the first of them.
    """
    changes = {message_id: change for message_id, change in changes.items() if change}
    if not changes:
        return
    first = (
        select(func.min(Message.position)).where(Message.id.in_(list(changes))).scalar_subquery()
    )
    rows = await session.execute(
        select(Message.id, Message.parent_id)
        .where(Message.chat_id == chat.id, Message.position >= first)
        .order_by(Message.position)
    )
    shifts: dict[UUID | None, int] = {}
    by_shift: defaultdict[int, list[UUID]] = defaultdict(list)
    for row in rows:
        shift = shifts.get(row.parent_id, 0) + changes.get(row.id, 0)
        if shift:
            shifts[row.id] = shift
            by_shift[shift].append(row.id)
    for shift, ids in by_shift.items():
        for part in split_chunks(ids):
            await session.execute(
                update(Message)
                .where(Message.id.in_(part))
                .values(path_tokens=Message.path_tokens + shift),
                execution_options=UNSYNCHRONIZED,
            )


async def refresh_sums_below(session: AsyncSession, message: Message) -> None:
    """Compute the sums of the few messages below one again, after its own sum has changed.

    Changes of presence and briefings follow a reply that is continued.
    """
    await session.flush()
    tree = make_subtree(message.id)
    query = select(Message).join(tree, tree.c.id == Message.id).order_by(tree.c.position)
    sums: dict[UUID | None, int] = {}
    for each in await session.scalars(query.execution_options(populate_existing=True)):
        if each.id != message.id:
            own = 0 if each.hidden else each.tokens
            each.path_tokens = sums[each.parent_id] + own
        sums[each.id] = each.path_tokens


def set_unfollowed_tokens(message: Message, tokens: int) -> None:
    """Set the tokens of a reply that is being written, which no other message follows.

    `refresh_sums_below` is called at the end if a continued reply has followers.
    """
    message.path_tokens += 0 if message.hidden else tokens - message.tokens
    message.tokens = tokens


def set_unfollowed_hidden(chat: Chat, message: Message, *, hidden: bool) -> None:
    """Do the same as `set_hidden` for a message without children, without a statement."""
    if message.hidden != hidden:
        message.hidden = hidden
        message.path_tokens += -message.tokens if hidden else message.tokens
        chat.hidden_changes += 1


async def remove_message(session: AsyncSession, chat: Chat, message: Message) -> list[UUID]:
    """Delete a message and all messages below it, and return their ids.

    If the active path contains it, the path continues with the previous sibling, else with the next
    one, else it ends at the parent.
    """
    heir = await _find_nearest_sibling(session, message)
    if message.is_active:
        leaf = await find_last_leaf(session, heir.id) if heir else message.parent_id
        await choose_leaf(session, chat, leaf)
    elif message.is_selected and heir:
        heir.is_selected = True
    await session.flush()
    deleted = await session.scalars(
        delete(Message)
        .where(Message.id.in_(select(make_subtree(message.id).c.id)))
        .returning(Message.id),
        execution_options=UNSYNCHRONIZED,
    )
    return list(deleted)


async def leave_path(session: AsyncSession, chat_id: UUID, *, above: int) -> None:
    """Deactivate the path from position `above`. The caller must choose how it continues."""
    await session.execute(_LEAVE, {"chat": chat_id, "above": above})


async def list_siblings(
    session: AsyncSession, message: Message, *, after: UUID | None, limit: int
) -> list[Message]:
    """Return a message and its siblings after `after`, in the order of their creation.

    Other siblings that were removed are left out.
    """
    query = _select_siblings(message).order_by(Message.id).limit(limit)
    query = query.where(or_(Message.removed_at.is_(None), Message.id == message.id))
    if after is not None:
        query = query.where(Message.id > after)
    return list(await session.scalars(query))


def _select_siblings(message: Message) -> Select[Message]:
    if message.parent_id is not None:
        return select(Message).where(Message.parent_id == message.parent_id)
    return select(Message).where(Message.chat_id == message.chat_id, Message.position == 0)


async def has_children(session: AsyncSession, message_id: UUID) -> bool:
    query = select(Message.id).where(Message.parent_id == message_id).limit(1)
    return await session.scalar(query) is not None


async def has_others_below(
    session: AsyncSession, message_id: UUID, expected: Collection[UUID]
) -> bool:
    """True if a message that is not `expected` is below a message, on any branch."""
    tree = make_subtree(message_id)
    query = select(tree.c.id).where(tree.c.id.not_in(expected)).limit(1)
    return await session.scalar(query) is not None


async def _read_parent(session: AsyncSession, parent: Message | None) -> tuple[int, bool]:
    """Return the parent's `path_tokens`, and True if one of its children may be selected.

    A detached parent is read again, because it may have changed.
    """
    if parent is None:
        return 0, True
    state = inspect(parent)
    if not state.detached:
        return parent.path_tokens, not state.pending
    row = (await session.execute(_PARENT, {"message_id": parent.id})).one()
    return row[0], row[1]


async def _climb(
    session: AsyncSession, leaf_id: UUID | None
) -> tuple[list[Row[*tuple[Any, ...]]], int]:
    """Climb from a leaf to the first active message.

    Returns the inactive rows, and the position of the active message or -1.
    """
    if leaf_id is None:
        return [], -1
    rows = list((await session.execute(_CLIMB, {"leaf": leaf_id})).all())
    if rows and rows[-1].is_active:
        return rows[:-1], rows[-1].position
    return rows, -1


async def _deselect(session: AsyncSession, chat: Chat, parents: Sequence[UUID | None]) -> None:
    """Deselect the children of these parents (None: the roots)."""
    if None in parents:
        await session.execute(_DESELECT_ROOTS, {"chat": chat.id})
    for part in split_chunks([parent for parent in parents if parent is not None]):
        await session.execute(_DESELECT, {"parents": part})


async def _find_nearest_sibling(session: AsyncSession, message: Message) -> Message | None:
    """Return the previous sibling, else the next one, of those that were not removed."""
    query = _select_siblings(message).where(Message.removed_at.is_(None)).limit(1)
    before = await session.scalar(query.where(Message.id < message.id).order_by(Message.id.desc()))
    return before or await session.scalar(query.where(Message.id > message.id).order_by(Message.id))


async def _add_to_sums(session: AsyncSession, message_id: UUID, change: int) -> None:
    await session.execute(
        update(Message)
        .where(Message.id.in_(select(make_subtree(message_id).c.id)))
        .values(path_tokens=Message.path_tokens + change),
        execution_options=UNSYNCHRONIZED,
    )


def make_subtree(message_id: UUID | BindParameter[UUID], *, selected: bool = False) -> CTE:
    """Return a CTE of a message and all messages below it: `id`, `position`.

    With `selected`, only along selected children.
    """
    start = select(Message.id, Message.position).where(Message.id == message_id)
    tree = start.cte("subtree", recursive=True)
    child = aliased(Message)
    # With `=`, SQLite would first build a Bloom filter of all messages.
    is_below: ColumnElement[bool] = child.parent_id.in_([tree.c.id])
    if selected:
        is_below &= child.is_selected
    return tree.union_all(select(child.id, child.position).join(tree, is_below))


def make_ancestors(message_id: UUID | BindParameter[UUID], *, inactive: bool = False) -> CTE:
    """Return a CTE of a message and its ancestors; with `inactive`, up to the first active one."""
    columns = (Message.id, Message.parent_id, Message.is_active, Message.position)
    climb = select(*columns).where(Message.id == message_id).cte("climb", recursive=True)
    parent = aliased(Message)
    is_above = parent.id == climb.c.parent_id
    if inactive:
        is_above &= ~climb.c.is_active
    return climb.union_all(
        select(parent.id, parent.parent_id, parent.is_active, parent.position).join(climb, is_above)
    )


def _make_last_below() -> Select[Any]:
    walk = make_subtree(bindparam("start", type_=Id()), selected=True)
    return select(walk.c.id).order_by(walk.c.position.desc()).limit(1)


def _make_climb() -> Select[*tuple[Any, ...]]:
    climb = make_ancestors(bindparam("leaf", type_=Id()), inactive=True)
    return select(*climb.c).order_by(climb.c.position.desc())


# Built once, because building these statements takes longer than running them.
_MESSAGES = get_table(Message)
_LAST_BELOW, _CLIMB = _make_last_below(), _make_climb()
_LEAVE = (
    _MESSAGES.update()
    .where(
        _MESSAGES.c.chat_id == bindparam("chat"),
        _MESSAGES.c.is_active,
        _MESSAGES.c.position >= bindparam("above"),
    )
    .values(is_active=False)
)
_TAKE = (
    _MESSAGES.update()
    .where(_MESSAGES.c.id.in_(bindparam("ids", expanding=True)))
    .values(is_active=True, is_selected=True)
)
_DESELECT = (
    _MESSAGES.update()
    .where(_MESSAGES.c.parent_id.in_(bindparam("parents", expanding=True)), _MESSAGES.c.is_selected)
    .values(is_selected=False)
)
_DESELECT_ROOTS = (
    _MESSAGES.update()
    .where(
        _MESSAGES.c.chat_id == bindparam("chat"),
        _MESSAGES.c.position == 0,
        _MESSAGES.c.is_selected,
    )
    .values(is_selected=False)
)
