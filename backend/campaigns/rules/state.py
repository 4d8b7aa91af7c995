"""The state of a played turn: its attributes, its dice, and the part that is saved.

Dice are rolled from a stored seed, so that a roll can be repeated.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Generic, Literal, TypeVar, cast
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import Change, State
from backend.campaigns.ledger.items import MAX_MEMBERS, Kind
from backend.core.audience import PUBLIC, Audience
from backend.errors import ValidationError

DiceMode = Literal["pool", "srd"]

SEED_BYTES = 16
MAX_DICE = 20
MAX_SIDES = 100

_NOTATION = re.compile(r"(\d{0,2})d(\d{1,3})([+-]\d{1,3})?", re.ASCII)


def new_seed() -> str:
    """Return a seed of 128 bits, as hexadecimal digits."""
    return secrets.token_hex(SEED_BYTES)


def roll(seed: str, first: int, count: int, *, sides: int = 6) -> list[int]:
    """Return the dice number `first` to `first + count - 1` of a seed, each 1 to `sides`.

    Every die is an HMAC-SHA256 of its number under the seed. Values that would favour low sides are
    drawn again.
    """
    return [_roll_die(bytes.fromhex(seed), number, sides) for number in range(first, first + count)]


def parse_notation(text: str) -> tuple[int, int, int]:
    """Return count, sides and bonus of dice such as `2d6+3`. Raises `ValidationError`."""
    found = _NOTATION.fullmatch(text.replace(" ", "").lower()[:12])
    count, sides = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if found is None or not 1 <= count <= MAX_DICE or not 2 <= sides <= MAX_SIDES:  # noqa: PLR2004
        raise ValidationError(
            f"Write dice as 2d6+3: 1 to {MAX_DICE} dice with 2 to {MAX_SIDES} sides."
        )
    return count, sides, int(found[3] or 0)


def _roll_die(seed: bytes, number: int, sides: int) -> int:
    fair = 2**32 - 2**32 % sides
    attempt = 0
    while True:
        digest = hmac.digest(seed, b"%d.%d" % (number, attempt), "sha256")
        if (value := int.from_bytes(digest[:4])) < fair:
            return value % sides + 1
        attempt += 1


def get_attributes(state: State) -> State:
    return state.get("attributes") or {}


def get_number(state: State, name: str, otherwise: int = 0) -> int:
    """Return an attribute that is a whole number, else `otherwise`."""
    value = get_attributes(state).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def read_list(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def read_mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def get_texts(state: State, name: str) -> list[str]:
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
    """The question that suspends a turn. `own` is the id of an answer in the player's own words."""

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

    `before` is the play state of the ledger. `paid` names the fields that a cost of this turn has
    changed. `shown_place` and `shows_people` describe the prompt's state block.
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
