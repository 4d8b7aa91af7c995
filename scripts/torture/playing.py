"""Campaigns under torture: tool calls of the model, and comparison of state and fold."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from sqlalchemy import select

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.database.base import split_chunks
from backend.database.engine import Database
from backend.vault.sealing import Sealer
from scripts.model_server import make_call

CLOCK = "The alarm"
OPTIONS = ("left", "right", "back")
RULES = "blades"
ASKS, RISKS = 0.15, 0.5
"""Below which chance the model asks, or goes into another mood."""
_COST = {"kind": "heat", "amount": 1}
_OUTCOMES: Sequence[Mapping[str, Any]] = (
    {"tier": "critical", "hint": "more than hoped for"},
    {"tier": "success", "hint": "it works"},
    {"tier": "partial", "hint": "it works, loudly", "costs": [_COST]},
    {"tier": "bad", "hint": "it goes wrong", "costs": [_COST, {"kind": "stress", "amount": 1}]},
)


def table_calls(body: Any, draw: random.Random) -> tuple[bool, list[Any]]:
    """Return the tool calls of a played turn, and whether text precedes them."""
    offered = {each["function"]["name"] for each in body.get("tools") or ()}
    if "finish_turn" not in offered:
        return True, []
    last = body["messages"][-1]
    answer = _answer(last["content"]) if last["role"] == "tool" else None
    if answer is not None and "error" in answer:
        return False, [make_call("f0", "finish_turn", {})]
    if "spend_die" in offered:
        return False, [_action(answer or {})]
    if answer is None and (made := _turn_of_mood(offered, draw)):
        # A question follows a paragraph; another mood begins a new one.
        return "ask_player" in made["function"]["name"], [made]
    deltas = {} if "engage" in offered else {"clocks": [{"clock": CLOCK}]}
    return True, [make_call("f0", "finish_turn", {"cost": "Time.", "deltas": deltas})]


def _action(answer: Mapping[str, Any]) -> Any:
    """Return the tool call of an action: first the die, then its result."""
    if "tier" in answer:
        return make_call("r0", "resolve", {"tier": answer["tier"]})
    return make_call("s0", "spend_die", {"situation": "It is close.", "outcomes": list(_OUTCOMES)})


def _turn_of_mood(offered: set[str], draw: random.Random) -> Any:
    """Now and then a question, something risky, or the end of an aftermath."""
    chance = draw.random()
    if "ask_player" in offered and chance < ASKS:
        return make_call("a0", "ask_player", {"prompt": "Which way?", "options": list(OPTIONS)})
    if "engage" in offered and chance < RISKS:
        risk = {"domain": "infiltration", "position": "risky", "effect": "standard"}
        return make_call("e0", "engage", {**risk, "stakes": "Being seen.", "clock": CLOCK})
    if "engage" not in offered and "accept" in offered and chance < RISKS:
        return make_call("c0", "accept", {})
    return None


def _answer(content: Any) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


async def check_campaigns(database: Database, sealer: Sealer) -> tuple[list[str], int]:
    """Return states that differ from the fold of their changes, and the number of items."""
    found: list[str] = []
    count = 0
    async with database.read() as session:
        campaigns = await session.scalars(
            select(Campaign).where(Campaign.user_id == sealer.user_id, ~Campaign.is_stale)
        )
        for campaign in campaigns.all():
            query = select(CampaignItem).where(CampaignItem.campaign_id == campaign.id)
            rows = {row.id: row for row in await session.scalars(query)}
            count += len(rows)
            for part in split_chunks(list(rows)):
                kinds: dict[UUID, Kind] = {item_id: rows[item_id].kind for item_id in part}
                folded = await ledger_store.fold_items(session, sealer, kinds)
                found += [
                    f"changed: {kinds[item_id]} {item_id} is not what its changes come to"
                    for item_id, (state, _) in folded.items()
                    if read_state(sealer, item_id, rows[item_id].sealed_state) != state
                ]
    return found, count
