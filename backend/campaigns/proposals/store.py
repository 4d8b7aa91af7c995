"""Stored proposals: both sides, sealed, and the messages that they come from.

The functions do not commit; the caller has locked the campaign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select
from sqlalchemy import exists as any_row
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.api.schemas import Contradiction, ItemReference, ProposalView
from backend.campaigns.ledger.changes import (
    EXISTS,
    Change,
    Operations,
    State,
    apply_operations,
    exists,
    get_value,
)
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import get_item_name, load_states
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import (
    PROPOSAL,
    Campaign,
    CampaignItem,
    CampaignProposal,
    ProposalSource,
)
from backend.campaigns.proposals.authority import Proposal, ProposalContent, keep_filled_fields
from backend.chats.models import Chat, Message
from backend.core.audience import Viewpoint, may_know
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import new_id, split_chunks
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

MAX_OPEN = 200
"""Maximum number of open proposals of one campaign that are shown."""

MAX_STORED = 2_000
"""Maximum number of proposals of one campaign, including decided ones and other branches."""


_TEXT = msgspec.json.Decoder(ProposalContent)


def read_text(sealer: Sealer, row: CampaignProposal) -> ProposalContent:
    return _TEXT.decode(sealer.open_bytes(PROPOSAL, row.id, row.sealed_proposal))


def is_on_path() -> ColumnElement[bool]:
    """Return the condition that a proposal's message is on an active path of its campaign."""
    return any_row().where(
        ProposalSource.proposal_id == CampaignProposal.id,
        Message.id == ProposalSource.message_id,
        Message.is_active,
        Chat.id == ProposalSource.chat_id,
        Chat.campaign_id == CampaignProposal.campaign_id,
    )


def is_settled(kind: Kind, text: ProposalContent, state: State) -> bool:
    """True if an item has the values of a proposal already."""
    if text.unclear is not None:
        return False
    try:
        return exists(state) and apply_operations(kind, state, text.operations) == state
    except ValidationError:
        return False


async def store_proposals(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    chat: Chat,
    proposals: Sequence[Proposal],
) -> int:
    """Store proposals from messages of a chat, and return their number.

    Skip proposals that are open already, that were decided for the same message, or that exceed the
    limit.
    """
    if not proposals:
        return 0
    known, room = await _load_known(session, sealer, campaign, proposals)
    kept = 0
    for proposed in proposals:
        draft, content = proposed.draft, proposed.content
        values = content.values(draft.kind, draft.item_id)
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
            PROPOSAL, proposal.id, msgspec.json.encode(content)
        )
        session.add(proposal)
        await session.flush()
        session.add(
            ProposalSource(proposal_id=proposal.id, message_id=draft.message.id, chat_id=chat.id)
        )
    await session.flush()
    await _forget(session, campaign)
    return kept


async def _load_known(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, proposals: Sequence[Proposal]
) -> tuple[set[bytes], int]:
    """Return the values of proposals that must not be repeated, and the number of free places."""
    messages = {proposed.draft.message.id for proposed in proposals}
    same_line = select(ProposalSource.proposal_id).where(ProposalSource.message_id.in_(messages))
    query = _select_own(campaign).where(
        or_(
            and_(CampaignProposal.state == "open", is_on_path()), CampaignProposal.id.in_(same_line)
        )
    )
    rows = (await session.scalars(query)).all()
    states = await load_states(session, sealer, campaign, {row.item_id for row in rows})
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
    """Delete the oldest proposals above the limit, those that are shown last."""
    count = select(func.count()).where(CampaignProposal.campaign_id == campaign.id)
    more = (await session.scalar(count) or 0) - MAX_STORED
    if more > 0:
        shown = and_(CampaignProposal.state == "open", is_on_path())
        oldest = select(CampaignProposal.id).where(
            CampaignProposal.campaign_id == campaign.id, ~shown
        )
        old = await session.scalars(oldest.order_by(CampaignProposal.id).limit(more))
        await session.execute(delete(CampaignProposal).where(CampaignProposal.id.in_(old.all())))


def _select_own(campaign: Campaign) -> Select[CampaignProposal]:
    return select(CampaignProposal).where(
        CampaignProposal.campaign_id == campaign.id, CampaignProposal.user_id == campaign.user_id
    )


BATCH_ROWS = 500


class ProposalLine(NamedTuple):
    """A message that a proposal comes from. A deleted one is not on an active path."""

    message_id: UUID
    chat_id: UUID
    is_told: bool
    audience: str


class ItemVersion(NamedTuple):
    """An item of a proposal in its present state."""

    state: State
    seq: int
    audience: str


@dataclass(frozen=True, slots=True)
class StoredProposal:
    """An unsealed proposal. Messages on active paths come first; `items` are those that exist."""

    row: CampaignProposal
    text: ProposalContent
    lines: Sequence[ProposalLine]
    items: Mapping[UUID, ItemVersion]

    @property
    def is_new(self) -> bool:
        """True if it creates an item."""
        return exists(self.text.operations.set)

    @property
    def is_to_decide(self) -> bool:
        """True if accepting it would change something and is possible."""
        state, unclear = self.get_state(self.row.item_id), self.text.unclear
        if unclear is not None:
            is_there = self.is_new or exists(state) or not unclear.field
            is_said = unclear.field and get_value(state, unclear.field) in map(
                str, unclear.candidates
            )
            return (
                is_there and not is_said and any(each in self.items for each in unclear.candidates)
            )
        return self.is_new or (exists(state) and not is_settled(self.row.kind, self.text, state))

    @property
    def revision(self) -> int:
        """The number of the newest change of its items; 0 if there is none."""
        return max((each.seq for each in self.items.values()), default=0)

    def get_state(self, item_id: UUID) -> State:
        """Return the state of one of its items; empty if the item does not exist."""
        return self.items[item_id].state if item_id in self.items else {}

    def is_in_force(self, fact_id: UUID) -> bool:
        """True if one of its facts exists and is not superseded."""
        state = self.get_state(fact_id)
        return exists(state) and not state.get("superseded_by")

    def is_known_to(self, viewpoint: Viewpoint) -> bool:
        """True if a viewpoint may know its message and all of its items."""
        audiences = [self.row.audience, self.lines[0].audience]
        audiences += [each.audience for each in self.items.values()]
        return all(may_know(viewpoint, each) for each in audiences)

    def change(self, chosen: UUID | None) -> Change:
        """Return the change of accepting it. `chosen` is one of the candidates if it is ambiguous.

        Raises:
            ValidationError: `chosen` is not a candidate, or there are none.
        """
        operations, unclear = self.text.operations, self.text.unclear
        if chosen not in (unclear.candidates if unclear else [None]):
            candidates = ", ".join(map(str, unclear.candidates)) if unclear else "none"
            raise ValidationError(f"`item_id` must be one of the candidates: {candidates}.")
        if unclear is None:
            return Change(self.row.kind, self.row.item_id, operations)
        if not unclear.field:
            return Change(self.row.kind, chosen or self.row.item_id, operations)
        members = {**operations.set, unclear.field: str(chosen)}
        named = Operations(set=members, add=operations.add, remove=operations.remove)
        return Change(self.row.kind, self.row.item_id, named)

    def view(self) -> ProposalView:
        """Return it in the API's format."""
        row, text, line = self.row, self.text, self.lines[0]
        state = self.get_state(row.item_id)
        keys = text.operations.list_keys()
        return ProposalView(
            id=row.id,
            state=row.state,
            reason=row.reason,
            target=ItemReference(
                kind=row.kind, id=row.item_id, name=get_item_name(row.kind, state) or text.name
            ),
            is_new=self.is_new,
            because=text.because,
            chat_id=line.chat_id,
            message_id=line.message_id,
            then=dict(text.before) if exists(state) else {},
            now={key: get_value(state, key) for key in keys} if exists(state) else {},
            proposed=self._build_proposed(state),
            conflicts={key: who for key, who in text.conflicts.items() if key != EXISTS},
            contradicts=self._build_contradiction(),
            mention=text.unclear.mention if text.unclear else "",
            candidates=[
                ItemReference(
                    kind=row.kind, id=each, name=get_item_name("entity", self.get_state(each))
                )
                for each in (text.unclear.candidates if text.unclear else ())
                if each in self.items
            ],
            revision=self.revision,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )

    def _build_proposed(self, state: State) -> dict[str, Any]:
        operations = self.text.operations
        if self.is_new:
            return keep_filled_fields(self.row.kind, operations).set
        try:
            after = apply_operations(self.row.kind, state, operations)
        except ValidationError:
            return {**operations.set, **operations.add}
        return {key: get_value(after, key) for key in operations.list_keys()}

    def _build_contradiction(self) -> Contradiction | None:
        fact_id = self.text.replaces
        if fact_id is None:
            return None
        text = self.get_state(fact_id)["text"] if self.is_in_force(fact_id) else None
        return Contradiction(id=fact_id, then=self.text.against, now=text)


async def load_proposals(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, rows: Sequence[CampaignProposal]
) -> list[StoredProposal]:
    """Load proposals of a campaign with their messages and the present state of their items."""
    texts = {row.id: read_text(sealer, row) async for row in iterate_in_slices(rows)}
    lines: dict[UUID, list[ProposalLine]] = {}
    for part in split_chunks(list(texts), BATCH_ROWS):
        for found in await session.execute(_LINES.where(ProposalSource.proposal_id.in_(part))):
            is_on_path = bool(found.is_active) and found.campaign_id == campaign.id
            line = ProposalLine(found.message_id, found.chat_id, is_on_path, found.audience or "gm")
            lines.setdefault(found.proposal_id, []).append(line)
    concerned = {row.id: _list_items(row, texts[row.id]) for row in rows}
    items: dict[UUID, ItemVersion] = {}
    for part in split_chunks(
        list({each for ids in concerned.values() for each in ids}), BATCH_ROWS
    ):
        query = select(CampaignItem).where(
            CampaignItem.id.in_(part),
            CampaignItem.campaign_id == campaign.id,
            CampaignItem.user_id == sealer.user_id,
            CampaignItem.exists,
        )
        found_items = await session.scalars(query.execution_options(populate_existing=True))
        async for item in iterate_in_slices(found_items.all(), lambda item: len(item.sealed_state)):
            state = read_state(sealer, item.id, item.sealed_state)
            items[item.id] = ItemVersion(state, item.seq, item.audience)
    return [
        StoredProposal(
            row=row,
            text=texts[row.id],
            lines=sorted(lines[row.id], key=lambda line: (not line.is_told, line.message_id)),
            items={each: items[each] for each in concerned[row.id] if each in items},
        )
        for row in rows
    ]


def _list_items(row: CampaignProposal, text: ProposalContent) -> list[UUID]:
    found = [row.item_id, *(text.unclear.candidates if text.unclear else ())]
    return [*found, text.replaces] if text.replaces else found


_LINES = (
    select(
        ProposalSource.proposal_id,
        ProposalSource.message_id,
        ProposalSource.chat_id,
        Message.is_active,
        Message.audience,
        Chat.campaign_id,
    )
    .join(Chat, Chat.id == ProposalSource.chat_id)
    .outerjoin(Message, Message.id == ProposalSource.message_id)
)
