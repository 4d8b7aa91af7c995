"""What a scene changed in the world, compared with the ledger, which may have it already.

A model says at the end of a scene how things are now. Much of that was written down while the scene
was played: what a tool, or the user, has changed since the scene began is left alone, and so is
what the user has taken back. Nothing here commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import GM, PUBLIC, Audience, is_known_to_all, stored
from backend.campaigns.ledger import State, difference
from backend.campaigns.ledger_store import Change
from backend.campaigns.models import Campaign, CampaignChange
from backend.campaigns.name_cache import Names
from backend.campaigns.play.deltas import Deltas, FieldDelta, apply_deltas, changeable_fields
from backend.campaigns.play.references import called
from backend.campaigns.play.table import Table
from backend.campaigns.play.tools import ToolRefusedError
from backend.campaigns.recent_changes import changes_since
from backend.campaigns.records import open_campaign
from backend.campaigns.situation_reader import SituationReader
from backend.database.base import now
from backend.enrichment.cleaning import clipped, one_line
from backend.enrichment.runs import Refused
from backend.errors import ValidationError
from backend.vault.sealing import Sealer

MAX_SHOWN = 40
MAX_LINE = 400

Fields = Mapping[UUID, set[str]]
"""Fields of items, by their keys in the ledger."""

_BEGUN = select(func.min(CampaignChange.created_at)).where(
    CampaignChange.item_id == bindparam("scene")
)


async def scene_table(
    session: AsyncSession,
    sealer: Sealer,
    campaign: Campaign,
    names: Names,
    text: str,
    *,
    audience: str,
) -> Table:
    """The items that a scene may have changed: who and what is there, and whom its text names.

    None of what only others know than those who may know the text.
    """
    viewpoint = GM if audience == GM else PUBLIC
    reader = SituationReader(session, sealer, campaign, viewpoint)
    situation = await reader.situation(names, line=text, recent=())
    fields = open_campaign(sealer, campaign)
    items = situation.in_play
    return Table.new(campaign.id, rules=fields.rules, dice=fields.settings.dice, items=items)


def shown_items(table: Table) -> list[str]:
    """Items with what of them may be changed, for a model to read."""
    lines: list[str] = []
    for item_id, held in table.state.items.items():
        if held.kind not in {"entity", "thread"}:
            continue
        values = [
            f"{key.rpartition('.')[2]}: {value}"
            for key in changeable_fields(table, item_id)
            if (value := _value(held.state, key))
        ]
        kind = held.state["kind"] if held.kind == "entity" else held.kind
        values += filter(None, [table.references.words(held.state)])
        line = f"{called(held.state)} ({kind}) {'; '.join(values)}"
        lines.append(clipped(one_line(line), MAX_LINE))
    return lines[:MAX_SHOWN]


async def told_since(
    session: AsyncSession,
    sealer: Sealer,
    table: Table,
    *,
    scene_id: UUID,
    chat_id: UUID,
    last: int,
) -> Fields:
    """What others than a scene's compression changed since it began, and what was taken back.

    `last` is the position of the last message that is read for the scene now.
    """
    begun = await session.scalar(_BEGUN, {"scene": scene_id})
    items = list(table.state.items)
    changes = await changes_since(session, sealer, items, since=begun or now(), chat_id=chat_id)
    return {
        item_id: {
            key
            for told in tolds
            if not (told.is_old or told.is_creation)
            if told.by != "compactor" or (told.position is not None and told.position > last)
            for key in told.operations.touched()
        }
        for item_id, tolds in changes.items()
    }


def compared(
    table: Table, deltas: Sequence[FieldDelta], told: Fields, *, audience: str
) -> tuple[list[Change], list[Refused]]:
    """The changes of the ledger that deltas come to, and what the others were refused for.

    What some alone may know changes nothing that others know of. The table is changed.
    """
    changes: list[Change] = []
    refused: list[Refused] = []
    for delta in deltas:
        before = table.state.copied()
        try:
            clean = msgspec.structs.replace(delta, value=one_line(delta.value))
            apply_deltas(table, Deltas(changes=[clean]))
            change = table.state.changes[-1]
            known = told.get(change.item_id, set[str]())
            _check(before.items[change.item_id].state, table.get(change.item_id), change, known)
            _check_audience(table.get(change.item_id), audience)
            changes.append(change)
        except (ToolRefusedError, ValidationError) as error:
            table.state = before
            reason = error.detail if isinstance(error, ValidationError) else str(error)
            said = clipped(one_line(f"{delta.item}, {delta.field}: {reason}"), MAX_LINE)
            refused.append(Refused(tool="change", reason=said))
    return changes, refused


def _check(before: State, after: State, change: Change, known: set[str]) -> None:
    """Raise `ToolRefusedError` for what the ledger has, and for what can't be compared with it."""
    operations = change.operations
    if not difference(before, after).fields():
        raise ToolRefusedError("It is so already.")
    counted = (*operations.add.values(), *operations.remove.values())
    if any(isinstance(each, int | float) for each in counted):
        raise ToolRefusedError("A number is set to what it is now.")
    keys = {*operations.set, *operations.add, *operations.remove}
    if any(key in known or key.partition(".")[0] in known for key in keys):
        raise ToolRefusedError("It was changed since the scene began.")


def _check_audience(state: State, audience: str) -> None:
    """Raise `ToolRefusedError` where some know of an item who may not know what is told of it."""
    listeners: Audience = msgspec.convert(state.get("audience", PUBLIC), Audience)
    if not is_known_to_all(stored(listeners), audience):
        raise ToolRefusedError("What is told of it is not for all who know of it.")


def _value(state: State, key: str) -> str:
    field, _, member = key.partition(".")
    members: State = state.get(field) or {} if member else state
    value = members.get(member or field)
    return ", ".join(map(str, cast("Any", value))) if isinstance(value, list) else str(value or "")
