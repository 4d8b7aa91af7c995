"""Tools of all rule systems: thinking, speaking, asking, place, time, clocks, ending the turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations, State, build_item, build_state
from backend.campaigns.ledger.items import Entity, Fact
from backend.campaigns.play.references import ENTITY_KINDS, Reference
from backend.campaigns.play.table import Table, find_echo, tick
from backend.campaigns.rules.protocol import AttributeType, ToolRefusedError
from backend.campaigns.rules.state import PLAY, ItemState, read_mapping
from backend.campaigns.state.situation_reader import MAX_FACTS, render_fact
from backend.campaigns.state.state_block import (
    MAX_DETAILED,
    Situation,
    VisibleEntity,
    rank_people,
    render_name,
    render_surroundings,
)
from backend.core.audience import NAMELESS_MARKS, AudienceMarks

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table
from backend.campaigns.ledger.items import Scene
from backend.campaigns.play.table import FINISH, Table, add_echo, is_visible
from backend.campaigns.rules.protocol import PlayTool, ToolOutcome, make_answer
from backend.campaigns.rules.state import Option
from backend.campaigns.state.party import is_scene_left

MAX_DELTAS = 20
ATTRIBUTES = "attributes"

Named = Annotated[
    str, Meta(min_length=1, max_length=200, description="By its name, or its #reference.")
]
Short = Annotated[str, Meta(max_length=1_000)]

_FIELDS: Mapping[str, Mapping[str, AttributeType]] = {
    "pc": {"status": "text", "disposition": "text"},
    "npc": {"status": "text", "disposition": "text", "wants": "text"},
    "location": {"status": "text", "description": "text"},
    "item": {"status": "text", "description": "text"},
    "faction": {"status": "text", "disposition": "text"},
    "ability": {"status": "text"},
    "thread": {"tension": "text", "status": "text", "next_step": "text", "summary": "text"},
    "clock": {},
}
"""Fields that a model may change without a tool of their own, by kind."""


class FieldDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field of a person, place, thing or thread in play."""

    item: Named
    field: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            description="Its name: status, disposition, tension, next_step, location, inventory.",
        ),
    ]
    how: Annotated[
        Literal["set", "add", "remove"],
        Meta(description="`add` and `remove` are for lists, and count numbers up and down."),
    ] = "set"
    value: Annotated[Short, Meta(description="The text, or what is put in or taken out.")] = ""
    amount: Annotated[int, Meta(ge=-1_000_000, le=1_000_000, description="For numbers.")] = 0


class ClockDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A clock that ticked."""

    clock: Named
    segments: Annotated[int, Meta(ge=-8, le=8)] = 1


class FactDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that is true from now on."""

    text: Annotated[str, Meta(min_length=1, max_length=2_000)]
    about: Annotated[str, Meta(max_length=200, description="Whom or what it is about.")] = ""


class FlagDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A yes or no about the world, by a name, that you alone see: for something to remember."""

    flag: Annotated[str, Meta(min_length=1, max_length=200, description="Such as gate_open.")]
    value: bool = True


class Deltas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of the world in this turn, without costs that were paid."""

    changes: Annotated[list[FieldDelta], Meta(max_length=MAX_DELTAS)] = []
    clocks: Annotated[list[ClockDelta], Meta(max_length=MAX_DELTAS)] = []
    facts: Annotated[list[FactDelta], Meta(max_length=MAX_DELTAS)] = []
    flags: Annotated[list[FlagDelta], Meta(max_length=MAX_DELTAS)] = []
    resolved: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=1_000)]],
        Meta(max_length=MAX_DELTAS, description="Threats and costs that echo no more, as listed."),
    ] = []


def apply_deltas(table: Table, deltas: Deltas) -> int:
    """Apply the changes, and return their number. Raises `ToolRefusedError`, `ValidationError`."""
    before = len(table.state.changes)
    for delta in deltas.changes:
        _change(table, delta)
    for ticked in deltas.clocks:
        clock = table.references.find_in_play(ticked.clock, {"clock"})
        _refuse_paid(table, clock, "filled")
        tick(table, clock.id, ticked.segments)
    for fact in deltas.facts:
        about = table.references.find(fact.about, ENTITY_KINDS).id if fact.about else None
        table.create(Fact(text=fact.text, about_id=about))
    for flag in deltas.flags:
        _set_flag(table, flag)
    for text in deltas.resolved:
        table.change(find_echo(table, text), Operations(set={"resolved": True}))
    return len(table.state.changes) - before


def list_changeable_fields(table: Table, item_id: UUID) -> dict[str, AttributeType]:
    """Return the fields of an item that a model may change without a tool, with their types."""
    held = table.state.items[item_id]
    kind = held.state["kind"] if held.kind == "entity" else held.kind
    attributes = table.rules.changeable(held.kind, held.state)
    return {
        **_FIELDS.get(kind, {}),
        **{f"{ATTRIBUTES}.{name}": each for name, each in attributes.items() if name != PLAY},
    }


def format_paid_key(reference: Reference, key: str) -> str:
    """Return the entry of a table's `paid` for a field that a cost has changed."""
    return f"{reference.id} {key}"


def _refuse_paid(table: Table, reference: Reference, key: str) -> None:
    if format_paid_key(reference, key) in table.state.paid:
        raise ToolRefusedError(f"{key} of {reference.name} was a cost of this turn: it is paid.")


def _set_flag(table: Table, delta: FlagDelta) -> None:
    name, flags = delta.flag.strip(), read_mapping(table.world.get("flags"))
    known = {render_name(each).casefold(): each for each in flags}
    name = known.get(render_name(name).casefold(), name)
    if table.rules.find_mood(name) is not None:
        raise ToolRefusedError(f"The flag {name} goes with its mood: tools of their own change it.")
    table.change(table.state.campaign_id, Operations(set={f"flags.{name}": delta.value}))


def _change(table: Table, delta: FieldDelta) -> None:
    reference = table.references.find_in_play(delta.item)
    held = table.state.items[reference.id]
    if delta.field == "location" and held.kind == "entity":
        place = table.references.find(delta.value, {"location"})
        table.change(reference.id, Operations(set={"location_id": str(place.id)}))
        return
    fields = list_changeable_fields(table, reference.id)
    name = delta.field.removeprefix(f"{ATTRIBUTES}.")
    key = name if name in fields else f"{ATTRIBUTES}.{name}"
    if key not in fields:
        there = ", ".join(["location", *(each.removeprefix(f"{ATTRIBUTES}.") for each in fields)])
        raise ToolRefusedError(f"{name} of {reference.name} can't be changed; there is: {there}.")
    _refuse_paid(table, reference, key)
    table.change(reference.id, _build_operations(key, fields[key], delta))


def _build_operations(key: str, kind: AttributeType, delta: FieldDelta) -> Operations:
    value: Any = delta.amount if kind == "number" else delta.value
    if kind == "list" and delta.how != "set":
        value = [delta.value]
    elif kind == "list":
        raise ToolRefusedError(f"{key} is a list: use add or remove.")
    if kind == "text" and delta.how != "set":
        raise ToolRefusedError(f"{key} is a text: use set.")
    if delta.how == "add":
        return Operations(add={key: value})
    if delta.how == "remove":
        return Operations(remove={key: value})
    return Operations(set={key: value})


def list_attribute_types(state: State) -> dict[str, AttributeType]:
    types: dict[str, AttributeType] = {}
    attributes: State = state.get(ATTRIBUTES) or {}
    for name, value in attributes.items():
        if isinstance(value, bool) or value is None or isinstance(value, dict):
            continue
        types[name] = (
            "text" if isinstance(value, str) else "list" if isinstance(value, list) else "number"
        )
    return types


def arrive(table: Table, place_id: UUID) -> str:
    """Add a place and its people to the table, and render them like the full state block.

    If the campaign is too large for the cache, only people in play are rendered.
    """
    if names := table.names:
        for kept in names.find_entities([place_id], place_id, table.viewpoint):
            table.state.items.setdefault(kept.id, ItemState("entity", build_state(kept.item)))
    players = [VisibleEntity(id=one, entity=_get_entity(table, one)) for one in table.players]
    people = [
        VisibleEntity(id=one, entity=_get_entity(table, one))
        for one, state in table.list_items("entity").items()
        if state["kind"] == "npc" and state.get("location_id") == str(place_id)
    ]
    ids = [each.id for each in (*players, *people)]
    relations = names.find_relations(ids, table.viewpoint) if names else []
    present = rank_people(people, named=(), spoke=(), relations=relations)
    marks = NAMELESS_MARKS
    if names:
        marks = AudienceMarks(partial(names.find_name, viewpoint=table.viewpoint))
    about = [*(each.id for each in present[:MAX_DETAILED]), place_id]
    return render_surroundings(
        Situation(
            name="",
            players=players,
            location=VisibleEntity(id=place_id, entity=_get_entity(table, place_id)),
            present=present,
            relations=relations,
            facts=_find_facts(table, about, marks),
            marks=marks,
        )
    )


def _get_entity(table: Table, entity_id: UUID) -> Entity:
    item = build_item("entity", table.get(entity_id))
    assert isinstance(item, Entity)  # noqa: S101
    return item


def _find_facts(table: Table, about: list[UUID], marks: AudienceMarks) -> list[str]:
    names = table.names
    if names is None or not names.around:
        return []
    kept = [one for one in about if one in names.around]
    found = names.find_facts(kept, table.viewpoint, limit=MAX_FACTS) or []
    return [render_fact(names, marks, fact, table.viewpoint) for _, fact in found[::-1]]


MAX_OPTIONS = 8
MAX_SUGGESTIONS = 6
MAX_DAYS = 365
MAX_WHO = 20

Said = Annotated[str, Meta(min_length=1, max_length=300)]


class Think(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Think as the game master before you write: the risks, the goals, and the next events."""

    thoughts: Annotated[str, Meta(min_length=1, max_length=8_000)]


class Speak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Before a person speaks, learn how they talk, their goals, and their disposition."""

    npc: Annotated[Named, Meta(description="Who is to speak.")]
    intent: Annotated[Short, Meta(description="What they mean to say, and to get by it.")] = ""


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask the player something that only they can decide, and wait. They may answer freely."""

    prompt: Annotated[str, Meta(min_length=1, max_length=1_000)]
    options: Annotated[list[Said], Meta(min_length=2, max_length=MAX_OPTIONS)]


class SetScene(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a scene at another place, or change the stakes of this one.

    If the players arrive somewhere, the answer describes the place and the people there.
    """

    location: Annotated[Named, Meta(description="The place, by its name.")]
    description: Annotated[Short, Meta(description="Of a new place alone: what is there.")] = ""
    title: Short = ""
    stakes: Annotated[Short, Meta(description="What may be won or lost.")] = ""
    who: Annotated[
        list[Named], Meta(max_length=MAX_WHO, description="Players who go there; all if empty.")
    ] = []


class AdvanceTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let the story's time go on."""

    days: Annotated[int, Meta(ge=0, le=MAX_DAYS)] = 0
    time_of_day: Annotated[str, Meta(max_length=100, description="morning, dusk, ...")] = ""


class TickClock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fill segments of a clock, or empty some."""

    clock: Named
    segments: Annotated[int, Meta(ge=-8, le=8, description="How many; negative ones empty it.")] = 1
    because: Short = ""


class FinishTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End your turn, after the narration: state its costs, its threats, and its changes."""

    connector: Annotated[
        Short, Meta(description="How this leads on: therefore, but, meanwhile, ...")
    ] = ""
    cost: Annotated[Short, Meta(description="What the players paid or lost, if anything.")] = ""
    threat: Annotated[Short, Meta(description="What hangs over them from now on, if new.")] = ""
    suggested_actions: Annotated[
        list[Said], Meta(max_length=MAX_SUGGESTIONS, description="What the player might do next.")
    ] = []
    deltas: Deltas = Deltas()


def think(table: Table, asked: Think) -> ToolOutcome:
    """Accept the model's thoughts, which are not shown."""
    del table, asked
    return make_answer({"ok": True}, "Thinks")


def speak(table: Table, asked: Speak) -> ToolOutcome:
    """Return the traits of a person that the model needs to speak for them."""
    found = table.references.find(asked.npc, {"npc"})
    state = found.state or {}
    told = {name: state[name] for name in _SPEAKER_FIELDS if state.get(name)}
    return make_answer({"name": found.name, **told}, f"{found.name} speaks")


_SPEAKER_FIELDS = ("role", "status", "disposition", "personality", "voice", "wants")


def ask(table: Table, asked: Ask) -> ToolOutcome:
    """Suspend the turn until the player answers."""
    options = [Option(id="", label=label) for label in dict.fromkeys(asked.options)]
    if len(options) < 2:  # noqa: PLR2004  # a choice is of two
        raise ToolRefusedError("The options are all the same.")
    return table.wait("ask_player", "question", asked.prompt, options)


def choose_answer(table: Table, index: int) -> dict[str, str]:
    assert table.waiting is not None  # noqa: S101  # the table has checked it
    return {"chosen": table.waiting.options[index].label}


def set_scene(table: Table, asked: SetScene) -> ToolOutcome:
    """Move players to a place, and continue its open scene or begin a new one.

    Scenes that all players' characters have left are closed.
    """
    try:
        place = table.references.find(asked.location, {"location"})
        place_id, name = place.id, place.name
    except ToolRefusedError as error:
        if not asked.description:
            raise ToolRefusedError(f"{error} A new place needs a `description`.") from None
        place_id = table.create(
            Entity(kind="location", name=asked.location, description=asked.description)
        )
        name = asked.location
    here, came_from = str(place_id), table.place
    before = {one: state.get("location_id") for one, state in table.players.items()}
    named = {table.references.find_in_play(each, {"pc"}).id for each in asked.who}
    for player_id, where in before.items():
        if where != here and (not named or player_id in named):
            table.change(player_id, Operations(set={"location_id": here}))
    said = {key: value for key in ("title", "stakes") if (value := getattr(asked, key))}
    scenes = {one: state.get("location_id") for one, state in table.open_scenes.items()}
    places = [where for each in table.players.values() if (where := each.get("location_id"))]
    for scene_id, where in scenes.items():
        if not where or is_scene_left(where, places or [here]):
            table.change(scene_id, Operations(set={"status": "closed"}))
    there = [one for one, where in scenes.items() if where == here]
    if not there:
        table.create(Scene(location_id=place_id, mood=table.play.mood, **said))
    elif said:
        table.change(there[-1], Operations(set=said))
    places = [state.get("location_id") for state in table.players.values()]
    if here == came_from and places == [*before.values()]:
        return make_answer({"location": name}, f"At {name}")
    return make_answer({"location": name, "here": arrive(table, place_id)}, f"Goes to {name}")


def advance_time(table: Table, asked: AdvanceTime) -> ToolOutcome:
    if not asked.days and not asked.time_of_day:
        raise ToolRefusedError("Say how many `days` pass, or which `time_of_day` it is.")
    operations = Operations()
    if asked.days:
        operations.add["day"] = asked.days
    if asked.time_of_day:
        operations.set["time_of_day"] = asked.time_of_day
    world = table.change(table.state.campaign_id, operations)
    when = f"Day {world['day']}" + (f", {time}" if (time := world.get("time_of_day")) else "")
    return make_answer({"day": world["day"], "time_of_day": world.get("time_of_day", "")}, when)


def tick_clock(table: Table, asked: TickClock) -> ToolOutcome:
    clock = table.references.find_in_play(asked.clock, {"clock"})
    after = tick(table, clock.id, asked.segments)
    shown = f"{after.get('filled', 0)}/{after.get('segments', 6)}"
    # The player reads the summary.
    summary = f"{clock.name} {shown}" if is_visible(after) else "A hidden clock ticks"
    return make_answer({"clock": clock.name, "filled": shown}, summary)


def finish_turn(table: Table, asked: FinishTurn) -> ToolOutcome:
    count = apply_deltas(table, asked.deltas)
    if asked.cost:
        add_echo(table, "cost", asked.cost)
    if asked.threat:
        add_echo(table, "threat", asked.threat)
    table.state.suggestions = list(dict.fromkeys(asked.suggested_actions))
    table.state.play = msgspec.structs.replace(table.play, connector=asked.connector)
    return ToolOutcome(kind="end", result={"changes": count}, summary="Ends the turn")


THINK = PlayTool("think_as_dm", Think, think, is_private=True)
SPEAK = PlayTool("speak_as_npc", Speak, speak, is_private=True)
ASK = PlayTool("ask_player", Ask, ask, choose_answer, is_private=True)
SET_SCENE = PlayTool("set_scene", SetScene, set_scene)
ADVANCE_TIME = PlayTool("advance_time", AdvanceTime, advance_time)
TICK_CLOCK = PlayTool("tick_clock", TickClock, tick_clock)
FINISH_TURN = PlayTool(FINISH, FinishTurn, finish_turn)
