"""The ledger in the database. The functions do not commit; the caller has locked the campaign."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import NullType

from backend.campaigns.ledger.changes import (
    Change,
    Operations,
    State,
    apply_operations,
    build_item,
    exists,
    fold,
)
from backend.campaigns.ledger.items import (
    INDEXED,
    Clock,
    Entity,
    Fact,
    Item,
    Kind,
    Relation,
    Scene,
    Term,
    Thread,
)
from backend.campaigns.models import (
    OPERATIONS,
    STATE,
    Actor,
    Campaign,
    CampaignChange,
    CampaignItem,
    ChangeSource,
)
from backend.campaigns.rules.protocol import find_rules
from backend.chats.models import Message
from backend.core.audience import GM, PUBLIC, Audience, encode_audience
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table, new_id, now, split_chunks
from backend.memory.indexing.outbox import note_change
from backend.vault.sealing import Sealer


def read_state(sealer: Sealer, item_id: UUID, blob: bytes) -> State:
    state: State = msgspec.json.decode(sealer.open_bytes(STATE, item_id, blob))
    return state


def get_audience(state: State) -> str:
    """Return a state's audience as its column. Only the game master knows a hidden clock."""
    if state.get("visible") is False:
        return GM
    listeners: Audience = msgspec.convert(state.get("audience", PUBLIC), Audience)
    return encode_audience(listeners)


def build_item_row(
    sealer: Sealer, campaign: Campaign, item_id: UUID, kind: Kind, state: State, seq: int
) -> dict[str, Any]:
    """Return the sealed row of an item in a state; `seq` is its last active change."""
    there = exists(state)
    columns: dict[str, Any] = {
        "subkind": "",
        "place_id": None,
        "about_id": None,
        "audience": "gm",
        "is_live": False,
    }
    if there:
        columns |= build_columns(build_item(kind, state)) | {"audience": get_audience(state)}
    return {
        "id": item_id,
        "user_id": campaign.user_id,
        "campaign_id": campaign.id,
        "kind": kind,
        "version": campaign.version,
        "exists": there,
        "is_stale": False,
        "seq": seq,
        "sealed_state": sealer.seal_bytes(STATE, item_id, msgspec.json.encode(state)),
        "updated_at": now(),
        **columns,
    }


def build_columns(item: Item) -> dict[str, Any]:
    """Return the columns of an item for queries, without its audience."""
    columns: dict[str, Any] = {"is_live": True}
    match item:
        case Entity():
            columns |= {"subkind": item.kind, "place_id": item.location_id}
        case Relation():
            columns |= {"about_id": item.from_id, "place_id": item.to_id}
        case Thread():
            live = item.status == "open" and item.tension != "simmering"
            columns |= {"subkind": item.kind, "about_id": item.giver_id, "is_live": live}
        case Clock():
            columns |= {"subkind": item.kind, "is_live": item.visible}
        case Fact():
            columns |= {"about_id": item.about_id, "is_live": item.superseded_by is None}
        case Scene():
            columns |= {
                "subkind": item.status,
                "place_id": item.location_id,
                "is_live": item.status == "open",
            }
        case Term():
            columns |= {"subkind": item.status, "is_live": item.status in {"approved", "raw"}}
        case _:
            pass
    return columns


BATCH_ROWS = 500
FOLD_BATCH_ROWS = 100
"""Number of changes that are unsealed and folded before other tasks run."""
MAX_VERSION = 2**31 - 1
_FIXED = frozenset({"id", "user_id", "campaign_id", "kind"})
_OPERATIONS = msgspec.json.Decoder(Operations)


async def append_changes(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    changes: Sequence[Change],
    *,
    actor: Actor,
    message: Message | None = None,
    sources: Sequence[Message] = (),
    turn_id: UUID | None = None,
) -> list[UUID]:
    """Append changes as one version, and return their ids. Raises `ValidationError`.

    They are active while `message` is on its chat's active path, or each change while its own
    message of `sources` is. Without messages they are always active.
    """
    campaign.version += 1
    campaign.updated_at = now()
    if actor == "user":
        campaign.edits += 1
    rules = find_rules(campaign.rules)
    item_ids = list(dict.fromkeys(change.item_id for change in changes))
    states = await _load_states(session, sealer, item_ids)
    new_ids = set(item_ids) - states.keys()
    ledger: list[dict[str, Any]] = []
    async for change in iterate_in_slices(changes):
        state = states.get(change.item_id, {})
        after = states[change.item_id] = apply_operations(change.kind, state, change.operations)
        if exists(after):
            rules.validate(change.kind, state, after)
        campaign.last_seq += 1
        change_id = new_id()
        ledger.append(
            {
                "id": change_id,
                "user_id": campaign.user_id,
                "campaign_id": campaign.id,
                "item_id": change.item_id,
                "seq": campaign.last_seq,
                "version": campaign.version,
                "actor": actor,
                "turn_id": turn_id,
                "sealed_operations": sealer.seal_bytes(
                    OPERATIONS, change_id, msgspec.json.encode(change.operations)
                ),
            }
        )
    last: dict[UUID, tuple[Kind, int]] = {
        change.item_id: (change.kind, line["seq"])
        for change, line in zip(changes, ledger, strict=True)
    }
    rows = [
        build_item_row(sealer, campaign, item_id, kind, states[item_id], seq)
        async for item_id, (kind, seq) in iterate_in_slices(last.items())
    ]
    await _write(
        session,
        [row for row in rows if row["id"] not in new_ids],
        [row for row in rows if row["id"] in new_ids],
    )
    for part in split_chunks(ledger, BATCH_ROWS):
        await session.execute(_ADD_CHANGES, list(part))
    if message is not None:
        sources = [message] * len(ledger)
    if sources:
        rows = [
            {
                "change_id": line["id"],
                "message_id": source.id,
                "chat_id": source.chat_id,
                "position": source.position,
            }
            for line, source in zip(ledger, sources, strict=True)
        ]
        await session.execute(_ADD_SOURCES, rows)
    return [line["id"] for line in ledger]


async def refold_stale(session: AsyncSession, sealer: Sealer, campaign: Campaign) -> None:
    """Fold the items that were marked while no sealer was available."""
    query = select(CampaignItem.id, CampaignItem.kind).where(
        CampaignItem.campaign_id == campaign.id, CampaignItem.is_stale
    )
    kinds = {row.id: row.kind for row in await session.execute(query)}
    await refold(session, sealer, campaign, kinds)
    campaign.is_stale = False


async def refold(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    kinds: Mapping[UUID, Kind],
    known: Mapping[UUID, tuple[State, int]] = MappingProxyType({}),
) -> None:
    """Fold items again from their active changes. `known` are results of `fold_items`."""
    # All writers lock the rows in one order, to avoid deadlocks.
    for part in split_chunks(sorted(kinds), BATCH_ROWS):
        unknown: dict[UUID, Kind] = {each: kinds[each] for each in part if each not in known}
        folded = {each: known[each] for each in part if each in known}
        folded |= await fold_items(session, sealer, unknown)
        rows = [
            build_item_row(sealer, campaign, item_id, kinds[item_id], state, seq)
            async for item_id, (state, seq) in iterate_in_slices(folded.items())
        ]
        await _write(session, rows, [])


async def fold_items(
    session: AsyncSession, sealer: Sealer, kinds: Mapping[UUID, Kind], *, through: int | None = None
) -> dict[UUID, tuple[State, int]]:
    """Return the folded states of items, each with the number of its last active change.

    An item without active changes has an empty state and 0. Changes of versions after `through` are
    ignored.
    """
    found: dict[UUID, tuple[State, int]] = dict.fromkeys(kinds, ({}, 0))
    for part in split_chunks(list(kinds), BATCH_ROWS):
        items = {each.bytes: each for each in part}
        counted = {"items": part, "through": MAX_VERSION if through is None else through}
        rows = (await session.execute(_COUNTED, counted)).all()
        for some in split_chunks(rows, FOLD_BATCH_ROWS):
            sealed = ((_as_bytes(row.id), row.sealed_operations) for row in some)
            for row, text in zip(some, sealer.open_many(OPERATIONS, sealed), strict=True):
                item_id = items[_as_bytes(row.item_id)]
                before, _ = found[item_id]
                found[item_id] = fold(kinds[item_id], [_OPERATIONS.decode(text)], before), row.seq
            await asyncio.sleep(0)
    return found


async def has_changes(session: AsyncSession, message_id: UUID) -> bool:
    return await session.scalar(_IS_SOURCE, {"message": message_id}) is not None


def _as_bytes(row_id: bytes | UUID) -> bytes:
    """Return a raw id as bytes: SQLite's driver returns bytes, PostgreSQL's a UUID."""
    return row_id if isinstance(row_id, bytes) else row_id.bytes


def read_operations(sealer: Sealer, change_id: UUID, blob: bytes) -> Operations:
    return _OPERATIONS.decode(sealer.open_bytes(OPERATIONS, change_id, blob))


async def _load_states(
    session: AsyncSession, sealer: Sealer, item_ids: Sequence[UUID]
) -> dict[UUID, State]:
    found: dict[UUID, State] = {}
    for part in split_chunks(item_ids, BATCH_ROWS):
        rows = (await session.execute(_STATES, {"items": part})).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
            found[row.id] = read_state(sealer, row.id, row.sealed_state)
    return found


async def _write(
    session: AsyncSession, changed: Sequence[dict[str, Any]], made: Sequence[dict[str, Any]]
) -> None:
    """Insert and update item rows of one campaign, and queue them for the index."""
    for part in split_chunks(made, BATCH_ROWS):
        await session.execute(_ADD_ITEMS, list(part))
    for part in split_chunks(changed, BATCH_ROWS):
        await session.execute(_CHANGE_ITEM, [_build_update(row) for row in part])
    if found := [row for row in (*made, *changed) if _is_indexed(row)]:
        await note_change(
            session,
            found[0]["user_id"],
            kind="campaign",
            container_id=found[0]["campaign_id"],
            source_ids=[row["id"] for row in found],
        )


def _is_indexed(row: dict[str, Any]) -> bool:
    """True if the index contains the row. An open scene is indexed only once it is closed."""
    return row["kind"] in INDEXED and not (row["kind"] == "scene" and row["is_live"])


def _build_update(row: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of `_CHANGE_ITEM`, without columns that never change."""
    changing = {name: value for name, value in row.items() if name not in _FIXED}
    return {"item_id": row["id"], **changing}


# Built once, and from tables: the ORM takes longer than the rows for statements of this size.
_ITEMS, _CHANGES = get_table(CampaignItem), get_table(CampaignChange)
_ADD_ITEMS, _ADD_CHANGES = _ITEMS.insert(), _CHANGES.insert()
_ADD_SOURCES = get_table(ChangeSource).insert()
_CHANGE_ITEM = _ITEMS.update().where(_ITEMS.c.id == bindparam("item_id"))
_STATES = select(_ITEMS.c.id, _ITEMS.c.sealed_state).where(
    _ITEMS.c.id.in_(bindparam("items", expanding=True))
)
_IS_SOURCE = (
    select(ChangeSource.change_id).where(ChangeSource.message_id == bindparam("message")).limit(1)
)
_COUNTED = (
    # Thousands of rows: without types, SQLAlchemy returns the driver's values unconverted.
    select(
        type_coerce(_CHANGES.c.item_id, NullType()).label("item_id"),
        type_coerce(_CHANGES.c.id, NullType()).label("id"),
        _CHANGES.c.seq,
        _CHANGES.c.sealed_operations,
    )
    .where(
        _CHANGES.c.item_id.in_(bindparam("items", expanding=True)),
        _CHANGES.c.version <= bindparam("through"),
        _CHANGES.c.is_on_path,
        ~_CHANGES.c.is_undone,
    )
    .order_by(_CHANGES.c.seq)
)
