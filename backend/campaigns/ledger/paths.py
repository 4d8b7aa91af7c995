"""Which changes of a ledger count: as the path goes, as the user undoes. Nothing here commits.

The caller has locked the campaign's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import and_, bindparam, select
from sqlalchemy import exists as any_row
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import State, fold
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.store import read_operations, read_state, refold
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.chats.models import Message
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table, now, split_chunks
from backend.vault.sealing import Sealer


async def changed_items(session: AsyncSession, chat_id: UUID, *, above: int) -> set[UUID]:
    """Items with changes that count and follow from a chat's messages from position `above` on."""
    return set(await session.scalars(_COUNTING, {"chat": chat_id, "above": above}))


async def path_moved(
    session: AsyncSession,
    sealer: Sealer | None,
    campaign: Campaign,
    chat_id: UUID,
    *,
    above: int,
) -> None:
    """Let changes count as the chat's active path now says, from position `above` on.

    Without a sealer the items are only marked: the next request that reads the campaign folds them.
    """
    place = {"chat": chat_id, "above": above, "campaign": campaign.id}
    rows = (await session.execute(_TOGGLED, place)).all()
    if not rows:
        return
    for ids in split_chunks([row.id for row in rows]):
        await session.execute(_TOGGLE, {"ids": ids})
    campaign.version += 1
    kinds: dict[UUID, Kind] = {row.item_id: row.kind for row in rows}
    known = await _gone_on(sealer, rows) if sealer is not None else {}
    await _fold_again(session, sealer, campaign, kinds, known)


async def _gone_on(sealer: Sealer, rows: Sequence[Any]) -> dict[UUID, tuple[State, int]]:
    """States of items, some of whose changes begin to count, behind all that count already.

    Their folds go on from what their rows hold: see `fold_items`.

    Args:
        sealer: The owner's.
        rows: Those of `_TOGGLED`, in the order of the ledger.
    """
    toggled: dict[UUID, list[Any]] = {}
    for row in rows:
        toggled.setdefault(row.item_id, []).append(row)
    found: dict[UUID, tuple[State, int]] = {}
    async for item_id, own in iterate_in_slices(
        toggled.items(), lambda each: len(each[1][0].sealed_state)
    ):
        first = own[0]
        if first.is_stale or first.seq < first.last or any(row.is_on_path for row in own):
            continue
        counting = [row for row in own if not row.is_undone]
        state = fold(
            first.kind,
            (read_operations(sealer, row.id, row.sealed_operations) for row in counting),
            read_state(sealer, item_id, first.sealed_state),
        )
        found[item_id] = state, counting[-1].seq if counting else first.last
    return found


async def undo(session: AsyncSession, sealer: Sealer, campaign: Campaign, change_id: UUID) -> None:
    """Let a change of a campaign count no longer; where it was undone already, nothing changes."""
    asked = {"change": change_id, "campaign": campaign.id}
    row = (await session.execute(_NOT_UNDONE, asked)).one_or_none()
    if row is None:
        return
    await session.execute(_UNDO, {"change": change_id})
    campaign.version += 1
    campaign.edits += 1
    campaign.updated_at = now()
    await _fold_again(session, sealer, campaign, {row.item_id: row.kind})


async def detach(
    session: AsyncSession,
    sealer: Sealer | None,
    campaign: Campaign,
    message_id: UUID,
    *,
    version: int,
) -> None:
    """Let the changes of a version no longer follow from a message.

    They count on where they follow from a copy of it that is told. Without a sealer see
    `path_moved`.
    """
    asked = {"campaign": campaign.id, "version": version}
    await session.execute(_DETACH, {**asked, "message": message_id})
    rows = (await session.execute(_WITHOUT_SOURCE, asked)).all()
    if not rows:
        return
    await session.execute(_TOGGLE, {"ids": [row.id for row in rows]})
    campaign.version += 1
    await _fold_again(session, sealer, campaign, {row.item_id: row.kind for row in rows})


async def _fold_again(
    session: AsyncSession,
    sealer: Sealer | None,
    campaign: Campaign,
    kinds: Mapping[UUID, Kind],
    known: Mapping[UUID, tuple[State, int]] = MappingProxyType({}),
) -> None:
    if sealer is not None:
        await refold(session, sealer, campaign, kinds, known)
        return
    campaign.is_stale = True
    for ids in split_chunks(list(kinds)):
        await session.execute(_MARK_STALE, {"ids": ids})


def _toggled() -> Any:
    """Changes from a place of a chat on, of which the path says otherwise than they do."""
    any_source = get_table(ChangeSource).alias("any_source")
    on_path = any_row().where(
        and_(
            any_source.c.change_id == CampaignChange.id,
            any_source.c.message_id == Message.id,
            Message.is_active,
        )
    )
    told = select(ChangeSource.change_id).where(
        ChangeSource.chat_id == bindparam("chat"), ChangeSource.position >= bindparam("above")
    )
    return (
        select(
            CampaignChange.id,
            CampaignChange.item_id,
            CampaignChange.seq,
            CampaignChange.is_on_path,
            CampaignChange.is_undone,
            CampaignChange.sealed_operations,
            CampaignItem.kind,
            CampaignItem.seq.label("last"),
            CampaignItem.is_stale,
            CampaignItem.sealed_state,
        )
        .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
        .where(
            CampaignChange.campaign_id == bindparam("campaign"),
            CampaignChange.id.in_(told),
            CampaignChange.is_on_path != on_path,
        )
        .order_by(CampaignChange.seq)
    )


# Built once: building a statement costs more than running it.
_ITEMS, _CHANGES = get_table(CampaignItem), get_table(CampaignChange)
_MARK_STALE = (
    _ITEMS.update().where(_ITEMS.c.id.in_(bindparam("ids", expanding=True))).values(is_stale=True)
)
_TOGGLE = (
    _CHANGES.update()
    .where(_CHANGES.c.id.in_(bindparam("ids", expanding=True)))
    .values(is_on_path=~_CHANGES.c.is_on_path)
)
_TOGGLED = _toggled()
_CHANGED = (
    select(CampaignChange.id, CampaignChange.item_id, CampaignItem.kind)
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(CampaignChange.campaign_id == bindparam("campaign"))
)
_NOT_UNDONE = _CHANGED.where(CampaignChange.id == bindparam("change"), ~CampaignChange.is_undone)
_UNDO = _CHANGES.update().where(_CHANGES.c.id == bindparam("change")).values(is_undone=True)
_SOURCES = get_table(ChangeSource)
_DETACH = _SOURCES.delete().where(
    _SOURCES.c.message_id == bindparam("message"),
    _SOURCES.c.change_id.in_(
        select(_CHANGES.c.id).where(
            _CHANGES.c.campaign_id == bindparam("campaign"),
            _CHANGES.c.version == bindparam("version"),
        )
    ),
)
_WITHOUT_SOURCE = _CHANGED.where(
    CampaignChange.version == bindparam("version"),
    CampaignChange.is_on_path,
    ~select(ChangeSource.change_id)
    .join(Message, Message.id == ChangeSource.message_id)
    .where(ChangeSource.change_id == CampaignChange.id, Message.is_active)
    .exists(),
)
_COUNTING = (
    select(CampaignChange.item_id)
    .join(ChangeSource, ChangeSource.change_id == CampaignChange.id)
    .where(
        CampaignChange.is_on_path,
        ~CampaignChange.is_undone,
        ChangeSource.chat_id == bindparam("chat"),
        ChangeSource.position >= bindparam("above"),
    )
)
