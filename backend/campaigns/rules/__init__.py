"""Rules modules: what a game adds to a campaign. Each is one file of this package.

A module here that has a `RULES` is found by its file's name; nothing else names it. An installed
package brings further ones under the entry points `talekeeper.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal, Protocol

from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import Entity, Kind, World
from backend.core.cpu_pool import resolve_structs
from backend.core.logs import get_logger
from backend.errors import ValidationError

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table
    from backend.campaigns.play.tools import PlayTool

log = get_logger(__name__)

DEFAULT = "freeform"
ENTRY_POINTS = "talekeeper.rules"

AttributeType = Literal["text", "number", "list"]


@dataclass(frozen=True, slots=True)
class Mood:
    """A mood of play.

    Attributes:
        name: Its name.
        variants: The variants that it has.
        prompt: Instructions for the model, if there is no file `prompts/moods/<rules>/<mood>.md`.
        is_unsettled: Nothing that happens in it is compacted before it is over.
        needs_calls: The rules need a tool call in each turn that is played in it. A model that
            makes none is asked for the calls alone, once.
        leave: Ends the mood by the rules, for a model that does not: goes on to what a die has
            fixed, or back to where play begins.
        max_turns: Turns in a row that may end in the mood without a roll; then it is left. Only
            with `leave`.
    """

    name: str
    variants: Sequence[str] = ()
    prompt: str = ""
    is_unsettled: bool = False
    needs_calls: bool = False
    leave: Callable[[Table], None] | None = None
    max_turns: int = 0


class Rules(Protocol):
    """A game's rules. They hold no state: what they are asked about comes with the question."""

    def schema(self, kind: Kind) -> dict[str, Any]:
        """JSON schema of the `attributes` that items of a kind have under these rules."""
        ...

    def validate(self, kind: Kind, before: State, after: State) -> None:
        """Raise `ValidationError` where an item may not become `after`."""
        ...

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        """The attributes of an item that a model may change by itself, without a tool for them."""
        ...

    def moods(self) -> Mapping[str, Mood]:
        """The moods by their names. Play begins in the first; without any it is not played."""
        ...

    def tools(self, mood: str) -> Sequence[PlayTool]:
        """The tools that a model has in a mood."""
        ...

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any] | None:
        """Return the players' distance from ruin; None if the game has no such measure.

        `score` is a number, `label` its name, `voice` the tone of the narration.
        `lines` are sentences about the numbers, for prompts.
        """
        ...

    def spend_downtime(self, table: Table, activity: str, target: str) -> dict[str, Any]:
        """What an activity of downtime comes to: it changes the table, and says what happened.

        Asked alone where there is a mood `downtime`; its variants are the activities. Raises
        `ValidationError` for a target that can't be.
        """
        ...

    def light_line(self, player: Entity) -> str:
        """A player's character in a few words, for the light form of the state block."""
        ...


@cache
def known_rules() -> dict[str, Rules]:
    """All rules modules, by name."""
    found: dict[str, Rules] = {
        point.name: point.load() for point in entry_points(group=ENTRY_POINTS)
    }
    for module in iter_modules(__path__):
        rules = getattr(import_module(f"{__name__}.{module.name}"), "RULES", None)
        if rules is not None:
            found[module.name] = rules
    resolve_structs()
    return found


def check_rules(name: str) -> None:
    """Raise `ValidationError` where there is no such rules module."""
    if name not in known_rules():
        raise ValidationError(
            f"Unknown rules {name}. Available rules: {', '.join(sorted(known_rules()))}."
        )


def rules_of(name: str) -> Rules:
    """The rules of a campaign; those of a module that is gone are `freeform`."""
    found = known_rules().get(name)
    if found is None:
        _warn_of_missing(name)
        return known_rules()[DEFAULT]
    return found


@cache
def _warn_of_missing(name: str) -> None:
    """Log once in a process that a campaign is played by other rules than it names."""
    log.warning("campaign.rules_missing", source=name)
