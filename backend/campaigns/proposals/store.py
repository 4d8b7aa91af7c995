"""Stored proposals: both sides, sealed, and the messages that they come from.

The functions do not commit; the caller has locked the campaign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import structs
from sqlalchemy import ColumnElement, Select, and_, delete, func, insert, or_, select
from sqlalchemy import exists as any_row
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import Contradiction, ItemReference, ProposalView
from backend.campaigns.errors import (
    ProposalDecidedError,
    ProposalNotFoundError,
    ProposalNotToldError,
    ProposalTargetGoneError,
)
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import (
    EXISTS,
    Change,
    Operations,
    State,
    apply_operations,
    build_item,
    exists,
    get_value,
)
from backend.campaigns.ledger.item_service import check_item_room
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import (
    check_references,
    get_campaign,
    get_item_name,
    load_states,
    open_reading,
)
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import (
    PROPOSAL,
    Campaign,
    CampaignItem,
    CampaignProposal,
    ChangeSource,
    ProposalSource,
    ProposalState,
)
from backend.campaigns.proposals.authority import Proposal, ProposalContent, keep_filled_fields
from backend.campaigns.state.knowledge import ItemScope, load_known_items
from backend.campaigns.state.viewpoints import resolve_campaign_viewpoint
from backend.chats.members import has_heard
from backend.chats.models import Chat, Message
from backend.chats.repository import lock_trees
from backend.core.audience import Viewpoint, filter_known_to, may_know
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import new_id, now, split_chunks
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import Page, check_revision, make_page
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
    position: int
    audience: str


class ItemVersion(NamedTuple):
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
        return self.items[item_id].state if item_id in self.items else {}

    def is_in_force(self, fact_id: UUID) -> bool:
        state = self.get_state(fact_id)
        return exists(state) and not state.get("superseded_by")

    def is_known_to(self, viewpoint: Viewpoint) -> bool:
        audiences = [self.row.audience, *(each.audience for each in self.items.values())]
        line = self.lines[0]
        is_heard = has_heard(viewpoint, line.chat_id, line.position, line.audience)
        return is_heard and all(may_know(viewpoint, each) for each in audiences)

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
    texts = {row.id: read_text(sealer, row) async for row in iterate_in_slices(rows)}
    lines: dict[UUID, list[ProposalLine]] = {}
    for part in split_chunks(list(texts), BATCH_ROWS):
        for found in await session.execute(_LINES.where(ProposalSource.proposal_id.in_(part))):
            is_on_path = bool(found.is_active) and found.campaign_id == campaign.id
            line = ProposalLine(
                found.message_id,
                found.chat_id,
                is_on_path,
                found.position or 0,
                found.audience or "gm",
            )
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
        Message.position,
        Message.audience,
        Chat.campaign_id,
    )
    .join(Chat, Chat.id == ProposalSource.chat_id)
    .outerjoin(Message, Message.id == ProposalSource.message_id)
)


class ProposalService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self,
        identity: Identity,
        campaign_id: UUID,
        *,
        state: ProposalState,
        viewpoint: Viewpoint,
        limit: int,
        after: UUID | None,
    ) -> Page[ProposalView]:
        """Return proposals whose messages are on an active path, oldest first, for a viewpoint.

        Open proposals without effect are omitted, so a page may have fewer than `limit`. Raises
        `CampaignNotFoundError`, `ValidationError`.
        """
        query = (
            select(CampaignProposal)
            .where(
                CampaignProposal.campaign_id == campaign_id,
                CampaignProposal.user_id == identity.user_id,
                CampaignProposal.state == state,
                is_on_path(),
            )
            .order_by(CampaignProposal.id)
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(CampaignProposal.id > after)
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            viewpoint = await resolve_campaign_viewpoint(session, identity, campaign_id, viewpoint)
            query = query.where(filter_known_to(viewpoint, CampaignProposal.audience))
            rows, following = make_page((await session.scalars(query)).all(), limit)
            found = await load_proposals(session, identity.sealer, campaign, rows)
            concerned = ItemScope(item_ids=list({one for each in found for one in each.items}))
            # Their views have the present state.
            hidden = await load_known_items(session, identity.sealer, [viewpoint], concerned)
            items = [
                each.view()
                for each in found
                if each.is_known_to(viewpoint)
                and hidden.keys().isdisjoint(each.items)
                and (state != "open" or each.is_to_decide)
            ]
        return Page(items=items, next=following)

    async def accept(
        self,
        identity: Identity,
        campaign_id: UUID,
        proposal_id: UUID,
        *,
        item_id: UUID | None,
        if_match: str | None,
    ) -> ProposalView:
        """Write a proposal as the user's change, which is active while its message is. Idempotent.

        `item_id` is the chosen candidate. Raises `CampaignNotFoundError`, `ProposalNotFoundError`,
        `ProposalDecidedError`, `ProposalNotToldError`, `ProposalTargetGoneError`,
        `PreconditionFailedError`, `CampaignFullError`, `ValidationError`.
        """
        told_in = select(ProposalSource.chat_id).where(ProposalSource.proposal_id == proposal_id)
        async with self._database.write() as session:
            # Chats before campaigns, because all code locks them in this order.
            await lock_trees(session, await session.scalars(told_in))
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            proposal = await _find(session, identity, campaign, proposal_id, unless="refused")
            if proposal.row.state == "open":
                if not proposal.lines[0].is_told:
                    raise ProposalNotToldError
                check_revision(if_match, proposal.revision)
                change = proposal.change(item_id)
                await _write(session, identity.sealer, campaign, proposal, change)
                proposal.row.state, proposal.row.updated_at = "accepted", now()
            return await _load_view(session, identity, campaign, proposal.row)

    async def refuse(
        self, identity: Identity, campaign_id: UUID, proposal_id: UUID
    ) -> ProposalView:
        """Refuse a proposal, so that it is not proposed again from the same message. Idempotent.

        Raises `CampaignNotFoundError`, `ProposalNotFoundError`, `ProposalDecidedError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            proposal = await _find(session, identity, campaign, proposal_id, unless="accepted")
            if proposal.row.state == "open":
                proposal.row.state, proposal.row.updated_at = "refused", now()
            return await _load_view(session, identity, campaign, proposal.row)


async def _find(
    session: AsyncSession,
    identity: Identity,
    campaign: Campaign,
    proposal_id: UUID,
    *,
    unless: ProposalState,
) -> StoredProposal:
    """Raise `ProposalNotFoundError`, or `ProposalDecidedError` if its state is `unless`."""
    row = await session.scalar(
        select(CampaignProposal).where(
            CampaignProposal.id == proposal_id,
            CampaignProposal.campaign_id == campaign.id,
            CampaignProposal.user_id == identity.user_id,
        )
    )
    if row is None:
        raise ProposalNotFoundError
    if row.state == unless:
        raise ProposalDecidedError(f"The proposal was {unless} before.")
    [proposal] = await load_proposals(session, identity.sealer, campaign, [row])
    return proposal


async def _load_view(
    session: AsyncSession, identity: Identity, campaign: Campaign, row: CampaignProposal
) -> ProposalView:
    await session.flush()
    [proposal] = await load_proposals(session, identity.sealer, campaign, [row])
    return proposal.view()


async def _write(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    proposal: StoredProposal,
    change: Change,
) -> None:
    """Write an accepted change, with all messages of its proposal as its sources."""
    before = proposal.get_state(change.item_id)
    if exists(change.operations.set):
        await check_item_room(session, campaign.id)
    elif not exists(before):
        raise ProposalTargetGoneError
    after = apply_operations(change.kind, before, change.operations)
    if after == before:
        return
    await check_references(session, campaign, build_item(change.kind, after))
    told = structs.replace(change.operations, because=proposal.text.because)
    changes = [Change(change.kind, change.item_id, told)]
    old_id = proposal.text.replaces
    if old_id is not None and proposal.is_in_force(old_id):
        heir = Operations(set={"superseded_by": str(change.item_id)})
        changes.append(Change("fact", old_id, heir))
    ids = [line.message_id for line in proposal.lines]
    messages = {
        message.id: message
        for message in await session.scalars(select(Message).where(Message.id.in_(ids)))
    }
    line = messages.pop(ids[0])
    change_ids = await ledger_store.append_changes(
        session, sealer, campaign, changes, actor="user", message=line
    )
    copies = [
        {
            "change_id": change_id,
            "message_id": message.id,
            "chat_id": message.chat_id,
            "position": message.position,
        }
        for change_id in change_ids
        for message in messages.values()
    ]
    if copies:
        await session.execute(insert(ChangeSource), copies)
