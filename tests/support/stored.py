"""The stored rows of a database, opened, and the state of campaigns and lorebooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys.sealed_tables import SealedTable, find_model_tables
from backend.campaigns.ledger.changes import Operations, fold
from backend.campaigns.ledger.store import read_operations, read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.chats.models import Message
from backend.database.base import Base
from backend.database.engine import Database
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.links import load_book, open_sealed
from backend.vault.sealing import Sealer
from tests.support.server import Running

Row = Mapping[str, Any]
Dump = Mapping[str, Mapping[tuple[Any, ...], Row]]
"""Rows by table and primary key."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """In what a table differs. `changed` has of each row what changed: (before, after)."""

    added: list[Row] = field(default_factory=list[Row])
    removed: list[Row] = field(default_factory=list[Row])
    changed: list[tuple[Row, Row]] = field(default_factory=list[tuple[Row, Row]])


async def dump(database: Database, sealers: Iterable[Sealer]) -> Dump:
    """Read every row of every table. Rows of these sealers' owners are opened."""
    sealed = {each.table.name: each for each in find_model_tables()}
    keys = {each.user_id: each for each in sealers}
    found: dict[str, dict[tuple[Any, ...], Row]] = {}
    async with database.read() as session:
        for name, table in Base.metadata.tables.items():
            rows = (await session.execute(select(table))).mappings()
            found[name] = {
                tuple(row[key.name] for key in table.primary_key): _opened(
                    dict(row), sealed.get(name), keys
                )
                for row in rows
            }
    return found


def _opened(row: dict[str, Any], sealed: SealedTable | None, keys: Mapping[Any, Sealer]) -> Row:
    if sealed is None or (sealer := keys.get(row[sealed.owner.name])) is None:
        return row
    for column in sealed.columns:
        if row[column.name] is not None:
            row[column.name] = sealer.open_bytes(sealed.place(column), row["id"], row[column.name])
    return row


def of_owner(found: Dump, user_id: Any) -> Dump:
    """The rows that one account owns."""
    return {
        name: {
            key: row
            for key, row in rows.items()
            if user_id in (row.get("user_id"), row["id"] if name == "users" else None)
        }
        for name, rows in found.items()
    }


def without(found: Dump, columns: Collection[str], *, tables: Collection[str] = ()) -> Dump:
    """A dump without these columns, and without these tables."""
    return {
        name: {
            key: {column: value for column, value in row.items() if column not in columns}
            for key, row in rows.items()
        }
        for name, rows in found.items()
        if name not in tables
    }


def differences(before: Dump, after: Dump) -> dict[str, Change]:
    """The changes by table, without equal tables."""
    found: dict[str, Change] = {}
    for name in sorted({*before, *after}):
        old, new = before.get(name, {}), after.get(name, {})
        change = Change(
            added=[row for key, row in new.items() if key not in old],
            removed=[row for key, row in old.items() if key not in new],
            changed=[
                (_only(row, new[key]), _only(new[key], row))
                for key, row in old.items()
                if key in new and new[key] != row
            ],
        )
        if change != Change():
            found[name] = change
    return found


def _only(row: Row, other: Row) -> Row:
    """The columns in which a row differs from another, and its id."""
    return {name: value for name, value in row.items() if name == "id" or value != other[name]}


async def check_fold(
    server: Running, identity: Any, campaign_id: str
) -> list[tuple[CampaignChange, Operations]]:
    """Raise unless every item's state is a fresh fold of the changes that count; return those."""
    sealer = identity.sealer
    on_path = exists().where(
        ChangeSource.change_id == CampaignChange.id,
        ChangeSource.message_id == Message.id,
        Message.is_active,
    )
    sourced = exists().where(ChangeSource.change_id == CampaignChange.id)
    async with server.parts.database.read() as session:
        rows = (
            await session.execute(
                select(CampaignChange, on_path.label("told"), sourced.label("sourced"))
                .where(CampaignChange.campaign_id == UUID(campaign_id))
                .order_by(CampaignChange.seq)
            )
        ).all()
        items = list(
            await session.scalars(
                select(CampaignItem).where(CampaignItem.campaign_id == UUID(campaign_id))
            )
        )
    counting: list[tuple[CampaignChange, Operations]] = []
    by_item: defaultdict[UUID, list[Operations]] = defaultdict(list)
    for change, told, is_sourced in rows:
        assert change.is_on_path == (told or not is_sourced)
        if change.is_on_path and not change.is_undone:
            operations = read_operations(sealer, change.id, change.sealed_operations)
            by_item[change.item_id].append(operations)
            counting.append((change, operations))
    for item in items:
        state = read_state(sealer, item.id, item.sealed_state)
        assert state == fold(item.kind, by_item[item.id])
    return counting


async def opened_book(
    session: AsyncSession, sealer: Sealer, book_id: UUID
) -> tuple[BookFields, list[tuple[UUID, int, LoreEntry]]]:
    """Load a stored book: its fields, and (id, place, entry) in order."""
    return open_sealed(sealer, await load_book(session, book_id, owner_id=sealer.user_id))
