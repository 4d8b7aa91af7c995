"""Forged in the dark: risky actions, stress and heat, and downtime. The rules' text is our own.

The numbers are those of the Blades in the Dark SRD; NOTICE names its licence.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
from msgspec import Meta

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Clock, Entity, Kind, World
from backend.campaigns.play.references import Reference, get_name
from backend.campaigns.play.story_tools import (
    ASK,
    FINISH_TURN,
    SPEAK,
    THINK,
    Short,
    format_paid_key,
)
from backend.campaigns.play.table import Table, add_echo, is_visible, tick
from backend.campaigns.rules.protocol import (
    AttributeType,
    Mood,
    PlayTool,
    RuleSystem,
    ToolOutcome,
    ToolRefusedError,
)
from backend.campaigns.rules.state import (
    Option,
    PlayState,
    TableState,
    check_number,
    check_numbers,
    check_texts,
    get_attributes,
    get_number,
    get_texts,
    read_list,
    read_mapping,
)
from backend.errors import ValidationError

POOL = "dice"
"""The attribute of a campaign's world that contains the player's dice."""

MAX_STRESS = 9
"""Stress at which a character takes a trauma, and the stress is cleared."""

MAX_HEAT = 9
"""Heat at which the wanted level rises; the rest of the heat is kept."""

MAX_WANTED = 4
MAX_COST = 6

TRAUMAS = (
    "cold", "haunted", "obsessed", "paranoid", "reckless", "soft", "unstable", "vicious",
)  # fmt: skip


Tier = Literal["critical", "success", "partial", "bad"]
TIERS: tuple[Tier, ...] = ("critical", "success", "partial", "bad")


class BladesPlay(PlayState, frozen=True, kw_only=True, omit_defaults=True):
    """The play state with the risky action. `tier` and `outcome` are fixed by the `die`."""

    character: str = ""
    domain: str = ""
    position: str = ""
    effect: str = ""
    stakes: str = ""
    tier: str = ""
    outcome: str = ""
    die: int = 0


class CommittedOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An outcome that the model described before the die was chosen. `costs` are `ActionCost`s."""

    tier: Tier
    hint: str
    narrative: str = ""
    costs: list[dict[str, Any]] = []


class BladesState(TableState[BladesPlay], kw_only=True):
    committed: list[CommittedOutcome] = msgspec.field(default_factory=list[CommittedOutcome])


def get_state(table: Table) -> BladesState:
    return cast("BladesState", table.state)


def get_pool(table: Table) -> list[int]:
    """Return the dice that the player sees and may spend."""
    return get_attributes(table.world).get(POOL) or []


def find_pool_tier(die: int) -> Tier:
    if die == 6:  # noqa: PLR2004  # the faces of a die
        return "critical"
    if die >= 4:  # noqa: PLR2004
        return "success"
    return "partial" if die >= 2 else "bad"  # noqa: PLR2004


def find_roll_tier(dice: Sequence[int], *, none: bool = False) -> tuple[int, Tier]:
    """Return the die that counts in a roll, and its tier. Two sixes are critical.

    The highest die counts. With `none`, for a rating of 0, the lower of two dice counts, and is
    never critical.
    """
    if none:
        die = min(dice)
        return die, "success" if die == 6 else find_roll_tier([die])[1]  # noqa: PLR2004
    die = max(dice)
    if die == 6:  # noqa: PLR2004
        return die, "critical" if list(dice).count(6) > 1 else "success"
    return die, "partial" if die >= 4 else "bad"  # noqa: PLR2004


class ActionCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that is paid."""

    kind: Literal["stress", "harm", "heat", "coin", "clock", "item"]
    amount: Annotated[
        int, Meta(ge=1, le=MAX_COST, description="Of stress, heat, coin, or a clock's segments.")
    ] = 1
    what: Annotated[
        str,
        Meta(max_length=200, description="The harm in a few words; the clock's or item's name."),
    ] = ""


def render_cost(cost: ActionCost) -> str:
    match cost.kind:
        case "harm":
            return f"harm: {cost.what}"
        case "item":
            return f"loses {cost.what}"
        case "clock":
            return f"{cost.what} +{cost.amount}"
        case _:
            return f"{cost.amount} {cost.kind}"


def pay(table: Table, cost: ActionCost, player_id: UUID) -> None:
    """Pay a cost of a player's character. Raises `ToolRefusedError` if it is not possible."""
    player = table.get(player_id)
    match cost.kind:
        case "stress":
            add_stress(table, player_id, cost.amount)
        case "harm":
            if not cost.what.strip():
                raise ToolRefusedError("A harm says in `what` which it is.")
            table.change(player_id, Operations(add={"attributes.harm": [cost.what]}))
        case "heat":
            add_heat(table, cost.amount)
        case "coin":
            if (has := get_number(player, "coin")) < cost.amount:
                raise ToolRefusedError(f"{get_name(player)} has {has} coin: not {cost.amount}.")
            table.change(player_id, Operations(remove={"attributes.coin": cost.amount}))
            _note_paid(table, Reference(player_id, "", player), "attributes.coin")
        case "clock":
            clock = table.references.find_in_play(cost.what, {"clock"})
            if not is_visible(table.get(clock.id)):
                raise ToolRefusedError(f"The player reads costs, and {clock.name} is hidden.")
            tick(table, clock.id, cost.amount)
            _note_paid(table, clock, "filled")
        case "item":
            table.change(player_id, _remove_item(player, cost.what))
            _note_paid(table, Reference(player_id, "", player), "attributes.inventory")


def add_stress(table: Table, player_id: UUID, amount: int) -> None:
    """Add stress to a character. At `MAX_STRESS` it becomes a trauma."""
    player = table.get(player_id)
    operations = Operations(set={"attributes.stress_max": MAX_STRESS})
    if get_number(player, "stress") + amount >= MAX_STRESS:
        operations.set["attributes.stress"] = 0
        operations.add["attributes.trauma"] = [_choose_trauma(get_texts(player, "trauma"))]
    else:
        operations.add["attributes.stress"] = amount
    table.change(player_id, operations)


def add_heat(table: Table, amount: int) -> None:
    """Add heat to the players. Above `MAX_HEAT` their wanted level rises, up to `MAX_WANTED`."""
    heat, wanted = get_number(table.world, "heat") + amount, get_number(table.world, "wanted")
    operations = Operations(
        set={"attributes.heat_max": MAX_HEAT, "attributes.wanted_max": MAX_WANTED}
    )
    if heat >= MAX_HEAT and wanted < MAX_WANTED:
        operations.set["attributes.heat"] = heat - MAX_HEAT
        operations.add["attributes.wanted"] = 1
    else:
        operations.add["attributes.heat"] = amount
    table.change(table.state.campaign_id, operations)


def _choose_trauma(have: list[str]) -> str:
    fresh = next((one for one in TRAUMAS if one not in have), None)
    return fresh or f"trauma {len(have) + 1}"


def _remove_item(player: State, what: str) -> Operations:
    wanted = what.strip().casefold()
    held = get_texts(player, "inventory")
    found = next((one for one in held if one.casefold() == wanted), None)
    if found is None:
        there = ", ".join(held[:20]) or "nothing"
        raise ToolRefusedError(f"{get_name(player)} has no {what[:60]!r}, but {there}.")
    return Operations(remove={"attributes.inventory": [found]})


def _note_paid(table: Table, reference: Reference, key: str) -> None:
    table.state.paid.append(format_paid_key(reference, key))


POOL_SIZE = 4
PUSH_STRESS = 2
"""The cost of one more die, in stress."""

MAX_RATING = 4

Domain = Literal["infiltration", "social", "violence", "pursuit", "arcane"]
Position = Literal["controlled", "risky", "desperate"]
Effect = Literal["limited", "standard", "great"]
Variant = Literal["encounter", "opportunity", "discovery"]


class Engage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The player attempts something risky: fix its danger and its possible effect."""

    domain: Domain
    position: Annotated[Position, Meta(description="How bad it is if it goes wrong.")]
    effect: Annotated[Effect, Meta(description="How much it achieves if it goes well.")]
    stakes: Annotated[str, Meta(min_length=1, max_length=1_000, description="What may be lost.")]
    character: Annotated[str, Meta(max_length=200, description="Who attempts it.")] = ""
    clock: Annotated[
        str, Meta(max_length=200, description="What draws nearer: begins where there is none yet.")
    ] = ""


class TierOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of one tier."""

    tier: Tier
    hint: Annotated[
        str, Meta(min_length=1, max_length=300, description="In a few words, for the player.")
    ]
    costs: Annotated[
        list[ActionCost],
        Meta(max_length=5, description="Of partial and bad at least one; else none."),
    ] = []
    narrative: Annotated[Short, Meta(description="What you will tell then.")] = ""


class SpendDie(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit to an outcome for every tier, and let the player choose a die. It can't be changed."""

    situation: Annotated[str, Meta(min_length=1, max_length=1_000)]
    outcomes: Annotated[list[TierOutcome], Meta(min_length=1, max_length=len(TIERS))]


class Resolve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Continue to the aftermath that the die has fixed; or `withdrawn`, if no die was spent."""

    tier: Literal["critical", "success", "partial", "bad", "withdrawn"]
    outcome: Annotated[Short, Meta(description="The hint that was committed to.")] = ""


class Accept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The risk is over, or its outcome is narrated: continue with the scene."""

    variant: Variant = "encounter"


def engage(table: Table, asked: Engage) -> ToolOutcome:
    if not table.players:
        # A campaign can be played before its user has added a character.
        table.create(Entity(kind="pc", name=asked.character.strip() or "You"))
    name = table.get(_find_player(table, asked.character))["name"]
    clocks = {get_name(state).casefold() for state in table.list_items("clock").values()}
    if (clock := asked.clock.strip()) and clock.casefold() not in clocks:
        table.create(Clock(name=clock))
    if table.state.dice == "pool" and not get_pool(table):
        fill_pool(table)
    table.enter_mood(
        "action",
        variant=asked.position,
        character=name,
        domain=asked.domain,
        position=asked.position,
        effect=asked.effect,
        stakes=asked.stakes,
    )
    summary = f"{name}: {asked.domain}, {asked.position}, {asked.effect} effect"
    return ToolOutcome(kind="break", result={"mood": "action"}, summary=summary)


def fill_pool(table: Table) -> None:
    dice = sorted(table.roll(POOL_SIZE), reverse=True)
    table.change(table.state.campaign_id, Operations(set={f"attributes.{POOL}": dice}))


def spend_die(table: Table, asked: SpendDie) -> ToolOutcome:
    """Store the outcomes that the model commits to, and wait for the player's die."""
    play = get_state(table).play
    if play.tier:
        raise ToolRefusedError(f"A die is spent: it is {play.tier}. Call resolve.")
    outcomes: dict[Tier, TierOutcome] = {each.tier: each for each in asked.outcomes}
    if len(outcomes) < len(asked.outcomes):
        raise ToolRefusedError("Each tier has one outcome.")
    player_id = _find_player(table, play.character)
    rating = _get_rating(table, player_id)
    _check_outcomes(table, outcomes, _find_possible_tiers(table, rating), player_id)
    get_state(table).committed = [
        CommittedOutcome(
            tier=tier,
            hint=each.hint,
            narrative=each.narrative,
            costs=[msgspec.to_builtins(cost) for cost in each.costs],
        )
        for tier in TIERS
        if (each := outcomes.get(tier))
    ]
    if table.state.dice == "pool":
        with _dry_run(table):
            _spend(table, get_pool(table)[0])
        options = [
            Option(
                id="",
                label=str(die),
                die=die,
                detail=_render_outcome(outcomes[find_pool_tier(die)]),
            )
            for die in sorted(set(get_pool(table)), reverse=True)
        ]
    else:
        every = " / ".join(_render_outcome(outcomes[tier]) for tier in TIERS if tier in outcomes)
        options = [Option(id="", label=_render_dice(rating), detail=every)]
        if _may_push(table, player_id):
            label = f"{_render_dice(rating + 1)}, for {PUSH_STRESS} stress"
            options.append(Option(id="", label=label, detail=every))
    return table.wait("spend_die", "die", asked.situation, options)


def choose_die(table: Table, index: int) -> dict[str, Any]:
    """Fix the outcome by the die, and pay its costs."""
    waiting, play = table.waiting, get_state(table).play
    assert waiting is not None  # noqa: S101  # the table has checked it
    player_id = _find_player(table, play.character)
    if table.state.dice == "pool":
        dice = [waiting.options[index].die]
        die, tier = dice[0], find_pool_tier(dice[0])
        _spend(table, die)
    else:
        rating = _get_rating(table, player_id) + index
        if index:
            add_stress(table, player_id, PUSH_STRESS)
        dice = table.roll(rating or 2)
        die, tier = find_roll_tier(dice, none=rating == 0)
    fixed = next(each for each in get_state(table).committed if each.tier == tier)
    costs = [msgspec.convert(cost, ActionCost) for cost in fixed.costs]
    for cost in costs:
        pay(table, cost, player_id)
    if costs:
        add_echo(table, "cost", f"{fixed.hint} ({', '.join(map(render_cost, costs))})")
    table.state.play = msgspec.structs.replace(play, tier=tier, outcome=fixed.hint, die=die)
    return {
        "dice": dice,
        "die": die,
        "tier": tier,
        "outcome": fixed.hint,
        "narrative": fixed.narrative,
        "paid": [render_cost(cost) for cost in costs],
        "aftermath": choose_aftermath(tier, play.position),
        "next": f"Call resolve with tier {tier}.",
    }


def resolve(table: Table, asked: Resolve) -> ToolOutcome:
    play = get_state(table).play
    if not play.tier:
        if asked.tier != "withdrawn":
            raise ToolRefusedError("No die is spent yet: call spend_die first.")
        table.enter_mood("scene", variant="encounter")
        return ToolOutcome(kind="break", result={"mood": "scene"}, summary="Gives it up")
    if asked.tier != play.tier:
        raise ToolRefusedError(f"The die has fixed {play.tier} ({play.outcome}), not {asked.tier}.")
    if asked.outcome and asked.outcome.strip().casefold() != play.outcome.strip().casefold():
        raise ToolRefusedError(f"The outcome that was committed to is: {play.outcome}.")
    _go_to_aftermath(table)
    summary = f"{play.tier}: {table.play.variant}"
    return ToolOutcome(kind="break", result={"mood": "aftermath"}, summary=summary)


def _go_to_aftermath(table: Table) -> None:
    play = get_state(table).play
    variant = choose_aftermath(cast("Tier", play.tier), play.position)
    table.state.play = msgspec.structs.replace(play, mood="aftermath", variant=variant, turns=0)


def leave_action(table: Table) -> None:
    """Enter the aftermath that the die has fixed; without a die, return to the scene."""
    if get_state(table).play.tier:
        _go_to_aftermath(table)
    else:
        table.enter_mood("scene", variant="encounter")


def leave_aftermath(table: Table) -> None:
    table.enter_mood("scene", variant="encounter")


def accept(table: Table, asked: Accept) -> ToolOutcome:
    table.enter_mood("scene", variant=asked.variant)
    return ToolOutcome(kind="break", result={"mood": "scene"}, summary=f"Goes on: {asked.variant}")


def choose_aftermath(tier: Tier, position: str) -> str:
    if tier == "bad":
        return "disaster" if position == "desperate" else "setback"
    return "costly" if tier == "partial" else "clean"


def _find_player(table: Table, name: str, missing: str = "Say which `character` acts.") -> UUID:
    """Return the player's character of a name; without a name, the only one."""
    if name:
        return table.references.find_in_play(name, {"pc"}).id
    if len(table.players) == 1:
        return next(iter(table.players))
    raise ToolRefusedError(missing)


def _get_rating(table: Table, player_id: UUID) -> int:
    """Return a character's number of dice in the action's domain; 1 by default."""
    ratings = read_mapping(get_attributes(table.get(player_id)).get("ratings"))
    value = ratings.get(get_state(table).play.domain, 1)
    return min(max(value, 0), MAX_RATING) if isinstance(value, int) else 1


def _find_possible_tiers(table: Table, rating: int) -> set[Tier]:
    """Return the tiers of the dice that the player can choose."""
    if table.state.dice == "pool":
        if not get_pool(table):
            raise ToolRefusedError("There are no dice left.")
        return {find_pool_tier(die) for die in get_pool(table)}
    # Critical takes two dice, but the player may push for another one.
    return set(TIERS) if rating else set(TIERS) - {"critical"}


def _check_outcomes(
    table: Table, outcomes: dict[Tier, TierOutcome], needed: set[Tier], player_id: UUID
) -> None:
    """Raise `ToolRefusedError` if a tier is missing, or its costs are wrong or not payable."""
    if missing := [tier for tier in TIERS if tier in needed and tier not in outcomes]:
        shown = f" The player's dice: {get_pool(table)}." if table.state.dice == "pool" else ""
        raise ToolRefusedError(f"These tiers need an outcome too: {', '.join(missing)}.{shown}")
    for tier, each in outcomes.items():
        is_clean = tier in {"critical", "success"}
        if is_clean and each.costs:
            raise ToolRefusedError(f"{tier} costs nothing.")
        if not is_clean and not each.costs:
            raise ToolRefusedError(f"{tier} needs at least one cost.")
        with _dry_run(table):
            for cost in each.costs:
                pay(table, cost, player_id)


@contextmanager
def _dry_run(table: Table) -> Generator[None]:
    """Undo all changes of the table on exit."""
    before = table.state.copy()
    try:
        yield
    finally:
        table.state = before


def _may_push(table: Table, player_id: UUID) -> bool:
    """True if a character can take the stress of another die without a trauma."""
    if get_number(table.get(player_id), "stress") + PUSH_STRESS >= MAX_STRESS:
        return False
    with _dry_run(table), suppress(ToolRefusedError, ValidationError):
        add_stress(table, player_id, PUSH_STRESS)
        return True
    return False


def _spend(table: Table, die: int) -> None:
    left = list(get_pool(table))
    left.remove(die)
    table.change(table.state.campaign_id, Operations(set={f"attributes.{POOL}": left}))


def _render_outcome(outcome: TierOutcome) -> str:
    costs = ", ".join(render_cost(cost) for cost in outcome.costs)
    said = f"{outcome.tier}: {outcome.hint}"
    return f"{said} ({costs})" if costs else said


def _render_dice(rating: int) -> str:
    if rating == 0:
        return "Roll two dice, the lower counts"
    return f"Roll {rating} dice" if rating > 1 else "Roll one die"


ENGAGE = PlayTool("engage", Engage, engage)
SPEND_DIE = PlayTool("spend_die", SpendDie, spend_die, choose_die)
RESOLVE = PlayTool("resolve", Resolve, resolve)
ACCEPT = PlayTool("accept", Accept, accept)


MAX_COIN = 1_000
OPEN_TURNS = 2
"""Number of turns in an action without a die, or an aftermath, until the rules end it."""

_MOODS: Sequence[Mood[Table]] = (
    Mood(
        "scene",
        (THINK, SPEAK, ASK, ENGAGE, ACCEPT, FINISH_TURN),
        variants=("encounter", "opportunity", "discovery"),
        needs_calls=True,
    ),
    Mood(
        "action",
        (THINK, SPEAK, SPEND_DIE, RESOLVE, FINISH_TURN),
        variants=("controlled", "risky", "desperate"),
        is_unsettled=True,
        needs_calls=True,
        leave=leave_action,
        max_turns=OPEN_TURNS,
    ),
    Mood(
        "aftermath",
        (THINK, SPEAK, ACCEPT, FINISH_TURN),
        variants=("clean", "costly", "setback", "disaster"),
        needs_calls=True,
        leave=leave_aftermath,
        max_turns=OPEN_TURNS,
    ),
    Mood(
        "downtime",
        (THINK, SPEAK, FINISH_TURN),
        variants=("recovery", "project", "entanglement"),
    ),
)
_PRECARITY = (
    (5, "operating from strength", "Noir and cool: unhurried, dry, in control."),
    (10, "room to manoeuvre", "Noir and wary: measured sentences, an eye on the door."),
    (15, "walls closing in", "Tight and tense: shorter sentences, fewer ways out."),
    (None, "hanging by a thread", "Terse: clipped sentences, no comfort, no asides."),
)
_PROJECT_SEGMENTS = {"critical": 3, "success": 3, "partial": 2, "bad": 1}
_ENTANGLEMENTS = (
    (
        "Someone small wants a small favour, and knows too much to be refused.",
        "A rival lets it be known that they keep an eye on you.",
        "The watch asks your neighbours questions.",
    ),
    (
        "A friend is leaned on, and looks to you for help.",
        "A rival moves in on what you thought was yours.",
        "The watch takes somebody in who could name you.",
    ),
    (
        "Somebody whom you rely on wants out, or more.",
        "An old enemy has found out where you sleep.",
        "A warrant has your names on it.",
    ),
)
"""Entanglements by heat (0 to 3, 4 to 5, 6 and more) and by the roll, the worst last."""


class Blades(RuleSystem[Table]):
    """A crew's rules: position and effect, dice to spend, stress and heat, downtime."""

    title = "Blades: heists, stress and clocks"
    moods = _MOODS
    play_type = BladesPlay
    state_type = BladesState
    hidden_attributes = frozenset({POOL})

    def schema(self, kind: Kind) -> dict[str, Any]:
        members: dict[str, Any] = {}
        if kind == "entity":
            rating = _whole_schema(MAX_RATING)
            members = {
                "stress": _whole_schema(MAX_STRESS),
                "trauma": _TEXTS,
                "harm": _TEXTS,
                "coin": _whole_schema(MAX_COIN),
                "inventory": _TEXTS,
                "ratings": {"type": "object", "additionalProperties": rating},
            }
        if kind == "world":
            dice = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6}}
            members = {
                "heat": _whole_schema(MAX_HEAT),
                "wanted": _whole_schema(MAX_WANTED),
                POOL: dice,
            }
        return {"type": "object", "title": f"Attributes of a {kind}", "properties": members}

    def validate(self, kind: Kind, before: State, after: State) -> None:
        if kind == "entity":
            check_number(before, after, "stress", 0, MAX_STRESS)
            check_number(before, after, "stress_max", MAX_STRESS, MAX_STRESS)
            check_number(before, after, "coin", 0, MAX_COIN)
            check_numbers(before, after, "ratings", 0, MAX_RATING)
            check_texts(before, after, "trauma")
            check_texts(before, after, "harm")
        if kind == "world":
            check_number(before, after, "heat", 0, MAX_HEAT)
            check_number(before, after, "heat_max", MAX_HEAT, MAX_HEAT)
            check_number(before, after, "wanted", 0, MAX_WANTED)
            check_number(before, after, "wanted_max", MAX_WANTED, MAX_WANTED)
            check_pool(before, after)

    def changeable(self, kind: Kind, state: State) -> Mapping[str, AttributeType]:
        """Return the players' possessions. Only play changes stress, harm, heat and dice."""
        is_player = kind == "entity" and state["kind"] == "pc"
        return {"inventory": "list", "coin": "number"} if is_player else {}

    def precarity(self, players: Sequence[Entity], world: World) -> dict[str, Any]:
        """Return the sum of the highest stress, the heat, and twice the wanted level."""
        taken = {player.name: _as_count(player.attributes.get("stress")) for player in players}
        room = [f"{name} {max(0, MAX_STRESS - 1 - stress)}" for name, stress in taken.items()]
        stress = max(taken.values(), default=0)
        heat, wanted = (_as_count(world.attributes.get(name)) for name in ("heat", "wanted"))
        score = stress + heat + 2 * wanted
        label, voice = next(
            (label, voice) for below, label, voice in _PRECARITY if below is None or score < below
        )
        return {
            "score": score,
            "stress": stress,
            "heat": heat,
            "wanted": wanted,
            "label": label,
            "voice": voice,
            "lines": [
                *([f"Room for stress before a trauma: {', '.join(room)}"] if room else []),
                f"Heat: {heat}/{MAX_HEAT}",
                f"Wanted level: {wanted}/{MAX_WANTED}",
            ],
        }

    def light_line(self, player: Entity) -> str:
        return f"{player.name} stress {_as_count(player.attributes.get('stress'))}/{MAX_STRESS}"

    def is_decided(self, play: PlayState) -> bool:
        return isinstance(play, BladesPlay) and bool(play.tier)

    def describe_play(self, play: PlayState) -> dict[str, str]:
        shown = super().describe_play(play)
        for name in ("position", "effect"):
            if value := getattr(play, name, ""):
                shown[name] = value
        return shown

    def prompt_values(self, table: Table) -> dict[str, Any]:
        """Add the dice, the outcomes that were committed to, and the stakes of the action."""
        state = get_state(table)
        values: dict[str, Any] = {"pool": get_pool(table), "committed": state.committed}
        return values | ({"stakes": state.play.stakes} if state.play.stakes else {})

    def spend_downtime(self, table: Table, activity: str, target: str) -> dict[str, Any]:
        result: dict[str, Any] = {"activity": activity}
        try:
            if text := _roll_entanglement(table):
                result["entanglement"] = text
            if activity == "recovery":
                result |= _recover(table, target)
            elif activity == "project":
                result |= _work(table, target)
            else:
                result |= _lie_low(table)
            if table.state.dice == "pool":
                fill_pool(table)
        except ToolRefusedError as error:
            raise ValidationError(str(error)) from None
        return result


def check_pool(before: State, after: State) -> None:
    pool = get_attributes(after).get(POOL)
    if pool is None or pool == get_attributes(before).get(POOL):
        return
    dice = read_list(pool)
    is_pool = isinstance(pool, list) and len(dice) <= POOL_SIZE
    if not is_pool or any(not isinstance(die, int) or not 1 <= die <= 6 for die in dice):  # noqa: PLR2004
        raise ValidationError(f"`attributes.{POOL}` must be at most {POOL_SIZE} dice from 1 to 6.")


def _roll_entanglement(table: Table) -> str:
    """Roll for an entanglement, with as many dice as the wanted level; empty if there is none."""
    heat, wanted = get_number(table.world, "heat"), get_number(table.world, "wanted")
    if heat == 0 and wanted == 0:
        return ""
    die, _ = find_roll_tier(table.roll(wanted or 2), none=wanted == 0)
    band = 0 if heat <= 3 else 1 if heat <= 5 else 2  # noqa: PLR2004  # the table's own bands
    text = _ENTANGLEMENTS[band][(die - 1) // 2]
    add_echo(table, "threat", text)
    return text


def _recover(table: Table, target: str) -> dict[str, Any]:
    """Remove stress by the roll of a die, and one harm."""
    player_id = _find_player(table, target, "Say which character in `target`.")
    player = table.get(player_id)
    [die] = table.roll(1)
    lost = min(die, get_number(player, "stress"))
    operations = Operations()
    if lost:
        operations.remove["attributes.stress"] = lost
    if harm := get_texts(player, "harm"):
        operations.remove["attributes.harm"] = harm[:1]
    if operations.remove:
        table.change(player_id, operations)
    return {"character": player["name"], "die": die, "stress": -lost, "healed": harm[:1]}


def _work(table: Table, target: str) -> dict[str, Any]:
    """Fill one to three segments of a project's clock."""
    clock = table.references.find_in_play(target, {"clock"})
    [die] = table.roll(1)
    segments = _PROJECT_SEGMENTS[find_roll_tier([die])[1]]
    after = tick(table, clock.id, segments)
    return {"clock": clock.name, "die": die, "filled": f"{after['filled']}/{after['segments']}"}


def _lie_low(table: Table) -> dict[str, Any]:
    """Remove heat by the roll of a die."""
    [die] = table.roll(1)
    lost = min(die, get_number(table.world, "heat"))
    if lost:
        table.change(table.state.campaign_id, Operations(remove={"attributes.heat": lost}))
    return {"die": die, "heat": -lost}


def _as_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _whole_schema(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "maximum": most}


_TEXTS = {"type": "array", "items": {"type": "string"}}

RULES = Blades()
