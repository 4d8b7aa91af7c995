"""List, create, edit and delete the items of campaigns."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import ItemPage
from backend.campaigns.errors import CampaignFullError
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import DELETION, Change, build_creation, build_item
from backend.campaigns.ledger.items import Item, Kind, Scene
from backend.campaigns.ledger.records import (
    ItemKey,
    build_item_view,
    check_people,
    check_references,
    edit_item,
    get_item_row,
    lock_with_cause,
    open_item,
    open_reading,
)
from backend.campaigns.models import CampaignItem
from backend.campaigns.state.party import follow_scene
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import new_id
from backend.database.engine import Database
from backend.http.schemas import check_revision

MAX_ITEMS = 50_000
"""Maximum number of items in one campaign, including deleted ones."""

SCAN_ROWS = 500
"""Rows that are read and unsealed in one batch."""

_SEARCHED = ("name", "title", "term", "text", "summary", "role")


class ItemFilter(NamedTuple):
    """The filters of an item list. The default accepts all items of a kind."""

    kind: str | None = None
    at: UUID | None = None
    status: str | None = None
    text: str | None = None

    def accepts(self, item: Item) -> bool:
        """Return True if an item has the status, and the text in one of its names or texts."""
        if self.status is not None and getattr(item, "status", None) != self.status:
            return False
        if not self.text:
            return True
        texts = [getattr(item, name, "") for name in _SEARCHED] + getattr(item, "aliases", [])
        wanted = self.text.casefold()
        return any(wanted in one.casefold() for one in texts)


class ItemService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_items(
        self,
        identity: Identity,
        campaign_id: UUID,
        kind: Kind,
        asked: ItemFilter,
        *,
        limit: int,
        after: UUID | None,
    ) -> ItemPage:
        """Return items of a kind, oldest first. Raises `CampaignNotFoundError`."""
        query = select(CampaignItem).where(
            CampaignItem.campaign_id == campaign_id,
            CampaignItem.user_id == identity.user_id,
            CampaignItem.kind == kind,
            CampaignItem.exists,
        )
        if asked.kind is not None:
            query = query.where(CampaignItem.subkind == asked.kind)
        if asked.at is not None:
            query = query.where(CampaignItem.place_id == asked.at)
        found: list[Any] = []
        following: UUID | None = after
        at_once = SCAN_ROWS if asked.status is not None or asked.text else limit + 1
        async with open_reading(self._database, identity, campaign_id) as (session, _):
            while len(found) <= limit:
                part = query if following is None else query.where(CampaignItem.id > following)
                rows = (await session.scalars(part.order_by(CampaignItem.id).limit(at_once))).all()
                async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
                    item = open_item(identity.sealer, row)
                    if asked.accepts(item):
                        found.append(build_item_view(row, item))
                if len(rows) < at_once:
                    break
                following = rows[-1].id
        more = len(found) > limit
        return ItemPage(items=found[:limit], next=str(found[limit - 1].id) if more else None)

    async def create_item(
        self,
        identity: Identity,
        campaign_id: UUID,
        kind: Kind,
        fields: dict[str, Any],
        *,
        message_id: UUID | None = None,
    ) -> msgspec.Struct:
        """Create an item. With `message_id` it exists while that message is on the active path.

        If it is an open scene, the players' characters move to its place. Raises `ValidationError`,
        `CampaignNotFoundError`, `CampaignFullError`, `MessageNotFoundError`.
        """
        item = build_item(kind, fields)
        async with self._database.write() as session:
            campaign, cause = await lock_with_cause(session, identity, campaign_id, message_id)
            await check_item_room(session, campaign_id)
            await check_references(session, campaign, item)
            await check_people(session, campaign, item)
            change = Change(kind, new_id(), build_creation(item))
            moved = (
                await follow_scene(session, campaign_id, item) if isinstance(item, Scene) else ()
            )
            await ledger_store.append_changes(
                session, identity.sealer, campaign, [change, *moved], actor="user", message=cause
            )
            return await _load_view(session, identity, ItemKey(campaign_id, kind, change.item_id))

    async def get_item(self, identity: Identity, key: ItemKey) -> msgspec.Struct:
        """Raise `CampaignNotFoundError` or `CampaignItemNotFoundError` if it does not exist."""
        async with open_reading(self._database, identity, key.campaign_id) as (session, _):
            return await _load_view(session, identity, key)

    async def patch_item(
        self,
        identity: Identity,
        key: ItemKey,
        patch: dict[str, Any],
        *,
        if_match: str | None,
        message_id: UUID | None = None,
    ) -> msgspec.Struct:
        """Merge a patch into an item as one change of the ledger.

        Raises `CampaignItemNotFoundError`, `PreconditionFailedError`, `MessageNotFoundError`,
        `ValidationError`.
        """
        async with self._database.write() as session:
            campaign, cause = await lock_with_cause(session, identity, key.campaign_id, message_id)
            row = await get_item_row(session, identity, key)
            check_revision(if_match, row.seq)
            await edit_item(session, identity.sealer, campaign, key, patch, cause=cause)
            return await _load_view(session, identity, key)

    async def delete_item(
        self,
        identity: Identity,
        key: ItemKey,
        *,
        if_match: str | None,
        message_id: UUID | None = None,
    ) -> None:
        """Delete an item with a change that can be undone.

        Raises `CampaignItemNotFoundError`, `PreconditionFailedError`, `MessageNotFoundError`,
        `ValidationError`.
        """
        async with self._database.write() as session:
            campaign, cause = await lock_with_cause(session, identity, key.campaign_id, message_id)
            row = await get_item_row(session, identity, key)
            check_revision(if_match, row.seq)
            change = Change(key.kind, key.item_id, DELETION)
            await ledger_store.append_changes(
                session, identity.sealer, campaign, [change], actor="user", message=cause
            )


async def _load_view(session: AsyncSession, identity: Identity, key: ItemKey) -> msgspec.Struct:
    row = await get_item_row(session, identity, key)
    return build_item_view(row, open_item(identity.sealer, row))


async def has_item_room(session: AsyncSession, campaign_id: UUID, *, more: int = 1) -> bool:
    query = select(func.count()).where(CampaignItem.campaign_id == campaign_id)
    return (await session.scalar(query) or 0) + more <= MAX_ITEMS


async def check_item_room(session: AsyncSession, campaign_id: UUID, *, more: int = 1) -> None:
    if not await has_item_room(session, campaign_id, more=more):
        raise CampaignFullError(
            f"A campaign can have {MAX_ITEMS:,} items, including deleted ones.",
            extra={"limit": "items", "allowed": MAX_ITEMS},
        )
