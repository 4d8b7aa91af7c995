"""Proposals as they are stored: both sides, sealed, and the messages that they follow.

Nothing here commits; the caller has locked the campaign's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select
from sqlalchemy import exists as any_row
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import Operations, State, applied, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.recent_changes import Who
from backend.campaigns.ledger.records import item_states
from backend.campaigns.models import (
    PROPOSAL,
    Campaign,
    CampaignProposal,
    ProposalSource,
)
from backend.campaigns.proposals.authority import Draft, Proposed, Unclear
from backend.chats.models import Chat, Message
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import new_id
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

MAX_OPEN = 200
"""Proposals of one campaign that are shown and wait for its user."""

MAX_STORED = 2_000
"""Proposals of one campaign, those that were decided and those of other branches among them."""


class ProposalText(msgspec.Struct, frozen=True, kw_only=True):
    """What a proposal says: what it would change, and what was there when it was made.

    See `authority.Draft` and `authority.Proposed` for its members.
    """

    operations: Operations
    name: str = ""
    because: str = ""
    before: Mapping[str, Any] = {}
    conflicts: Mapping[str, Who] = {}
    replaces: UUID | None = None
    against: str = ""
    unclear: Unclear | None = None

    def values(self, kind: Kind, item_id: UUID) -> bytes:
        """What makes two proposals the same: what they change, and how."""
        is_of_none = self.unclear is not None and not self.unclear.field
        is_new = exists(self.operations.set) or is_of_none
        same = kind, None if is_new else item_id, self.operations, self.replaces, self.unclear
        return msgspec.json.encode(same, order="deterministic")


_TEXT = msgspec.json.Decoder(ProposalText)


def read_text(sealer: Sealer, row: CampaignProposal) -> ProposalText:
    """What the proposal of a row says."""
    return _TEXT.decode(sealer.open_bytes(PROPOSAL, row.id, row.sealed_proposal))


def is_told() -> ColumnElement[bool]:
    """The condition that a proposal's message is told in one of its campaign's chats."""
    return any_row().where(
        ProposalSource.proposal_id == CampaignProposal.id,
        Message.id == ProposalSource.message_id,
        Message.is_active,
        Chat.id == ProposalSource.chat_id,
        Chat.campaign_id == CampaignProposal.campaign_id,
    )


def is_settled(kind: Kind, text: ProposalText, state: State) -> bool:
    """Whether an item in this state is what a proposal wants it to be."""
    if text.unclear is not None:
        return False
    try:
        return exists(state) and applied(kind, state, text.operations) == state
    except ValidationError:
        return False


async def keep(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    chat: Chat,
    proposals: Sequence[Proposed],
) -> int:
    """Store proposals from messages of a chat: how many were.

    Those that are open already are not, nor what was decided of the same line, nor what there is no
    room for.
    """
    if not proposals:
        return 0
    known, room = await _known(session, sealer, campaign, proposals)
    kept = 0
    for proposed in proposals:
        draft, text = proposed.draft, _text(proposed)
        values = text.values(draft.kind, draft.item_id)
        if values in known or kept == room:
            continue
        known.add(values)
        kept += 1
        proposal = CampaignProposal(
            id=new_id(),
            user_id=campaign.user_id,
            campaign_id=campaign.id,
            item_id=draft.item_id,
            kind=draft.kind,
            reason=proposed.reason,
            audience=proposed.audience,
        )
        proposal.sealed_proposal = sealer.seal_bytes(
            PROPOSAL, proposal.id, msgspec.json.encode(text)
        )
        session.add(proposal)
        await session.flush()
        session.add(
            ProposalSource(proposal_id=proposal.id, message_id=draft.message.id, chat_id=chat.id)
        )
    await session.flush()
    await _forget(session, campaign)
    return kept


async def _known(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, proposals: Sequence[Proposed]
) -> tuple[set[bytes], int]:
    """The values of proposals that are not to be made again, and how many more there may be."""
    messages = {proposed.draft.message.id for proposed in proposals}
    same_line = select(ProposalSource.proposal_id).where(ProposalSource.message_id.in_(messages))
    query = _mine(campaign).where(
        or_(
            and_(CampaignProposal.state == "open", is_told()),
            CampaignProposal.id.in_(same_line),
        )
    )
    rows = (await session.scalars(query)).all()
    states = await item_states(session, sealer, campaign, {row.item_id for row in rows})
    known: set[bytes] = set()
    room = MAX_OPEN
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_proposal)):
        text = read_text(sealer, row)
        known.add(text.values(row.kind, row.item_id))
        is_open = row.state == "open" and not is_settled(
            row.kind, text, states.get(row.item_id, {})
        )
        room -= is_open
    return known, max(room, 0)


async def _forget(session: AsyncSession, campaign: Campaign) -> None:
    """Delete the oldest where there are more than are stored, those that are shown at last."""
    count = select(func.count()).where(CampaignProposal.campaign_id == campaign.id)
    more = (await session.scalar(count) or 0) - MAX_STORED
    if more > 0:
        shown = and_(CampaignProposal.state == "open", is_told())
        oldest = select(CampaignProposal.id).where(
            CampaignProposal.campaign_id == campaign.id, ~shown
        )
        old = await session.scalars(oldest.order_by(CampaignProposal.id).limit(more))
        await session.execute(delete(CampaignProposal).where(CampaignProposal.id.in_(old.all())))


def _mine(campaign: Campaign) -> Select[CampaignProposal]:
    return select(CampaignProposal).where(
        CampaignProposal.campaign_id == campaign.id, CampaignProposal.user_id == campaign.user_id
    )


def _text(proposed: Proposed) -> ProposalText:
    draft: Draft = proposed.draft
    return ProposalText(
        operations=draft.operations,
        name=proposed.name,
        because=draft.because,
        before=proposed.before,
        conflicts=proposed.conflicts,
        replaces=draft.replaces,
        against=proposed.against,
        unclear=draft.unclear,
    )
