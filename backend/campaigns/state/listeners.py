"""The viewpoints of those who heard messages, and of the characters that share a chronicle."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.viewpoints import find_witness, read_marks
from backend.characters.repository import find_names
from backend.chats.members import Group
from backend.chats.models import Chat, ChatCharacter
from backend.core.audience import (
    GM,
    PUBLIC,
    AudienceMarks,
    Viewpoint,
    Witness,
    list_entities,
)
from backend.vault.sealing import Sealer

MAX_WITNESSES = 50
"""Maximum number of characters of one chronicle's chats that are compared."""

Listeners = tuple[Viewpoint, ...]
"""The viewpoints of all who know a text. A prompt for writing it must be known to each."""


@dataclass(frozen=True, slots=True)
class WitnessFinder:
    """Finds who heard the messages of one chat. Ranges without a change of presence share results.

    Attributes:
        group: The members of the chat.
    """

    group: Group
    _edges: list[int] = field(default_factory=list[int], init=False)
    _known: dict[tuple[int, str], str] = field(
        default_factory=dict[tuple[int, str], str], init=False
    )

    def __post_init__(self) -> None:
        absences = map(self.group.find_absences, self.group.members)
        edges = {edge for ranges in absences for each in ranges for edge in each}
        self._edges.extend(sorted(edges))

    def find(self, position: int, column: str) -> str:
        """Return the audience of texts made from a message with this audience."""
        key = bisect_right(self._edges, position), column
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.group.find_witnesses(position, column)
        return found


async def find_listeners(
    session: AsyncSession, sealer: Sealer, chat: Chat, group: Group, audience: str
) -> Listeners:
    """Return the viewpoints of those in an audience of a chat, as `WitnessFinder` returns it.

    In a group, a public text is for each member, because some may have joined later.
    """
    members = list(group.members)
    if audience == PUBLIC:
        listed = members if group.is_group else []
        found: list[Viewpoint] = [PUBLIC]
    else:
        listed, found = list(list_entities(audience)), []
    names = await find_names(session, members, owner_id=sealer.user_id, sealer=sealer)
    for each in listed:
        found.append(
            await find_witness(session, sealer, chat, each, names.get(each, ""))
            if each in group.members
            else each
        )
    return tuple(found) or (GM,)


async def read_group_marks(
    session: AsyncSession, sealer: Sealer, chat: Chat, group: Group, audience: str
) -> AudienceMarks:
    """Return marks with the names of members, and of entities that an audience may know."""
    marks = await read_marks(session, sealer, chat.campaign_id, audience)
    if not group.is_group:
        return marks
    names = await find_names(session, list(group.members), owner_id=sealer.user_id, sealer=sealer)

    def find_name(reader_id: UUID) -> str | None:
        return names.get(reader_id) or marks.find_name(reader_id)

    return replace(marks, find_name=find_name)


async def find_chronicle_witnesses(
    session: AsyncSession, sealer: Sealer, chronicle_id: UUID
) -> dict[UUID, Witness]:
    """Return the viewpoints of the characters in the chats of a chronicle, the latest chats first.

    There are at most `MAX_WITNESSES`.
    """
    query = (
        select(ChatCharacter.character_id, Chat)
        .join(Chat, Chat.id == ChatCharacter.chat_id)
        .where(Chat.chronicle_id == chronicle_id, Chat.user_id == sealer.user_id)
        .order_by(Chat.updated_at.desc(), Chat.id, ChatCharacter.place)
        .limit(10 * MAX_WITNESSES)
    )
    chats: dict[UUID, list[Chat]] = {}
    for character_id, chat in await session.execute(query):
        if character_id in chats or len(chats) < MAX_WITNESSES:
            chats.setdefault(character_id, []).append(chat)
    names = await find_names(session, list(chats), owner_id=sealer.user_id, sealer=sealer)
    return {
        character_id: await _find_witness(session, sealer, own, character_id, name)
        for character_id, name in names.items()
        for own in [chats[character_id]]
    }


async def find_memory_witness(
    session: AsyncSession, sealer: Sealer, chat: Chat, character_id: UUID, name: str
) -> Witness:
    """Return the viewpoint of a character that keeps its memories across chats.

    It has the entities that the character plays in the campaigns of all its chats.
    """
    query = (
        select(Chat)
        .join(ChatCharacter, ChatCharacter.chat_id == Chat.id)
        .where(
            ChatCharacter.character_id == character_id,
            Chat.user_id == sealer.user_id,
            Chat.campaign_id.is_not(None),
        )
    )
    chats = [chat, *await session.scalars(query)]
    return await _find_witness(session, sealer, chats, character_id, name)


async def _find_witness(
    session: AsyncSession, sealer: Sealer, chats: Sequence[Chat], character_id: UUID, name: str
) -> Witness:
    """Return the viewpoint of a character with the entities that it plays in several chats."""
    by_campaign = {each.campaign_id: each for each in reversed(chats)}
    found = [
        await find_witness(session, sealer, each, character_id, name)
        for each in by_campaign.values()
    ]
    return replace(found[0], ids=frozenset[UUID]().union(*(each.ids for each in found)))
