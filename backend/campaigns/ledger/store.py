"""The ledger in the database. Nothing here commits; the caller has locked the campaign's row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import NullType

from backend.campaigns.ledger.changes import Operations, State, applied, exists, fold, item_of
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
from backend.campaigns.rules import rules_of
from backend.chats.models import Message
from backend.core.audience import GM, PUBLIC, Audience, encode_audience
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table, new_id, now, split_chunks
from backend.memory.indexing.outbox import note_change
from backend.vault.sealing import Sealer


def read_state(sealer: Sealer, item_id: UUID, blob: bytes) -> State:
    """The state of the item with this id."""
    state: State = msgspec.json.decode(sealer.open_bytes(STATE, item_id, blob))
    return state


def audience_of(state: State) -> str:
    """Return who may know an item in this state, as its column has it.

    A clock that is not visible is for the game master alone.
    """
    if state.get("visible") is False:
        return GM
    listeners: Audience = msgspec.convert(state.get("audience", PUBLIC), Audience)
    return encode_audience(listeners)


def item_row(
    sealer: Sealer, campaign: Campaign, item_id: UUID, kind: Kind, state: State, seq: int
) -> dict[str, Any]:
    """The row of an item in a state, sealed; `seq` is its last change that counts."""
    there = exists(state)
    columns: dict[str, Any] = {
        "subkind": "",
        "place_id": None,
        "about_id": None,
        "audience": "gm",
        "is_live": False,
    }
    if there:
        columns |= _columns(item_of(kind, state)) | {"audience": audience_of(state)}
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


def _columns(item: Item) -> dict[str, Any]:
    """What queries ask about an item."""
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


AT_ONCE = 500
OPENED_AT_ONCE = 100
"""Changes that are opened and folded before others have their turn."""
MAX_VERSION = 2**31 - 1
_FIXED = frozenset({"id", "user_id", "campaign_id", "kind"})
_OPERATIONS = msgspec.json.Decoder(Operations)


@dataclass(frozen=True, slots=True)
class Change:
    """Operations on one item, to be written down."""

    kind: Kind
    item_id: UUID
    operations: Operations


async def append(
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
    """Write changes down, at the end of the ledger, as one version: their ids.

    They count while `message` is on its chat's active path, or each while its own of `sources` is;
    without one, always.

    Raises:
        ValidationError: What an item would become is not what its kind may be.
    """
    campaign.version += 1
    campaign.updated_at = now()
    if actor == "user":
        campaign.edits += 1
    rules = rules_of(campaign.rules)
    item_ids = list(dict.fromkeys(change.item_id for change in changes))
    states = await _states(session, sealer, item_ids)
    new_ids = set(item_ids) - states.keys()
    ledger: list[dict[str, Any]] = []
    async for change in iterate_in_slices(changes):
        state = states.get(change.item_id, {})
        after = states[change.item_id] = applied(change.kind, state, change.operations)
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
        item_row(sealer, campaign, item_id, kind, states[item_id], seq)
        async for item_id, (kind, seq) in iterate_in_slices(last.items())
    ]
    await _write(
        session,
        [row for row in rows if row["id"] not in new_ids],
        [row for row in rows if row["id"] in new_ids],
    )
    for part in split_chunks(ledger, AT_ONCE):
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
    """Fold what was marked while no key was at hand."""
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
    """Fold items, each of a kind, again from their changes that count.

    Of those that are `known`, what `fold_items` would give.
    """
    # All writers take the rows in one order, so that no two wait for each other.
    for part in split_chunks(sorted(kinds), AT_ONCE):
        unknown: dict[UUID, Kind] = {each: kinds[each] for each in part if each not in known}
        folded = {each: known[each] for each in part if each in known}
        folded |= await fold_items(session, sealer, unknown)
        rows = [
            item_row(sealer, campaign, item_id, kinds[item_id], state, seq)
            async for item_id, (state, seq) in iterate_in_slices(folded.items())
        ]
        await _write(session, rows, [])


async def fold_items(
    session: AsyncSession, sealer: Sealer, kinds: Mapping[UUID, Kind], *, through: int | None = None
) -> dict[UUID, tuple[State, int]]:
    """What the changes of items that count come to, each with the number of its last one.

    An item without one has an empty state and 0. `through` leaves out changes of later versions.
    """
    found: dict[UUID, tuple[State, int]] = dict.fromkeys(kinds, ({}, 0))
    for part in split_chunks(list(kinds), AT_ONCE):
        items = {each.bytes: each for each in part}
        counted = {"items": part, "through": MAX_VERSION if through is None else through}
        rows = (await session.execute(_COUNTED, counted)).all()
        for some in split_chunks(rows, OPENED_AT_ONCE):
            sealed = ((_raw(row.id), row.sealed_operations) for row in some)
            for row, text in zip(some, sealer.open_many(OPERATIONS, sealed), strict=True):
                item_id = items[_raw(row.item_id)]
                before, _ = found[item_id]
                found[item_id] = fold(kinds[item_id], [_OPERATIONS.decode(text)], before), row.seq
            await asyncio.sleep(0)
    return found


async def has_changes(session: AsyncSession, message_id: UUID) -> bool:
    """True if the ledger has changes of a message."""
    return await session.scalar(_IS_SOURCE, {"message": message_id}) is not None


def _raw(row_id: bytes | UUID) -> bytes:
    """An id that was read without its type: SQLite's driver gives bytes, PostgreSQL's a UUID."""
    return row_id if isinstance(row_id, bytes) else row_id.bytes


def read_operations(sealer: Sealer, change_id: UUID, blob: bytes) -> Operations:
    """What the change with this id does."""
    return _OPERATIONS.decode(sealer.open_bytes(OPERATIONS, change_id, blob))


async def _states(
    session: AsyncSession, sealer: Sealer, item_ids: Sequence[UUID]
) -> dict[UUID, State]:
    found: dict[UUID, State] = {}
    for part in split_chunks(item_ids, AT_ONCE):
        rows = (await session.execute(_STATES, {"items": part})).all()
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
            found[row.id] = read_state(sealer, row.id, row.sealed_state)
    return found


async def _write(
    session: AsyncSession, changed: Sequence[dict[str, Any]], made: Sequence[dict[str, Any]]
) -> None:
    """Store rows of one campaign's items, and tell the index."""
    for part in split_chunks(made, AT_ONCE):
        await session.execute(_ADD_ITEMS, list(part))
    for part in split_chunks(changed, AT_ONCE):
        await session.execute(_CHANGE_ITEM, [_changing(row) for row in part])
    if found := [row for row in (*made, *changed) if _is_indexed(row)]:
        await note_change(
            session,
            found[0]["user_id"],
            kind="campaign",
            container_id=found[0]["campaign_id"],
            source_ids=[row["id"] for row in found],
        )


def _is_indexed(row: dict[str, Any]) -> bool:
    """Whether the index is told of a row. Not of each beat of a scene that goes on."""
    return row["kind"] in INDEXED and not (row["kind"] == "scene" and row["is_live"])


def _changing(row: dict[str, Any]) -> dict[str, Any]:
    """The values of `_CHANGE_ITEM`: what never changes of an item stays out of its indexes' way."""
    changing = {name: value for name, value in row.items() if name not in _FIXED}
    return {"item_id": row["id"], **changing}


# Built once, and of tables: what the ORM adds to a statement of rows takes longer than the rows.
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
    # Thousands of rows: without a type SQLAlchemy hands on what the driver gives, untouched.
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
