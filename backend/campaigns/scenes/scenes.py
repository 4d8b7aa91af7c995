"""Open scenes: their beginning and end, their beats, and their messages in a chat.

A beat is a finished turn of the open scene. It is a change caused by the reply, so it is active
while the reply is on the active path; a regenerated reply has a beat of its own. The beginning and
end of scenes are changes of replies, too. The functions do not commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import BindParameter, Select, bindparam, case, func, select, type_coerce, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import NullType

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, build_creation, build_item
from backend.campaigns.ledger.item_service import has_item_room
from backend.campaigns.ledger.items import PRESENT, Scene
from backend.campaigns.ledger.paths import IS_COMPACTED
from backend.campaigns.ledger.records import find_campaign, load_states, open_campaign
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.index_source import build_memory_items, read_items
from backend.campaigns.state.party import Party, read_party
from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.campaigns.state.witnesses import find_message_audience
from backend.chats.members import load_group
from backend.chats.models import Chat, Message
from backend.core.audience import (
    NAMELESS_MARKS,
    PUBLIC,
    AudienceMarks,
    Viewpoint,
    decode_audience,
    encode_audience,
    may_all_know,
)
from backend.database.base import get_table, new_id, skip_index
from backend.database.types import Id
from backend.memory.indexing.sources import MemoryItem
from backend.vault.sealing import Sealer

_STATE = select(CampaignItem.sealed_state).where(CampaignItem.id == bindparam("scene"))


@dataclass(frozen=True, slots=True)
class SceneSpan:
    """The positions of a scene's messages on the active path; `after` ends its summary."""

    after: int
    last: int


async def count_beat(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    reply: Message,
    *,
    turn_id: UUID,
    lead_id: UUID | None = None,
) -> list[UUID]:
    """Count a reply as a beat of the open scene. Return the scene if it is due for compression.

    Without an open scene, one begins at the place of the story. A reply that is not public begins
    none, because the others would learn of it. If other members are there than at the scene's last
    reply, the scene ends and another one continues it, so that each has the same witnesses.
    """
    if chat.campaign_id is None:
        return []
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return []
    party = await read_party(session, campaign.id, lead_id)
    scene_id = party.scene_id
    begun = await _begin_scene(session, sealer, campaign.id, chat, reply, party)
    changes, sources = list[Change](), list[Message]()
    if begun is not None:
        scene_id, changes = begun.scene_id, list(begun.changes)
        sources = [begun.cause] * len(changes)
    if scene_id is None:
        return []
    if begun is None or begun.cause is not reply:
        changes.append(Change("scene", scene_id, Operations(add={"beats": 1})))
        sources.append(reply)
    await ledger_store.append_changes(
        session, sealer, campaign, changes, actor="tool", sources=sources, turn_id=turn_id
    )
    blob = await session.scalar(_STATE, {"scene": scene_id})
    beats = read_state(sealer, scene_id, blob).get("beats", 0) if blob else 0
    settings = open_campaign(sealer, campaign).settings
    return [scene_id] if settings.summaries and beats % settings.scene_beats == 0 else []


@dataclass(frozen=True, slots=True)
class _NewScene:
    """A scene that begins, and the message because of which it does."""

    scene_id: UUID
    changes: Sequence[Change]
    cause: Message


async def _begin_scene(
    session: AsyncSession,
    sealer: Sealer,
    campaign_id: UUID,
    chat: Chat,
    reply: Message,
    party: Party,
) -> _NewScene | None:
    """Return the scene that begins with a reply, or None if the open one goes on.

    A scene that continues another one has its texts if everyone who knows it may know them. It
    begins with the message with which someone joined or left.
    """
    if reply.audience != PUBLIC or (party.scene_id is None and not party.place):
        return None
    before, cause, changes = Scene(location_id=party.place, beats=1), reply, list[Change]()
    if party.scene_id is not None:
        changed = await _find_new_witnesses(session, chat, reply, party.scene_id)
        if changed is None:
            return None
        blob = await session.scalar(_STATE, {"scene": party.scene_id})
        item = build_item("scene", read_state(sealer, party.scene_id, blob)) if blob else None
        if not isinstance(item, Scene) or "status" in item.locked:
            return None
        before, cause = msgspec.structs.replace(item, beats=0), changed
        changes.append(Change("scene", party.scene_id, Operations(set={"status": "closed"})))
    if not await has_item_room(session, campaign_id):
        return None
    column = await find_message_audience(session, sealer, chat, reply)
    audience = decode_audience(column)
    begun = Scene(location_id=before.location_id, beats=before.beats, audience=audience)
    if may_all_know(column, encode_audience(before.audience)):
        begun = msgspec.structs.replace(
            before, summary="", key_moments=[], audience=audience, locked=[]
        )
    scene_id = new_id()
    changes.append(Change("scene", scene_id, build_creation(begun)))
    return _NewScene(scene_id, changes, cause)


async def _find_new_witnesses(
    session: AsyncSession, chat: Chat, reply: Message, scene_id: UUID
) -> Message | None:
    """Return the last change of presence if others heard the scene before it, or else None."""
    group = await load_group(session, chat.id)
    changed = [each.position for each in group.changes if each.position < reply.position]
    if not changed:
        return None
    query = _select_sources(scene_id, func.max(ChangeSource.position))
    last: int | None = await session.scalar(query.where(ChangeSource.chat_id == chat.id))
    if last is not None and last >= changed[-1]:
        return None
    there = group.find_witnesses(reply.position, PUBLIC)
    if there == (PUBLIC if last is None else group.find_witnesses(last, PUBLIC)):
        return None
    return await session.scalar(
        select(Message).where(
            Message.chat_id == chat.id, Message.is_active, Message.position == changed[-1]
        )
    )


async def end_left_scenes(
    session: AsyncSession, sealer: Sealer, chat: Chat, reply: Message, *, turn_id: UUID
) -> None:
    """Close scenes that all players' characters have left, unless the reply is not public."""
    if chat.campaign_id is None or reply.audience != PUBLIC:
        return
    campaign = await find_campaign(session, sealer, chat.campaign_id, lock=True)
    if campaign is None:
        return
    left = (await read_party(session, campaign.id)).left
    if not left:
        return
    states = await load_states(session, sealer, campaign, left)
    ended = [
        Change("scene", scene_id, Operations(set={"status": "closed"}))
        for scene_id, state in states.items()
        if "status" not in state.get("locked", ())
    ]
    if ended:
        await ledger_store.append_changes(
            session, sealer, campaign, ended, actor="tool", message=reply, turn_id=turn_id
        )


async def find_ended_scenes(session: AsyncSession, chat: Chat, *, turn_id: UUID) -> list[UUID]:
    """Return the scenes that a turn changed and that are closed now."""
    if chat.campaign_id is None:
        return []
    query = (
        select(CampaignItem.id)
        .join(CampaignChange, CampaignChange.item_id == CampaignItem.id)
        .where(
            CampaignChange.campaign_id == chat.campaign_id,
            CampaignChange.turn_id == turn_id,
            CampaignItem.kind == "scene",
            CampaignItem.exists,
            ~CampaignItem.is_live,
        )
        .distinct()
    )
    return list(await session.scalars(query))


def _select_sources(scene_id: UUID, *columns: Any) -> Any:
    """Select the messages that cause the active changes of a scene."""
    return (
        select(*columns)
        .select_from(ChangeSource)
        .join(CampaignChange, CampaignChange.id == ChangeSource.change_id)
        .join(Message, Message.id == ChangeSource.message_id)
        .where(
            CampaignChange.item_id == scene_id,
            CampaignChange.is_on_path,
            ~CampaignChange.is_undone,
            Message.is_active,
        )
    )


async def find_last_chat(session: AsyncSession, scene_id: UUID) -> UUID | None:
    """Return the chat with the scene's last message; None if the scene has no messages."""
    query = _select_sources(scene_id, ChangeSource.chat_id).order_by(
        CampaignChange.seq.desc(), ChangeSource.message_id.desc()
    )
    chat_id: UUID | None = await session.scalar(query.limit(1))
    return chat_id


async def find_span(session: AsyncSession, scene_id: UUID, chat_id: UUID) -> SceneSpan | None:
    """Return the span of a scene in a chat, from the message before its first reply.

    If it begins where someone joined or left, it begins after that message.
    """
    here, position = ChangeSource.chat_id == chat_id, ChangeSource.position
    line = case((Message.presence.is_(None), position))
    span = _select_sources(
        scene_id,
        func.min(line).label("first"),
        func.max(line).label("last"),
        func.min(position).label("begin"),
    ).where(here)
    row: Any = (await session.execute(span)).one()
    first: int | None = row.first
    if first is None:
        return None
    compressed = _select_sources(scene_id, func.max(position)).where(
        here, CampaignChange.actor == "compactor", ~IS_COMPACTED
    )
    covered: int | None = await session.scalar(compressed)
    begin = max(first - 2, row.begin) if row.begin < first else first - 2
    return SceneSpan(after=begin if covered is None else covered, last=row.last)


MAX_CHANGED = 100
"""Maximum number of changes that are read, the latest first."""

MAX_READ = 20
"""Maximum number of items that are read; a prompt uses about half."""

MAX_STEPS = 8
"""Maximum number of times that a fact was superseded."""

_LINES: BindParameter[Any] = bindparam("lines", expanding=True, type_=NullType())
_OWNER = bindparam("owner", type_=Id())


def _select_changed() -> Select[Any, Any, Any, bool]:
    """Select changes of messages and replies: message, cause, item, and if the item exists.

    A change of a reply that is itself among the messages is returned twice. Ids are raw, because
    converting them to UUIDs took as long as the rest.
    """
    sources, messages = get_table(ChangeSource), get_table(Message)
    changes, items = get_table(CampaignChange), get_table(CampaignItem)
    message, change, item = messages.c, changes.c, items.c
    message_id, parent_id, item_id = (
        type_coerce(each, NullType()) for each in (message.id, message.parent_id, change.item_id)
    )
    told = union_all(
        select(message_id.label("line"), message.id.label("told_by")).where(
            message_id.in_(_LINES), skip_index(message.user_id) == _OWNER
        ),
        select(parent_id, message.id).where(
            parent_id.in_(_LINES),
            skip_index(message.user_id) == _OWNER,
            message.is_active,
            message.role == "assistant",
        ),
    ).subquery()
    told_by = type_coerce(told.c.told_by, NullType())
    return (
        select(told.c.line, told_by.label("told_by"), item_id.label("item_id"), item.is_live)
        .join(sources, sources.c.message_id == told.c.told_by)
        .join(changes, change.id == sources.c.change_id)
        .join(items, item.id == change.item_id)
        .where(
            change.user_id == _OWNER,
            change.is_on_path,
            ~change.is_undone,
            item.kind.in_(PRESENT),
            # Without a later change, the message itself contains the present state.
            item.seq > change.seq,
        )
        .order_by(change.seq.desc())
        .limit(MAX_CHANGED)
    )


_CHANGED = _select_changed()
_SUPERSEDED = select(CampaignItem.id, CampaignItem.sealed_state).where(
    CampaignItem.id.in_(bindparam("facts", expanding=True)),
    CampaignItem.user_id == bindparam("owner"),
    CampaignItem.kind == "fact",
    CampaignItem.exists,
    ~CampaignItem.is_live,
)


async def find_consequences(
    session: AsyncSession,
    sealer: Sealer,
    message_ids: Sequence[UUID],
    *,
    viewpoint: Viewpoint,
    besides: Collection[UUID] = (),
    kept: CampaignSnapshot | None = None,
    marks: AudienceMarks = NAMELESS_MARKS,
) -> dict[UUID, list[MemoryItem]]:
    """Return the items that each message, or its reply, changed, in their present state.

    A fact is replaced by the newest fact that supersedes it. Messages are ordered by relevance.
    Entities come from the snapshot `kept`, so that a prompt uses one version of the campaign.
    """
    if not message_ids:
        return {}
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    lines = [each.bytes for each in message_ids] if is_sqlite else list(message_ids)
    place = {line: number for number, line in enumerate(lines)}
    found_rows = await session.execute(_CHANGED, {"lines": lines, "owner": sealer.user_id})
    rows = [
        (message_ids[place[line]], UUID(bytes=item_id) if is_sqlite else item_id, is_live)
        for line, told_by, item_id, is_live in sorted(found_rows, key=lambda row: place[row[0]])
        if line == told_by or told_by not in place
    ]
    changed = [item_id for _, item_id, _ in rows if item_id not in besides]
    wanted = set(list(dict.fromkeys(changed))[:MAX_READ])
    rows = [row for row in rows if row[1] in wanted]
    if not rows:
        return {}
    current = {item_id: item_id for _, item_id, _ in rows}
    gone = [item_id for _, item_id, is_live in rows if not is_live]
    current |= await _find_current(session, sealer, gone)
    read = await read_items(session, sealer, current.values(), viewpoint, kept)
    items = await build_memory_items(session, sealer, read, viewpoint, kept=kept, marks=marks)
    found: dict[UUID, list[MemoryItem]] = {}
    for line, item_id, _ in rows:
        item = items.get(current[item_id])
        told = found.setdefault(line, [])
        if item is not None and item not in told:
            told.append(item)
    return found


async def _find_current(
    session: AsyncSession, sealer: Sealer, item_ids: Sequence[UUID]
) -> Mapping[UUID, UUID]:
    """Return the present form of each item: itself, or the fact that finally supersedes it."""
    current = {item_id: item_id for item_id in item_ids}
    if not current:
        return current
    for _ in range(MAX_STEPS):
        asked = {"facts": list(set(current.values())), "owner": sealer.user_id}
        later: dict[UUID, UUID] = {}
        for row in await session.execute(_SUPERSEDED, asked):
            if by := read_state(sealer, row.id, row.sealed_state).get("superseded_by"):
                later[row.id] = UUID(by)
        if not later:
            break
        current = {item_id: later.get(now, now) for item_id, now in current.items()}
    return current
