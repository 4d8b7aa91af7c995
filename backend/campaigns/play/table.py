"""The table of a turn: the items that its tools read and change. No function does I/O.

A table begins with the campaign's items, and collects changes, which `play.store` writes with the
reply. It can be saved while the turn waits for its player.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import (
    Change,
    Operations,
    State,
    apply_operations,
    build_state,
    exists,
)
from backend.campaigns.ledger.items import STRUCTS, Echo, Item, Kind
from backend.campaigns.ledger.store import get_audience
from backend.campaigns.play.references import ItemResolver, get_name
from backend.campaigns.rules.protocol import (
    DEFAULT_RULES,
    Event,
    Mood,
    PlayTool,
    RuleSystem,
    ToolOutcome,
    ToolRefusedError,
    find_rules,
    load_rules,
    make_answer,
    make_refusal,
    read_play,
)
from backend.campaigns.rules.state import (
    PLAY,
    ROLL,
    DiceMode,
    Happened,
    ItemState,
    Option,
    Pending,
    PlayState,
    Roll,
    Stored,
    TableState,
    Waiting,
    new_seed,
    parse_notation,
    roll,
)
from backend.campaigns.state.party import find_story_place, is_scene_here
from backend.campaigns.state.snapshot import CampaignSnapshot
from backend.campaigns.state.state_block import Form
from backend.core.audience import GM, PUBLIC, Audience, Viewpoint, decode_audience
from backend.database.base import new_id
from backend.errors import ConflictError, ValidationError
from backend.generation.model import Tool, ToolCall
from backend.generation.tools.calls import InvalidCallError, read_arguments


class RollDice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roll dice when something may fail. The server rolls, and its result is final."""

    dice: Annotated[str, Meta(min_length=2, max_length=12, description="Such as 1d20 or 2d6+3.")]
    because: Annotated[str, Meta(max_length=1_000)] = ""


def roll_dice(table: Table, asked: RollDice) -> ToolOutcome:
    count, sides, more = parse_notation(asked.dice)
    dice = table.roll(count, sides=sides)
    total = sum(dice) + more
    shown = f"{'+'.join(map(str, dice))}{f'{more:+}' if more else ''}"
    return make_answer({"dice": dice, "total": total}, f"{asked.dice}: {shown} = {total}")


ROLL_DICE = PlayTool("roll_dice", RollDice, roll_dice, is_private=True)


MAX_CALLS = 12
MAX_BREAKS = 3
FINISH = "finish_turn"
_KIND_BY_STRUCT: dict[type[Item], Kind] = {struct: kind for kind, struct in STRUCTS.items()}


class _SavedRules(msgspec.Struct):
    rules: str


class NoSuchOptionError(ValidationError):
    """The turn does not offer this option."""


class Table:
    """A turn in play. It validates and executes each tool call of the model."""

    def __init__(self, state: TableState[Any], names: CampaignSnapshot | None = None) -> None:
        self.state = state
        self.names = names
        self.viewpoint: Viewpoint = GM
        self.rules: RuleSystem[Table] = find_rules(state.rules)
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
        names: CampaignSnapshot | None = None,
        seed: str = "",
        is_private: bool = False,
    ) -> Table:
        """Create the table of a turn. `items` are those in play, including the campaign's world.

        `states` are their states, if they are known. If it `is_private`, not everyone may know the
        turn: it rolls dice but changes nothing.
        """
        held = {
            item_id: ItemState(get_kind(item), states.get(item_id) or build_state(item))
            for item_id, item in items.items()
        }
        system = find_rules(rules)
        play = read_play(held[campaign_id].state, system)
        state = system.state_type(
            campaign_id=campaign_id,
            rules=rules if rules in load_rules() else DEFAULT_RULES,
            dice=dice,
            seed=seed or new_seed(),
            items=held,
            play=play,
            before=play,
            is_private=is_private,
        )
        return cls(state, names)

    def save(self) -> bytes:
        """Return the table as JSON, for `load`."""
        return msgspec.json.encode(self.state)

    @classmethod
    def load(cls, data: bytes, names: CampaignSnapshot | None = None) -> Table:
        rules = find_rules(msgspec.json.decode(data, type=_SavedRules).rules)
        return cls(msgspec.json.decode(data, type=rules.state_type), names)

    @property
    def play(self) -> PlayState:
        """The play state: the mood, its variant, and fields of the rules."""
        play: PlayState = self.state.play
        return play

    @property
    def mood(self) -> Mood[Table]:
        return next(mood for mood in self.rules.moods if mood.name == self.play.mood)

    @property
    def waiting(self) -> Waiting | None:
        return self.state.pending.waiting if self.state.pending else None

    @property
    def suggestions(self) -> Sequence[str]:
        return self.state.suggestions

    @property
    def happened(self) -> Sequence[Happened]:
        """Events for the campaign's chronicle that are not stored."""
        return self.state.happened[self.state.stored.happened :]

    @property
    def is_decided(self) -> bool:
        """True if a die has fixed an outcome, and the turn has not continued to it."""
        is_open = self.mood.is_unsettled and self.mood.leave is not None
        return is_open and self.rules.is_decided(self.play) and not self.state.is_private

    @property
    def needs_calls(self) -> bool:
        """True if the rules need a tool call in this turn."""
        return self.mood.needs_calls and not self.state.is_private

    @property
    def is_over(self) -> bool:
        """True if the model has finished the turn."""
        return self.state.is_over

    @property
    def references(self) -> ItemResolver:
        names = self.names if self.viewpoint == GM else None
        return ItemResolver(self.state.items, names, self._secrets)

    def mark(self, text: str, state: State) -> str:
        return self.references.mark(text, state)

    @property
    def ledger(self) -> list[Change]:
        """The changes of the turn that are not stored, in order; empty for a private turn."""
        if self.state.is_private:
            return []
        return [*self.state.changes[self.state.stored.changes :], *self._build_play_changes()]

    def _build_play_changes(self) -> list[Change]:
        """Return the changes of the play state: in the world, and in the open scene."""
        state, play = self.state, self.state.play
        world, changes = Operations(), list[Change]()
        if play != state.before:
            world.set[f"attributes.{PLAY}"] = msgspec.to_builtins(play)
        if len(state.rolls) > state.stored.rolls:
            world.set[f"attributes.{ROLL}"] = state.list_last_dice()
        if world.set:
            changes.append(Change("world", state.campaign_id, world))
        shown = {"mood": play.mood, "variant": play.variant}
        if self.scene_id and any(self.scene.get(key, "") != shown[key] for key in shown):
            changes.append(Change("scene", self.scene_id, Operations(set=shown)))
        return changes

    def note_stored(self, change_ids: Sequence[UUID], *, left_out: int) -> None:
        """Record that `change_ids` were stored during the turn, and `left_out` others were not."""
        state = self.state
        for change in self._build_play_changes():
            held = state.items[change.item_id]
            after = apply_operations(held.kind, held.state, change.operations)
            state.items[change.item_id] = ItemState(held.kind, after)
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
    def is_last_phase(self) -> bool:
        """True if the mood has changed as often as one turn allows."""
        return self.state.breaks >= MAX_BREAKS

    def show(self, place_id: UUID | None, form: Form) -> None:
        """Set the place and the form of the prompt's state block."""
        self.state.shown_place = str(place_id) if place_id else None
        self.state.shows_people = form == "full"

    def list_tools(self, *, may_wait: bool = True) -> list[Tool]:
        """Return the tools that the model has now; without `may_wait`, those that ask nothing."""
        return [tool.offer for tool in self._list_tools(may_wait=may_wait)]

    async def use(self, call: ToolCall, *, may_wait: bool = True) -> ToolOutcome:
        """Return the outcome of a call. A wrong call is an answer with an `error`."""
        tools = {tool.name: tool for tool in self._list_tools(may_wait=may_wait)}
        if self.waiting is not None:
            return make_refusal("The turn waits for its player.")
        self.state.calls += 1
        if not tools:
            if self.is_over:
                return ToolOutcome(kind="end", result={"error": "The turn is over."})
            return make_refusal("There are no more calls in this turn: write the narration.")
        if call.problem:  # An unreadable call has no name either.
            return make_refusal(f"The call can't be read: {call.problem}")
        tool = tools.get(call.name)
        if tool is None:
            return make_refusal(f"There is no such tool now. There are {', '.join(tools)}.")
        return self._run(tool, call)

    def _run(self, tool: PlayTool[Table], call: ToolCall) -> ToolOutcome:
        """Execute a tool call. A refused call changes nothing."""
        before = self.state.copy()
        self._secrets.clear()
        try:
            arguments = read_arguments(call.arguments, tool.arguments, tool.schema)
            outcome = tool.run(self, arguments)
        except (InvalidCallError, ToolRefusedError, ValidationError) as error:
            self.state = before
            return make_refusal(error.detail if isinstance(error, ValidationError) else str(error))
        if self._secrets and isinstance(outcome.result, dict):
            members = cast("dict[str, Any]", outcome.result)
            outcome = replace(outcome, result={**members, "who_knows": dict(self._secrets)})
        if outcome.kind == "break":
            self.state.breaks += 1
        self.state.is_over = outcome.kind == "end"
        events: list[Event] = [
            ("tool.used", {"name": tool.name, "summary": outcome.summary}),
            *self._build_mood_events(before.play),
            *outcome.events,
        ]
        return replace(outcome, events=events)

    def move_on(self) -> ToolOutcome:
        """Continue to the outcome that a die has fixed, if the model does not."""
        before = self.play
        self._leave_mood()
        self.state.breaks += 1
        return ToolOutcome(kind="break", events=self._build_mood_events(before))

    def end_turn(self) -> list[Event]:
        """Leave a mood that must not stay open, and return the events.

        A mood is left if a die has decided it, or if it has lasted for `Mood.max_turns` turns.
        """
        before = self.play
        if self.mood.leave is None or self.state.is_private:
            return []
        turns = 1 if self.state.rolls else before.turns + 1
        if self.is_decided or turns >= self.mood.max_turns:
            self._leave_mood()
        else:
            self.state.play = msgspec.structs.replace(before, turns=turns)
        return self._build_mood_events(before)

    def _leave_mood(self) -> None:
        if self.mood.leave is not None:
            self.mood.leave(self)

    def choose(self, option_id: str, text: str = "") -> Any:
        """Return the result of the waiting call for the player's choice.

        `text` is an answer in the player's own words, for the option `Waiting.own`. Raises
        `NoSuchOptionError`, or `ValidationError` if the text is missing or belongs to no option.
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
            tool, index = self._find_tool(pending.tool), ids.index(option_id)
            result = tool.choose(self, index) if tool.choose else waiting.options[index].label
        self.state.pending = None
        return result

    def wait(
        self, tool: str, kind: Literal["question", "die"], prompt: str, options: Sequence[Option],
        data: Any = None,
    ) -> ToolOutcome:  # fmt: skip
        """Suspend the turn until the player chooses an option or answers in their own words."""
        self.state.waits += 1
        numbered = [
            msgspec.structs.replace(option, id=f"{self.state.waits}.{index}")
            for index, option in enumerate(options)
        ]
        own = f"{self.state.waits}.own" if kind == "question" else ""
        waiting = Waiting(kind=kind, prompt=prompt, options=numbered, own=own)
        self.state.pending = Pending(tool=tool, waiting=waiting, data=data)
        return ToolOutcome(kind="wait", summary=prompt)

    def get(self, item_id: UUID) -> State:
        """Return the state of an item in play, with the turn's changes."""
        return self.state.items[item_id].state

    def list_items(self, kind: Kind) -> dict[UUID, State]:
        """Return the existing items in play of a kind, the oldest first."""
        found = [
            (item_id, each.state)
            for item_id, each in self.state.items.items()
            if each.kind == kind and exists(each.state)
        ]
        return dict(sorted(found, key=lambda each: each[0].int))

    @property
    def world(self) -> State:
        return self.get(self.state.campaign_id)

    @property
    def place(self) -> str | None:
        """The id of the story's place, as text."""
        where: str | None = find_story_place(
            state.get("location_id") for state in self.players.values()
        )
        return where or self.scene.get("location_id")

    @property
    def open_scenes(self) -> dict[UUID, State]:
        """The open scenes, the oldest first."""
        scenes = self.list_items("scene").items()
        return {one: state for one, state in scenes if state.get("status", "open") == "open"}

    @property
    def scene_id(self) -> UUID | None:
        """The id of the scene at the story's place."""
        place: str | None = find_story_place(
            state.get("location_id") for state in self.players.values()
        )
        scenes = self.open_scenes.items()
        found = [one for one, state in scenes if is_scene_here(state.get("location_id"), place)]
        return found[-1] if found else None

    @property
    def scene(self) -> State:
        """The scene at the story's place; an empty state if there is none."""
        return self.get(self.scene_id) if self.scene_id else {}

    @property
    def players(self) -> dict[UUID, State]:
        """The players' characters; the one whom the story follows is the first."""
        found = [each for each in self.list_items("entity").items() if each[1]["kind"] == "pc"]
        return dict(sorted(found, key=lambda each: each[0] != self.state.lead_id))

    def change(self, item_id: UUID, operations: Operations) -> State:
        """Change an item in play. Raises `ToolRefusedError`, `ValidationError`."""
        held = self.state.items[item_id]
        if locked := find_locked_fields(held.state, operations):
            raise ToolRefusedError(f"Locked by the user, not to be changed: {', '.join(locked)}.")
        after = apply_operations(held.kind, held.state, operations)
        self.rules.validate(held.kind, held.state, after)
        self.state.items[item_id] = ItemState(held.kind, after)
        self.state.changes.append(Change(held.kind, item_id, operations))
        return after

    def create(self, item: Item) -> UUID:
        """Create an item, and return its id. Raises `ValidationError` for an invalid state."""
        kind, item_id = get_kind(item), new_id()
        made = Operations(set=build_state(item))
        after = apply_operations(kind, {}, made)
        self.rules.validate(kind, {}, after)
        self.state.items[item_id] = ItemState(kind, after)
        self.state.changes.append(Change(kind, item_id, made))
        return item_id

    def enter_mood(self, mood: str, **fields: Any) -> None:
        if self.rules.find_mood(mood) is None:
            raise ToolRefusedError(f"There is no mood {mood}.")
        self.state.play = self.rules.play_type(mood=mood, **fields)

    def roll(self, count: int, *, sides: int = 6) -> list[int]:
        """Roll dice of this turn, 1 to `sides` each."""
        first = sum(len(each.dice) for each in self.state.rolls)
        dice = roll(self.state.seed, first, count, sides=sides)
        self.state.rolls.append(Roll(sides, dice))
        return dice

    def _list_tools(self, *, may_wait: bool) -> list[PlayTool[Table]]:
        if self.is_over or self.waiting is not None or self.state.calls >= MAX_CALLS:
            return []
        tools = self.mood.tools
        if self.state.is_private:
            tools = [*(tool for tool in tools if tool.is_private), ROLL_DICE]
            return [tool for tool in tools if may_wait or tool.choose is None]
        if self.is_last_phase:
            return [tool for tool in tools if tool.name == FINISH]
        return [tool for tool in tools if may_wait or tool.choose is None]

    def _find_tool(self, name: str) -> PlayTool[Table]:
        return next(tool for tool in self.mood.tools if tool.name == name)

    def _build_mood_events(self, before: PlayState) -> list[Event]:
        shown = self.rules.describe_play(self.play)
        return [] if shown == self.rules.describe_play(before) else [("mood.changed", shown)]


def find_locked_fields(state: State, operations: Operations) -> list[str]:
    """Return the keys of a change that the user has locked."""
    locked: set[str] = set(state.get("locked", ()))
    return [
        key
        for key in operations.list_keys()
        if key in locked
        or key.partition(".")[0] in locked
        or any(each.startswith(f"{key}.") for each in locked)
    ]


def get_kind(item: Item) -> Kind:
    return _KIND_BY_STRUCT[type(item)]


DOWNTIME = "downtime"


class DowntimeError(ConflictError):
    """Downtime has begun already, or has not begun."""

    slug, title = "downtime", "Downtime is not possible now"


def enter_downtime(table: Table, activity: str, target: str = "") -> dict[str, Any]:
    """Begin downtime with an activity, and return a description of its effects.

    `target` is the name of a character or clock, for activities that need one. Raises
    `DowntimeError`, or `ValidationError` if the rules have no such activity or target.
    """
    mood = table.rules.find_mood(DOWNTIME)
    if mood is None:
        raise ValidationError("These rules have no downtime.")
    if activity not in mood.variants:
        raise ValidationError(f"`activity` must be one of {', '.join(mood.variants)}.")
    if table.play.mood == DOWNTIME:
        raise DowntimeError("Downtime has begun already.")
    if table.play.mood != table.rules.moods[0].name:
        raise DowntimeError("Finish the current mood before downtime.")
    result = table.rules.spend_downtime(table, activity, target)
    table.enter_mood(DOWNTIME, variant=activity)
    return result


def leave_downtime(table: Table) -> None:
    """Return to the mood in which play begins. Raises `DowntimeError` outside of downtime."""
    if table.play.mood != DOWNTIME:
        raise DowntimeError("Downtime has not begun.")
    table.enter_mood(table.rules.moods[0].name)


MAX_COSTS = 3
MAX_THREATS = 5
MAX_ECHO = 1_000
MAX_LISTED = 100

EchoKind = Literal["cost", "threat"]


def list_echoes(table: Table, kind: EchoKind) -> list[tuple[UUID, str]]:
    """Return unresolved echoes of a kind with their ids, the newest last."""
    return [
        (item_id, state["text"])
        for item_id, state in table.list_items("echo").items()
        if state.get("kind", "cost") == kind and not state.get("resolved")
    ]


def add_echo(table: Table, kind: EchoKind, text: str, audience: Audience = PUBLIC) -> None:
    """Add a cost or a threat. If there are too many, resolve the oldest."""
    table.create(Echo(text=text[:MAX_ECHO], kind=kind, audience=audience))
    most = MAX_COSTS if kind == "cost" else MAX_THREATS
    for item_id, _ in list_echoes(table, kind)[:-most]:
        if "resolved" not in table.get(item_id).get("locked", ()):
            table.change(item_id, Operations(set={"resolved": True}))


def find_echo(table: Table, said: str) -> UUID:
    """Return the unresolved echo with a text, or the only one that contains it.

    Raises `ToolRefusedError` with a list of all if there is none, or more than one.
    """
    found = {one: text for kind in ("cost", "threat") for one, text in list_echoes(table, kind)}
    wanted = said.strip().rstrip("…").casefold()
    exact = [one for one, text in found.items() if text.casefold() == wanted]
    near = exact or [one for one, text in found.items() if wanted and wanted in text.casefold()]
    if len(near) == 1:
        return near[0]
    problem = "More than one threat or cost has" if near else "No threat or cost has"
    known = (table.mark(text[:MAX_LISTED], table.get(one)) for one, text in found.items())
    listed = "; ".join(known) or "none"
    raise ToolRefusedError(f"{problem} the text {said[:MAX_LISTED]!r}. There is: {listed}.")


def is_full(clock: State) -> bool:
    return cast("int", clock.get("filled", 0)) >= cast("int", clock.get("segments", 6))


def is_visible(clock: State) -> bool:
    """True if the players may know of a clock."""
    return clock.get("visible") is not False


def tick(table: Table, clock_id: UUID, segments: int) -> State:
    """Fill or empty segments of a clock. Raises `ToolRefusedError` for a clock that is done.

    A full clock becomes an event and an echo. If it is hidden, only the game master knows them.
    """
    before = table.get(clock_id)
    if is_full(before):
        raise ToolRefusedError(f"{get_name(before)} is done, and does not tick any more.")
    filled = before.get("filled", 0)
    moved = max(0, min(before.get("segments", 6), filled + segments)) - filled
    if moved == 0:
        return before
    operations = (
        Operations(add={"filled": moved}) if moved > 0 else Operations(remove={"filled": -moved})
    )
    after = table.change(clock_id, operations)
    if is_full(after):
        what = get_name(after)
        text = f"{what}: {consequence}" if (consequence := after.get("consequence")) else what
        audience = decode_audience(get_audience(after))
        table.state.happened.append(Happened(text, audience))
        kind: EchoKind = "threat" if after.get("kind", "threat") == "threat" else "cost"
        add_echo(table, kind, text, audience)
    return after
