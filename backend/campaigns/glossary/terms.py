"""The glossary of a campaign: propose terms, count their uses, and render them for prompts.

A term is `proposed`, `approved` (every prompt explains it), `raw` (every prompt has the bare word)
or `rejected` (it is never proposed again). The functions do not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.glossary.coinages import make_term_key
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, build_creation
from backend.campaigns.ledger.item_service import MAX_ITEMS
from backend.campaigns.ledger.items import Term
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.chats.models import Message
from backend.core.audience import GM, NAMELESS_MARKS, AudienceMarks, decode_audience
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import UNSYNCHRONIZED, new_id, split_chunks
from backend.vault.sealing import Sealer

MAX_PROPOSED = 200
"""Maximum number of open proposals. With more, no new ones are made."""

MAX_DEFINITION = 300

_MAX_SHOWN = 200
_MAX_REFUSED = 5
_MIN_LINE_TOKENS = 4
"""Minimum cost of a line of a glossary."""


class KnownTerm(NamedTuple):
    """A term of a campaign, of any status."""

    id: UUID
    term: str
    status: str


class Definition(NamedTuple):
    """A coined term and its meaning in one sentence."""

    term: str
    text: str


async def load_entity_names(session: AsyncSession, sealer: Sealer, campaign_id: UUID) -> list[str]:
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.kind == "entity",
        CampaignItem.exists,
    )
    rows = (await session.execute(query)).all()
    names: list[str] = []
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        state = read_state(sealer, row.id, row.sealed_state)
        names += [state["name"], *state.get("aliases", [])]
    return names


async def load_terms(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID, *, after: int = -1
) -> list[KnownTerm]:
    """Return the terms of a campaign that changed after a version; by default, all."""
    query = select(CampaignItem.id, CampaignItem.subkind, CampaignItem.sealed_state).where(
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.kind == "term",
        CampaignItem.version > after,
        CampaignItem.exists,
    )
    rows = (await session.execute(query)).all()
    terms: list[KnownTerm] = []
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        state = read_state(sealer, row.id, row.sealed_state)
        terms.append(KnownTerm(row.id, state["term"], row.subkind))
    return terms


async def propose_terms(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    message: Message,
    definitions: Sequence[Definition],
    *,
    known_at: int,
    audience: str,
) -> list[str]:
    """Add new terms as a change of the message that coined them, and return them.

    They are for `audience`, in the form of the database column, and approved if the campaign's
    settings say so. `definitions` were unknown at the version `known_at`. The caller has locked the
    campaign.
    """
    since = await load_terms(session, sealer, campaign.id, after=known_at)
    taken = {make_term_key(known.term) for known in since}
    count = select(func.count()).where(CampaignItem.campaign_id == campaign.id)
    room = MAX_ITEMS - (await session.scalar(count) or 0)
    new = [each for each in definitions if make_term_key(each.term) not in taken][: max(0, room)]
    is_approved = open_campaign(sealer, campaign).settings.approve_terms
    changes = [
        Change(
            "term",
            new_id(),
            build_creation(
                Term(
                    term=each.term,
                    definition=each.text,
                    source="auto",
                    status="approved" if is_approved else "proposed",
                    audience=decode_audience(audience) or GM,
                )
            ),
        )
        for each in new
    ]
    if changes:
        await ledger_store.append_changes(
            session, sealer, campaign, changes, actor="compactor", message=message
        )
    return [each.term for each in new]


async def count_uses(session: AsyncSession, ids: Collection[UUID]) -> None:
    """Add one use to each of these terms."""
    for part in split_chunks(sorted(ids)):
        await session.execute(
            update(CampaignItem)
            .where(CampaignItem.id.in_(part))
            .values(uses=CampaignItem.uses + 1, updated_at=CampaignItem.updated_at),
            execution_options=UNSYNCHRONIZED,
        )


def get_max_terms(budget: int) -> int:
    """Return the maximum number of terms that fit into a token budget."""
    return min(_MAX_SHOWN, budget // _MIN_LINE_TOKENS)


def render_glossary(
    terms: Sequence[Term],
    *,
    count: Callable[[str], int],
    budget: int,
    marks: AudienceMarks = NAMELESS_MARKS,
) -> list[str]:
    """Return the glossary lines of a prompt, sorted by term so that they seldom change.

    `terms` begin with the most used. One that exceeds the token `budget` is skipped in favour of
    later ones.
    """
    lines: list[tuple[str, str]] = []
    refused = 0
    for term in terms:
        meaning = f": {term.definition}" if term.status == "approved" and term.definition else ""
        line = " ".join(f"- {marks.mark(f'{term.term}{meaning}', term.audience)}".split())
        cost = count(f"{line}\n")
        if cost > budget:
            refused += 1
            if refused == _MAX_REFUSED:
                break
            continue
        budget -= cost
        lines.append((term.term.casefold(), line))
    return [line for _, line in sorted(lines)]
