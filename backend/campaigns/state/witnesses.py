"""The audience of items that are made of messages.

It names the characters that heard the message, each with the entities of the campaign that it
plays, so that viewpoints of entities find the items, too.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.models import User
from backend.campaigns.state.viewpoints import find_users_entity, load_played_entities
from backend.characters.repository import find_names, find_persona
from backend.chats.members import Group, load_group
from backend.chats.models import Chat, Message
from backend.core.audience import PUBLIC, encode_audience, list_entities
from backend.vault.sealing import Sealer

MAX_NAMED = 50
"""Maximum number of ids in the audience of an item."""


async def find_item_audience(
    session: AsyncSession, sealer: Sealer, chat: Chat, group: Group, heard: str, *, said_to: str
) -> str:
    """Return the audience of an item, in the form of the database column.

    `said_to` is the audience of a message, and `heard` names those of it who were there. The user
    hears what is said to everyone, and so does the player's character that no member plays.
    """
    named = list(list_entities(heard))
    if chat.campaign_id is None or not group.is_group or not named:
        return heard
    names = await find_names(session, list(group.members), owner_id=sealer.user_id, sealer=sealer)
    played = await load_played_entities(session, sealer, chat.campaign_id)
    ids = dict.fromkeys(named)
    taken: set[UUID] = set()
    for member, name in names.items():
        own = played.find(member, name)
        taken.update(own)
        if not {member, *own}.isdisjoint(named):
            ids |= dict.fromkeys([member, *sorted(own)])
    if said_to == PUBLIC:
        name = await _find_users_name(session, sealer, chat)
        user = await find_users_entity(session, sealer, chat.campaign_id, name)
        if user is not None and user not in taken:
            ids[user] = None
    return encode_audience(list(ids)[:MAX_NAMED])


async def find_message_audience(
    session: AsyncSession, sealer: Sealer, chat: Chat, message: Message
) -> str:
    """Return the audience of items that are made of a message."""
    group = await load_group(session, chat.id)
    heard = group.find_witnesses(message.position, message.audience)
    return await find_item_audience(session, sealer, chat, group, heard, said_to=message.audience)


async def _find_users_name(session: AsyncSession, sealer: Sealer, chat: Chat) -> str:
    """Return the name of the persona that the user has in a chat, or an empty one."""
    owner = await session.get_one(User, sealer.user_id)
    persona_id = chat.persona_id or open_user_settings(sealer, owner.sealed_settings).persona_id
    if persona_id is None:
        return ""
    persona = await find_persona(session, persona_id, owner_id=sealer.user_id, sealer=sealer)
    return persona.name if persona else ""
