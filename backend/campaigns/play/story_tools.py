"""Tools that every game has: thinking, speaking, asking, place and time, clocks, the turn's end."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID

from backend.campaigns.ledger.changes import item_of, state_of
from backend.campaigns.ledger.items import Entity, Relation
from backend.campaigns.play.references import Held
from backend.campaigns.state.item_reader import MAX_HOT
from backend.campaigns.state.situation_reader import MAX_FACTS, fact_line
from backend.campaigns.state.snapshot import KeptItem
from backend.campaigns.state.state_block import (
    MAX_DETAILED,
    Placed,
    Situation,
    ranked,
    surroundings_block,
)
from backend.core.audience import NAMELESS_MARKS, AudienceMarks, may_know

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table
from typing import Annotated

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations
from backend.campaigns.ledger.items import Scene
from backend.campaigns.play.deltas import Deltas, Named, Short, apply_deltas
from backend.campaigns.play.echoes import add_echo, is_visible, tick
from backend.campaigns.play.table import FINISH, Table
from backend.campaigns.play.tools import Option, Outcome, PlayTool, ToolRefusedError, answer
from backend.campaigns.state.party import is_scene_left


def arrive(table: Table, place_id: UUID) -> str:
    """Put a place and its people on the table, and render them as the full state block does.

    If the campaign is too large to be kept in memory, these are the people who are in play already.
    """
    _add_people(table, place_id)
    players = [Placed(id=one, entity=_entity(table, one)) for one in table.players]
    people = [
        Placed(id=one, entity=_entity(table, one))
        for one, state in table.of_kind("entity").items()
        if state["kind"] == "npc" and state.get("location_id") == str(place_id)
    ]
    relations = _relations(table, [each.id for each in (*players, *people)])
    present = ranked(people, named=(), spoke=(), relations=relations)
    name_of = partial(table.names.find_name, viewpoint=table.viewpoint) if table.names else None
    marks = AudienceMarks(name_of) if name_of else NAMELESS_MARKS
    about = [*(each.id for each in present[:MAX_DETAILED]), place_id]
    return surroundings_block(
        Situation(
            name="",
            players=players,
            location=Placed(id=place_id, entity=_entity(table, place_id)),
            present=present,
            relations=relations,
            facts=_facts(table, about, marks),
            marks=marks,
        )
    )


def _add_people(table: Table, place_id: UUID) -> None:
    names, items = table.names, table.state.items
    if names is None:
        return
    here = nlargest(MAX_HOT, names.tied.get(("entity", place_id), {}).values(), key=_seq)
    place = names.around.get(place_id) if names.around else None
    for kept in _known(table, [*here, *([place] if place else [])]):
        items.setdefault(kept.id, Held("entity", state_of(kept.item)))


def _entity(table: Table, entity_id: UUID) -> Entity:
    item = item_of("entity", table.get(entity_id))
    assert isinstance(item, Entity)  # noqa: S101
    return item


def _relations(table: Table, ids: Iterable[UUID]) -> list[Relation]:
    if table.names is None:
        return []
    tied = table.names.tied
    found = {each.id: each for one in ids for each in tied.get(("relation", one), {}).values()}
    known = sorted(_known(table, found.values()), key=lambda each: each.id.int)
    return [each.item for each in known if isinstance(each.item, Relation)]


def _facts(table: Table, about: list[UUID], marks: AudienceMarks) -> list[str]:
    names = table.names
    if names is None or not names.around:
        return []
    kept = [one for one in about if one in names.around]
    found = names.facts(kept, table.viewpoint, limit=MAX_FACTS) or []
    return [fact_line(names, marks, fact, table.viewpoint) for _, fact in found[::-1]]


def _known(table: Table, found: Iterable[KeptItem]) -> list[KeptItem]:
    return [each for each in found if may_know(table.viewpoint, each.audience)]


_seq = attrgetter("seq")


MAX_OPTIONS = 8
MAX_SUGGESTIONS = 6
MAX_DAYS = 365
MAX_WHO = 20

Said = Annotated[str, Meta(min_length=1, max_length=300)]


class Think(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Think as the game master before you write: what is risky, who wants what, what comes next."""

    thoughts: Annotated[str, Meta(min_length=1, max_length=8_000)]


class Speak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Before somebody speaks: be told how they talk, what they want, and how they are disposed."""

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
    """End your turn, after the narration: say what it cost, what threatens, and what changed."""

    connector: Annotated[
        Short, Meta(description="How this leads on: therefore, but, meanwhile, ...")
    ] = ""
    cost: Annotated[Short, Meta(description="What the players paid or lost, if anything.")] = ""
    threat: Annotated[Short, Meta(description="What hangs over them from now on, if new.")] = ""
    suggested_actions: Annotated[
        list[Said], Meta(max_length=MAX_SUGGESTIONS, description="What the player might do next.")
    ] = []
    deltas: Deltas = Deltas()


def think(table: Table, asked: Think) -> Outcome:
    """Thoughts are the model's own: they are not shown."""
    del table, asked
    return answer({"ok": True}, "Thinks")


def speak(table: Table, asked: Speak) -> Outcome:
    """What is known of somebody who is about to speak."""
    found = table.references.find(asked.npc, {"npc"})
    state = found.state or {}
    told = {name: state[name] for name in _TOLD if state.get(name)}
    return answer({"name": found.name, **told}, f"{found.name} speaks")


_TOLD = ("role", "status", "disposition", "personality", "voice", "wants")


def ask(table: Table, asked: Ask) -> Outcome:
    """Wait for the player's answer."""
    options = [Option(id="", label=label) for label in dict.fromkeys(asked.options)]
    if len(options) < 2:  # noqa: PLR2004  # a choice is of two
        raise ToolRefusedError("The options are all the same.")
    return table.wait("ask_player", "question", asked.prompt, options)


def answered(table: Table, index: int) -> dict[str, str]:
    """The player's answer."""
    assert table.waiting is not None  # noqa: S101  # the table has checked it
    return {"chosen": table.waiting.options[index].label}


def set_scene(table: Table, asked: SetScene) -> Outcome:
    """Go to a place: on with the scene that is open there, or into a new one.

    Scenes that no player's character is in any more are over.
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
    named = {table.references.in_play(each, {"pc"}).id for each in asked.who}
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
        return answer({"location": name}, f"At {name}")
    return answer({"location": name, "here": arrive(table, place_id)}, f"Goes to {name}")


def advance_time(table: Table, asked: AdvanceTime) -> Outcome:
    """Days pass, or hours."""
    if not asked.days and not asked.time_of_day:
        raise ToolRefusedError("Say how many `days` pass, or which `time_of_day` it is.")
    operations = Operations()
    if asked.days:
        operations.add["day"] = asked.days
    if asked.time_of_day:
        operations.set["time_of_day"] = asked.time_of_day
    world = table.change(table.state.campaign_id, operations)
    when = f"Day {world['day']}" + (f", {time}" if (time := world.get("time_of_day")) else "")
    return answer({"day": world["day"], "time_of_day": world.get("time_of_day", "")}, when)


def tick_clock(table: Table, asked: TickClock) -> Outcome:
    """A clock ticks."""
    clock = table.references.in_play(asked.clock, {"clock"})
    after = tick(table, clock.id, asked.segments)
    shown = f"{after.get('filled', 0)}/{after.get('segments', 6)}"
    # The player reads the summary.
    summary = f"{clock.name} {shown}" if is_visible(after) else "A hidden clock ticks"
    return answer({"clock": clock.name, "filled": shown}, summary)


def finish_turn(table: Table, asked: FinishTurn) -> Outcome:
    """Take down what the turn changed, and end it."""
    count = apply_deltas(table, asked.deltas)
    if asked.cost:
        add_echo(table, "cost", asked.cost)
    if asked.threat:
        add_echo(table, "threat", asked.threat)
    table.state.suggestions = list(dict.fromkeys(asked.suggested_actions))
    table.state.play = msgspec.structs.replace(table.play, connector=asked.connector)
    return Outcome(kind="end", result={"changes": count}, summary="Ends the turn")


THINK = PlayTool("think_as_dm", Think, think, is_private=True)
SPEAK = PlayTool("speak_as_npc", Speak, speak, is_private=True)
ASK = PlayTool("ask_player", Ask, ask, answered, is_private=True)
SET_SCENE = PlayTool("set_scene", SetScene, set_scene)
ADVANCE_TIME = PlayTool("advance_time", AdvanceTime, advance_time)
TICK_CLOCK = PlayTool("tick_clock", TickClock, tick_clock)
FINISH_TURN = PlayTool(FINISH, FinishTurn, finish_turn)
