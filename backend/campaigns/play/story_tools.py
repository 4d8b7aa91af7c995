"""Tools that every game has: thinking, speaking, asking, place and time, clocks, the turn's end."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from backend.campaigns.items import Entity, Scene
from backend.campaigns.ledger import Operations
from backend.campaigns.play.deltas import Deltas, Named, Short, apply_deltas
from backend.campaigns.play.echoes import add_echo, tick
from backend.campaigns.play.table import FINISH, Table
from backend.campaigns.play.tools import Option, Outcome, PlayTool, ToolRefusedError, answer

MAX_OPTIONS = 8
MAX_SUGGESTIONS = 6
MAX_DAYS = 365

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
    """Begin a scene at another place, or say what is at stake in this one."""

    location: Annotated[Named, Meta(description="The place, by its name.")]
    description: Annotated[Short, Meta(description="Of a new place alone: what is there.")] = ""
    title: Short = ""
    stakes: Annotated[Short, Meta(description="What may be won or lost.")] = ""


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
    """Go on in the open scene where it is at that place, else open another; players come along."""
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
    said = {key: value for key in ("title", "stakes") if (value := getattr(asked, key))}
    scenes = {
        item_id: state
        for item_id, state in table.of_kind("scene").items()
        if state.get("status", "open") == "open"
    }
    here = [one for one, state in scenes.items() if state.get("location_id") == str(place_id)]
    if here:
        if said:
            table.change(here[-1], Operations(set=said))
        return answer({"location": name}, f"At {name}")
    for scene_id in scenes:
        table.change(scene_id, Operations(set={"status": "closed"}))
    table.create(Scene(location_id=place_id, mood=table.play.mood, **said))
    for player_id, state in table.players.items():
        if state.get("location_id") != str(place_id):
            table.change(player_id, Operations(set={"location_id": str(place_id)}))
    return answer({"location": name}, f"Goes to {name}")


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
    return answer({"clock": clock.name, "filled": shown}, f"{clock.name} {shown}")


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
