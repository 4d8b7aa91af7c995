"""Whether a viewpoint, or an audience, names entities that are there; and a player's viewpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.records import get_campaign, open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.state.item_reader import Condition
from backend.chats.events import AudienceChecked
from backend.chats.models import Chat
from backend.core.audience import (
    GM,
    NAMELESS_MARKS,
    PUBLIC,
    Audience,
    AudienceMarks,
    Viewpoint,
    filter_known_to_all,
)
from backend.core.cpu_pool import iterate_in_slices
from backend.errors import ValidationError
from backend.vault.sealing import Sealer


class Player(NamedTuple):
    """The character that the user is. `audience` is as its column holds it."""

    id: UUID
    name: str
    audience: str


async def find_player(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None
) -> Player | None:
    """Return the only player character of a campaign; None if there are none or several.

    A user without a persona is this character.
    """
    if campaign_id is None:
        return None
    query = select(CampaignItem.id, CampaignItem.audience, CampaignItem.sealed_state).where(
        *match_players(campaign_id), CampaignItem.user_id == sealer.user_id
    )
    rows = (await session.execute(query.limit(2))).all()
    if len(rows) != 1:
        return None
    [row] = rows
    return Player(row.id, read_state(sealer, row.id, row.sealed_state)["name"], row.audience)


async def find_player_name(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None
) -> str | None:
    """Return the name of `find_player` if everyone may know it."""
    player = await find_player(session, sealer, campaign_id)
    return player.name if player and player.audience == PUBLIC else None


def match_players(campaign_id: UUID | None) -> Sequence[Condition]:
    """Return the conditions for the player characters of a campaign."""
    return (
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.kind == "entity",
        CampaignItem.subkind == "pc",
        CampaignItem.exists,
    )


Campaigns = Sequence[UUID | None] | None
"""Ids of campaigns; None stands for all of a user's."""


async def check_viewpoint(
    session: AsyncSession,
    viewpoint: Viewpoint,
    campaigns: Campaigns,
    *,
    owner_id: UUID,
) -> None:
    """Raise `ValidationError` for an entity that none of the campaigns has."""
    if isinstance(viewpoint, UUID) and await _missing(
        session, [viewpoint], campaigns, owner_id=owner_id
    ):
        raise ValidationError(
            f"`viewpoint` names {viewpoint}, which is not an entity of the campaign."
        )


async def read_marks(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None, audience: str
) -> AudienceMarks:
    """Return marks with the names of entities that all of a stored audience may know.

    Reads nothing for a public audience, because its texts need no marks.
    """
    if audience == PUBLIC or campaign_id is None:
        return NAMELESS_MARKS
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.user_id == sealer.user_id,
        CampaignItem.kind == "entity",
        CampaignItem.exists,
        filter_known_to_all(audience, CampaignItem.audience),
    )
    rows = (await session.execute(query)).all()
    names: dict[UUID, str] = {}
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        names[row.id] = read_state(sealer, row.id, row.sealed_state)["name"]
    return AudienceMarks(names.get)


class CampaignAudiences(AudienceChecked):
    """Checks the audiences of messages."""

    async def audience_checked(self, session: AsyncSession, chat: Chat, audience: Audience) -> None:
        """Raise `ValidationError` where a message of the chat can't have this audience."""
        await check_chat_audience(session, chat, audience)


async def check_chat_audience(session: AsyncSession, chat: Chat, audience: Audience) -> None:
    """Raise `ValidationError` for what is no entity of the chat's campaign.

    A message of a chat without a campaign is public.
    """
    if audience == PUBLIC:
        return
    if chat.campaign_id is None:
        raise ValidationError("The chat is not in a campaign, so its messages are public.")
    if isinstance(audience, list):
        await _check(session, audience, [chat.campaign_id], owner_id=chat.user_id)


async def check_event_audience(
    session: AsyncSession, chronicle_id: UUID, audience: Audience, *, owner_id: UUID
) -> None:
    """Raise `ValidationError` for what is no entity of a campaign that uses the chronicle.

    An event of a chronicle that no campaign uses is public.
    """
    if audience == PUBLIC:
        return
    theirs = select(Campaign.id).where(
        Campaign.chronicle_id == chronicle_id, Campaign.user_id == owner_id
    )
    of_chats = select(Chat.campaign_id).where(
        Chat.chronicle_id == chronicle_id,
        Chat.user_id == owner_id,
        Chat.campaign_id.is_not(None),
    )
    found = [*await session.scalars(theirs), *await session.scalars(of_chats)]
    if not found:
        raise ValidationError("No campaign uses the chronicle, so its events are public.")
    if isinstance(audience, list):
        await _check(session, audience, found, owner_id=owner_id)


async def players_viewpoint(
    session: AsyncSession, identity: Identity, campaign_id: UUID, name: str
) -> Viewpoint:
    """Whose knowledge counts where the user's next line is written.

    The game master's, unless the campaign has hidden information. Then it is that of the player's
    character with this name, of the only one there is, or what is public.
    """
    campaign = await get_campaign(session, identity, campaign_id)
    if not open_campaign(identity.sealer, campaign).settings.hidden_information:
        return GM
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(*match_players(campaign_id))
    players: dict[UUID, State] = {
        row.id: read_state(identity.sealer, row.id, row.sealed_state)
        for row in await session.execute(query)
    }
    folded = name.casefold()
    for player_id, state in players.items():
        if folded in {each.casefold() for each in (state["name"], *state.get("aliases", []))}:
            return player_id
    only: list[UUID] = list(players)
    return only[0] if len(only) == 1 else PUBLIC


async def hides_information(session: AsyncSession, sealer: Sealer, chat: Chat) -> bool:
    """Whether the chat is of a campaign with hidden information."""
    campaign = await session.get(Campaign, chat.campaign_id) if chat.campaign_id else None
    return campaign is not None and open_campaign(sealer, campaign).settings.hidden_information


async def players_among(
    session: AsyncSession, entity_ids: Collection[UUID], campaign_id: UUID | None
) -> Sequence[UUID]:
    """Those entities of a campaign that are players' characters."""
    query = select(CampaignItem.id).where(
        CampaignItem.id.in_(entity_ids), *match_players(campaign_id)
    )
    return (await session.scalars(query.order_by(CampaignItem.id))).all()


async def _check(
    session: AsyncSession,
    entity_ids: Sequence[UUID],
    campaigns: Campaigns,
    *,
    owner_id: UUID,
) -> None:
    if missing := await _missing(session, entity_ids, campaigns, owner_id=owner_id):
        raise ValidationError(
            f"`audience` names {missing}, which is not an entity of the campaign."
        )


async def _missing(
    session: AsyncSession,
    entity_ids: Sequence[UUID],
    campaigns: Campaigns,
    *,
    owner_id: UUID,
) -> UUID | None:
    """The first of these that is no entity of the owner's in one of the campaigns."""
    where: list[ColumnElement[bool]] = []
    if campaigns is not None:
        where.append(CampaignItem.campaign_id.in_([each for each in campaigns if each]))
    found = set(
        await session.scalars(
            select(CampaignItem.id).where(
                CampaignItem.id.in_(entity_ids),
                CampaignItem.user_id == owner_id,
                CampaignItem.kind == "entity",
                CampaignItem.exists,
                *where,
            )
        )
    )
    return next((each for each in entity_ids if each not in found), None)
