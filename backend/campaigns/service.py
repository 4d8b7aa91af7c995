"""Campaigns and their items: listing, making, changing, deleting; the ledger, versions, undoing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.campaigns import ledger_store
from backend.campaigns.errors import (
    CampaignChangeNotFoundError,
    CampaignFullError,
    CampaignItemNotFoundError,
    CampaignNotFoundError,
    CampaignVersionNotFoundError,
)
from backend.campaigns.items import STRUCTS, Item, Kind, Relation, World, relation_label
from backend.campaigns.ledger import (
    DELETION,
    EXISTS,
    State,
    creation,
    difference,
    exists,
    fold,
    item_of,
)
from backend.campaigns.ledger_store import Change
from backend.campaigns.models import (
    CAMPAIGN,
    Campaign,
    CampaignChange,
    CampaignItem,
    ChangeSource,
)
from backend.campaigns.rules import check_rules
from backend.campaigns.schemas import (
    VIEWS,
    CampaignFields,
    CampaignView,
    ChangePage,
    ChangeView,
    Comparison,
    Difference,
    ItemPage,
    NewCampaign,
    Target,
    VersionPage,
    VersionView,
    WorldPatch,
)
from backend.chats.models import Chat
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.vault.sealing import Sealer
from backend.wire import Page, check_revision, merge_patch, page_of, reject_unknown

MAX_CAMPAIGNS = 200
"""Campaigns of one user."""

MAX_ITEMS = 50_000
"""Items in one campaign, deleted ones among them."""

AT_ONCE = 500
"""Rows that are read and unsealed in one go."""

_FIELDS = msgspec.json.Decoder(CampaignFields)
_REFERENCES = ("location_id", "from_id", "to_id", "giver_id", "clock_id", "linked_id", "about_id")


class ItemKey(NamedTuple):
    """Which item is meant."""

    campaign_id: UUID
    kind: Kind
    item_id: UUID


class ItemFilter(NamedTuple):
    """Which items of a kind a list is to hold: all where nothing is said."""

    kind: str | None = None
    at: UUID | None = None
    status: str | None = None
    text: str | None = None

    def lets_in(self, item: Item) -> bool:
        """Whether an item has the status, and the text in one of its names or texts."""
        if self.status is not None and getattr(item, "status", None) != self.status:
            return False
        if not self.text:
            return True
        texts = [getattr(item, name, "") for name in _SEARCHED] + getattr(item, "aliases", [])
        wanted = self.text.casefold()
        return any(wanted in one.casefold() for one in texts)


_SEARCHED = ("name", "title", "term", "text", "summary", "role")


class CampaignService:
    """What a user does with campaigns, by hand."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[CampaignView]:
        """Campaigns, newest first."""
        query = select(Campaign).where(Campaign.user_id == identity.user_id)
        if after is not None:
            query = query.where(Campaign.id < after)
        async with self._database.read() as session:
            rows = await session.scalars(query.order_by(Campaign.id.desc()).limit(limit + 1))
            page, following = page_of(rows.all(), limit)
            return Page(items=await _views(session, identity.sealer, page), next=following)

    async def create(self, identity: Identity, new: NewCampaign) -> CampaignView:
        """Make a campaign without items. Raises `CampaignFullError`, `ValidationError`."""
        _check_name(new.name)
        check_rules(new.rules)
        async with self._database.write() as session:
            campaign = await make_campaign(session, identity, new)
            [view] = await _views(session, identity.sealer, [campaign])
        return view

    async def get(self, identity: Identity, campaign_id: UUID) -> CampaignView:
        """Raises `CampaignNotFoundError`."""
        async with self._database.read() as session:
            campaign = await get_campaign(session, identity, campaign_id)
            [view] = await _views(session, identity.sealer, [campaign])
        return view

    async def patch(
        self, identity: Identity, campaign_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> CampaignView:
        """Merge into a campaign. What is of its world goes through the ledger.

        Raises `CampaignNotFoundError`, `PreconditionFailedError`, `ValidationError`.
        """
        reject_unknown(patch, WorldPatch)
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            check_revision(if_match, campaign.version)
            own = frozenset(CampaignFields.__struct_fields__)
            fields = merge_patch(
                open_campaign(sealer, campaign), {k: v for k, v in patch.items() if k in own}
            )
            _check_name(fields.name)
            check_rules(fields.rules)
            _seal(sealer, campaign, fields)
            world = {key: value for key, value in patch.items() if key not in own}
            if world:
                key = ItemKey(campaign_id, "world", campaign_id)
                await _edit(session, sealer, campaign, key, world)
            else:
                campaign.version += 1
                campaign.edits += 1
                campaign.updated_at = now()
            await session.flush()
            [view] = await _views(session, sealer, [campaign])
        return view

    async def delete(self, identity: Identity, campaign_id: UUID, *, if_match: str | None) -> None:
        """Delete a campaign with its items and its ledger; its chats stay, as plain chats.

        Raises `CampaignNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            check_revision(if_match, campaign.version)
            await session.execute(
                update(Chat)
                .where(Chat.campaign_id == campaign_id, Chat.user_id == identity.user_id)
                .values(campaign_id=None, revision=Chat.revision + 1)
            )
            await session.delete(campaign)

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
        """Items of a kind, oldest first. Raises `CampaignNotFoundError`."""
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
        async with self._database.read() as session:
            await get_campaign(session, identity, campaign_id)
            while len(found) <= limit:
                part = query if following is None else query.where(CampaignItem.id > following)
                rows = (await session.scalars(part.order_by(CampaignItem.id).limit(AT_ONCE))).all()
                opened = [(row, _item(identity.sealer, row)) for row in rows]
                found += [view_item(row, item) for row, item in opened if asked.lets_in(item)]
                if len(rows) < AT_ONCE:
                    break
                following = rows[-1].id
        more = len(found) > limit
        return ItemPage(items=found[:limit], next=str(found[limit - 1].id) if more else None)

    async def create_item(
        self, identity: Identity, campaign_id: UUID, kind: Kind, fields: dict[str, Any]
    ) -> msgspec.Struct:
        """Add an item. Raises `CampaignNotFoundError`, `CampaignFullError`, `ValidationError`."""
        item = item_of(kind, fields)
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            await _check_room(session, campaign_id)
            await _check_references(session, campaign_id, item)
            change = Change(kind, new_id(), creation(item))
            await ledger_store.append(session, identity.sealer, campaign, [change], actor="user")
            return await _shown(session, identity, ItemKey(campaign_id, kind, change.item_id))

    async def get_item(self, identity: Identity, key: ItemKey) -> msgspec.Struct:
        """Raises `CampaignItemNotFoundError`."""
        async with self._database.read() as session:
            return await _shown(session, identity, key)

    async def patch_item(
        self, identity: Identity, key: ItemKey, patch: dict[str, Any], *, if_match: str | None
    ) -> msgspec.Struct:
        """Merge into an item; what differs is one change of the ledger.

        Raises `CampaignItemNotFoundError`, `PreconditionFailedError`, `ValidationError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, key.campaign_id, lock=True)
            row = await _row(session, identity, key)
            check_revision(if_match, row.seq)
            await _edit(session, identity.sealer, campaign, key, patch)
            return await _shown(session, identity, key)

    async def delete_item(self, identity: Identity, key: ItemKey, *, if_match: str | None) -> None:
        """Delete an item, as a change that can be undone.

        Raises `CampaignItemNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, key.campaign_id, lock=True)
            row = await _row(session, identity, key)
            check_revision(if_match, row.seq)
            change = Change(key.kind, key.item_id, DELETION)
            await ledger_store.append(session, identity.sealer, campaign, [change], actor="user")

    async def changes(
        self, identity: Identity, campaign_id: UUID, *, limit: int, before: int | None
    ) -> ChangePage:
        """The ledger, newest first. Raises `CampaignNotFoundError`."""
        query = (
            select(CampaignChange, CampaignItem)
            .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
            .where(
                CampaignChange.campaign_id == campaign_id,
                CampaignChange.user_id == identity.user_id,
            )
            .order_by(CampaignChange.seq.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(CampaignChange.seq < before)
        async with self._database.read() as session:
            await get_campaign(session, identity, campaign_id)
            rows = [(row[0], row[1]) for row in await session.execute(query)]
            sources = await _first_sources(session, [change.id for change, _ in rows])
        items = [
            _view_change(identity.sealer, change, item, sources.get(change.id))
            for change, item in rows[:limit]
        ]
        return ChangePage(items=items, next=items[-1].seq if len(rows) > limit else None)

    async def undo(self, identity: Identity, campaign_id: UUID, change_id: UUID) -> ChangeView:
        """Let a change count no longer; where it was undone already, nothing changes.

        Raises `CampaignNotFoundError`, `CampaignChangeNotFoundError`.
        """
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            change = await session.scalar(
                select(CampaignChange).where(
                    CampaignChange.id == change_id,
                    CampaignChange.campaign_id == campaign_id,
                    CampaignChange.user_id == identity.user_id,
                )
            )
            if change is None:
                raise CampaignChangeNotFoundError
            if not change.is_undone:
                change.is_undone = True
                campaign.version += 1
                campaign.edits += 1
                campaign.updated_at = now()
                await session.flush()
                await ledger_store.refold(session, identity.sealer, campaign, [change.item_id])
            item = await session.get_one(CampaignItem, change.item_id, populate_existing=True)
            sources = await _first_sources(session, [change.id])
            return _view_change(identity.sealer, change, item, sources.get(change.id))

    async def versions(
        self, identity: Identity, campaign_id: UUID, *, limit: int, before: int | None
    ) -> VersionPage:
        """Versions, newest first: changes that were written together.

        Raises `CampaignNotFoundError`.
        """
        query = (
            select(
                CampaignChange.version,
                func.min(CampaignChange.actor),
                func.count(),
                func.min(CampaignChange.created_at),
            )
            .where(
                CampaignChange.campaign_id == campaign_id,
                CampaignChange.user_id == identity.user_id,
            )
            .group_by(CampaignChange.version)
            .order_by(CampaignChange.version.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(CampaignChange.version < before)
        async with self._database.read() as session:
            await get_campaign(session, identity, campaign_id)
            rows = (await session.execute(query)).all()
        items = [
            VersionView(version=row[0], actor=row[1], changes=row[2], created_at=row[3])
            for row in rows[:limit]
        ]
        return VersionPage(items=items, next=items[-1].version if len(rows) > limit else None)

    async def compare(self, identity: Identity, campaign_id: UUID, version: int) -> Comparison:
        """What differs between a version and now.

        Raises `CampaignNotFoundError`, `CampaignVersionNotFoundError`.
        """
        async with self._database.read() as session:
            campaign = await get_campaign(session, identity, campaign_id)
            differing = await _since(session, identity.sealer, campaign, version)
        items = [
            Difference(
                target=Target(kind=row.kind, id=row.id, name=_name(row.kind, then, current)),
                then=_public(then),
                now=_public(current),
            )
            for row, then, current in differing
        ]
        return Comparison(version=version, current=campaign.version, differences=items)

    async def restore(self, identity: Identity, campaign_id: UUID, version: int) -> CampaignView:
        """Make of every item what it was in a version, by changes that can be undone.

        Raises `CampaignNotFoundError`, `CampaignVersionNotFoundError`.
        """
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            differing = await _since(session, sealer, campaign, version)
            changes = [
                Change(row.kind, row.id, difference(current, then) if exists(then) else DELETION)
                for row, then, current in differing
            ]
            if changes:
                await ledger_store.append(session, sealer, campaign, changes, actor="user")
            await session.flush()
            [view] = await _views(session, sealer, [campaign])
        return view


async def get_campaign(
    session: AsyncSession, identity: Identity, campaign_id: UUID, *, lock: bool = False
) -> Campaign:
    """Raises `CampaignNotFoundError`, both when absent and when someone else's.

    `lock` lets one transaction at a time change the campaign.
    """
    query = select(Campaign).where(Campaign.id == campaign_id, Campaign.user_id == identity.user_id)
    campaign = await session.scalar(query.with_for_update() if lock else query)
    if campaign is None:
        raise CampaignNotFoundError
    return campaign


async def make_campaign(session: AsyncSession, identity: Identity, new: NewCampaign) -> Campaign:
    """Make a campaign without items. Raises `CampaignFullError`."""
    count = select(func.count()).where(Campaign.user_id == identity.user_id)
    if (await session.scalar(count) or 0) >= MAX_CAMPAIGNS:
        raise CampaignFullError(
            f"An account holds {MAX_CAMPAIGNS} campaigns. Delete some first.",
            extra={"limit": "campaigns", "allowed": MAX_CAMPAIGNS},
        )
    campaign = Campaign(
        id=new_id(), user_id=identity.user_id, rules=new.rules, version=0, last_seq=0, edits=0
    )
    fields = CampaignFields(name=new.name, rules=new.rules, brief=new.brief, settings=new.settings)
    _seal(identity.sealer, campaign, fields)
    session.add(campaign)
    await session.flush()
    world = creation(World(day=new.day, time_of_day=new.time_of_day))
    await ledger_store.append(
        session, identity.sealer, campaign, [Change("world", campaign.id, world)], actor="user"
    )
    await session.flush()
    return campaign


def open_campaign(sealer: Sealer, campaign: Campaign) -> CampaignFields:
    """What a campaign's row says."""
    return _FIELDS.decode(sealer.open_bytes(CAMPAIGN, campaign.id, campaign.sealed_campaign))


def view_item(row: CampaignItem, item: Item) -> msgspec.Struct:
    """An item as the API shows it."""
    more: dict[str, Any] = (
        {"label": relation_label(item.score)} if isinstance(item, Relation) else {}
    )
    return VIEWS[row.kind](
        id=row.id,
        revision=row.seq,
        created_at=row.created_at,
        updated_at=row.updated_at,
        **{name: getattr(item, name) for name in item.__struct_fields__},
        **more,
    )


def _seal(sealer: Sealer, campaign: Campaign, fields: CampaignFields) -> None:
    campaign.rules = fields.rules
    campaign.sealed_campaign = sealer.seal_bytes(CAMPAIGN, campaign.id, msgspec.json.encode(fields))


def _check_name(name: str) -> None:
    if not name.strip():
        raise ValidationError("A campaign needs a name.")


async def _views(
    session: AsyncSession, sealer: Sealer, campaigns: Sequence[Campaign]
) -> list[CampaignView]:
    ids = [campaign.id for campaign in campaigns]
    worlds = {
        row.id: row.sealed_state
        for row in await session.execute(
            select(CampaignItem.id, CampaignItem.sealed_state).where(CampaignItem.id.in_(ids))
        )
    }
    chats: dict[UUID, list[UUID]] = {}
    query = select(Chat.campaign_id, Chat.id).where(Chat.campaign_id.in_(ids)).order_by(Chat.id)
    for campaign_id, chat_id in await session.execute(query):
        if campaign_id is not None:
            chats.setdefault(campaign_id, []).append(chat_id)
    views: list[CampaignView] = []
    for campaign in campaigns:
        fields = open_campaign(sealer, campaign)
        world = item_of("world", ledger_store.read_state(sealer, campaign.id, worlds[campaign.id]))
        assert isinstance(world, World)  # noqa: S101
        views.append(
            CampaignView(
                id=campaign.id,
                name=fields.name,
                rules=fields.rules,
                brief=fields.brief,
                settings=fields.settings,
                day=world.day,
                time_of_day=world.time_of_day,
                flags=world.flags,
                chat_ids=chats.get(campaign.id, []),
                version=campaign.version,
                created_at=campaign.created_at,
                updated_at=campaign.updated_at,
            )
        )
    return views


def _item(sealer: Sealer, row: CampaignItem) -> Item:
    return item_of(row.kind, ledger_store.read_state(sealer, row.id, row.sealed_state))


async def _row(session: AsyncSession, identity: Identity, key: ItemKey) -> CampaignItem:
    row = await session.scalar(
        select(CampaignItem)
        .where(
            CampaignItem.id == key.item_id,
            CampaignItem.campaign_id == key.campaign_id,
            CampaignItem.user_id == identity.user_id,
            CampaignItem.kind == key.kind,
            CampaignItem.exists,
        )
        .execution_options(populate_existing=True)
    )
    if row is None:
        raise CampaignItemNotFoundError
    return row


async def _shown(session: AsyncSession, identity: Identity, key: ItemKey) -> msgspec.Struct:
    row = await _row(session, identity, key)
    return view_item(row, _item(identity.sealer, row))


async def _edit(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, key: ItemKey, patch: dict[str, Any]
) -> None:
    """Write what a merge patch changes of an item as one change of the user's."""
    struct = STRUCTS[key.kind]
    reject_unknown(patch, struct)
    blob = await session.scalar(
        select(CampaignItem.sealed_state).where(CampaignItem.id == key.item_id)
    )
    if blob is None:
        raise CampaignItemNotFoundError
    before = ledger_store.read_state(sealer, key.item_id, blob)
    item = merge_patch(item_of(key.kind, before), patch)
    await _check_references(session, campaign.id, item)
    change = difference(before, {EXISTS: True, **msgspec.to_builtins(item)})
    if change.fields():
        await ledger_store.append(
            session, sealer, campaign, [Change(key.kind, key.item_id, change)], actor="user"
        )


async def _check_room(session: AsyncSession, campaign_id: UUID, more: int = 1) -> None:
    query = select(func.count()).where(CampaignItem.campaign_id == campaign_id)
    if (await session.scalar(query) or 0) + more > MAX_ITEMS:
        raise CampaignFullError(
            f"A campaign holds {MAX_ITEMS:,} items, deleted ones among them.",
            extra={"limit": "items", "allowed": MAX_ITEMS},
        )


async def _check_references(session: AsyncSession, campaign_id: UUID, item: Item) -> None:
    """Raise `ValidationError` where an item names one that its campaign has not."""
    named = {name: getattr(item, name, None) for name in _REFERENCES}
    wanted: dict[str, list[UUID]] = {name: [each] for name, each in named.items() if each}
    for name in ("present", "audience"):
        value = getattr(item, name, None)
        if isinstance(value, list) and value:
            wanted[name] = value
    ids = {each for group in wanted.values() for each in group}
    if not ids:
        return
    query = select(CampaignItem.id).where(
        CampaignItem.campaign_id == campaign_id, CampaignItem.id.in_(ids)
    )
    missing = ids - set(await session.scalars(query))
    for name, group in wanted.items():
        if lost := [each for each in group if each in missing]:
            raise ValidationError(f"`{name}` names {lost[0]}, which the campaign does not have.")


async def _first_sources(session: AsyncSession, change_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """The message that made each change: of copies in forks, the oldest."""
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
    state = ledger_store.read_state(sealer, item.id, item.sealed_state)
    return ChangeView(
        id=change.id,
        seq=change.seq,
        version=change.version,
        actor=change.actor,
        message_id=message_id,
        turn_id=change.turn_id,
        target=Target(kind=item.kind, id=item.id, name=_name(item.kind, state, operations.set)),
        set=operations.set,
        add=operations.add,
        remove=operations.remove,
        counts=change.is_on_path and not change.is_undone,
        undone=change.is_undone,
        created_at=change.created_at,
    )


async def _since(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, version: int
) -> list[tuple[CampaignItem, State, State]]:
    """Items that a later version changed: (row, its state then, its state now)."""
    first = await session.scalar(
        select(func.min(CampaignChange.version)).where(CampaignChange.campaign_id == campaign.id)
    )
    if first is None or not first <= version <= campaign.version:
        raise CampaignVersionNotFoundError(
            f"The campaign has the versions {first} to {campaign.version}."
        )
    later = (
        select(CampaignChange.item_id)
        .where(CampaignChange.campaign_id == campaign.id, CampaignChange.version > version)
        .distinct()
    )
    rows = (
        await session.scalars(
            select(CampaignItem).where(CampaignItem.id.in_(later)).order_by(CampaignItem.id)
        )
    ).all()
    lines = await ledger_store.lines_of(session, sealer, [row.id for row in rows], through=version)
    found: list[tuple[CampaignItem, State, State]] = []
    for row in rows:
        then = fold(row.kind, [operations for _, operations in lines[row.id]])
        current = ledger_store.read_state(sealer, row.id, row.sealed_state)
        if then != current and (exists(then) or exists(current)):
            found.append((row, then, current))
    return found


def _name(kind: Kind, *states: State) -> str:
    """What an item is called, of the first state that says so."""
    if kind == "world":
        return "world"
    for state in states:
        for field in ("name", "title", "term", "text", "note"):
            if isinstance(value := state.get(field), str) and value:
                return value[:200]
    return ""


def _public(state: State) -> dict[str, Any] | None:
    if not exists(state):
        return None
    return {key: value for key, value in state.items() if key != EXISTS}
