"""What follows from a scene: threads, compared with those that there are. Nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import opened
from backend.campaigns.item_rows import read_state
from backend.campaigns.item_service import MAX_ITEMS
from backend.campaigns.items import Thread
from backend.campaigns.known_items import taken_back
from backend.campaigns.ledger import creation
from backend.campaigns.ledger_store import Change
from backend.campaigns.mentions import slug
from backend.campaigns.models import Campaign, CampaignItem
from backend.cpu_pool import unhurried
from backend.database.base import new_id
from backend.enrichment.cleaning import clipped, one_line
from backend.enrichment.runs import Refused
from backend.vault.sealing import Sealer

MAX_TITLE = 120
MAX_TEXT = 600

_THREADS = select(CampaignItem.id, CampaignItem.sealed_state).where(CampaignItem.exists)


class Seed(msgspec.Struct, frozen=True):
    """Something that the scene has set in motion and not settled."""

    title: Annotated[str, Meta(description="A few words.")]
    summary: Annotated[str, Meta(description="One sentence.")] = ""
    kind: Literal["quest", "storyline", "threat", "rumour"] = "storyline"
    tension: Literal["simmering", "rising", "urgent", "critical"] = "rising"


async def new_threads(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    seeds: Sequence[Seed],
    *,
    audience: str,
) -> tuple[list[Change], list[Refused]]:
    """Threads that seeds become, for those who may know what they come from; and the others.

    A thread that has been there is not made again, also where its user has deleted or undone it.
    """
    if not seeds:
        return [], []
    count = select(func.count()).where(CampaignItem.campaign_id == campaign.id)
    room = MAX_ITEMS - (await session.scalar(count) or 0)
    taken = await _taken(session, sealer, campaign)
    changes: list[Change] = []
    refused: list[Refused] = []
    for seed in seeds:
        title = clipped(one_line(seed.title), MAX_TITLE)
        if not title or slug(title) in taken or len(changes) >= room:
            refused.append(Refused(tool="thread", reason=title or "without a title"))
            continue
        taken.add(slug(title))
        thread = Thread(
            kind=seed.kind,
            title=title,
            summary=clipped(one_line(seed.summary), MAX_TEXT),
            tension=seed.tension,
            audience=opened(audience),
        )
        changes.append(Change("thread", new_id(), creation(thread)))
    return changes, refused


async def _taken(session: AsyncSession, sealer: Sealer, campaign: Campaign) -> set[str]:
    """The titles of all threads that count, were deleted, or were taken back by their user."""
    query = _THREADS.where(CampaignItem.campaign_id == campaign.id, CampaignItem.kind == "thread")
    rows = (await session.execute(query)).all()
    taken = {words for _, _, words in await taken_back(session, sealer, campaign, {"thread"})}
    async for row in unhurried(rows, lambda row: len(row.sealed_state)):
        taken.add(slug(read_state(sealer, row.id, row.sealed_state)["title"]))
    return taken
