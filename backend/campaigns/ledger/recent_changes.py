"""What was changed of a campaign's items since a time, by whom, and what the user took back."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

from msgspec import NODEFAULT
from msgspec.structs import fields
from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import EXISTS, Operations, State
from backend.campaigns.ledger.items import STRUCTS, Kind
from backend.campaigns.ledger.store import read_operations
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import split_chunks
from backend.vault.sealing import Sealer

AT_ONCE = 500


Who = Literal["locked", "user", "tool", "compactor", "undone"]
"""Who has the last word on a field: its lock, who changed it, or the user who took it back."""

_SINCE = (
    select(
        CampaignChange.id,
        CampaignChange.item_id,
        CampaignItem.kind,
        CampaignChange.actor,
        CampaignChange.is_undone,
        CampaignChange.created_at,
        CampaignChange.sealed_operations,
        select(func.max(ChangeSource.position))
        .where(
            ChangeSource.change_id == CampaignChange.id, ChangeSource.chat_id == bindparam("chat")
        )
        .scalar_subquery()
        .label("position"),
    )
    .join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    .where(
        CampaignChange.item_id.in_(bindparam("items", expanding=True)),
        CampaignChange.is_on_path,
        or_(CampaignChange.created_at >= bindparam("since"), CampaignChange.is_undone),
    )
    .order_by(CampaignChange.seq.desc())
)


class Told(NamedTuple):
    """A change that somebody made of an item. `position` is its last line in the chat asked about.

    `is_creation` says that it makes the item, with what its user filled in; `is_old` that it is
    from before the time asked about.
    """

    operations: Operations
    by: Who
    at: datetime
    position: int | None
    is_creation: bool
    is_old: bool


async def changes_since(
    session: AsyncSession,
    sealer: Sealer,
    item_ids: Collection[UUID],
    *,
    since: datetime,
    chat_id: UUID,
) -> dict[UUID, list[Told]]:
    """What was changed of each item since a time, and all that the user took back; newest first."""
    found: dict[UUID, list[Told]] = {}
    for part in split_chunks(list(item_ids), AT_ONCE):
        rows = (
            await session.execute(_SINCE, {"items": part, "since": since, "chat": chat_id})
        ).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_operations)):
            operations = read_operations(sealer, row.id, row.sealed_operations)
            by: Any = "user" if row.actor == "import" else row.actor
            is_creation = EXISTS in operations.set
            told = Told(
                operations=filled_in(row.kind, operations) if is_creation else operations,
                by="undone" if row.is_undone else by,
                at=row.created_at,
                position=row.position,
                is_creation=is_creation,
                is_old=row.created_at < since,
            )
            found.setdefault(row.item_id, []).append(told)
    return found


def filled_in(kind: Kind, creation: Operations) -> Operations:
    """Of a change that makes an item, the fields that are not as every new one has them."""
    usual = {
        each.name: each.default if each.default_factory is NODEFAULT else each.default_factory()
        for each in fields(STRUCTS[kind])
    }
    filled: dict[str, Any] = {}
    for key, value in creation.set.items():
        if key == EXISTS or value == usual.get(key, NODEFAULT):
            continue
        if isinstance(value, dict):
            filled |= {f"{key}.{name}": each for name, each in cast("State", value).items()}
        else:
            filled[key] = value
    return Operations(set=filled)
