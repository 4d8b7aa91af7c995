"""Items as characters know them who did not hear all changes.

A change belongs to a message. A character that was not there when it was said does not know the
change, and sees the item as it was without it. An item that was created then is unknown. Changes
without a message, such as a user's edit, are known to everyone, and so is the world's time. If the
audience of an item is limited, the audience alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

from msgspec import structs
from sqlalchemy import ColumnElement, Select, and_, exists, func, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.changes import (
    EXISTS,
    State,
    build_item,
    build_state,
    compare_states,
    fold,
)
from backend.campaigns.ledger.items import Chapter, Entity, Fact, Item, Kind, Scene, Thread
from backend.campaigns.ledger.store import get_audience, read_operations, read_state
from backend.campaigns.models import CampaignChange, CampaignItem, ChangeSource
from backend.chats.members import is_within
from backend.chats.models import Message
from backend.core.audience import PUBLIC, Ranges, Viewpoint, Witness
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table, skip_index, split_chunks
from backend.vault.sealing import Sealer

MAX_FOLDED_ITEMS = 500
"""Maximum number of items that are folded again, the last changed ones. Others are unknown."""

MAX_LOCKS = 50
MAX_LOCK = 200
"""Maximum number and length of the names of locked fields."""


@dataclass(frozen=True, slots=True)
class KnownItem:
    """An item without its unheard changes. `seq` is the last heard one.

    Fields that differ from the present are locked, so that no tool overwrites them.
    """

    campaign_id: UUID
    kind: Kind
    item: Item
    seq: int


KnownItems = Mapping[UUID, KnownItem | None]
"""The items that differ from their rows, by id; None if the whole item is unknown."""


EVERYTHING: KnownItems = MappingProxyType({})
"""The knowledge of a viewpoint that knows all items as their rows are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemScope:
    """The items to look at: those of a campaign, or listed ones.

    People at one of the `places` are seen. The places are those of the players' characters.
    """

    campaign_id: UUID | None = None
    item_ids: Sequence[UUID] | None = None
    places: frozenset[UUID] = frozenset()


def is_recalled(item: Item) -> bool:
    """True if a search can find an item in this state."""
    match item:
        case Scene():
            return item.status == "closed"
        case Fact():
            return item.superseded_by is None
        case _:
            return isinstance(item, Entity | Thread | Chapter)


def has_absences(viewpoint: Viewpoint) -> bool:
    """True if a viewpoint may know less of public items than their rows say."""
    return isinstance(viewpoint, Witness) and any(viewpoint.absences.values())


def take_known_states(
    items: Iterable[tuple[UUID, Kind, State]], known: KnownItems
) -> list[tuple[UUID, Kind, State]]:
    """Return the states of items without unheard changes. Unknown items are left out."""
    found: list[tuple[UUID, Kind, State]] = []
    for item_id, kind, state in items:
        each = known.get(item_id)
        if each is not None:
            found.append((item_id, kind, build_state(each.item)))
        elif item_id not in known:
            found.append((item_id, kind, state))
    return found


async def load_known_items(
    session: AsyncSession, sealer: Sealer, viewpoints: Sequence[Viewpoint], scope: ItemScope
) -> KnownItems:
    """Return the items with changes that one of the viewpoints did not hear."""
    witnesses = [each for each in viewpoints if isinstance(each, Witness) and has_absences(each)]
    if not witnesses:
        return {}
    is_listed = scope.item_ids is not None
    in_chats, of_items = (
        or_(*(_is_unheard(each.absences, by_chat=by_chat) for each in witnesses))
        for by_chat in (not is_listed, False)
    )
    # A character knows that it exists.
    own = witnesses[0].ids if len(viewpoints) == 1 else frozenset[UUID]()
    affected = [
        row
        for part in ([None] if scope.item_ids is None else split_chunks(scope.item_ids))
        for row in await session.execute(_select_affected(sealer, in_chats, scope, part))
    ]
    found: dict[UUID, KnownItem | None] = {row.id: None for row in affected}
    partly = [row for row in affected if row.unheard > row.first or row.id in own]
    for rows in split_chunks(partly[:MAX_FOLDED_ITEMS]):
        heard: dict[UUID, list[Any]] = {}
        for change in await session.execute(_select_heard(of_items, [row.id for row in rows])):
            heard.setdefault(change.item_id, []).append(change)
        async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
            present = read_state(sealer, row.id, row.sealed_state)
            known = _fold(sealer, row, heard.get(row.id, ()), present)
            if known is None or get_audience(known) != PUBLIC or _is_over(known, present):
                continue
            state = _add_observed(row.kind, known, present, scope.places)
            if differing := compare_states(state, present).list_keys():
                seq = heard[row.id][-1].seq if row.id in heard else 0
                item = _lock(build_item(row.kind, state), differing)
                found[row.id] = KnownItem(row.campaign_id, row.kind, item, seq)
            else:
                del found[row.id]
    return found


def _fold(sealer: Sealer, row: Any, heard: Sequence[Any], present: State) -> State | None:
    """Return the state without unheard changes, or None if it does not exist in it."""
    before: State | None = None
    if row.unheard <= row.first:
        before = {
            key: present[key] for key in (EXISTS, "kind", "name", "audience") if key in present
        }
    operations = (read_operations(sealer, each.id, each.sealed_operations) for each in heard)
    known = fold(row.kind, operations, before)
    return known if known.get(EXISTS) is True else None


def _is_over(known: State, present: State) -> bool:
    """True for a scene that is closed now. The story is in no scene that has ended."""
    return known.get("status") == "open" and present.get("status") == "closed"


def _add_observed(kind: Kind, known: State, present: State, places: frozenset[UUID]) -> State:
    """Return a state with its visible parts: the place of people who are seen, and their numbers.

    The same numbers are shown to all players. Texts and new attributes are not seen.
    """
    seen = {str(each) for each in places}
    place = present.get("location_id")
    if kind == "scene":
        is_open = {known.get("status", "open"), present.get("status", "open")} == {"open"}
        shown = ("location_id", "present", "beats") if is_open and place in {None, *seen} else ()
        return known | {key: present[key] for key in shown if key in present}
    if kind != "entity" or present["kind"] not in {"pc", "npc"}:
        return known
    if place not in seen:
        # It is seen that someone has left, but not where to.
        is_gone = known.get("location_id") in seen and known["kind"] == "npc"
        return known | {"location_id": None} if is_gone else known
    then = cast("State", known.get("attributes") or {})
    now = cast("State", present.get("attributes") or {})
    numbers = {name: now[name] for name in then if _is_number(now.get(name))}
    return known | {"location_id": place, "attributes": {**then, **numbers}}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lock(item: Item, keys: Sequence[str]) -> Item:
    is_long = len(keys) > MAX_LOCKS // 2 or any(len(key) > MAX_LOCK for key in keys)
    locked = [key.partition(".")[0] for key in keys] if is_long else keys
    return structs.replace(item, locked=[*dict.fromkeys([*locked, *item.locked])][:MAX_LOCKS])


_SOURCES, _MESSAGES = get_table(ChangeSource), get_table(Message)
_CHANGES, _ITEMS = get_table(CampaignChange), get_table(CampaignItem)
_ANY_CHANGE = _CHANGES.alias("any_change")
_FIRST_SEQ = (
    select(func.min(_ANY_CHANGE.c.seq))
    .where(_ANY_CHANGE.c.item_id == _ITEMS.c.id, _ANY_CHANGE.c.is_on_path, ~_ANY_CHANGE.c.is_undone)
    .scalar_subquery()
)


def _is_unheard(absences: Mapping[UUID, Ranges], *, by_chat: bool) -> ColumnElement[bool]:
    """Return the condition that a source of a change was missed, and no other one was heard.

    Sources are found `by_chat`, or by changes that are known.
    """
    other, message = _SOURCES.alias(), _MESSAGES.alias()
    is_heard = (
        exists()
        .where(
            other.c.change_id == _CHANGES.c.id,
            message.c.id == other.c.message_id,
            message.c.is_active,
            not_(_is_missed(other, absences, by_chat=False)),
        )
        # Implicit correlation reaches the directly enclosing query only.
        .correlate(_CHANGES)
    )
    return and_(_is_missed(_SOURCES, absences, by_chat=by_chat), not_(is_heard))


def _is_missed(
    sources: Any, absences: Mapping[UUID, Ranges], *, by_chat: bool
) -> ColumnElement[bool]:
    chat = sources.c.chat_id if by_chat else skip_index(sources.c.chat_id)
    return or_(
        *(
            and_(chat == chat_id, is_within(sources.c.position, ranges))
            for chat_id, ranges in absences.items()
            if ranges
        )
    )


def _select_affected(
    sealer: Sealer, is_unheard: ColumnElement[bool], scope: ItemScope, part: Sequence[UUID] | None
) -> Select[*tuple[Any, ...]]:
    """Select public items with their first unheard change, the last changed ones first."""
    query = (
        select(
            _ITEMS.c.id,
            _ITEMS.c.campaign_id,
            _ITEMS.c.kind,
            _ITEMS.c.sealed_state,
            func.min(_CHANGES.c.seq).label("unheard"),
            _FIRST_SEQ.label("first"),
        )
        .select_from(_SOURCES)
        .join(_CHANGES, _CHANGES.c.id == _SOURCES.c.change_id)
        .join(_ITEMS, _ITEMS.c.id == _CHANGES.c.item_id)
        .join(_MESSAGES, _MESSAGES.c.id == _SOURCES.c.message_id)
        .where(
            skip_index(_ITEMS.c.user_id) == sealer.user_id,
            _ITEMS.c.audience == PUBLIC,
            _ITEMS.c.kind != "world",
            _ITEMS.c.exists,
            _CHANGES.c.is_on_path,
            ~_CHANGES.c.is_undone,
            _MESSAGES.c.is_active,
            is_unheard,
        )
        .group_by(_ITEMS.c.id)
        .order_by(_ITEMS.c.seq.desc())
    )
    if scope.campaign_id is not None:
        query = query.where(_ITEMS.c.campaign_id == scope.campaign_id)
    return query if part is None else query.where(_ITEMS.c.id.in_(part))


def _select_heard(
    is_unheard: ColumnElement[bool], item_ids: Sequence[UUID]
) -> Select[*tuple[Any, ...]]:
    """Select the active changes of items without the unheard ones, in order."""
    columns = _CHANGES.c
    missed = exists().where(_SOURCES.c.change_id == columns.id, is_unheard).correlate(_CHANGES)
    return (
        select(columns.item_id, columns.id, columns.seq, columns.sealed_operations)
        .where(
            columns.item_id.in_(item_ids),
            columns.is_on_path,
            ~columns.is_undone,
            ~missed,
        )
        .order_by(columns.seq)
    )
