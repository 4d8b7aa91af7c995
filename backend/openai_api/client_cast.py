"""The people of a client's conversation: the names before its lines, and the chat's members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.service import AccountService
from backend.campaigns.state.viewpoints import find_player_name
from backend.characters.models import Persona, open_persona
from backend.chats import repository as chats
from backend.chats.members import load_group
from backend.chats.models import Presence
from backend.database.engine import Database
from backend.openai_api.contracts import Names
from backend.openai_api.conversations import ConversationScope
from backend.openai_api.model_names import (
    CampaignTarget,
    CharacterTarget,
    ModelNames,
    NamedItems,
    StoredChatTarget,
)

ClientTarget = CharacterTarget | CampaignTarget | StoredChatTarget

MAX_PERSONAS = 100
"""The newest personas. Their names are removed from the user's lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCast:
    """The people of a conversation.

    Attributes:
        scope: Where the conversation is looked for.
        names: The names that may be before lines.
        member_ids: The characters of the chat, or of the chat to create.
        campaign_id: The campaign of the chat.
    """

    scope: ConversationScope
    names: Names
    member_ids: Sequence[UUID] = ()
    campaign_id: UUID | None = None
    _characters: NamedItems = field(repr=False)

    def find_member(self, name: str, ids: Sequence[UUID] | None = None) -> UUID | None:
        """Return the member of a name. By default of the chat that would be created."""
        wanted = name.casefold().strip()
        by_name: Mapping[str, UUID] = {
            form.casefold().strip(): item.id
            for item in map(self._characters.get, self.member_ids if ids is None else ids)
            if item is not None
            for form in item.names
        }
        return by_name.get(wanted) if wanted else None

    def find_characters(self, names: Sequence[str]) -> list[UUID]:
        """Return the account's characters of these names, the oldest of each name."""
        wanted = {name.casefold().strip(): at for at, name in enumerate(names)}
        found: dict[int, UUID] = {}
        for item in self._characters.items:
            at = wanted.get(item.names[0].casefold().strip())
            if at is not None:
                found.setdefault(at, item.id)
        return [found[at] for at in sorted(found)]


class CastReader:
    """Reads the people of a conversation."""

    def __init__(self, database: Database, accounts: AccountService, names: ModelNames) -> None:
        self._database = database
        self._accounts = accounts
        self._names = names

    async def read(
        self,
        identity: Identity,
        target: ClientTarget,
    ) -> ClientCast:
        """Return the people of a target. Raises `ChatNotFoundError`."""
        characters = await self._names.list_characters(identity)
        async with self._database.read() as session:
            users = await self._list_user_names(session, identity)
            campaign_id: UUID | None = None
            member_ids: Sequence[UUID] = ()
            match target:
                case CharacterTarget(character_id):
                    scope = ConversationScope(kind="character", id=character_id)
                    member_ids = [character_id]
                case CampaignTarget(found_id):
                    scope = ConversationScope(kind="campaign", id=found_id)
                    campaign_id = found_id
                case StoredChatTarget(chat_id):
                    scope = ConversationScope(kind="chat", id=chat_id)
                    chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
                    campaign_id = chat.campaign_id
                    member_ids = await _list_members(session, chat.id)
            player = await find_player_name(session, identity.sealer, campaign_id)
        people = [item for item in map(characters.get, member_ids) if item is not None]
        return ClientCast(
            scope=scope,
            names=Names(
                user=[*users, *([player] if player else ())],
                characters=[name for item in people for name in item.names],
            ),
            member_ids=member_ids,
            campaign_id=campaign_id,
            _characters=characters,
        )

    async def load_presences(self, chat_id: UUID) -> Mapping[UUID, Presence]:
        """Return the characters of a chat of the account with their presence, in order."""
        async with self._database.read() as session:
            return (await load_group(session, chat_id)).presences

    async def _list_user_names(self, session: AsyncSession, identity: Identity) -> list[str]:
        query = (
            select(Persona.id, Persona.sealed_persona)
            .where(Persona.user_id == identity.user_id)
            .order_by(Persona.id.desc())
            .limit(MAX_PERSONAS)
        )
        rows = await session.execute(query)
        names = [open_persona(identity.sealer, key, sealed).name for key, sealed in rows]
        return [self._accounts.name_of(identity), *names]


async def _list_members(session: AsyncSession, chat_id: UUID) -> Sequence[UUID]:
    return (await chats.list_character_ids(session, [chat_id])).get(chat_id, [])
