"""Open scenes: their beginning and end, their beats, and their messages in a chat.

A beat is a finished turn of the open scene. It is a change caused by the reply, so it is active
while the reply is on the active path; a regenerated reply has a beat of its own. The beginning and
end of scenes are changes of replies, too. The functions do not commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, build_creation
from backend.campaigns.ledger.item_service import has_item_room
from backend.campaigns.ledger.items import Scene
from backend.campaigns.ledger.paths import IS_COMPACTED
from backend.campaigns.ledger.records import find_campaign, load_states, open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.party import read_party
from backend.chats.models import Chat, Message
from backend.core.audience import PUBLIC
from backend.database.base import new_id
from backend.vault.sealing import Sealer

_STATE = select(CampaignItem.sealed_state).where(CampaignItem.id == bindparam("scene"))


@dataclass(frozen=True, slots=True)
class SceneSpan:
    """The positions of a scene's messages on the active path of a chat.

    `after` is the last position that its summary covers, `last` the scene's last one.
    """

    after: int
    last: int


async def count_beat(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    reply: Message,
    *,
    turn_id: UUID,
    lead_id: UUID | None = None,
) -> list[UUID]:
    """Count a reply as a beat of the open scene. Return the scene if it is due for compression.

    Without an open scene, one begins at the place of the story. A reply that is not public begins
    none, because the others would learn of it.
    """
    if chat.campaign_id is None:
        return []
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return []
    party = await read_party(session, campaign.id, lead_id)
    scene_id = party.scene_id
    if scene_id is not None:
        beat = Change("scene", scene_id, Operations(add={"beats": 1}))
    elif party.place and reply.audience == PUBLIC and await has_item_room(session, campaign.id):
        scene_id = new_id()
        begun = Scene(location_id=party.place, beats=1)
        beat = Change("scene", scene_id, build_creation(begun))
    else:
        return []
    await ledger_store.append_changes(
        session, sealer, campaign, [beat], actor="tool", message=reply, turn_id=turn_id
    )
    blob = await session.scalar(_STATE, {"scene": scene_id})
    beats = read_state(sealer, scene_id, blob).get("beats", 0) if blob else 0
    settings = open_campaign(sealer, campaign).settings
    return [scene_id] if settings.summaries and beats % settings.scene_beats == 0 else []


async def end_left_scenes(
    session: AsyncSession, sealer: Sealer, chat: Chat, reply: Message, *, turn_id: UUID
) -> None:
    """Close scenes that all player characters have left, as changes caused by the reply.

    A scene with a locked status stays open. A reply that is not public closes none.
    """
    if chat.campaign_id is None or reply.audience != PUBLIC:
        return
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return
    left = (await read_party(session, campaign.id)).left
    if not left:
        return
    states = await load_states(session, sealer, campaign, left)
    ended = [
        Change("scene", scene_id, Operations(set={"status": "closed"}))
        for scene_id, state in states.items()
        if "status" not in state.get("locked", ())
    ]
    if ended:
        await ledger_store.append_changes(
            session, sealer, campaign, ended, actor="tool", message=reply, turn_id=turn_id
        )


async def find_ended_scenes(session: AsyncSession, chat: Chat, *, turn_id: UUID) -> list[UUID]:
    """Return the scenes that a turn changed and that are closed now."""
    if chat.campaign_id is None:
        return []
    query = (
        select(CampaignItem.id)
        .join(CampaignChange, CampaignChange.item_id == CampaignItem.id)
        .where(
            CampaignChange.campaign_id == chat.campaign_id,
            CampaignChange.turn_id == turn_id,
            CampaignItem.kind == "scene",
            CampaignItem.exists,
            ~CampaignItem.is_live,
        )
        .distinct()
    )
    return list(await session.scalars(query))


def _select_sources(scene_id: UUID, *columns: Any) -> Any:
    """Select the messages that cause the active changes of a scene."""
    return (
        select(*columns)
        .select_from(ChangeSource)
        .join(CampaignChange, CampaignChange.id == ChangeSource.change_id)
        .join(Message, Message.id == ChangeSource.message_id)
        .where(
            CampaignChange.item_id == scene_id,
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
            Message.is_active,
        )
    )


async def find_last_chat(session: AsyncSession, scene_id: UUID) -> UUID | None:
    """Return the chat with the scene's last message; None if the scene has no messages."""
    query = _select_sources(scene_id, ChangeSource.chat_id).order_by(
        CampaignChange.seq.desc(), ChangeSource.message_id.desc()
    )
    chat_id: UUID | None = await session.scalar(query.limit(1))
    return chat_id


async def find_span(session: AsyncSession, scene_id: UUID, chat_id: UUID) -> SceneSpan | None:
    """Return the positions of a scene's messages in a chat; None if there are none.

    The first is the message that the scene's first reply answers.
    """
    here, position = ChangeSource.chat_id == chat_id, ChangeSource.position
    span = _select_sources(
        scene_id, func.min(position).label("first"), func.max(position).label("last")
    ).where(here)
    row: Any = (await session.execute(span)).one()
    first: int | None = row.first
    if first is None:
        return None
    compressed = _select_sources(scene_id, func.max(position)).where(
        here, CampaignChange.actor == "compactor", ~IS_COMPACTED
    )
    covered: int | None = await session.scalar(compressed)
    return SceneSpan(after=first - 2 if covered is None else covered, last=row.last)
