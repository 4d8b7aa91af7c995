"""The change log of a campaign: changes, versions, undo and restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import (
    CampaignView,
    ChangePage,
    ChangeView,
    Comparison,
    ItemDifference,
    ItemReference,
    VersionPage,
    VersionView,
)
from backend.campaigns.errors import CampaignChangeNotFoundError, CampaignVersionNotFoundError
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import DELETION, EXISTS, Change, State, compare_states, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import (
    build_campaign_views,
    get_campaign,
    get_item_name,
    open_reading,
)
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.viewpoints import resolve_campaign_viewpoint
from backend.core.audience import GM, Viewpoint
from backend.core.cpu_pool import iterate_in_slices
from backend.database.engine import Database
from backend.vault.sealing import Sealer

MAX_COMPARED = 500
"""Items that a comparison shows; further ones are only counted."""


class ChangeLogService:
    """Shows the ledger, which is empty from a player's viewpoint, and undoes changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_changes(
        self,
        identity: Identity,
        campaign_id: UUID,
        *,
        limit: int,
        before: int | None,
        viewpoint: Viewpoint = GM,
    ) -> ChangePage:
        """Return the ledger, newest first. Raises `CampaignNotFoundError`, `ValidationError`."""
        query = (
            select(CampaignChange, CampaignItem)
            .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
            .where(*_match_own(identity, campaign_id))
            .order_by(CampaignChange.seq.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(CampaignChange.seq < before)
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            await resolve_campaign_viewpoint(session, identity, campaign.id, viewpoint)
            if viewpoint != GM:
                return ChangePage(items=[], next=None)
            rows = [(row[0], row[1]) for row in await session.execute(query)]
            sources = await _find_first_sources(session, [change.id for change, _ in rows])
        items = [
            _view_change(identity.sealer, change, item, sources.get(change.id))
            for change, item in rows[:limit]
        ]
        return ChangePage(items=items, next=items[-1].seq if len(rows) > limit else None)

    async def undo(self, identity: Identity, campaign_id: UUID, change_id: UUID) -> ChangeView:
        """Undo one change. Later changes are kept. Idempotent.

        Raises `CampaignNotFoundError`, `CampaignChangeNotFoundError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            change = await session.scalar(
                select(CampaignChange).where(
                    CampaignChange.id == change_id, *_match_own(identity, campaign_id)
                )
            )
            if change is None:
                raise CampaignChangeNotFoundError
            await ledger_paths.undo_change(session, identity.sealer, campaign, change_id)
            await session.refresh(change)
            item = await session.get_one(CampaignItem, change.item_id, populate_existing=True)
            sources = await _find_first_sources(session, [change.id])
            return _view_change(identity.sealer, change, item, sources.get(change.id))

    async def list_versions(
        self,
        identity: Identity,
        campaign_id: UUID,
        *,
        limit: int,
        before: int | None,
        viewpoint: Viewpoint = GM,
    ) -> VersionPage:
        """Return versions, newest first. A version is the changes that were written together.

        Raises `CampaignNotFoundError`, `ValidationError`.
        """
        query = (
            select(
                CampaignChange.version,
                func.min(CampaignChange.actor),
                func.count(),
                func.min(CampaignChange.created_at),
            )
            .where(*_match_own(identity, campaign_id))
            .group_by(CampaignChange.version)
            .order_by(CampaignChange.version.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(CampaignChange.version < before)
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            await resolve_campaign_viewpoint(session, identity, campaign.id, viewpoint)
            if viewpoint != GM:
                return VersionPage(items=[], next=None)
            rows = (await session.execute(query)).all()
        items = [
            VersionView(version=row[0], actor=row[1], changes=row[2], created_at=row[3])
            for row in rows[:limit]
        ]
        return VersionPage(items=items, next=items[-1].version if len(rows) > limit else None)

    async def compare(
        self, identity: Identity, campaign_id: UUID, version: int, *, viewpoint: Viewpoint = GM
    ) -> Comparison:
        """Return the differences between a version and now.

        Raises `CampaignNotFoundError`, `CampaignVersionNotFoundError`, `ValidationError`.
        """
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            await resolve_campaign_viewpoint(session, identity, campaign.id, viewpoint)
            differing = (
                await _find_differences(session, identity.sealer, campaign, version)
                if viewpoint == GM
                else []
            )
        items = [
            ItemDifference(
                target=ItemReference(
                    kind=kind, id=item_id, name=get_item_name(kind, then, current)
                ),
                then=_strip_existence(then),
                now=_strip_existence(current),
            )
            for kind, item_id, then, current in differing[:MAX_COMPARED]
        ]
        return Comparison(
            version=version,
            current=campaign.version,
            differences=items,
            more=len(differing) - len(items),
        )

    async def restore(self, identity: Identity, campaign_id: UUID, version: int) -> CampaignView:
        """Restore all items to their state in a version, with changes that can be undone.

        Raises `CampaignNotFoundError`, `CampaignVersionNotFoundError`.
        """
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            differing = await _find_differences(session, sealer, campaign, version)
            changes = [
                Change(kind, item_id, compare_states(current, then) if exists(then) else DELETION)
                async for kind, item_id, then, current in iterate_in_slices(differing)
            ]
            if changes:
                await ledger_store.append_changes(session, sealer, campaign, changes, actor="user")
            await session.flush()
            [view] = await build_campaign_views(session, sealer, [campaign])
        return view


def _match_own(identity: Identity, campaign_id: UUID) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for changes of one of the user's campaigns."""
    return CampaignChange.campaign_id == campaign_id, CampaignChange.user_id == identity.user_id


async def build_change_views(
    session: AsyncSession, sealer: Sealer, change_ids: Sequence[UUID]
) -> list[ChangeView]:
    """Return changes of the sealer's user in the API's format, in the order of the ids."""
    query = (
        select(CampaignChange, CampaignItem)
        .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
        .where(CampaignChange.id.in_(change_ids), CampaignChange.user_id == sealer.user_id)
        .order_by(CampaignChange.seq)
        .execution_options(populate_existing=True)
    )
    rows = [(row[0], row[1]) for row in await session.execute(query)]
    sources = await _find_first_sources(session, change_ids)
    return [_view_change(sealer, change, item, sources.get(change.id)) for change, item in rows]


async def _find_first_sources(
    session: AsyncSession, change_ids: Sequence[UUID]
) -> dict[UUID, UUID]:
    """Return the message that caused each change; of copies in forks, the oldest."""
    query = (
        select(ChangeSource.change_id, ChangeSource.message_id)
        .where(ChangeSource.change_id.in_(change_ids))
        .order_by(ChangeSource.message_id.desc())
    )
    return {row.change_id: row.message_id for row in await session.execute(query)}


def _view_change(
    sealer: Sealer, change: CampaignChange, item: CampaignItem, message_id: UUID | None
) -> ChangeView:
    operations = ledger_store.read_operations(sealer, change.id, change.sealed_operations)
    state = read_state(sealer, item.id, item.sealed_state)
    return ChangeView(
        id=change.id,
        seq=change.seq,
        version=change.version,
        actor=change.actor,
        message_id=message_id,
        turn_id=change.turn_id,
        target=ItemReference(
            kind=item.kind, id=item.id, name=get_item_name(item.kind, state, operations.set)
        ),
        set=operations.set,
        add=operations.add,
        remove=operations.remove,
        because=operations.because,
        counts=change.is_on_path and not change.is_undone,
        undone=change.is_undone,
        created_at=change.created_at,
    )


async def _find_differences(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, version: int
) -> list[tuple[Kind, UUID, State, State]]:
    """Return items that a later version changed: (kind, id, state then, state now)."""
    first = await session.scalar(
        select(CampaignChange.version)
        .where(CampaignChange.campaign_id == campaign.id)
        .order_by(CampaignChange.seq)
        .limit(1)
    )
    if first is None or not first <= version <= campaign.version:
        raise CampaignVersionNotFoundError(f"Choose a version from {first} to {campaign.version}.")
    # Later versions, and swipes, wrote the rows of the items that they changed. If a swipe changed
    # nothing in the ledger, its items are equal then and now.
    query = (
        select(CampaignItem.id, CampaignItem.kind, CampaignItem.sealed_state)
        .where(CampaignItem.campaign_id == campaign.id, CampaignItem.version > version)
        .order_by(CampaignItem.id)
    )
    rows = (await session.execute(query)).all()
    kinds = {row.id: row.kind for row in rows}
    folded = await ledger_store.fold_items(session, sealer, kinds, through=version)
    found: list[tuple[Kind, UUID, State, State]] = []
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        then, _ = folded[row.id]
        current = read_state(sealer, row.id, row.sealed_state)
        if then != current and (exists(then) or exists(current)):
            found.append((row.kind, row.id, then, current))
    return found


def _strip_existence(state: State) -> dict[str, Any] | None:
    if not exists(state):
        return None
    return {key: value for key, value in state.items() if key != EXISTS}
