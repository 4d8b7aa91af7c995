"""What is saved of a table, and what of it lasts from one turn to the next."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import Change, State
from backend.campaigns.ledger.items import MAX_MEMBERS
from backend.campaigns.rules.blades import Tier
from backend.campaigns.rules.dice import DiceMode
from backend.campaigns.rules.protocol import RuleSystem
from backend.campaigns.rules.state import Happened, ItemState, Waiting

PLAY = "play"
"""The attribute of a campaign's world that says how its play stands."""

ROLL = "roll"
"""The attribute that holds the last turn's dice, and the seed that they came of, one by one."""

POOL = "dice"
"""The attribute of a campaign's world that holds the player's dice."""


class Committed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said of an outcome before the die was chosen. `costs` are as the rules have them."""

    tier: Tier
    hint: str
    narrative: str = ""
    costs: list[dict[str, Any]] = []


class Play(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Play state between two turns, stored in the attributes of the world.

    `tier` and `outcome` are what the `die` has fixed, until it is told. `connector` is how the last
    turn leads on to the next. `turns` counts the turns in a row that have ended in the mood without
    a roll, if the rules limit them.
    """

    mood: str = ""
    variant: str = ""
    character: str = ""
    domain: str = ""
    position: str = ""
    effect: str = ""
    stakes: str = ""
    tier: str = ""
    outcome: str = ""
    die: int = 0
    connector: str = ""
    turns: int = 0


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """The call that waits for the player, and what its tool remembers of it."""

    tool: str
    waiting: Waiting
    data: Any = None


class Roll(msgspec.Struct, frozen=True):
    """Dice that were rolled together."""

    sides: int
    dice: list[int]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a turn that is in the ledger while the turn goes on.

    `changes`, `rolls` and `happened` count from the beginning. `ids` are those of the ledger's
    changes; `left_out` were not possible any more.
    """

    changes: int = 0
    rolls: int = 0
    happened: int = 0
    ids: list[UUID] = []
    left_out: int = 0


class TableState(msgspec.Struct, kw_only=True):
    """The part of a table that is saved.

    `shown_place` is the place in the prompt's state block; `shows_people`: it describes who is
    there.
    """

    campaign_id: UUID
    rules: str
    dice: DiceMode
    seed: str
    items: dict[UUID, ItemState]
    play: Play
    before: Play
    rolls: list[Roll] = []
    calls: int = 0
    breaks: int = 0
    waits: int = 0
    changes: list[Change] = []
    happened: list[Happened] = []
    committed: list[Committed] = []
    die: int = 0
    paid: list[str] = []
    pending: Pending | None = None
    suggestions: list[str] = []
    is_over: bool = False
    is_private: bool = False
    stored: Stored = Stored()
    lead_id: UUID | None = None
    shown_place: str | None = None
    shows_people: bool = False

    def last_dice(self) -> dict[str, Any]:
        """The seed, and the last dice that came of it: `first` is the number of the first one."""
        dice = [(die, rolled.sides) for rolled in self.rolls for die in rolled.dice]
        first = max(0, len(dice) - MAX_MEMBERS)
        return {
            "seed": self.seed,
            "first": first,
            "dice": [die for die, _ in dice[first:]],
            "sides": [sides for _, sides in dice[first:]],
        }

    def copied(self) -> TableState:
        """The same, so that what is done to one is not done to the other."""
        return msgspec.structs.replace(
            self,
            items=dict(self.items),
            changes=list(self.changes),
            happened=list(self.happened),
            committed=list(self.committed),
            paid=list(self.paid),
            rolls=list(self.rolls),
            suggestions=list(self.suggestions),
        )


def is_unsettled(world: State, rules: RuleSystem, *, is_played: bool) -> bool:
    """Whether an action or a fight is on, by the mood of play or the flag `combat`."""
    flags: State = world.get("flags") or {}
    if flags.get("combat") is True:
        return True
    mood = rules.moods().get(play_of(world, rules).mood) if is_played and rules.moods() else None
    return mood is not None and mood.is_unsettled


def play_of(world: State, rules: RuleSystem) -> Play:
    """How play stands; where that can't be under these rules, as it begins."""
    attributes: State = world.get("attributes") or {}
    stored = attributes.get(PLAY)
    moods = rules.moods()
    try:
        play = msgspec.convert(stored, Play) if stored else Play()
    except msgspec.ValidationError:
        play = Play()
    return play if play.mood in moods else Play(mood=next(iter(moods)))
