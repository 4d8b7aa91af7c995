"""The table that a turn is played at: what its tools see and change. Nothing here reads or writes.

A table begins with what was read of the campaign, and gathers changes of it, which `play.store`
writes down with the reply. It can be saved while the turn waits for its player.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from backend.campaigns.play.dice import parse_notation
from backend.campaigns.play.tools import Outcome, PlayTool, answer

if TYPE_CHECKING:
    pass
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, cast
from uuid import UUID

from backend.campaigns.ledger.changes import Operations, State, applied, exists, state_of
from backend.campaigns.ledger.items import STRUCTS, Item, Kind
from backend.campaigns.ledger.store import Change
from backend.campaigns.play import guidance
from backend.campaigns.play.dice import DiceMode, new_seed, roll
from backend.campaigns.play.references import Held, References
from backend.campaigns.play.state import (
    PLAY,
    POOL,
    ROLL,
    Pending,
    Play,
    Roll,
    Stored,
    TableState,
    play_of,
)
from backend.campaigns.play.tools import (
    Event,
    Happened,
    Option,
    ToolRefusedError,
    Waiting,
    refusal,
)
from backend.campaigns.rules import DEFAULT, Mood, Rules, known_rules, rules_of
from backend.campaigns.state.party import is_scene_here, story_place
from backend.campaigns.state.snapshot import Names
from backend.campaigns.state.state_block import Form
from backend.core.audience import GM, Viewpoint
from backend.database.base import new_id
from backend.errors import ValidationError
from backend.generation.model import Tool, ToolCall
from backend.generation.tools.arguments import InvalidCallError, read_arguments
from backend.prompts import PromptLibrary


class RollDice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roll dice when something may fail. The server rolls, and the result is what happens."""

    dice: Annotated[str, Meta(min_length=2, max_length=12, description="Such as 1d20 or 2d6+3.")]
    because: Annotated[str, Meta(max_length=1_000)] = ""


def roll_dice(table: Table, asked: RollDice) -> Outcome:
    """Roll, and return each die and the total."""
    count, sides, more = parse_notation(asked.dice)
    dice = table.roll(count, sides=sides)
    total = sum(dice) + more
    shown = f"{'+'.join(map(str, dice))}{f'{more:+}' if more else ''}"
    return answer({"dice": dice, "total": total}, f"{asked.dice}: {shown} = {total}")


ROLL_DICE = PlayTool("roll_dice", RollDice, roll_dice, is_private=True)


MAX_CALLS = 12
MAX_BREAKS = 3
FINISH = "finish_turn"
_KINDS: dict[type[Item], Kind] = {struct: kind for kind, struct in STRUCTS.items()}


class NoSuchOptionError(ValidationError):
    """The turn does not offer this option."""


class Table:
    """A turn that is played. Each tool call of the model is checked here.

    Attributes:
        state: All of it that is saved.
        names: The campaign's items that are kept in memory.
        viewpoint: What it may not know does not come to the table.
    """

    def __init__(self, state: TableState, names: Names | None = None) -> None:
        self.state = state
        self.names = names
        self.viewpoint: Viewpoint = GM
        self.rules: Rules = rules_of(state.rules)
        self._secrets: dict[str, str] = {}

    @classmethod
    def new(
        cls,
        campaign_id: UUID,
        *,
        rules: str,
        dice: DiceMode,
        items: Mapping[UUID, Item],
        states: Mapping[UUID, State] = MappingProxyType({}),
        names: Names | None = None,
        seed: str = "",
        is_private: bool = False,
    ) -> Table:
        """A table for one turn. `items` are those in play, the campaign's world among them.

        `states` are theirs, as far as they are known already. A turn that `is_private` is not for
        everyone: its dice are rolled, and it changes nothing.
        """
        held = {
            item_id: Held(kind_of(item), states.get(item_id) or state_of(item))
            for item_id, item in items.items()
        }
        play = play_of(held[campaign_id].state, rules_of(rules))
        state = TableState(
            campaign_id=campaign_id,
            rules=rules if rules in known_rules() else DEFAULT,
            dice=dice,
            seed=seed or new_seed(),
            items=held,
            play=play,
            before=play,
            is_private=is_private,
        )
        return cls(state, names)

    def save(self) -> bytes:
        """The table as JSON, for `load`."""
        return msgspec.json.encode(self.state)

    @classmethod
    def load(cls, data: bytes, names: Names | None = None) -> Table:
        """A table that was saved."""
        return cls(msgspec.json.decode(data, type=TableState), names)

    @property
    def play(self) -> Play:
        """The mood, its variant, position, effect, and what a die has fixed."""
        return self.state.play

    @property
    def mood(self) -> Mood:
        """The mood that the turn is in."""
        return self.rules.moods()[self.play.mood]

    @property
    def waiting(self) -> Waiting | None:
        """What the turn waits for."""
        return self.state.pending.waiting if self.state.pending else None

    @property
    def suggestions(self) -> Sequence[str]:
        """What the player might do next."""
        return self.state.suggestions

    @property
    def happened(self) -> Sequence[Happened]:
        """Events for the campaign's chronicle that are not stored."""
        return self.state.happened[self.state.stored.happened :]

    @property
    def is_decided(self) -> bool:
        """True if a die has fixed an outcome, and the turn has not gone on to it."""
        is_open = self.mood.is_unsettled and self.mood.leave is not None
        return bool(self.play.tier) and is_open and not self.state.is_private

    @property
    def needs_calls(self) -> bool:
        """True if the rules need a tool call in this turn."""
        return self.mood.needs_calls and not self.state.is_private

    @property
    def is_over(self) -> bool:
        """Whether the model has finished the turn."""
        return self.state.is_over

    @property
    def references(self) -> References:
        """The items that a call may name."""
        names = self.names if self.viewpoint == GM else None
        return References(self.state.items, names, self._secrets)

    def mark(self, text: str, state: State) -> str:
        """Return a text about an item, with who knows the item if it is not for everyone."""
        return self.references.mark(text, state)

    @property
    def ledger(self) -> list[Change]:
        """The changes of the turn that are not stored, in order. A private turn has none."""
        if self.state.is_private:
            return []
        return [*self.state.changes[self.state.stored.changes :], *self._play_changes()]

    def _play_changes(self) -> list[Change]:
        """Return the changes of the play state: in the world, and in the open scene."""
        state, play = self.state, self.state.play
        world, changes = Operations(), list[Change]()
        if play != state.before:
            world.set[f"attributes.{PLAY}"] = msgspec.to_builtins(play)
        if len(state.rolls) > state.stored.rolls:
            world.set[f"attributes.{ROLL}"] = state.last_dice()
        if world.set:
            changes.append(Change("world", state.campaign_id, world))
        shown = {"mood": play.mood, "variant": play.variant}
        if self.scene_id and any(self.scene.get(key, "") != shown[key] for key in shown):
            changes.append(Change("scene", self.scene_id, Operations(set=shown)))
        return changes

    def note_stored(self, change_ids: Sequence[UUID], *, left_out: int) -> None:
        """Note that the changes of `ledger` are stored while the turn goes on.

        `change_ids` are those of the written changes, `left_out` counts the others.
        """
        state = self.state
        for change in self._play_changes():
            held = state.items[change.item_id]
            after = applied(held.kind, held.state, change.operations)
            state.items[change.item_id] = Held(held.kind, after)
            state.changes.append(change)
        state.before = state.play
        state.stored = Stored(
            changes=len(state.changes),
            rolls=len(state.rolls),
            happened=len(state.happened),
            ids=[*state.stored.ids, *change_ids],
            left_out=state.stored.left_out + left_out,
        )

    @property
    def pool(self) -> list[int]:
        """The dice that the player sees and may spend."""
        attributes: State = self.world.get("attributes") or {}
        return attributes.get(POOL) or []

    @property
    def is_last_phase(self) -> bool:
        """Whether the mood has changed as often as it may in one turn."""
        return self.state.breaks >= MAX_BREAKS

    def show(self, place_id: UUID | None, form: Form) -> None:
        """Note the place and the form of the prompt's state block."""
        self.state.shown_place = str(place_id) if place_id else None
        self.state.shows_people = form == "full"

    def guidance(self, prompts: PromptLibrary) -> str:
        """What the model is told of the mood."""
        return guidance.render(self, prompts)

    def offered(self, *, may_wait: bool = True) -> list[Tool]:
        """Return the tools that the model has now; unless it `may_wait`, those that ask nothing."""
        return [tool.offer for tool in self._tools(may_wait=may_wait)]

    async def use(self, call: ToolCall, *, may_wait: bool = True) -> Outcome:
        """Return the outcome of a call. If the call is wrong, it is an answer with an `error`."""
        tools = {tool.name: tool for tool in self._tools(may_wait=may_wait)}
        if self.waiting is not None:
            return refusal("The turn waits for its player.")
        self.state.calls += 1
        if not tools:
            if self.is_over:
                return Outcome(kind="end", result={"error": "The turn is over."})
            return refusal("There are no more calls in this turn: write the narration.")
        if call.problem:  # of a call of which nothing can be read, not even the name is known
            return refusal(f"The call can't be read: {call.problem}")
        tool = tools.get(call.name)
        if tool is None:
            return refusal(f"There is no such tool now. There are {', '.join(tools)}.")
        return self._run(tool, call)

    def _run(self, tool: PlayTool, call: ToolCall) -> Outcome:
        """What a tool does; one that refuses leaves everything as it was."""
        before = self.state.copied()
        self._secrets.clear()
        try:
            arguments = read_arguments(call.arguments, tool.arguments, tool.schema)
            outcome = tool.run(self, arguments)
        except (InvalidCallError, ToolRefusedError, ValidationError) as error:
            self.state = before
            return refusal(error.detail if isinstance(error, ValidationError) else str(error))
        if self._secrets and isinstance(outcome.result, dict):
            members = cast("dict[str, Any]", outcome.result)
            outcome = replace(outcome, result={**members, "who_knows": dict(self._secrets)})
        if outcome.kind == "break":
            self.state.breaks += 1
        self.state.is_over = outcome.kind == "end"
        events: list[Event] = [
            ("tool.used", {"name": tool.name, "summary": outcome.summary}),
            *self._mood_changed(before.play),
            *outcome.events,
        ]
        return replace(outcome, events=events)

    def move_on(self) -> Outcome:
        """Go on to the outcome that a die has fixed, for a model that does not."""
        before = self.play
        self._leave_mood()
        self.state.breaks += 1
        return Outcome(kind="break", events=self._mood_changed(before))

    def end_turn(self) -> list[Event]:
        """End a mood that would stay open, and return the events of that.

        A mood ends if a die has decided it, or if it has lasted for `Mood.max_turns` turns.
        """
        before = self.play
        if self.mood.leave is None or self.state.is_private:
            return []
        turns = 1 if self.state.rolls else before.turns + 1
        if self.is_decided or turns >= self.mood.max_turns:
            self._leave_mood()
        else:
            self.state.play = msgspec.structs.replace(before, turns=turns)
        return self._mood_changed(before)

    def _leave_mood(self) -> None:
        if self.mood.leave is not None:
            self.mood.leave(self)

    def choose(self, option_id: str, text: str = "") -> Any:
        """Return the result of the call that waits for the player: the one that was chosen.

        `text` is an answer in the player's own words; it goes with the option `Waiting.own`.

        Raises:
            NoSuchOptionError: The turn does not wait for this option.
            ValidationError: The text is missing, or belongs to no option.
        """
        pending = self.state.pending
        if pending is None:
            raise NoSuchOptionError("The turn does not offer this option.")
        waiting, said = pending.waiting, text.strip()
        ids = [each.id for each in waiting.options]
        is_own = bool(waiting.own) and option_id == waiting.own
        if not is_own and option_id not in ids:
            raise NoSuchOptionError("The turn does not offer this option.")
        if is_own != bool(said):
            raise ValidationError(
                "`text` is required with the option `own`, and not allowed with others."
            )
        result: Any = {"answered": said}
        if not is_own:
            tool, index = self._tool(pending.tool), ids.index(option_id)
            result = tool.choose(self, index) if tool.choose else waiting.options[index].label
        self.state.pending = None
        return result

    def wait(
        self, tool: str, kind: Literal["question", "die"], prompt: str, options: Sequence[Option],
        data: Any = None,
    ) -> Outcome:  # fmt: skip
        """Suspend the turn until the player chooses. The options get their ids here.

        A question can be answered in the player's own words, too.
        """
        self.state.waits += 1
        numbered = [
            msgspec.structs.replace(option, id=f"{self.state.waits}.{index}")
            for index, option in enumerate(options)
        ]
        own = f"{self.state.waits}.own" if kind == "question" else ""
        waiting = Waiting(kind=kind, prompt=prompt, options=numbered, own=own)
        self.state.pending = Pending(tool=tool, waiting=waiting, data=data)
        return Outcome(kind="wait", summary=prompt)

    def get(self, item_id: UUID) -> State:
        """An item in play, as the turn's changes leave it."""
        return self.state.items[item_id].state

    def of_kind(self, kind: Kind) -> dict[UUID, State]:
        """Items in play of a kind that exist, the oldest first."""
        found = [
            (item_id, each.state)
            for item_id, each in self.state.items.items()
            if each.kind == kind and exists(each.state)
        ]
        return dict(sorted(found, key=lambda each: each[0].int))

    @property
    def world(self) -> State:
        """The campaign's world."""
        return self.get(self.state.campaign_id)

    @property
    def place(self) -> str | None:
        """The id of the place where the story is, as text."""
        where: str | None = story_place(state.get("location_id") for state in self.players.values())
        return where or self.scene.get("location_id")

    @property
    def open_scenes(self) -> dict[UUID, State]:
        """The scenes that are not over, the oldest first."""
        scenes = self.of_kind("scene").items()
        return {one: state for one, state in scenes if state.get("status", "open") == "open"}

    @property
    def scene_id(self) -> UUID | None:
        """The scene that the story is in."""
        place: str | None = story_place(state.get("location_id") for state in self.players.values())
        scenes = self.open_scenes.items()
        found = [one for one, state in scenes if is_scene_here(state.get("location_id"), place)]
        return found[-1] if found else None

    @property
    def scene(self) -> State:
        """The scene that the story is in; an empty state where there is none."""
        return self.get(self.scene_id) if self.scene_id else {}

    @property
    def players(self) -> dict[UUID, State]:
        """The players' characters, the one whom the story follows first."""
        found = [each for each in self.of_kind("entity").items() if each[1]["kind"] == "pc"]
        return dict(sorted(found, key=lambda each: each[0] != self.state.lead_id))

    def change(self, item_id: UUID, operations: Operations) -> State:
        """Change an item in play, and give what it is then.

        Raises `ToolRefusedError` for a locked field, `ValidationError` for what can't be.
        """
        held = self.state.items[item_id]
        if locked := locked_fields(held.state, operations):
            raise ToolRefusedError(f"Locked by the user, not to be changed: {', '.join(locked)}.")
        after = applied(held.kind, held.state, operations)
        self.rules.validate(held.kind, held.state, after)
        self.state.items[item_id] = Held(held.kind, after)
        self.state.changes.append(Change(held.kind, item_id, operations))
        return after

    def create(self, item: Item) -> UUID:
        """Add an item. Raises `ValidationError` for what can't be."""
        kind, item_id = kind_of(item), new_id()
        made = Operations(set=state_of(item))
        after = applied(kind, {}, made)
        self.rules.validate(kind, {}, after)
        self.state.items[item_id] = Held(kind, after)
        self.state.changes.append(Change(kind, item_id, made))
        return item_id

    def turn_to(self, mood: str, **fields: str) -> None:
        """Go into a mood. What is not named of `Play` is forgotten."""
        if mood not in self.rules.moods():
            raise ToolRefusedError(f"There is no mood {mood}.")
        self.state.play = msgspec.structs.replace(Play(mood=mood), **fields)

    def roll(self, count: int, *, sides: int = 6) -> list[int]:
        """Dice of this turn, 1 to `sides` each."""
        first = sum(len(each.dice) for each in self.state.rolls)
        dice = roll(self.state.seed, first, count, sides=sides)
        self.state.rolls.append(Roll(sides, dice))
        return dice

    def _tools(self, *, may_wait: bool) -> list[PlayTool]:
        if self.is_over or self.waiting is not None or self.state.calls >= MAX_CALLS:
            return []
        tools = self.rules.tools(self.play.mood)
        if self.state.is_private:
            tools = [*(tool for tool in tools if tool.is_private), ROLL_DICE]
            return [tool for tool in tools if may_wait or tool.choose is None]
        if self.is_last_phase:
            return [tool for tool in tools if tool.name == FINISH]
        return [tool for tool in tools if may_wait or tool.choose is None]

    def _tool(self, name: str) -> PlayTool:
        return next(tool for tool in self.rules.tools(self.play.mood) if tool.name == name)

    def _mood_changed(self, before: Play) -> list[Event]:
        now = self.play
        shown = {"mood": now.mood, "variant": now.variant}
        shown |= {
            name: value for name in ("position", "effect") if (value := getattr(now, name, ""))
        }
        told = (before.mood, before.variant, before.position, before.effect)
        same = told == (now.mood, now.variant, now.position, now.effect)
        return [] if same else [("mood.changed", shown)]


def locked_fields(state: State, operations: Operations) -> list[str]:
    """The keys of a change that the item's user has locked."""
    locked: set[str] = set(state.get("locked", ()))
    return [
        key
        for key in operations.touched()
        if key in locked
        or key.partition(".")[0] in locked
        or any(each.startswith(f"{key}.") for each in locked)
    ]


def kind_of(item: Item) -> Kind:
    """Which kind of item a struct is."""
    return _KINDS[type(item)]
