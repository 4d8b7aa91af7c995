"""The players' characters, and the open scene at their place. The functions do not commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from sqlalchemy import bindparam, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import Change, Operations
from backend.campaigns.ledger.items import Entity, Scene
from backend.campaigns.models import CampaignItem
from backend.database.base import get_table

PlaceT = TypeVar("PlaceT", UUID, str)


def has_name(entity: Entity, name: str) -> bool:
    return name.casefold() in {each.casefold() for each in (entity.name, *entity.aliases)}


def find_story_place(places: Iterable[PlaceT | None]) -> PlaceT | None:
    """Return the place of the first character who has one; the persona's character comes first."""
    return next((place for place in places if place), None)


def is_scene_here(scene: PlaceT | None, place: PlaceT | None) -> bool:
    """True if the story is in the scene.

    A scene without a place moves with the players. A story without a place follows the scene.
    """
    return not scene or not place or scene == place


def is_scene_left(scene: PlaceT | None, places: Collection[PlaceT]) -> bool:
    """True if all players' characters are elsewhere. One without a place is in the scene."""
    return bool(scene) and bool(places) and scene not in places


@dataclass(frozen=True, slots=True)
class Party:
    """The place of the story, the scene there, and the open scenes that the players have left."""

    place: UUID | None
    scene_id: UUID | None
    left: Sequence[UUID]


async def read_party(
    session: AsyncSession, campaign_id: UUID, lead_id: UUID | None = None
) -> Party:
    """Load the place of the story and its scenes. `lead_id` is the character whom it follows."""
    rows = (await session.execute(_PARTY, {"campaign": campaign_id})).all()
    players = sorted(
        (row for row in rows if row.kind == "entity"), key=lambda row: (row.id != lead_id, row.id)
    )
    places = [row.place_id for row in players if row.place_id]
    place = find_story_place(places)
    scenes = sorted((row for row in rows if row.kind == "scene"), key=lambda row: row.seq)
    here = [row.id for row in scenes if is_scene_here(row.place_id, place)]
    return Party(
        place=place,
        scene_id=here[-1] if here else None,
        left=[row.id for row in scenes if is_scene_left(row.place_id, places)],
    )


async def follow_scene(session: AsyncSession, campaign_id: UUID, scene: Scene) -> list[Change]:
    """Return the changes that move players' characters to an open scene's place.

    They are the characters present in the scene, or all if it names none of them.
    """
    if scene.status != "open" or scene.location_id is None:
        return []
    place = scene.location_id
    rows = (await session.execute(_PARTY, {"campaign": campaign_id})).all()
    players = [row for row in rows if row.kind == "entity"]
    named = [row for row in players if row.id in scene.present]
    return [
        Change("entity", row.id, Operations(set={"location_id": str(place)}))
        for row in named or players
        if row.place_id != place
    ]


_ITEMS = get_table(CampaignItem)
_PARTY = union_all(
    *(
        select(_ITEMS.c.id, _ITEMS.c.kind, _ITEMS.c.place_id, _ITEMS.c.seq).where(
            _ITEMS.c.campaign_id == bindparam("campaign"), _ITEMS.c.exists, *conditions
        )
        for conditions in (
            (_ITEMS.c.kind == "entity", _ITEMS.c.subkind == "pc"),
            (_ITEMS.c.kind == "scene", _ITEMS.c.is_live),
        )
    )
)
