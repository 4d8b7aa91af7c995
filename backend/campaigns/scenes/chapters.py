"""Chapters: old scenes told together. Which scenes are due, and what a prompt tells of chapters.

A chapter is made of scenes that one chat has told and that are for the same audience, so it is
taken back with their messages, and only those who may know all its scenes may know it. Nothing here
commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import Operations, item_of
from backend.campaigns.ledger.items import Chapter, Scene
from backend.campaigns.ledger.read_marks import IS_COMPACTED
from backend.campaigns.ledger.store import Change, read_operations, read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.chats.models import Chat, Message
from backend.core.audience import decode_audience, intersect_audiences
from backend.core.cpu_pool import iterate_in_slices
from backend.vault.sealing import Sealer

KEPT_SCENES = 2
"""The last scenes that are over, which a prompt tells one by one: they are in no chapter."""

MOST_TOLD = 40
"""Chapters at most that a prompt tells."""

_LEAST_TOKENS = 40
"""A chapter hardly takes fewer."""

_COMPRESSED = (
    select(
        CampaignItem.id, CampaignItem.audience, func.max(ChangeSource.position).label("position")
    )
    .join(CampaignChange, CampaignChange.item_id == CampaignItem.id)
    .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .join(Message, Message.id == ChangeSource.message_id)
    .where(
        CampaignItem.campaign_id == bindparam("campaign"),
        CampaignItem.kind == "scene",
        CampaignItem.exists,
        ~CampaignItem.is_live,
        CampaignChange.actor == "compactor",
        ~IS_COMPACTED,
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
        ChangeSource.chat_id == bindparam("chat"),
        Message.is_active,
    )
    .group_by(CampaignItem.id, CampaignItem.audience)
    .order_by(func.max(ChangeSource.position), CampaignItem.id)
)
_SCENES = select(CampaignItem.id, CampaignItem.sealed_state).where(
    CampaignItem.id.in_(bindparam("scenes", expanding=True))
)
_CHAPTERS = select(CampaignItem.id, CampaignItem.audience, CampaignItem.sealed_state).where(
    CampaignItem.campaign_id == bindparam("campaign"),
    CampaignItem.kind == "chapter",
)
_UNDONE = (
    select(CampaignChange.id, CampaignChange.sealed_operations)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(
        CampaignItem.campaign_id == bindparam("campaign"),
        CampaignItem.kind == "chapter",
        CampaignChange.is_on_path,
        CampaignChange.is_undone,
    )
)


@dataclass(frozen=True, slots=True)
class DueChapter:
    """Scenes that are to become a chapter, in the order in which the chat told them.

    `position` is that of the last message that one of them was compressed from; `audience` is of
    all of them, as a column holds it.
    """

    scene_ids: Sequence[UUID]
    scenes: Sequence[Scene]
    position: int
    audience: str


async def due_chapter(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, chat: Chat, *, most: int
) -> DueChapter | None:
    """The oldest scenes of a chat that are in no chapter, where they are more than `most`.

    Scenes of a chapter that its user has deleted or undone do not become another one. The last
    `KEPT_SCENES` stay by themselves.
    """
    place = {"campaign": campaign.id, "chat": chat.id}
    scenes = (await session.execute(_COMPRESSED, place)).all()
    if len(scenes) <= most:
        return None
    taken: set[str] = set()
    chapters = (await session.execute(_CHAPTERS, place)).all()
    async for row in iterate_in_slices(chapters, lambda row: len(row.sealed_state)):
        taken.update(read_state(sealer, row.id, row.sealed_state).get("scene_ids", ()))
    for undone in (await session.execute(_UNDONE, place)).all():
        made = read_operations(sealer, undone.id, undone.sealed_operations).set
        taken.update(made.get("scene_ids", ()))
    by_audience: dict[str, list[tuple[UUID, int]]] = {}
    for scene in scenes:
        if str(scene.id) not in taken:
            by_audience.setdefault(scene.audience, []).append((scene.id, scene.position))
    for audience, waiting in by_audience.items():
        if len(waiting) <= most:
            continue
        told = await _read(session, sealer, [scene_id for scene_id, _ in waiting])
        ready = [each for each in waiting if told[each[0]].summary]
        if len(ready) > most:
            chosen = ready[: min(most, len(ready) - KEPT_SCENES)]
            ids = [scene_id for scene_id, _ in chosen]
            texts = [told[each] for each in ids]
            return DueChapter(ids, texts, position=chosen[-1][1], audience=audience)
    return None


async def narrowed_chapters(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID, scenes: Mapping[UUID, str]
) -> list[Change]:
    """What makes chapters be for those alone who may know all of some scenes, given by audience."""
    changes: list[Change] = []
    query = _CHAPTERS.where(CampaignItem.exists)
    rows = (await session.execute(query, {"campaign": campaign_id})).all()
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        told: list[str] = read_state(sealer, row.id, row.sealed_state).get("scene_ids", [])
        audiences = [column for each, column in scenes.items() if str(each) in told]
        if (column := intersect_audiences([row.audience, *audiences])) != row.audience:
            audience = {"audience": msgspec.to_builtins(decode_audience(column))}
            changes.append(Change("chapter", row.id, Operations(set=audience)))
    return changes


def most_chapters(budget: int) -> int:
    """How many chapters at most fit into so many tokens: no more have to be read."""
    return min(MOST_TOLD, budget // _LEAST_TOKENS)


def fitting_chapters(
    newest_first: Mapping[UUID, Chapter], *, count: Callable[[str], int], budget: int
) -> dict[UUID, Chapter]:
    """The last chapters that fit `budget` tokens, by their ids, oldest first: an unbroken run."""
    kept: list[tuple[UUID, Chapter]] = []
    for chapter_id, chapter in newest_first.items():
        budget -= count(f"- {chapter.title}: {chapter.summary}\n")
        if budget < 0:
            break
        kept.append((chapter_id, chapter))
    return dict(kept[::-1])


async def _read(session: AsyncSession, sealer: Sealer, ids: Sequence[UUID]) -> dict[UUID, Scene]:
    rows: Sequence[Any] = (await session.execute(_SCENES, {"scenes": ids})).all()
    found: dict[UUID, Scene] = {}
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        item = item_of("scene", read_state(sealer, row.id, row.sealed_state))
        assert isinstance(item, Scene)  # noqa: S101
        found[row.id] = item
    return found
