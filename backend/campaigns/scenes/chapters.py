"""Chapters: summaries of several old scenes, their creation and their part of a prompt.

A chapter covers scenes of one chat with the same audience. It is undone with their messages, and
only someone who may know all of its scenes may know it. The functions do not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import Change, Operations, build_item
from backend.campaigns.ledger.items import Chapter, Scene
from backend.campaigns.ledger.paths import IS_COMPACTED
from backend.campaigns.ledger.store import read_operations, read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.chats.models import Chat, Message
from backend.core.audience import decode_audience, intersect_audiences
from backend.core.cpu_pool import iterate_in_slices
from backend.vault.sealing import Sealer

MAX_LOOSE_SCENES = 2
"""Number of last closed scenes that are in no chapter, because a prompt renders them one by one."""

MAX_CHAPTERS = 40
"""Maximum number of chapters in a prompt."""

_MIN_TOKENS = 40
"""Minimum tokens of a typical chapter."""


@dataclass(frozen=True, slots=True)
class DueChapter:
    """Scenes for a new chapter, in the order of the chat.

    `position` is that of the last message from which one of them was compressed. `audience` is the
    audience of all, in the format of its column.
    """

    scene_ids: Sequence[UUID]
    scenes: Sequence[Scene]
    position: int
    audience: str


async def find_due_chapter(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, chat: Chat, *, most: int
) -> DueChapter | None:
    """Return the oldest scenes of a chat that are in no chapter, if there are more than `most`.

    Scenes of a chapter that the user deleted or undid do not become another chapter. The last
    `MAX_LOOSE_SCENES` are in no chapter.
    """
    scenes = await _load_compressed_scenes(session, campaign.id, chat.id)
    if len(scenes) <= most:
        return None
    taken = await _find_taken_scenes(session, sealer, campaign.id)
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
            chosen = ready[: min(most, len(ready) - MAX_LOOSE_SCENES)]
            ids = [scene_id for scene_id, _ in chosen]
            texts = [told[each] for each in ids]
            return DueChapter(ids, texts, position=chosen[-1][1], audience=audience)
    return None


async def _load_compressed_scenes(
    session: AsyncSession, campaign_id: UUID, chat_id: UUID
) -> Sequence[Any]:
    last = func.max(ChangeSource.position)
    query = (
        select(CampaignItem.id, CampaignItem.audience, last.label("position"))
        .join(CampaignChange, CampaignChange.item_id == CampaignItem.id)
        .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
        .join(Message, Message.id == ChangeSource.message_id)
        .where(
            CampaignItem.campaign_id == campaign_id,
            CampaignItem.kind == "scene",
            CampaignItem.exists,
            ~CampaignItem.is_live,
            CampaignChange.actor == "compactor",
            ~IS_COMPACTED,
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
            ChangeSource.chat_id == chat_id,
            Message.is_active,
        )
        .group_by(CampaignItem.id, CampaignItem.audience)
        .order_by(last, CampaignItem.id)
    )
    return (await session.execute(query)).all()


async def _find_taken_scenes(session: AsyncSession, sealer: Sealer, campaign_id: UUID) -> set[str]:
    """Return the scenes of all chapters, including chapters that the user undid or deleted."""
    taken: set[str] = set()
    chapters = (await session.execute(_select_chapters(campaign_id))).all()
    async for row in iterate_in_slices(chapters, lambda row: len(row.sealed_state)):
        taken.update(read_state(sealer, row.id, row.sealed_state).get("scene_ids", ()))
    undone = (
        select(CampaignChange.id, CampaignChange.sealed_operations)
        .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
        .where(
            CampaignItem.campaign_id == campaign_id,
            CampaignItem.kind == "chapter",
            CampaignChange.is_on_path,
            CampaignChange.is_undone,
        )
    )
    for change in (await session.execute(undone)).all():
        made = read_operations(sealer, change.id, change.sealed_operations).set
        taken.update(made.get("scene_ids", ()))
    return taken


def _select_chapters(campaign_id: UUID) -> Select[UUID, str, bytes]:
    return select(CampaignItem.id, CampaignItem.audience, CampaignItem.sealed_state).where(
        CampaignItem.campaign_id == campaign_id, CampaignItem.kind == "chapter"
    )


async def find_chapters(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID, scene_ids: Collection[UUID]
) -> list[UUID]:
    """Return the chapters that combine one of these scenes."""
    found: list[UUID] = []
    rows = (await session.execute(_select_chapters(campaign_id))).all() if scene_ids else ()
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        told: list[str] = read_state(sealer, row.id, row.sealed_state).get("scene_ids", [])
        if any(str(each) in told for each in scene_ids):
            found.append(row.id)
    return found


async def narrow_chapters(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID, scenes: Mapping[UUID, str]
) -> list[Change]:
    """Return the changes that restrict chapters to the audiences of some of their scenes."""
    changes: list[Change] = []
    query = _select_chapters(campaign_id).where(CampaignItem.exists)
    rows = (await session.execute(query)).all()
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        told: list[str] = read_state(sealer, row.id, row.sealed_state).get("scene_ids", [])
        audiences = [column for each, column in scenes.items() if str(each) in told]
        if (column := intersect_audiences([row.audience, *audiences])) != row.audience:
            audience = {"audience": msgspec.to_builtins(decode_audience(column))}
            changes.append(Change("chapter", row.id, Operations(set=audience)))
    return changes


def count_fitting_chapters(budget: int) -> int:
    """Return the maximum number of chapters that fit into a budget, so that no more are loaded."""
    return min(MAX_CHAPTERS, budget // _MIN_TOKENS)


def select_fitting_chapters(
    newest_first: Mapping[UUID, Chapter], *, count: Callable[[str], int], budget: int
) -> dict[UUID, Chapter]:
    """Return the last chapters that fit `budget` tokens by id, oldest first, without gaps."""
    kept: list[tuple[UUID, Chapter]] = []
    for chapter_id, chapter in newest_first.items():
        budget -= count(f"- {chapter.title}: {chapter.summary}\n")
        if budget < 0:
            break
        kept.append((chapter_id, chapter))
    return dict(kept[::-1])


async def _read(session: AsyncSession, sealer: Sealer, ids: Sequence[UUID]) -> dict[UUID, Scene]:
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(CampaignItem.id.in_(ids))
    rows: Sequence[Any] = (await session.execute(query)).all()
    found: dict[UUID, Scene] = {}
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        item = build_item("scene", read_state(sealer, row.id, row.sealed_state))
        assert isinstance(item, Scene)  # noqa: S101
        found[row.id] = item
    return found
