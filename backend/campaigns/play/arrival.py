"""The people and facts at a place that the party comes to: put on the table, and rendered."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID

from backend.audience import NAMELESS_MARKS, AudienceMarks, is_known_to
from backend.campaigns.context import (
    MAX_DETAILED,
    Placed,
    Situation,
    ranked,
    surroundings_block,
)
from backend.campaigns.items import Entity, Relation
from backend.campaigns.ledger import item_of, state_of
from backend.campaigns.name_cache import KeptItem
from backend.campaigns.play.references import Held
from backend.campaigns.reader import MAX_HOT
from backend.campaigns.situation_reader import MAX_FACTS, fact_line

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table


def arrive(table: Table, place_id: UUID) -> str:
    """Put a place and its people on the table, and render them as the full state block does.

    If the campaign is too large to be kept in memory, these are the people who are in play already.
    """
    _add_people(table, place_id)
    players = [Placed(id=one, entity=_entity(table, one)) for one in table.players]
    people = [
        Placed(id=one, entity=_entity(table, one))
        for one, state in table.of_kind("entity").items()
        if state["kind"] == "npc" and state.get("location_id") == str(place_id)
    ]
    relations = _relations(table, [each.id for each in (*players, *people)])
    present = ranked(people, named=(), spoke=(), relations=relations)
    name_of = partial(table.names.find_name, viewpoint=table.viewpoint) if table.names else None
    marks = AudienceMarks(name_of) if name_of else NAMELESS_MARKS
    about = [*(each.id for each in present[:MAX_DETAILED]), place_id]
    return surroundings_block(
        Situation(
            name="",
            players=players,
            location=Placed(id=place_id, entity=_entity(table, place_id)),
            present=present,
            relations=relations,
            facts=_facts(table, about, marks),
            marks=marks,
        )
    )


def _add_people(table: Table, place_id: UUID) -> None:
    names, items = table.names, table.state.items
    if names is None:
        return
    here = nlargest(MAX_HOT, names.tied.get(("entity", place_id), {}).values(), key=_seq)
    place = names.around.get(place_id) if names.around else None
    for kept in _known(table, [*here, *([place] if place else [])]):
        items.setdefault(kept.id, Held("entity", state_of(kept.item)))


def _entity(table: Table, entity_id: UUID) -> Entity:
    item = item_of("entity", table.get(entity_id))
    assert isinstance(item, Entity)  # noqa: S101
    return item


def _relations(table: Table, ids: Iterable[UUID]) -> list[Relation]:
    if table.names is None:
        return []
    tied = table.names.tied
    found = {each.id: each for one in ids for each in tied.get(("relation", one), {}).values()}
    known = sorted(_known(table, found.values()), key=lambda each: each.id.int)
    return [each.item for each in known if isinstance(each.item, Relation)]


def _facts(table: Table, about: list[UUID], marks: AudienceMarks) -> list[str]:
    names = table.names
    if names is None or not names.around:
        return []
    kept = [one for one in about if one in names.around]
    found = names.facts(kept, table.viewpoint, limit=MAX_FACTS) or []
    return [fact_line(names, marks, fact, table.viewpoint) for _, fact in found[::-1]]


def _known(table: Table, found: Iterable[KeptItem]) -> list[KeptItem]:
    return [each for each in found if is_known_to(table.viewpoint, each.audience)]


_seq = attrgetter("seq")
