"""What followed from messages of a campaign, as it is now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import Viewpoint
from backend.campaigns.index_source import CampaignSource
from backend.campaigns.item_rows import read_state
from backend.campaigns.items import INDEXED
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.chats.models import Message
from backend.memory.sources import Recalled
from backend.vault.sealing import Sealer

MAX_CHANGED = 100
"""Changes that are looked at, the latest."""

MAX_STEPS = 8
"""How often a fact may have been superseded."""

_REPLIES = select(Message.id, Message.parent_id).where(
    Message.parent_id.in_(bindparam("lines", expanding=True)),
    Message.user_id == bindparam("owner"),
    Message.is_active,
    Message.role == "assistant",
)
_CHANGED = (
    select(ChangeSource.message_id, CampaignChange.item_id)
    .join(CampaignChange, CampaignChange.id == ChangeSource.change_id)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(
        ChangeSource.message_id.in_(bindparam("messages", expanding=True)),
        CampaignChange.user_id == bindparam("owner"),
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
        CampaignItem.kind.in_(INDEXED),
        # Where nothing came later, the line itself says how it is.
        CampaignItem.seq > CampaignChange.seq,
    )
    .order_by(CampaignChange.seq.desc())
    .limit(MAX_CHANGED)
)
_SUPERSEDED = select(CampaignItem.id, CampaignItem.sealed_state).where(
    CampaignItem.id.in_(bindparam("facts", expanding=True)),
    CampaignItem.user_id == bindparam("owner"),
    CampaignItem.kind == "fact",
    CampaignItem.exists,
    ~CampaignItem.is_live,
)


async def find_consequences(
    session: AsyncSession,
    sealer: Sealer,
    message_ids: Collection[UUID],
    *,
    viewpoint: Viewpoint,
) -> dict[UUID, list[Recalled]]:
    """What each of some messages, or the reply to it, changed: as that is now.

    That is so for what was changed again since: a line that comes back from long ago tells what was
    true then, and this says what became of it. Of a fact that is the one which supersedes it.
    """
    if not message_ids:
        return {}
    owner = {"owner": sealer.user_id}
    lines = {message_id: message_id for message_id in message_ids}
    for reply in await session.execute(_REPLIES, {"lines": list(message_ids), **owner}):
        lines.setdefault(reply.id, reply.parent_id)
    rows = (await session.execute(_CHANGED, {"messages": list(lines), **owner})).all()
    if not rows:
        return {}
    current = await _current(session, sealer, [row.item_id for row in rows])
    items = await CampaignSource().recall(
        session, sealer, set(current.values()), viewpoint=viewpoint
    )
    found: dict[UUID, list[Recalled]] = {}
    for row in rows:
        item = items.get(current[row.item_id])
        told = found.setdefault(lines[row.message_id], [])
        if item is not None and item not in told:
            told.append(item)
    return found


async def _current(
    session: AsyncSession, sealer: Sealer, item_ids: Sequence[UUID]
) -> Mapping[UUID, UUID]:
    """What each item is now: itself, or the fact that supersedes it in the end."""
    current = {item_id: item_id for item_id in item_ids}
    for _ in range(MAX_STEPS):
        asked = {"facts": list(set(current.values())), "owner": sealer.user_id}
        later: dict[UUID, UUID] = {}
        for row in await session.execute(_SUPERSEDED, asked):
            if by := read_state(sealer, row.id, row.sealed_state).get("superseded_by"):
                later[row.id] = UUID(by)
        if not later:
            break
        current = {item_id: later.get(now, now) for item_id, now in current.items()}
    return current
