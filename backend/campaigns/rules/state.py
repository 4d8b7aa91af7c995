"""The saved state of a played turn, and the part of it that lasts until the next turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Generic, Literal, TypeVar, cast
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import Change, State
from backend.campaigns.ledger.items import MAX_MEMBERS, Kind
from backend.campaigns.rules.dice import DiceMode
from backend.core.audience import PUBLIC, Audience
from backend.errors import ValidationError


def get_attributes(state: State) -> State:
    """Return the attributes of an item."""
    return state.get("attributes") or {}


def get_number(state: State, name: str, otherwise: int = 0) -> int:
    """Return an attribute that is a whole number, else `otherwise`."""
    value = get_attributes(state).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def read_list(value: object) -> Sequence[Any]:
    """Return a list unchanged, and an empty one for other values."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def read_mapping(value: object) -> Mapping[str, Any]:
    """Return a dictionary unchanged, and an empty one for other values."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def get_texts(state: State, name: str) -> list[str]:
    """Return the texts of an attribute that is a list, else an empty list."""
    return [one for one in read_list(get_attributes(state).get(name)) if isinstance(one, str)]


def check_number(before: State, after: State, name: str, least: int, most: int) -> None:
    """Raise `ValidationError` if an attribute changes to something else than a number of a range.

    An invalid old value may stay, because other rules may have allowed it.
    """
    value = get_attributes(after).get(name)
    if value is None or value == get_attributes(before).get(name):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValidationError(f"`attributes.{name}` must be a whole number from {least} to {most}.")


def check_numbers(before: State, after: State, name: str, least: int, most: int) -> None:
    """Raise `ValidationError` if an attribute changes to an invalid object of whole numbers."""
    value: Any = get_attributes(after).get(name)
    if value is None or value == get_attributes(before).get(name):
        return
    is_object = isinstance(value, dict)
    held = read_mapping(value).values()
    if not is_object or any(not isinstance(one, int) or not least <= one <= most for one in held):
        raise ValidationError(f"`attributes.{name}` are whole numbers from {least} to {most}.")


def check_texts(before: State, after: State, name: str) -> None:
    """Raise `ValidationError` if an attribute changes to something else than a list of texts."""
    value: Any = get_attributes(after).get(name)
    if value is None or value == get_attributes(before).get(name):
        return
    if not isinstance(value, list) or any(
        not isinstance(one, str) for one in read_list(cast("object", value))
    ):
        raise ValidationError(f"`attributes.{name}` is a list of texts.")


PLAY = "play"
"""The attribute of a campaign's world that contains `PlayState`."""

ROLL = "roll"
"""The attribute of a campaign's world that contains the last turn's dice and their seed."""


class ItemState(msgspec.Struct, frozen=True):
    """An item in play, with the changes of this turn."""

    kind: Kind
    state: State


class Happened(msgspec.Struct, frozen=True):
    """Something for the campaign's chronicle."""

    text: str
    audience: Audience = PUBLIC


class Option(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice that is offered to the player. `detail` describes its consequences.

    `id` is `<number of the wait>.<index>`, so that an old choice never matches a later wait.
    `die` is the die that the choice spends, or 0.
    """

    id: str
    label: str
    detail: str = ""
    die: int = 0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The question that suspends a turn: the player answers it, or chooses a die.

    `own` is the id of an answer in the player's own words; empty if none is possible.
    """

    kind: Literal["question", "die"]
    prompt: str
    options: list[Option]
    own: str = ""


class PlayState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Play state between two turns, stored in the attributes of the world.

    A rule system that needs more fields extends it. `connector` is the link from the last turn to
    the next. `turns` counts the turns in a row that ended in the mood without a roll.
    """

    mood: str = ""
    variant: str = ""
    connector: str = ""
    turns: int = 0


PlayT = TypeVar("PlayT", bound=PlayState)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """The call that waits for the player, with data of its tool."""

    tool: str
    waiting: Waiting
    data: Any = None


class Roll(msgspec.Struct, frozen=True):
    """Dice that were rolled together."""

    sides: int
    dice: list[int]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an unfinished turn that is in the ledger already.

    `changes`, `rolls` and `happened` are counts from the beginning of the turn. `ids` are the ids
    of the ledger's changes. `left_out` counts the changes that were no longer possible.
    """

    changes: int = 0
    rolls: int = 0
    happened: int = 0
    ids: list[UUID] = []
    left_out: int = 0


class TableState(msgspec.Struct, Generic[PlayT], kw_only=True):
    """The part of a table that is saved. A rule system that needs more fields extends it.

    `before` is the play state that is in the ledger. `paid` names the fields that a cost of this
    turn has changed. `shown_place` is the place in the prompt's state block; `shows_people` is True
    if the block describes the people there.
    """

    campaign_id: UUID
    rules: str
    dice: DiceMode
    seed: str
    items: dict[UUID, ItemState]
    play: PlayT
    before: PlayT
    rolls: list[Roll] = []
    calls: int = 0
    breaks: int = 0
    waits: int = 0
    changes: list[Change] = []
    happened: list[Happened] = []
    paid: list[str] = []
    pending: Pending | None = None
    suggestions: list[str] = []
    is_over: bool = False
    is_private: bool = False
    stored: Stored = Stored()
    lead_id: UUID | None = None
    shown_place: str | None = None
    shows_people: bool = False

    def list_last_dice(self) -> dict[str, Any]:
        """Return the seed and the last dice. `first` is the number of the first of them."""
        dice = [(die, rolled.sides) for rolled in self.rolls for die in rolled.dice]
        first = max(0, len(dice) - MAX_MEMBERS)
        return {
            "seed": self.seed,
            "first": first,
            "dice": [die for die, _ in dice[first:]],
            "sides": [sides for _, sides in dice[first:]],
        }

    def copy(self) -> TableState[PlayT]:
        """Return a copy whose lists and dictionaries can be changed independently."""
        fields = msgspec.structs.asdict(self)
        return msgspec.structs.replace(self, **{name: copy(fields[name]) for name in fields})
