"""The consequences of a campaign's messages in their present state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import BindParameter, Select, bindparam, select, type_coerce, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import NullType

from backend.campaigns.ledger.items import PRESENT
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.state.index_source import build_memory_items, read_items
from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.chats.models import Message
from backend.core.audience import NAMELESS_MARKS, AudienceMarks, Viewpoint
from backend.database.base import get_table, skip_index
from backend.database.types import Id
from backend.memory.indexing.sources import MemoryItem
from backend.vault.sealing import Sealer

MAX_CHANGED = 100
"""Maximum number of changes that are read, the latest first."""

MAX_READ = 20
"""Maximum number of items that are read; a prompt uses about half."""

MAX_STEPS = 8
"""Maximum number of times that a fact was superseded."""

_LINES: BindParameter[Any] = bindparam("lines", expanding=True, type_=NullType())
_OWNER = bindparam("owner", type_=Id())


def _select_changed() -> Select[Any, Any, Any, bool]:
    """Select the changes of messages and of their replies.

    The columns are the message, the message that caused the change, the item, and whether the item
    still exists. A change of a reply that is itself among the messages is returned twice. Ids are
    raw, because converting them to UUIDs took as long as the rest.
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

    An old message in a prompt was true at its time; these items show the present. A fact is
    replaced by the newest fact that supersedes it.

    Messages are ordered by relevance, and items of the first ones are read first. Items in
    `besides` are omitted. Entities come from the snapshot `kept` of their campaign, so that a
    prompt uses one version. `marks` adds audience marks.
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
