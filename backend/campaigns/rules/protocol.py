"""The interface of a rule system: its moods, tools and numbers.

A rule system is one class that extends `RuleSystem`, in a separate file. `RuleSystem` and
`PlayTool` are generic in the table, because `play.table` imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from backend.campaigns import rules as package
from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import Entity, Kind, World
from backend.campaigns.rules.state import PLAY, PlayState, TableState
from backend.campaigns.state.state_block import render_player_line
from backend.core.cpu_pool import resolve_structs
from backend.core.logs import get_logger
from backend.errors import ValidationError
from backend.generation.model import Tool
from backend.generation.tools.calls import make_tool

AttributeType = Literal["text", "number", "list"]
OutcomeKind = Literal["answer", "break", "wait", "end"]
Event = tuple[str, dict[str, Any]]
TableT = TypeVar("TableT")


class ToolRefusedError(Exception):
    """A tool call is not possible. The text is the reason for the model; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The outcome of a tool call, with events for the turn's stream.

    `answer`: the model continues with `result`. `break`: its text is dropped, and the turn goes
    on in another mood. `wait`: the turn is suspended for `Table.waiting`. `end`: the turn is over.
    """

    kind: OutcomeKind
    result: Any = None
    summary: str = ""
    events: list[Event] = field(default_factory=list[Event])


def make_answer(result: Any, summary: str = "") -> ToolOutcome:
    """Return an outcome after which the model continues."""
    return ToolOutcome(kind="answer", result=result, summary=summary)


def make_refusal(why: str) -> ToolOutcome:
    """Return the answer to a call that is wrong, so that the model can correct it."""
    return ToolOutcome(kind="answer", result={"error": why})


@dataclass(frozen=True)
class PlayTool(Generic[TableT]):
    """A tool of a mood.

    Args:
        name: The tool's name for the model.
        arguments: The call's arguments; the struct's docstring is the tool's description.
        run: Executes a call. If it raises `ToolRefusedError` or `ValidationError`, the table drops
            its changes.
        choose: For a tool that waits: executes the player's choice, given by its index.
        is_private: True if the tool changes no item, so that private turns may use it.
    """

    name: str
    arguments: type[msgspec.Struct]
    run: Callable[[TableT, Any], ToolOutcome]
    choose: Callable[[TableT, int], Any] | None = None
    is_private: bool = False

    @cached_property
    def offer(self) -> Tool:
        return make_tool(self.name, self.arguments)

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.offer.parameters


@dataclass(frozen=True, slots=True)
class Mood(Generic[TableT]):
    """A mood of play.

    Attributes:
        prompt: Instructions for the model, if there is no file `prompts/moods/<rules>/<mood>.md`.
        is_unsettled: True if messages are compacted only after the mood is over.
        needs_calls: True if a model that makes no tool call is asked for the calls alone, once.
        leave: Ends the mood by the rules if the model does not.
        max_turns: Turns in a row without a roll after which `leave` is called.
    """

    name: str
    tools: Sequence[PlayTool[TableT]] = ()
    variants: Sequence[str] = ()
    prompt: str = ""
    is_unsettled: bool = False
    needs_calls: bool = False
    leave: Callable[[TableT], None] | None = None
    max_turns: int = 0


class RuleSystem(Generic[TableT]):
    """The rules of a game; the defaults are those of a game without numbers and downtime.

    An instance has no state: every method receives its data. Play begins in the first of `moods`.
    `play_type` is stored between two turns, `state_type` while a turn waits for its player. No
    prompt lists the `hidden_attributes` of the world.
    """

    title: ClassVar[str] = ""
    moods: ClassVar[Sequence[Mood[Any]]] = ()
    play_type: ClassVar[type[PlayState]] = PlayState
    state_type: ClassVar[type[TableState[Any]]] = TableState[PlayState]
    hidden_attributes: ClassVar[frozenset[str]] = frozenset()

    def find_mood(self, name: str) -> Mood[TableT] | None:
        return next((mood for mood in self.moods if mood.name == name), None)

    def schema(self, kind: Kind) -> dict[str, Any]:
        """Return the JSON schema of the `attributes` of items of a kind."""
        return {"type": "object", "title": f"Attributes of a {kind}"}

    def validate(self, kind: Kind, before: State, after: State) -> None:
        """Raise `ValidationError` if an item must not change from `before` to `after`."""

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:  # noqa: ARG002
        """Return the attributes of an item that a model may change without a tool of their own."""
        return {}

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the players' distance from ruin, or None if the game has no such measure.

        `score` is a number, `label` its name, `voice` the tone of the narration. `lines` are
        sentences about the numbers, for prompts.
        """
        return None

    def light_line(self, player: Entity) -> str:
        """Return a player's character in a few words, for the light form of the state block."""
        return render_player_line(player)

    def is_decided(self, play: PlayState) -> bool:  # noqa: ARG002
        """Return True if a roll has fixed the outcome of the mood."""
        return False

    def describe_play(self, play: PlayState) -> dict[str, str]:
        """Return the values of the event `mood.changed`, which is sent when one of them changes."""
        return {"mood": play.mood, "variant": play.variant}

    def prompt_values(self, table: TableT) -> dict[str, Any]:  # noqa: ARG002
        """Return further inputs of the prompts of moods."""
        return {}

    def spend_downtime(self, table: TableT, activity: str, target: str) -> dict[str, Any]:  # noqa: ARG002
        """Change the table by an activity of downtime, and return a description of the effects.

        Called only if there is a mood `downtime`; its variants are the activities. Raises
        `ValidationError` if the target is not possible.
        """
        raise ValidationError(f"There is no {activity}.")


def read_play(world: State, rules: RuleSystem[Any]) -> PlayState:
    """Return the play state of a world; its beginning if the state is invalid in these rules."""
    attributes: State = world.get("attributes") or {}
    stored = attributes.get(PLAY)
    try:
        play = msgspec.convert(stored, rules.play_type) if stored else rules.play_type()
    except msgspec.ValidationError:
        play = rules.play_type()
    return play if rules.find_mood(play.mood) else rules.play_type(mood=rules.moods[0].name)


def is_unsettled(world: State, rules: RuleSystem[Any], *, is_played: bool) -> bool:
    """Return True during an action or a fight, by the mood of play or the flag `combat`."""
    flags: State = world.get("flags") or {}
    if flags.get("combat") is True:
        return True
    mood = rules.find_mood(read_play(world, rules).mood) if is_played and rules.moods else None
    return mood is not None and mood.is_unsettled


log = get_logger(__name__)

DEFAULT_RULES = "freeform"
ENTRY_POINTS = "talekeeper.rules"


@cache
def load_rules() -> dict[str, RuleSystem[Any]]:
    found: dict[str, RuleSystem[Any]] = {
        point.name: point.load() for point in entry_points(group=ENTRY_POINTS)
    }
    for module in iter_modules(package.__path__):
        rules = getattr(import_module(f"{package.__name__}.{module.name}"), "RULES", None)
        if rules is not None:
            found[module.name] = rules
    resolve_structs()
    return found


def check_rules(name: str) -> None:
    if name not in load_rules():
        raise ValidationError(
            f"Unknown rules: {name}. Available are {', '.join(sorted(load_rules()))}."
        )


def find_rules(name: str) -> RuleSystem[Any]:
    """Return the rules of a campaign; `freeform` if their package was uninstalled."""
    found = load_rules().get(name)
    if found is None:
        _warn_of_missing(name)
        return load_rules()[DEFAULT_RULES]
    return found


@cache
def _warn_of_missing(name: str) -> None:
    log.warning("campaign.rules_missing", source=name)
