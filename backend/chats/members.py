"""The members of a chat, when they were there, and the messages that each of them has heard.

Messages of the tree say that a member joins, leaves or is muted, so that swipes and branches undo
it. A public message is known to the members who were there. Without any such message all members
were always there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Executable,
    and_,
    bindparam,
    exists,
    false,
    not_,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import ChatCharacter, Message, Presence
from backend.core.audience import (
    GM,
    PUBLIC,
    Ranges,
    Viewpoint,
    Witness,
    encode_audience,
    filter_known_to,
    is_named,
    may_know,
)
from backend.database.types import Id

END = 2**31 - 1
"""The position after all messages: the largest value of the column."""

_RANGES_IN_GROUP = 30
"""SQLite limits the depth of an expression, so that many ranges are written in groups."""


class PresenceChange(NamedTuple):
    """A message of the active path with which a character joins, leaves or is muted."""

    position: int
    character_id: UUID
    presence: Presence


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a chat on its active path.

    Attributes:
        chat_id: The chat.
        members: The members in order, with True for those that are there from the start.
        changes: The changes of presence, the first one first.
    """

    chat_id: UUID
    members: Mapping[UUID, bool]
    changes: Sequence[PresenceChange] = ()

    @property
    def is_group(self) -> bool:
        """True if the members may know different things. The only character of a chat narrates."""
        return len(self.members) > 1 or bool(self.changes)

    @property
    def has_absences(self) -> bool:
        """True if a member may have missed public messages."""
        return bool(self.changes) or not all(self.members.values())

    @property
    def presences(self) -> dict[UUID, Presence]:
        """The members with their presence at the end, in order."""
        return self.find_presences(END)

    def find_presences(self, position: int) -> dict[UUID, Presence]:
        """Return the members with their presence after the messages before `position`."""
        found: dict[UUID, Presence] = {
            each: "present" if is_there else "absent" for each, is_there in self.members.items()
        }
        for change in self.changes:
            if change.position < position and change.character_id in found:
                found[change.character_id] = change.presence
        return found

    def find_absences(self, character_id: UUID) -> Ranges:
        """Return the positions at which a character was not there.

        It hears the message with which it leaves or joins.
        """
        begin = None if self.members.get(character_id, False) else 0
        found: list[tuple[int, int]] = []
        for change in self.changes:
            if change.character_id != character_id:
                continue
            if change.presence == "absent":
                begin = change.position + 1 if begin is None else begin
            elif begin is not None:
                found.append((begin, change.position))
                begin = None
        if begin is not None:
            found.append((begin, END))
        return [each for each in found if each[0] < each[1]]

    def find_witnesses(self, position: int, column: str) -> str:
        """Return the audience of texts made from a message, such as an event or a summary.

        It is the message's audience `column` without the members that were absent. If all were
        there, public remains public.
        """
        if column != PUBLIC or not self.has_absences:
            return column
        there = [
            each
            for each in self.members
            if not any(begin <= position < end for begin, end in self.find_absences(each))
        ]
        if len(there) == len(self.members):
            return PUBLIC
        return encode_audience(there) if there else GM


@dataclass(frozen=True, slots=True)
class NamedMembers:
    """The members of a chat as marks of audiences name them.

    Attributes:
        names: Their names.
        present: Those who are there, each with the entities that it plays.
    """

    names: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    present: Sequence[frozenset[UUID]] = ()


_CHAT_ID = bindparam("chat_id", type_=Id())
_GROUP: Executable = union_all(
    select(
        ChatCharacter.place.label("place"),
        ChatCharacter.character_id,
        ChatCharacter.is_from_start,
        null().label("presence"),
    ).where(ChatCharacter.chat_id == _CHAT_ID),
    select(Message.position, Message.character_id, null(), Message.presence).where(
        Message.chat_id == _CHAT_ID, Message.presence.is_not(None), Message.is_active
    ),
).order_by("place")
"""The members of a chat and their changes of presence, each in order, as one statement."""

_ELSEWHERE = (
    select(ChatCharacter.chat_id, ChatCharacter.is_from_start, Message.position, Message.presence)
    .outerjoin(
        Message,
        and_(
            Message.chat_id == ChatCharacter.chat_id,
            Message.presence.is_not(None),
            Message.is_active,
            Message.character_id == ChatCharacter.character_id,
        ),
    )
    .where(ChatCharacter.character_id == bindparam("character_id", type_=Id()))
    .where(or_(~ChatCharacter.is_from_start, Message.id.is_not(None)))
    .order_by(ChatCharacter.chat_id, Message.position)
)
"""The chats in which a character was not always there.

The statements of every turn are built once, because building takes longer than running."""


async def load_group(session: AsyncSession, chat_id: UUID) -> Group:
    """Return the members of a chat. The caller has checked who owns it."""
    members: dict[UUID, bool] = {}
    changes: list[PresenceChange] = []
    for place, character_id, is_there, presence in await session.execute(
        _GROUP, {"chat_id": chat_id}
    ):
        if presence is None:
            members[character_id] = is_there
        elif character_id is not None:
            changes.append(PresenceChange(place, character_id, presence))
    return Group(chat_id, members, changes)


def _match_briefings() -> ColumnElement[bool]:
    return and_(
        Message.role == "system",
        Message.character_id.is_not(None),
        Message.audience.not_in((GM, PUBLIC)),
    )


_LAST_LINE = (
    select(Message)
    .where(
        Message.chat_id == bindparam("chat_id", type_=Id()),
        Message.is_active,
        Message.position <= bindparam("position"),
        Message.presence.is_(None),
        Message.removed_at.is_(None),
        ~_match_briefings(),
    )
    .order_by(Message.position.desc())
    .limit(1)
)


def is_line(message: Message) -> bool:
    """True if a message can be answered. Changes of presence, briefings and removed ones cannot.

    A briefing is the story so far, for one character that joins.
    """
    is_briefing = (
        message.role == "system"
        and message.character_id is not None
        and message.audience not in {GM, PUBLIC}
    )
    return message.presence is None and message.removed_at is None and not is_briefing


async def find_last_line(session: AsyncSession, leaf: Message | None) -> Message | None:
    """Return the last line of the active path up to `leaf`, which is on it. See `is_line`."""
    if leaf is None or is_line(leaf):
        return leaf
    values = {"chat_id": leaf.chat_id, "position": leaf.position}
    return await session.scalar(_LAST_LINE, values)


async def load_absences(session: AsyncSession, character_id: UUID) -> dict[UUID, Ranges]:
    """Return the positions at which a character was not there, in all of its chats."""
    rows = await session.execute(_ELSEWHERE, {"character_id": character_id})
    found: dict[UUID, Ranges] = {}
    for (chat_id, is_there), changed in groupby(rows, key=lambda row: (row[0], row[1])):
        changes = [
            PresenceChange(position, character_id, presence)
            for _, _, position, presence in changed
            if presence is not None
        ]
        group = Group(chat_id, {character_id: is_there}, changes)
        if ranges := group.find_absences(character_id):
            found[chat_id] = ranges
    return found


MAX_CONDITIONS = 256
"""Conditions that are kept, because building one takes longer than running its statement."""


@lru_cache(maxsize=MAX_CONDITIONS)
def filter_heard(
    viewpoint: Viewpoint, chat_id: UUID, message: Any = Message
) -> ColumnElement[bool]:
    """Return the SQL condition that a viewpoint knows a message of one chat.

    `message` is the table of messages, an alias or its columns.
    """
    if not isinstance(viewpoint, Witness):
        return filter_known_to(viewpoint, message.audience)
    absent = is_within(message.position, viewpoint.absences.get(chat_id, ()))
    return or_(
        is_named(viewpoint, message.audience), and_(message.audience == PUBLIC, not_(absent))
    )


@lru_cache(maxsize=MAX_CONDITIONS)
def filter_heard_anywhere(viewpoint: Witness, message: Any = Message) -> ColumnElement[bool]:
    """Return the SQL condition that a character knows a message of any chat.

    Messages of chats in which it is no member are unknown to it. Those of chats without characters
    are known to everyone.
    """
    member, anyone = ChatCharacter.__table__.alias(), ChatCharacter.__table__.alias()
    is_member = exists().where(
        member.c.chat_id == message.chat_id, member.c.character_id == viewpoint.character_id
    )
    has_members = exists().where(anyone.c.chat_id == message.chat_id)
    absent = or_(
        false(),
        *(
            and_(message.chat_id == chat_id, is_within(message.position, ranges))
            for chat_id, ranges in viewpoint.absences.items()
        ),
    )
    return or_(
        is_named(viewpoint, message.audience),
        and_(message.audience == PUBLIC, or_(is_member, ~has_members), not_(absent)),
    )


def has_heard(viewpoint: Viewpoint, chat_id: UUID, position: int, column: str) -> bool:
    """True if a viewpoint knows a message of a chat. `column` is its audience."""
    if isinstance(viewpoint, Witness):
        return viewpoint.has_heard(chat_id, position, column)
    return may_know(viewpoint, column)


def list_heard(
    viewpoint: Viewpoint,
    chat_id: UUID,
    positions: Sequence[int],
    audiences: Sequence[str],
    *,
    first: int = 0,
) -> Sequence[int]:
    """Return the places of messages that a viewpoint knows, from the place `first` on.

    `positions` ascend. For thousands of messages, this is ten times as fast as `has_heard`.
    """
    if viewpoint == GM:
        return range(first, len(positions))
    absent = bytearray(len(positions))
    if isinstance(viewpoint, Witness):
        for begin, end in viewpoint.absences.get(chat_id, ()):
            start, stop = bisect_left(positions, begin), bisect_left(positions, end)
            absent[start:stop] = b"\1" * (stop - start)
    knows = {column: may_know(viewpoint, column) for column in set(audiences)}
    return [
        at
        for at in range(first, len(positions))
        if knows[audiences[at]] and not (absent[at] and audiences[at] == PUBLIC)
    ]


def is_within(position: ColumnElement[int], ranges: Ranges) -> ColumnElement[bool]:
    """Return the SQL condition that a position is in one of the ranges."""
    parts = [and_(position >= begin, position < end) for begin, end in ranges]
    while len(parts) > _RANGES_IN_GROUP:
        parts = [
            or_(*parts[at : at + _RANGES_IN_GROUP]).self_group()
            for at in range(0, len(parts), _RANGES_IN_GROUP)
        ]
    return or_(false(), *parts) if parts else ~true()
