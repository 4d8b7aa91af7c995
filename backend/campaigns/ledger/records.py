"""Rows of campaigns and items: find by owner, unseal, edit, and build API views."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import VIEWS, CampaignFields, CampaignView
from backend.campaigns.errors import CampaignItemNotFoundError, CampaignNotFoundError
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import (
    EXISTS,
    Change,
    Operations,
    State,
    build_creation,
    build_item,
    compare_states,
)
from backend.campaigns.ledger.items import (
    STRUCTS,
    Entity,
    Item,
    Kind,
    Relation,
    Scene,
    Term,
    World,
    label_relation,
)
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CAMPAIGN, Campaign, CampaignItem
from backend.campaigns.scenes.chapters import narrow_chapters
from backend.campaigns.state.party import follow_scene
from backend.characters.models import Character
from backend.chats.models import Chat, Message
from backend.chats.repository import lock_message
from backend.core.audience import PUBLIC, encode_audience
from backend.core.cpu_pool import iterate_in_slices
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import merge_patch, reject_unknown
from backend.vault.sealing import Sealer

_FIELDS = msgspec.json.Decoder(CampaignFields)
REFERENCES = (
    "location_id",
    "from_id",
    "to_id",
    "giver_id",
    "clock_id",
    "linked_id",
    "about_id",
    "superseded_by",
)
REFERENCE_LISTS = ("present", "scene_ids")
PEOPLE = ("audience", "character_id")
"""Fields with ids of characters. An audience names entities as well."""


# Each turn reads it, and building a statement takes longer than running it.
_CAMPAIGN = select(Campaign).where(
    Campaign.id == bindparam("campaign"), Campaign.match_owner(bindparam("owner"))
)
LOCKED = _CAMPAIGN.with_for_update()


class ItemKey(NamedTuple):
    campaign_id: UUID
    kind: Kind
    item_id: UUID


async def find_campaign(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID, *, lock: bool = False
) -> Campaign | None:
    """Return a campaign of the sealer's user, or None; see `get_campaign`."""
    asked = {"campaign": campaign_id, "owner": sealer.user_id}
    campaign = await session.scalar(LOCKED if lock else _CAMPAIGN, asked)
    if lock and campaign is not None and campaign.is_stale:
        await ledger_store.refold_stale(session, sealer, campaign)
    return campaign


async def get_campaign(
    session: AsyncSession, identity: Identity, campaign_id: UUID, *, lock: bool = False
) -> Campaign:
    """Raise `CampaignNotFoundError` both when absent and when someone else's.

    `lock` serialises the writers of the campaign, and folds stale items.
    """
    campaign = await find_campaign(session, identity.sealer, campaign_id, lock=lock)
    if campaign is None:
        raise CampaignNotFoundError
    return campaign


@asynccontextmanager
async def open_reading(
    database: Database, identity: Identity, campaign_id: UUID
) -> AsyncGenerator[tuple[AsyncSession, Campaign]]:
    """Yield a session to read a folded campaign. Raises `CampaignNotFoundError`."""
    async with database.read() as session:
        campaign = await get_campaign(session, identity, campaign_id)
        if not campaign.is_stale:
            yield session, campaign
            return
    async with database.write() as session:
        await get_campaign(session, identity, campaign_id, lock=True)
    async with database.read() as session:
        yield session, await get_campaign(session, identity, campaign_id)


def open_campaign(sealer: Sealer, campaign: Campaign) -> CampaignFields:
    return _FIELDS.decode(sealer.open_bytes(CAMPAIGN, campaign.id, campaign.sealed_campaign))


def seal_campaign(sealer: Sealer, campaign: Campaign, fields: CampaignFields) -> None:
    campaign.rules = fields.rules
    campaign.sealed_campaign = sealer.seal_bytes(CAMPAIGN, campaign.id, msgspec.json.encode(fields))


async def build_campaign_views(
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
        world = build_item("world", read_state(sealer, campaign.id, worlds[campaign.id]))
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
                attributes=world.attributes,
                chat_ids=chats.get(campaign.id, []),
                version=campaign.version,
                created_at=campaign.created_at,
                updated_at=campaign.updated_at,
            )
        )
    return views


def build_item_view(row: CampaignItem, item: Item) -> msgspec.Struct:
    more: dict[str, Any] = {}
    if isinstance(item, Relation):
        more["label"] = label_relation(item.score)
    if isinstance(item, Term):
        more["uses"] = row.uses
    return VIEWS[row.kind](
        id=row.id,
        revision=row.seq,
        created_at=row.created_at,
        updated_at=row.updated_at,
        **{name: getattr(item, name) for name in item.__struct_fields__},
        **more,
    )


def open_item(sealer: Sealer, row: CampaignItem) -> Item:
    return build_item(row.kind, read_state(sealer, row.id, row.sealed_state))


def get_item_name(kind: Kind, *states: State) -> str:
    if kind == "world":
        return "world"
    for state in states:
        for field in ("name", "title", "term", "text", "note"):
            if isinstance(value := state.get(field), str) and value:
                return value[:200]
    return ""


async def load_states(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, item_ids: Collection[UUID]
) -> dict[UUID, State]:
    """Return the states of items by id. Items of other campaigns are ignored."""
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(
        CampaignItem.id.in_(item_ids),
        CampaignItem.campaign_id == campaign.id,
        CampaignItem.user_id == sealer.user_id,
    )
    rows = (await session.execute(query)).all()
    sized = iterate_in_slices(rows, lambda row: len(row.sealed_state))
    return {row.id: read_state(sealer, row.id, row.sealed_state) async for row in sized}


async def get_item_row(session: AsyncSession, identity: Identity, key: ItemKey) -> CampaignItem:
    """Raise `CampaignItemNotFoundError` if it is absent, deleted, elsewhere, or someone else's."""
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


async def lock_with_cause(
    session: AsyncSession, identity: Identity, campaign_id: UUID, message_id: UUID | None
) -> tuple[Campaign, Message | None]:
    """Lock a campaign for a change, and return it with the message that causes the change.

    The change is active while the message is. Raises `CampaignNotFoundError`,
    `MessageNotFoundError`, and `ValidationError` if the message is not on the active path of a chat
    of the campaign.
    """
    if message_id is None:
        return await get_campaign(session, identity, campaign_id, lock=True), None
    # Chats before campaigns, because all code locks them in this order.
    message, chat = await lock_message(session, message_id, owner_id=identity.user_id)
    campaign = await get_campaign(session, identity, campaign_id, lock=True)
    if chat.campaign_id != campaign.id:
        raise ValidationError("`message_id` belongs to a chat outside of the campaign.")
    if not message.is_active:
        raise ValidationError(
            "`message_id` is on another branch. Choose a message of the active path."
        )
    return campaign, message


async def edit_item(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    key: ItemKey,
    patch: dict[str, Any],
    *,
    cause: Message | None = None,
) -> None:
    """Append a merge patch as one change by the user. Players' characters move with their scene."""
    struct = STRUCTS[key.kind]
    reject_unknown(patch, struct)
    blob = await session.scalar(
        select(CampaignItem.sealed_state).where(CampaignItem.id == key.item_id)
    )
    if blob is None:
        raise CampaignItemNotFoundError
    before = read_state(sealer, key.item_id, blob)
    item = merge_patch(build_item(key.kind, before), patch)
    await check_references(session, campaign, item)
    if patch.keys() & set(PEOPLE):
        await check_people(session, campaign, item)
    change = compare_states(before, {EXISTS: True, **msgspec.to_builtins(item)})
    if change.list_fields():
        more: list[Change] = []
        if "audience" in change.set and isinstance(item, Scene):
            told_to = {key.item_id: encode_audience(item.audience)}
            more = await narrow_chapters(session, sealer, campaign.id, told_to)
        if isinstance(item, Scene) and change.list_fields() & {"location_id", "status"}:
            more += await follow_scene(session, campaign.id, item)
        if isinstance(item, Term) and item.status == "rejected":
            # Permanent, even if the message that coined it leaves the active path.
            change = build_creation(item)
        await ledger_store.append_changes(
            session,
            sealer,
            campaign,
            [Change(key.kind, key.item_id, change), *more],
            actor="user",
            message=cause,
        )


def find_references(item: Item) -> dict[str, list[UUID]]:
    """Return the ids of other items that an item refers to, by field, without its audience."""
    named = {name: getattr(item, name, None) for name in REFERENCES}
    found: dict[str, list[UUID]] = {name: [each] for name, each in named.items() if each}
    for name in REFERENCE_LISTS:
        value = getattr(item, name, None)
        if isinstance(value, list) and value:
            found[name] = value
    return found


def keep_references(state: State, known: Collection[str]) -> State:
    """Return a state that names only known items and characters."""
    lost = {name for name in (*REFERENCES, "character_id") if state.get(name)}
    lost = {name for name in lost if state[name] not in known}
    left = {name: value for name, value in state.items() if name not in lost}
    for name in (*REFERENCE_LISTS, "audience"):
        if isinstance(left.get(name), list):
            left[name] = [each for each in left[name] if each in known]
    return left


def list_references(operations: Operations) -> list[UUID]:
    found: list[UUID] = []
    for fields in (operations.set, operations.add):
        found += [UUID(str(fields[name])) for name in REFERENCES if fields.get(name)]
        for name in REFERENCE_LISTS:
            if isinstance(fields.get(name), list):
                found += msgspec.convert(fields[name], list[UUID])
    return found


async def check_references(session: AsyncSession, campaign: Campaign, item: Item) -> None:
    """Raise `ValidationError` if an item refers to one that is not in its campaign."""
    await _check_ids(session, campaign, find_references(item), with_characters=False)


async def check_people(session: AsyncSession, campaign: Campaign, item: Item) -> None:
    """Raise `ValidationError` if an item names people that do not exist.

    Its audience may name items of the campaign and characters of the user. `character_id` is one
    of these characters.
    """
    named: list[UUID] | str = getattr(item, "audience", PUBLIC)
    if isinstance(named, list):
        await _check_ids(session, campaign, {"audience": named}, with_characters=True)
    card = item.character_id if isinstance(item, Entity) else None
    if card is not None and not await _find_own_characters(session, campaign, [card]):
        raise ValidationError(f"`character_id` refers to {card}, which is not your character.")


async def _check_ids(
    session: AsyncSession,
    campaign: Campaign,
    wanted: Mapping[str, Sequence[UUID]],
    *,
    with_characters: bool,
) -> None:
    ids = {each for group in wanted.values() for each in group}
    if not ids:
        return
    query = select(CampaignItem.id).where(
        CampaignItem.campaign_id == campaign.id, CampaignItem.id.in_(ids)
    )
    missing = ids - set(await session.scalars(query))
    if with_characters and missing:
        missing -= await _find_own_characters(session, campaign, missing)
    for name, group in wanted.items():
        if lost := [each for each in group if each in missing]:
            raise ValidationError(f"`{name}` refers to {lost[0]}, which is not in the campaign.")


async def _find_own_characters(
    session: AsyncSession, campaign: Campaign, ids: Collection[UUID]
) -> set[UUID]:
    query = select(Character.id).where(Character.id.in_(ids), Character.user_id == campaign.user_id)
    return set(await session.scalars(query))
