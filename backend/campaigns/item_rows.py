"""The row of an item: its state, sealed, beside the columns that queries ask about."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from backend.audience import GM, PUBLIC, Audience, stored
from backend.campaigns.items import Clock, Entity, Fact, Item, Kind, Relation, Scene, Term, Thread
from backend.campaigns.ledger import State, exists, item_of
from backend.campaigns.models import STATE, Campaign
from backend.database.base import now
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
    return stored(listeners)


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
