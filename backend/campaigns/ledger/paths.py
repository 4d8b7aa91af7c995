"""Active changes of a ledger, as paths move and users undo, and messages already compacted.

The functions do not commit. The caller has locked the campaign's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, func, insert, select
from sqlalchemy import exists as any_row
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import State, fold
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.store import read_operations, read_state, refold
from backend.campaigns.models import (
    Campaign,
    CampaignChange,
    CampaignItem,
    CampaignMark,
    ChangeSource,
)
from backend.chats.models import Chat, Message
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table, now, split_chunks
from backend.vault.sealing import Sealer


async def find_changed_items(session: AsyncSession, chat_id: UUID, *, above: int) -> set[UUID]:
    """Return the items with active changes that come from a chat's messages from `above` on."""
    return set(await session.scalars(_COUNTING, {"chat": chat_id, "above": above}))


async def follow_path(
    session: AsyncSession, sealer: Sealer | None, campaign: Campaign, chat_id: UUID, *, above: int
) -> None:
    """Update which changes are active after a chat's path has moved from position `above` on.

    Without a sealer, only mark the items: the next request that reads the campaign folds them.
    """
    place = {"chat": chat_id, "above": above, "campaign": campaign.id}
    rows = (await session.execute(_TOGGLED, place)).all()
    if not rows:
        return
    for ids in split_chunks([row.id for row in rows]):
        await session.execute(_TOGGLE, {"ids": ids})
    campaign.version += 1
    kinds: dict[UUID, Kind] = {row.item_id: row.kind for row in rows}
    known = await _resume_folds(sealer, rows) if sealer is not None else {}
    await _refold_now(session, sealer, campaign, kinds, known)


async def _resume_folds(sealer: Sealer, rows: Sequence[Any]) -> dict[UUID, tuple[State, int]]:
    """Return states that are folded from their rows instead of from the first change.

    This is possible if only changes become active that come after all active ones. `rows` are those
    of `_TOGGLED`, in the order of the ledger.
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


async def undo_change(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, change_id: UUID
) -> None:
    """Undo one change of a campaign. Later changes are kept. Idempotent."""
    asked = {"change": change_id, "campaign": campaign.id}
    row = (await session.execute(_NOT_UNDONE, asked)).one_or_none()
    if row is None:
        return
    await session.execute(_UNDO, {"change": change_id})
    campaign.version += 1
    campaign.edits += 1
    campaign.updated_at = now()
    await _refold_now(session, sealer, campaign, {row.item_id: row.kind})


async def detach_message(
    session: AsyncSession,
    sealer: Sealer | None,
    campaign: Campaign,
    message_id: UUID,
    *,
    version: int,
) -> None:
    """Detach the changes of a version from a message.

    They stay active if they also come from a copy of it on an active path. For a missing sealer,
    see `follow_path`.
    """
    asked = {"campaign": campaign.id, "version": version}
    await session.execute(_DETACH, {**asked, "message": message_id})
    rows = (await session.execute(_WITHOUT_SOURCE, asked)).all()
    if not rows:
        return
    await session.execute(_TOGGLE, {"ids": [row.id for row in rows]})
    campaign.version += 1
    await _refold_now(session, sealer, campaign, {row.item_id: row.kind for row in rows})


async def detach_changes(
    session: AsyncSession,
    sealer: Sealer | None,
    campaign: Campaign,
    change_ids: Sequence[UUID],
    *,
    chat_id: UUID,
) -> None:
    """Detach changes from the messages of a chat.

    They stay active if they also come from a copy in another chat that is on an active path. For a
    missing sealer, see `follow_path`.
    """
    kinds: dict[UUID, Kind] = {}
    for ids in split_chunks(change_ids):
        asked = {"campaign": campaign.id, "ids": ids}
        await session.execute(_DETACH_FROM_CHAT, {"ids": ids, "chat": chat_id})
        rows = (await session.execute(_LISTED_WITHOUT_SOURCE, asked)).all()
        if rows:
            await session.execute(_TOGGLE, {"ids": [row.id for row in rows]})
            kinds |= {row.item_id: row.kind for row in rows}
    if kinds:
        campaign.version += 1
        await _refold_now(session, sealer, campaign, kinds)


async def _refold_now(
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


def _select_toggled() -> Any:
    """Select the changes from a position of a chat on whose activity differs from the path."""
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


# Built once: building a statement takes longer than running it.
_ITEMS, _CHANGES = get_table(CampaignItem), get_table(CampaignChange)
_MARK_STALE = (
    _ITEMS.update().where(_ITEMS.c.id.in_(bindparam("ids", expanding=True))).values(is_stale=True)
)
_TOGGLE = (
    _CHANGES.update()
    .where(_CHANGES.c.id.in_(bindparam("ids", expanding=True)))
    .values(is_on_path=~_CHANGES.c.is_on_path)
)
_TOGGLED = _select_toggled()
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
_DETACH_FROM_CHAT = _SOURCES.delete().where(
    _SOURCES.c.change_id.in_(bindparam("ids", expanding=True)),
    _SOURCES.c.chat_id == bindparam("chat"),
)
_LOST = _CHANGED.where(
    CampaignChange.is_on_path,
    ~select(ChangeSource.change_id)
    .join(Message, Message.id == ChangeSource.message_id)
    .where(ChangeSource.change_id == CampaignChange.id, Message.is_active)
    .exists(),
)
_WITHOUT_SOURCE = _LOST.where(CampaignChange.version == bindparam("version"))
_LISTED_WITHOUT_SOURCE = _LOST.where(CampaignChange.id.in_(bindparam("ids", expanding=True)))
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


LOOK_BACK_MESSAGES = 400
"""Number of last messages among which unread ones are searched."""

IS_COMPACTED = (
    select(CampaignMark.id)
    .where(
        CampaignMark.campaign_id == CampaignChange.campaign_id,
        CampaignMark.version == CampaignChange.version,
    )
    .exists()
)
"""True for changes of a compaction; False for those of a scene's summary."""

_IS_READ = select(CampaignMark.id).where(CampaignMark.id == Message.id).exists()
_ON_PATH = (
    Message.chat_id == bindparam("chat"),
    Message.is_active,
    ~Message.hidden,
    Message.position > bindparam("after"),
    Message.position <= bindparam("leaf"),
)
_FIRST_UNREAD = (
    select(Message.position, (Message.path_tokens - Message.tokens).label("path_tokens"))
    .where(*_ON_PATH, ~_IS_READ)
    .order_by(Message.position)
    .limit(1)
)
_LAST_READ = (
    select(CampaignMark.position)
    .join(Message, Message.id == CampaignMark.id)
    .where(
        CampaignMark.chat_id == bindparam("chat"),
        CampaignMark.position <= bindparam("leaf"),
        Message.is_active,
    )
    .order_by(CampaignMark.position.desc())
    .limit(1)
    .scalar_subquery()
)
_UNREAD_ROUNDS = select(func.count()).where(
    *_ON_PATH, Message.role == "user", Message.position > func.coalesce(_LAST_READ, -1)
)


class UnreadStart(NamedTuple):
    """The first unread message of a path, and the stored tokens before it."""

    position: int
    path_tokens: int


async def find_first_unread(session: AsyncSession, leaf: Message, *, after: int) -> UnreadStart:
    """Return the first unread message from `after` to `leaf`, else the position after `leaf`."""
    place = {"chat": leaf.chat_id, "leaf": leaf.position}
    row = (
        await session.execute(
            _FIRST_UNREAD, {**place, "after": max(after, leaf.position - LOOK_BACK_MESSAGES)}
        )
    ).one_or_none()
    if row is None:
        return UnreadStart(leaf.position + 1, leaf.path_tokens)
    return UnreadStart(row.position, row.path_tokens)


async def count_unread_rounds(session: AsyncSession, chat: Chat, leaf: Message) -> int:
    """Return the number of the user's unread messages up to `leaf`, since the owner's opt-in."""
    query = _UNREAD_ROUNDS
    if chat.chronicle_since is not None:
        query = query.where(Message.created_at >= chat.chronicle_since)
    place = {"chat": chat.id, "leaf": leaf.position, "after": leaf.position - LOOK_BACK_MESSAGES}
    return await session.scalar(query, place) or 0


async def clear_marks(session: AsyncSession, sealer: Sealer | None, message_id: UUID) -> None:
    """Mark a message and later ones of its compaction as unread, and detach its changes.

    Call it after its text or audience has changed. Without a sealer, the next request folds.
    """
    first = await session.get(CampaignMark, message_id)
    if first is None:
        return
    is_it = Campaign.id == first.campaign_id, Campaign.deleted_at.is_(None)
    campaign = await session.scalar(select(Campaign).where(*is_it).with_for_update())
    if campaign is None:  # it was deleted, and its marks go with it
        return
    together = select(CampaignMark).where(
        CampaignMark.campaign_id == first.campaign_id,
        CampaignMark.version == first.version,
        CampaignMark.chat_id == first.chat_id,
        CampaignMark.position >= first.position,
    )
    for mark in (await session.scalars(together)).all():
        await detach_message(session, sealer, campaign, mark.id, version=mark.version)
        await session.delete(mark)


async def copy_marks(
    session: AsyncSession,
    source_id: UUID,
    fork_id: UUID,
    copied: Mapping[UUID, UUID],
    *,
    campaign_id: UUID | None = None,
) -> None:
    """Mark the copies of read messages as read. `copied` maps messages to their copies.

    In another campaign, given by `campaign_id`, no change comes from them.
    """
    for part in split_chunks(list(copied)):
        query = select(CampaignMark).where(
            CampaignMark.chat_id == source_id, CampaignMark.id.in_(part)
        )
        rows = [
            {
                "id": copied[mark.id],
                "user_id": mark.user_id,
                "campaign_id": campaign_id or mark.campaign_id,
                "chat_id": fork_id,
                "position": mark.position,
                "version": 0 if campaign_id else mark.version,
            }
            for mark in await session.scalars(query)
        ]
        if rows:
            await session.execute(insert(CampaignMark), rows)
