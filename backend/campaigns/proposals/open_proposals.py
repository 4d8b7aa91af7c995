"""Proposals beside what their campaign is now: what accepting each would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.api.schemas import Contradicted, ProposalView, Target
from backend.campaigns.ledger.changes import EXISTS, Operations, State, applied, exists, value_at
from backend.campaigns.ledger.recent_changes import filled_in
from backend.campaigns.ledger.records import item_name
from backend.campaigns.ledger.store import Change, read_state
from backend.campaigns.models import Campaign, CampaignItem, CampaignProposal, ProposalSource
from backend.campaigns.proposals.store import ProposalText, is_settled, read_text
from backend.chats.models import Chat, Message
from backend.core.audience import Viewpoint, may_know
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import split_chunks
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

AT_ONCE = 500


class Line(NamedTuple):
    """A message that a proposal comes from; one that is gone is told nowhere."""

    message_id: UUID
    chat_id: UUID
    is_told: bool
    audience: str


class Concerned(NamedTuple):
    """An item that a proposal would change or shows, as it is now."""

    state: State
    seq: int
    audience: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal, opened. Of its lines, told ones come first; items are those that exist."""

    row: CampaignProposal
    text: ProposalText
    lines: Sequence[Line]
    items: Mapping[UUID, Concerned]

    @property
    def is_new(self) -> bool:
        """Whether it would make an item."""
        return exists(self.text.operations.set)

    @property
    def is_to_decide(self) -> bool:
        """Whether there is anything that it would change, and a change to make of it."""
        state, unclear = self.state_of(self.row.item_id), self.text.unclear
        if unclear is not None:
            is_there = self.is_new or exists(state) or not unclear.field
            is_said = unclear.field and value_at(state, unclear.field) in map(
                str, unclear.candidates
            )
            return (
                is_there and not is_said and any(each in self.items for each in unclear.candidates)
            )
        return self.is_new or (exists(state) and not is_settled(self.row.kind, self.text, state))

    @property
    def revision(self) -> int:
        """The newest change of what it concerns; 0 if that is nothing yet."""
        return max((each.seq for each in self.items.values()), default=0)

    def state_of(self, item_id: UUID) -> State:
        """The state of an item that it concerns; an empty one where that does not exist."""
        return self.items[item_id].state if item_id in self.items else {}

    def is_in_force(self, fact_id: UUID) -> bool:
        """Whether a fact that it concerns exists, and nothing supersedes it."""
        state = self.state_of(fact_id)
        return exists(state) and not state.get("superseded_by")

    def is_known_to(self, viewpoint: Viewpoint) -> bool:
        """Whether a viewpoint may know its line, and all that it shows besides."""
        audiences = [self.row.audience, self.lines[0].audience]
        audiences += [each.audience for each in self.items.values()]
        return all(may_know(viewpoint, each) for each in audiences)

    def change(self, chosen: UUID | None) -> Change:
        """What accepting it changes. `chosen` is the candidate that is meant, if that is not clear.

        Raises:
            ValidationError: It does not name one of the candidates; or there are none.
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
        """As the API shows it."""
        row, text, line = self.row, self.text, self.lines[0]
        state = self.state_of(row.item_id)
        keys = text.operations.touched()
        return ProposalView(
            id=row.id,
            state=row.state,
            reason=row.reason,
            target=Target(
                kind=row.kind, id=row.item_id, name=item_name(row.kind, state) or text.name
            ),
            is_new=self.is_new,
            because=text.because,
            chat_id=line.chat_id,
            message_id=line.message_id,
            then=dict(text.before) if exists(state) else {},
            now={key: value_at(state, key) for key in keys} if exists(state) else {},
            proposed=self._proposed(state),
            conflicts={key: who for key, who in text.conflicts.items() if key != EXISTS},
            contradicts=self._contradicted(),
            mention=text.unclear.mention if text.unclear else "",
            candidates=[
                Target(kind=row.kind, id=each, name=item_name("entity", self.state_of(each)))
                for each in (text.unclear.candidates if text.unclear else ())
                if each in self.items
            ],
            revision=self.revision,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )

    def _proposed(self, state: State) -> dict[str, Any]:
        operations = self.text.operations
        if self.is_new:
            return filled_in(self.row.kind, operations).set
        try:
            after = applied(self.row.kind, state, operations)
        except ValidationError:
            return {**operations.set, **operations.add}
        return {key: value_at(after, key) for key in operations.touched()}

    def _contradicted(self) -> Contradicted | None:
        fact_id = self.text.replaces
        if fact_id is None:
            return None
        text = self.state_of(fact_id)["text"] if self.is_in_force(fact_id) else None
        return Contradicted(id=fact_id, then=self.text.against, now=text)


async def open_proposals(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, rows: Sequence[CampaignProposal]
) -> list[Proposal]:
    """Proposals of a campaign with their lines, and what they concern as it is now."""
    texts = {row.id: read_text(sealer, row) async for row in iterate_in_slices(rows)}
    lines: dict[UUID, list[Line]] = {}
    for part in split_chunks(list(texts), AT_ONCE):
        for found in await session.execute(_LINES.where(ProposalSource.proposal_id.in_(part))):
            is_told = bool(found.is_active) and found.campaign_id == campaign.id
            line = Line(found.message_id, found.chat_id, is_told, found.audience or "gm")
            lines.setdefault(found.proposal_id, []).append(line)
    concerned = {row.id: _concerned(row, texts[row.id]) for row in rows}
    items: dict[UUID, Concerned] = {}
    for part in split_chunks(list({each for ids in concerned.values() for each in ids}), AT_ONCE):
        query = select(CampaignItem).where(
            CampaignItem.id.in_(part),
            CampaignItem.campaign_id == campaign.id,
            CampaignItem.user_id == sealer.user_id,
            CampaignItem.exists,
        )
        found_items = await session.scalars(query.execution_options(populate_existing=True))
        async for item in iterate_in_slices(found_items.all(), lambda item: len(item.sealed_state)):
            state = read_state(sealer, item.id, item.sealed_state)
            items[item.id] = Concerned(state, item.seq, item.audience)
    return [
        Proposal(
            row=row,
            text=texts[row.id],
            lines=sorted(lines[row.id], key=lambda line: (not line.is_told, line.message_id)),
            items={each: items[each] for each in concerned[row.id] if each in items},
        )
        for row in rows
    ]


def _concerned(row: CampaignProposal, text: ProposalText) -> list[UUID]:
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
