"""The speaker of a turn, and the other characters of its chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.snapshot import PlayedEntities
from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError
from backend.characters.models import Character, open_card
from backend.characters.public_cards import KeptCard, SealedCard
from backend.chats.members import END, Group, NamedMembers
from backend.chats.models import Presence
from backend.core.reasons import Reason

NARRATOR = "Narrator"
"""The speaker of a chat without a character."""

_CHARACTER = select(Character.sealed_card, Character.preset_id).where(
    Character.id == bindparam("character_id"), Character.user_id == bindparam("owner_id")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """The character that speaks. `id` is None in a chat without characters."""

    id: UUID | None
    card: Card
    name: str
    preset_id: UUID | None = None


class CastMember(NamedTuple):
    """A character that is or was there on the active path."""

    id: UUID
    name: str
    presence: Presence


def list_cast(group: Group, names: Mapping[UUID, str], position: int = END) -> list[CastMember]:
    """Return the members of a chat that are or were there before a position of its path, in order.

    A character that joins on another branch only is left out.
    """
    came = {change.character_id for change in group.changes if change.position < position}
    return [
        CastMember(each, names[each], presence)
        for each, presence in group.find_presences(position).items()
        if each in names and (group.members[each] or each in came)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The characters of a chat and its user.

    Attributes:
        others: The names of all characters that do not speak in this turn, also of those that
            never came.
        members: The characters that are or were there, with the speaker.
        public_cards: The members' cards with their public parts. Empty if cards are not joined.
        persona: The description of the user's persona.
        reasons: Why the speaker was chosen, in a group.
        waiting: Other characters that the last lines have named.
    """

    speaker: Speaker
    others: Sequence[str]
    member_count: int
    user_name: str
    persona: str
    persona_id: UUID | None
    reasons: Sequence[Reason] = ()
    waiting: Sequence[UUID] = ()
    members: Sequence[CastMember] = ()
    public_cards: Mapping[UUID, KeptCard | SealedCard] = field(
        default_factory=dict[UUID, KeptCard | SealedCard]
    )

    @property
    def here(self) -> list[str]:
        """The names of the characters that are there with the speaker."""
        return [each.name for each in self._others if each.presence != "absent"]

    @property
    def away(self) -> list[str]:
        return [each.name for each in self._others if each.presence == "absent"]

    @property
    def _others(self) -> list[CastMember]:
        return [each for each in self.members if each.id != self.speaker.id]


def name_members(
    group: Group, names: Mapping[UUID, str], end: int, played: PlayedEntities | None
) -> NamedMembers:
    """Return the names of the members, and those who are there before the position `end`."""
    present = [
        frozenset({each, *(played.find(each, names.get(each, "")) if played else ())})
        for each, presence in group.find_presences(end).items()
        if presence != "absent"
    ]
    return NamedMembers(names, present)


async def load_speaker(
    session: AsyncSession,
    identity: Identity,
    names: Mapping[UUID, str],
    character_id: UUID | None,
) -> Speaker:
    """Return a character of a chat, or the narrator. Raises `CharacterNotFoundError`."""
    if character_id is None:
        return Speaker(id=None, card=Card(name=NARRATOR), name=NARRATOR)
    values = {"character_id": character_id, "owner_id": identity.user_id}
    row = (await session.execute(_CHARACTER, values)).one_or_none()
    if row is None:
        raise CharacterNotFoundError
    card = open_card(identity.sealer, character_id, row.sealed_card)
    return Speaker(id=character_id, card=card, name=names[character_id], preset_id=row.preset_id)
