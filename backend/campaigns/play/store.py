"""Builds a table from a campaign, and writes its changes to the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.errors import CampaignFullError
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.change_log import build_change_views
from backend.campaigns.ledger.changes import Change, apply_operations, exists
from backend.campaigns.ledger.item_service import check_item_room
from backend.campaigns.ledger.records import list_references, load_states, open_campaign
from backend.campaigns.models import Campaign
from backend.campaigns.play.table import Table, find_locked_fields
from backend.campaigns.rules.protocol import find_rules
from backend.campaigns.state.situation_reader import SituationReader
from backend.campaigns.state.situations import CampaignLayers
from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.campaigns.state.witnesses import find_message_audience
from backend.chats.members import load_group
from backend.chats.models import Chat, Message
from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.event_writer import NewEvent, first_place, insert_events
from backend.chronicles.events import MAX_SUMMARY, EventFields
from backend.chronicles.repository import SourceMessage
from backend.core.audience import GM, PUBLIC, Viewpoint, decode_audience, encode_audience
from backend.database.base import now
from backend.errors import ValidationError
from backend.memory.indexing.outbox import note_change
from backend.vault.sealing import Sealer


def build_table(
    layers: CampaignLayers, viewpoint: Viewpoint = GM, *, is_private: bool = False
) -> Table | None:
    """Return the table of a turn, made of the items of its prompt that the viewpoint may know.

    None if the campaign is not played: its setting `tools` is off, or its rules have no moods.
    """
    fields = layers.fields
    if not fields.settings.tools or not find_rules(fields.rules).moods:
        return None
    table = Table.new(
        layers.campaign_id,
        rules=fields.rules,
        dice=fields.settings.dice,
        items=layers.now.in_play,
        states=layers.names.get_states(layers.now.in_play),
        names=layers.names,
        is_private=is_private,
    )
    table.viewpoint, table.state.lead_id = viewpoint, layers.now.lead_id
    table.show(layers.now.location.id if layers.now.location else None, layers.block.injected.form)
    return table


async def load_table(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, names: CampaignSnapshot
) -> Table:
    """Return a table outside of a turn, with the items that are in play now."""
    reader = SituationReader(session, sealer, campaign)
    situation = await reader.load_situation(names, line="", recent=())
    fields = open_campaign(sealer, campaign)
    return Table.new(
        campaign.id,
        rules=fields.rules,
        dice=fields.settings.dice,
        items=situation.in_play,
        names=names,
    )


async def commit_table(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    table: Table,
    message: Message | None = None,
    turn_id: UUID | None = None,
) -> list[dict[str, Any]]:
    """Write a table's changes, and return them in the API's format."""
    change_ids = await record_table(session, sealer, campaign, table, message, turn_id)
    return await view_changes(session, sealer, change_ids)


async def record_table(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    table: Table,
    message: Message | None = None,
    turn_id: UUID | None = None,
) -> list[UUID]:
    """Write a table's changes that are not stored, and return their ids.

    With a message they are active while the message is, and new items are for those who heard it.
    Without one they are the user's. The caller has locked the campaign. Skip changes that a lock, a
    deletion or a bound has made impossible.
    """
    audience: str = PUBLIC
    if message is not None:
        chat = await session.get_one(Chat, message.chat_id)
        audience = await find_message_audience(session, sealer, chat, message)
    wanted = [_restrict_audience(change, audience) for change in table.ledger]
    changes = await _filter_possible(session, sealer, campaign, wanted)
    if not changes:
        return []
    change_ids = await ledger_store.append_changes(
        session,
        sealer,
        campaign,
        changes,
        actor="tool" if message else "user",
        message=message,
        turn_id=turn_id,
    )
    await _record_events(session, sealer, campaign, table, message)
    await session.flush()
    return change_ids


async def view_changes(
    session: AsyncSession, sealer: Sealer, change_ids: Sequence[UUID]
) -> list[dict[str, Any]]:
    if not change_ids:
        return []
    views = await build_change_views(session, sealer, change_ids)
    return [msgspec.to_builtins(view) for view in views]


async def _filter_possible(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, changes: Sequence[Change]
) -> list[Change]:
    made = {change.item_id for change in changes if exists(change.operations.set)}
    try:
        if made:
            await check_item_room(session, campaign.id, more=len(made))
    except CampaignFullError:
        changes, made = [change for change in changes if change.item_id not in made], set[UUID]()
    named = {each for change in changes for each in list_references(change.operations)}
    needed = ({change.item_id for change in changes} | named) - made
    states = await load_states(session, sealer, campaign, needed)
    rules = find_rules(campaign.rules)
    possible: list[Change] = []
    for change in changes:
        before = states.get(change.item_id, {})
        if change.item_id not in made and not exists(before):
            continue
        if find_locked_fields(before, change.operations):
            continue
        if any(not exists(states.get(each, {})) for each in list_references(change.operations)):
            continue
        try:
            after = apply_operations(change.kind, before, change.operations)
            rules.validate(change.kind, before, after)
        except ValidationError:
            continue
        states[change.item_id] = after
        possible.append(change)
    return possible


def _restrict_audience(change: Change, column: str) -> Change:
    operations = change.operations
    if column == PUBLIC or operations.set.get("audience") != PUBLIC:
        return change
    audience = msgspec.to_builtins(decode_audience(column))
    made = msgspec.structs.replace(operations, set={**operations.set, "audience": audience})
    return Change(change.kind, change.item_id, made)


async def _record_events(
    session: AsyncSession, sealer: Sealer, campaign: Campaign, table: Table, message: Message | None
) -> None:
    """Write the turn's events into the chronicle of the chat, or else of the campaign."""
    if not table.happened:
        return
    chat = await session.get_one(Chat, message.chat_id) if message else None
    chronicle_id = (chat and chat.chronicle_id) or campaign.chronicle_id
    if chronicle_id is None:
        return
    sources: list[SourceMessage] = []
    heard: str = PUBLIC
    if message is not None:
        group = await load_group(session, message.chat_id)
        heard = group.find_witnesses(message.position, message.audience)
        place, chat_id = message.position, message.chat_id
        sources.append(SourceMessage(id=message.id, chat_id=chat_id, position=place))
    world = table.world
    events = [
        NewEvent(
            fields=EventFields(
                summary=each.text[:MAX_SUMMARY],
                day=world.get("day"),
                time=str(world.get("time_of_day", ""))[:300],
            ),
            source="campaign",
            happened_at=now(),
            place=first_place(sources),
            sources=sources,
            audience=heard if each.audience == PUBLIC else encode_audience(each.audience),
        )
        for each in table.happened
    ]
    try:
        await insert_events(session, sealer, chronicle_id, events)
    except ChronicleFullError:
        return
    await note_change(
        session,
        sealer.user_id,
        kind="event",
        container_id=chronicle_id,
        source_ids=[event.id for event in events],
    )
