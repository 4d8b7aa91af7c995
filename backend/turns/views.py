"""Turns as the API shows them."""

from __future__ import annotations

import msgspec

from backend.context.record import Totals
from backend.turns.events import awaited
from backend.turns.models import TURN_PROBLEM, Turn
from backend.turns.schemas import TurnUsage, TurnView
from backend.vault.sealing import Sealer


def view_turn(sealer: Sealer, turn: Turn) -> TurnView:
    """A turn as its row tells it."""
    return TurnView(
        id=turn.id,
        chat_id=turn.chat_id,
        kind=turn.kind,
        state=turn.state,
        model=turn.model,
        user_message_id=turn.user_message_id,
        reply_id=turn.reply_id,
        usage=msgspec.json.decode(turn.usage, type=TurnUsage) if turn.usage else None,
        totals=msgspec.json.decode(turn.totals, type=Totals),
        problem=(
            msgspec.json.decode(sealer.open_bytes(TURN_PROBLEM, turn.id, turn.sealed_problem))
            if turn.sealed_problem
            else None
        ),
        waiting=awaited(sealer, turn),
        waits_for=turn.waits_for,
        created_at=turn.created_at,
        finished_at=turn.finished_at,
    )
