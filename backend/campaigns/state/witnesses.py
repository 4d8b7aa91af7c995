"""Those who heard the messages of a chat, and so may know what is made of them.

A public message is known to the members who were there. What is made of it in the background names
them, each with the entities of the campaign that it plays, so that viewpoints of entities find it,
too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, and_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.models import User
from backend.campaigns.state.viewpoints import find_users_entity, load_played_entities
from backend.characters.repository import find_names, find_persona
from backend.chats.members import Group, filter_heard, load_group
from backend.chats.models import Chat
from backend.core.audience import (
    PUBLIC,
    Witness,
    decode_audience,
    encode_audience,
    filter_known_to,
    filter_known_to_all,
    may_all_know,
    may_know,
)
from backend.vault.sealing import Sealer

MAX_NAMED = 50
"""Maximum number of ids in the audience of an item."""

RowT = TypeVar("RowT", bound=Any)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Those who heard a message.

    Attributes:
        heard: Their audience, as messages name them.
        audience: The audience of what is made of the message: with the entities that they play.
        people: Each of them, if they are named.
        members: The members of the chat, if all of them heard it but not all heard all messages.
    """

    heard: str = PUBLIC
    audience: str = PUBLIC
    people: Sequence[Witness] = ()
    members: Sequence[Witness] = ()

    def filter_items(self, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
        """Return the SQL condition that all of them may know an item."""
        if not self.people:
            return filter_known_to_all(self.heard, column)
        return and_(*(filter_known_to(each, column) for each in self.people))

    def may_know_item(self, column: str) -> bool:
        if not self.people:
            return may_all_know(self.heard, column)
        return all(may_know(each, column) for each in self.people)

    def filter_messages(self, chat_id: UUID, message: Any) -> ColumnElement[bool]:
        """Return the SQL condition that all of them heard a message of the chat."""
        everyone = [*self.people, *self.members]
        if not everyone:
            return filter_known_to_all(self.heard, message.audience)
        return and_(
            *(filter_heard(each, chat_id, message) for each in everyone),
            *([filter_known_to_all(PUBLIC, message.audience)] if self.members else ()),
        )


class ChatWitnesses:
    """Finds the listeners of messages on the active path of a chat.

    `played` are the entities that the members play. `users` are those of the user, who hears all
    public messages.
    """

    def __init__(
        self,
        group: Group,
        played: Mapping[UUID, frozenset[UUID]],
        users: Collection[UUID] = (),
    ) -> None:
        self.group = group
        self._played = played
        self._users = users
        # Between two of these positions, the same members are there.
        self._bounds = sorted({at for each in group.changes for at in (each.position, each.position + 1)})
        self._there: dict[int, str] = {}

    def find_heard(self, position: int, column: str) -> str:
        """Return the audience of those who heard a message, as messages name them."""
        if column != PUBLIC:
            return column
        place = bisect_right(self._bounds, position)
        if place not in self._there:
            self._there[place] = self.group.find_witnesses(position, PUBLIC)
        return self._there[place]

    def find(self, position: int, column: str) -> Listeners:
        heard = self.find_heard(position, column)
        named = decode_audience(heard)
        if isinstance(named, str):
            is_partly_heard = heard == PUBLIC and self._misses_some
            return Listeners(heard, heard, members=self._members if is_partly_heard else ())
        people = [self._make_witness(each) for each in named]
        played = sorted({each for one in people for each in one.ids}.difference(named))
        users = [] if column == heard else sorted(self._users)
        audience = list(dict.fromkeys([*named, *played, *users]))[:MAX_NAMED]
        return Listeners(heard, encode_audience(audience), people)

    def take_same(self, rows: Sequence[RowT]) -> list[RowT]:
        """Return the longest start of messages that the same people heard."""
        heard = self.find_heard(rows[0].position, rows[0].audience) if rows else ""
        return list(
            takewhile(lambda row: self.find_heard(row.position, row.audience) == heard, rows)
        )

    @property
    def _misses_some(self) -> bool:
        return bool(self.group.changes) or not all(self.group.members.values())

    @property
    def _members(self) -> list[Witness]:
        return [self._make_witness(each) for each in self.group.members]

    def _make_witness(self, named: UUID) -> Witness:
        """Return the viewpoint of a member, or of an entity."""
        member = next(
            (each for each, played in self._played.items() if named == each or named in played), named
        )
        absences = {self.group.chat_id: self.group.find_absences(member)}
        ids = frozenset({named, member, *self._played.get(member, ())})
        return Witness(member, ids, absences if member in self.group.members else {})


async def load_witnesses(session: AsyncSession, sealer: Sealer, chat: Chat) -> ChatWitnesses:
    """Return the listeners of a chat's messages. The caller has checked who owns it."""
    group = await load_group(session, chat.id)
    if chat.campaign_id is None or not group.is_group:
        return ChatWitnesses(group, {})
    names = await find_names(
        session, list(group.members), owner_id=sealer.user_id, sealer=sealer
    )
    entities = await load_played_entities(session, sealer, chat.campaign_id)
    played = {each: frozenset(entities.find(each, name)) for each, name in names.items()}
    taken = {each for ids in played.values() for each in ids}
    name = await _find_users_name(session, sealer, chat)
    user = await find_users_entity(session, sealer, chat.campaign_id, name)
    return ChatWitnesses(group, played, [] if user is None or user in taken else [user])


async def _find_users_name(session: AsyncSession, sealer: Sealer, chat: Chat) -> str:
    """Return the name of the persona that the user has in a chat, or an empty one."""
    owner = await session.get_one(User, sealer.user_id)
    persona_id = chat.persona_id or open_user_settings(sealer, owner.sealed_settings).persona_id
    if persona_id is None:
        return ""
    persona = await find_persona(session, persona_id, owner_id=sealer.user_id, sealer=sealer)
    return persona.name if persona else ""
