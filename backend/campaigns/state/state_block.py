"""The state block of a campaign in a prompt: the full block, the light line, and their choice.

All functions are pure; `situation_reader` loads the values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import MAX_SUFFIX
from backend.campaigns.ledger.items import Clock, Entity, Item, Relation, Thread, label_relation
from backend.campaigns.names.roster import make_slug
from backend.core.audience import GM, NAMELESS_MARKS, Audience, AudienceMarks

_HEADS = ("name", "title", "text")
"""Members of an object that name it."""


def render_value(value: Any) -> str:
    """Return a value of JSON in words; empty for None and for empty lists and objects."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case dict():
            return _render_members(cast("Mapping[str, Any]", value))
        case list():
            values: list[Any] = cast("Any", value)
            mark = "; " if any(isinstance(each, dict | list) for each in values) else ", "
            return mark.join(text for each in values if (text := render_value(each)))
        case _:
            return str(value)


def render_name(name: str) -> str:
    """Return the name of an attribute or a flag as words: `hit_points` is hit points."""
    return " ".join(name.replace("_", " ").split()) or name


def render_attribute(attributes: Mapping[str, Any], name: str) -> str:
    """Return the value of an attribute in words, with the highest that it may have: 7/9."""
    text, most = render_value(attributes.get(name)), render_value(attributes.get(name + MAX_SUFFIX))
    return f"{text}/{most}" if text and most else text


def render_attributes(attributes: Mapping[str, Any], *, besides: Collection[str] = ()) -> list[str]:
    """Return a line for each attribute that has a value, without some."""
    return [
        f"{render_name(name)}: {text}"
        for name in attributes
        if name not in besides and not _is_bound(attributes, name)
        if (text := render_attribute(attributes, name))
    ]


def render_flags(flags: Mapping[str, bool]) -> list[str]:
    return [f"{render_name(name)}: {render_value(flag)}" for name, flag in flags.items()]


def _is_bound(attributes: Mapping[str, Any], name: str) -> bool:
    """True if an attribute is the maximum of another one, and is rendered with it."""
    return name.endswith(MAX_SUFFIX) and bool(
        render_value(attributes.get(name.removesuffix(MAX_SUFFIX)))
    )


def _render_members(value: Mapping[str, Any]) -> str:
    head = next((name for name in _HEADS if isinstance(value.get(name), str)), None)
    members = {name: each for name, each in value.items() if name != head}
    listed = [
        f"{render_name(name)} {render_attribute(members, name)}"
        if isinstance(each, int | float) and not isinstance(each, bool)
        else f"{render_name(name)}: {text}"
        for name, each in members.items()
        if not _is_bound(members, name) and (text := render_value(each))
    ]
    inner = ", ".join(listed)
    return " ".join(filter(None, [value[head], f"({inner})" if inner else ""])) if head else inner


Form = Literal["full", "light"]

MAX_DETAILED = 5
"""Number of people present who are described; the others are only named."""
MAX_IN_LIGHT = 2
MAX_EVENTS = 5

RESUME_COMMANDS = frozenset(
    {
        "continue", "resume", "go", "start", "begin", "proceed", "what now", "whats next",
        "what's next", "next", "start session", "resume session", "continue session",
    }
)  # fmt: skip

_TENSIONS = ("simmering", "rising", "urgent", "critical")
_DISPOSITIONS = {"ally": 40, "friend": 30, "hostile": 40, "enemy": 50, "intimate": 60, "lover": 60}


@dataclass(frozen=True, kw_only=True)
class VisibleEntity:
    id: UUID
    entity: Entity


@dataclass(frozen=True, kw_only=True)
class MentionedEntity:
    """An entity that the last lines name, where it is, and the facts about it with their ids."""

    id: UUID
    entity: Entity
    facts: Sequence[tuple[UUID, str]] = ()
    place: str = ""

    @property
    def text(self) -> str:
        entity = self.entity
        about = [entity.description, entity.personality, *(text for _, text in self.facts)]
        if entity.kind == "pc":
            return " ".join(filter(None, [*_render_player(entity, self.place), *about]))
        place = f"at {self.place}" if self.place else ""
        head = ", ".join(filter(None, [entity.role, entity.status, entity.disposition, place]))
        return f"{entity.name} ({head}): {' '.join(filter(None, about))}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Feeling:
    """The attitude of a character to another one in the scene. `audience` may know it."""

    name: str
    other: str
    score: int
    note: str
    audience: Audience


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The current situation of the story, as a viewpoint may know it.

    `players` begin with the one whom the story follows, `present` with the most relevant people
    at the place. `named` are the entities that the last messages name. `told` are the ids of all
    entities that a full block describes. `player_lines` are the rules' lines about the first two
    players for the light form, `standing` those about all. `in_play` are all loaded items.
    `feelings` are those of the character that speaks.
    """

    name: str
    city: str = ""
    setting: str = ""
    day: int = 1
    time_of_day: str = ""
    scene_id: UUID | None = None
    stakes: str = ""
    players: Sequence[VisibleEntity] = ()
    location: VisibleEntity | None = None
    present: Sequence[VisibleEntity] = ()
    relations: Sequence[Relation] = ()
    threads: Sequence[Thread] = ()
    clocks: Sequence[Clock] = ()
    events: Sequence[str] = ()
    costs: Sequence[str] = ()
    threats: Sequence[str] = ()
    standing: Sequence[str] = ()
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    facts: Sequence[str] = ()
    named: Sequence[MentionedEntity] = ()
    told: frozenset[UUID] = frozenset()
    places: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    player_lines: Sequence[str] = ()
    in_play: Mapping[UUID, Item] = field(default_factory=dict[UUID, Item])
    feelings: Sequence[Feeling] = ()
    marks: AudienceMarks = field(default=NAMELESS_MARKS, compare=False)

    @property
    def lead_id(self) -> UUID | None:
        return next((player.id for player in self.players), None)


class BlockSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the situation that decide if a full block is out of date.

    `speaker` is the character of a group whose prompt has the block; empty for other viewpoints.
    """

    scene_id: UUID | None
    location_id: UUID | None
    day: int
    present: list[UUID]
    edits: int
    compactions: int
    speaker: str = ""


class InjectedContext(msgspec.Struct, frozen=True, kw_only=True):
    """The block in a reply's prompt, stored sealed, and the last full block (`shown`)."""

    form: Form
    text: str
    shown: BlockSummary


class StateBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A state block in both forms, and the form of a turn with its reason."""

    form: Form
    why: str
    full: str
    light: str
    injected: InjectedContext


def build_state_block(
    now: Situation, shown: BlockSummary, last: BlockSummary | None, *, form: Form, why: str
) -> StateBlock:
    """Return the block of a turn. `last` is the summary of the last full block."""
    full, light = render_full_block(now), render_light_block(now)
    return StateBlock(
        form=form,
        why=why,
        full=full,
        light=light,
        injected=(
            InjectedContext(form="light", text=light, shown=last)
            if form == "light" and last
            else InjectedContext(form="full", text=full, shown=shown)
        ),
    )


def choose_form(
    text: str, last: BlockSummary | None, now: BlockSummary, *, first: bool
) -> tuple[Form, str]:
    """Return the form of a turn's block, and the reason in a few words."""
    if first:
        return "full", "first message of the chat"
    if last is None:
        where = "for this character" if now.speaker else "in this chat"
        return "full", f"no full block {where} yet"
    if is_resume_command(text):
        return "full", "resume command"
    changed = [
        (last.location_id != now.location_id, "the place changed"),
        # The first scene at a place does not change the rest of the block.
        (last.scene_id not in {None, now.scene_id}, "the scene changed"),
        (last.day != now.day, "the day changed"),
        (sorted(last.present) != sorted(now.present), "who is present changed"),
        (last.edits != now.edits, "you edited the state"),
        (last.compactions != now.compactions, "a compaction came in between"),
    ]
    reason = next((why for differs, why in changed if differs), None)
    return ("full", reason) if reason else ("light", "nothing changed since the last full block")


def is_resume_command(text: str) -> bool:
    said = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").strip()
    return " ".join(said.rstrip("?!. ").casefold().split()) in RESUME_COMMANDS


def render_played_block(block: StateBlock, now: Situation) -> StateBlock:
    """Return the block of a played turn, without the parts that its guidance renders."""
    full, injected = render_full_block(now, is_played=True), block.injected
    if injected.form == "full":
        injected = msgspec.structs.replace(injected, text=full)
    return msgspec.structs.replace(block, full=full, injected=injected)


def render_full_block(now: Situation, *, is_played: bool = False) -> str:
    """Return the situation as Markdown, some 2 KB, without the guidance's parts if `is_played`."""
    sections = [
        _render_session(now, with_stakes=not is_played),
        _render_section(
            "Player characters" if len(now.players) > 1 else "Player character",
            _render_players(now),
        ),
        *_render_surroundings(now),
        *render_feelings(now),
        _render_section(
            "Active threads",
            _render_bullets(_render_thread(now, each) for each in _sort_by_tension(now.threads)),
        ),
        *([] if is_played else _render_table(now)),
        _render_section("Today", _render_bullets(now.events[-MAX_EVENTS:])),
    ]
    return "\n\n".join(section for section in sections if section)


def render_surroundings(now: Situation) -> str:
    """Return the sections of the full block that are about the place and who is there."""
    return "\n\n".join(section for section in _render_surroundings(now) if section)


def _render_surroundings(now: Situation) -> list[str]:
    return [
        _render_section("Current location", _render_location(now)),
        _render_section("NPCs present", _render_people(now)),
        _render_section("Known facts", [f"- {fact}" for fact in now.facts]),
    ]


def render_feelings(now: Situation) -> list[str]:
    """Return a section about the speaker's attitude to the others."""
    by_name: dict[str, list[str]] = {}
    for each in now.feelings:
        said = f"- **{each.other}**: {label_relation(each.score)}"
        said += f". {each.note}" if each.note else ""
        by_name.setdefault(each.name, []).append(now.marks.mark(said, each.audience))
    return [
        _render_section(f"What {name} thinks of the others", lines)
        for name, lines in by_name.items()
    ]


def render_light_block(now: Situation) -> str:
    """Return the situation in one line of about 70 characters, and the speaker's feelings."""
    parts = [f"Day {now.day}"]
    parts += now.player_lines or [render_player_line(player.entity) for player in now.players[:2]]
    if now.location:
        parts.append(f"at {make_slug(now.location.entity.name)}")
    if now.present:
        names = [_render_name(now, person) for person in now.present]
        more = f" +{len(names) - MAX_IN_LIGHT}" if len(names) > MAX_IN_LIGHT else ""
        parts.append(f"with {', '.join(names[:MAX_IN_LIGHT])}{more}")
    return "\n\n".join([f"[{' | '.join(parts)}]", *render_feelings(now)])


def render_player_line(player: Entity) -> str:
    points = render_attribute(player.attributes, "hp")
    return f"{player.name} HP {points}" if points else player.name


def rank_people(
    people: Iterable[VisibleEntity],
    *,
    named: Sequence[UUID],
    spoke: Sequence[UUID],
    relations: Iterable[Relation],
) -> list[VisibleEntity]:
    """Return people by relevance: named now, spoke recently, strength of relation, name."""
    strength: dict[UUID, int] = {}
    for relation in relations:
        for one in (relation.from_id, relation.to_id):
            strength[one] = max(strength.get(one, 0), abs(relation.score))

    def weight(person: VisibleEntity) -> tuple[int, int, int, str]:
        feeling = max(
            (points for word, points in _DISPOSITIONS.items() if word in person.entity.disposition),
            default=0,
        )
        return (
            named.index(person.id) if person.id in named else len(named),
            spoke.index(person.id) if person.id in spoke else len(spoke),
            -max(strength.get(person.id, 0), feeling),
            person.entity.name.casefold(),
        )

    return sorted(people, key=weight)


def _render_section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"### {title}", *lines]) if lines else ""


def _render_bullets(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _render_table(now: Situation) -> list[str]:
    return [
        _render_section("Where the players stand", _render_bullets(now.standing)),
        _render_section(
            "Clocks", _render_bullets(_render_clock(now, clock) for clock in now.clocks)
        ),
        _render_section("Costs that echo", _render_bullets(now.costs)),
        _render_section("Threats not dealt with", _render_bullets(now.threats)),
        _render_section(
            "Flags (secret: game master only)", _render_bullets(render_flags(now.flags))
        ),
    ]


def _render_session(now: Situation, *, with_stakes: bool) -> str:
    lines = [f"## SESSION CONTEXT: {now.name}"]
    if now.city:
        city = now.city.upper()
        lines.append(f"Setting: {city}. No other place name may stand in for {city}.")
    if now.setting:
        lines.append(now.setting)
    lines.append(f"**Day {now.day}**" + (f" - {now.time_of_day}" if now.time_of_day else ""))
    if with_stakes and now.stakes:
        lines.append(f"At stake: {now.stakes}")
    return "\n".join(lines)


def _render_players(now: Situation) -> list[str]:
    lines: list[str] = []
    for player in now.players:
        head, *more = _render_player(player.entity, now.places.get(player.id, ""))
        lines += [now.marks.mark(head, player.entity.audience), *more]
    return lines


def _render_player(player: Entity, place: str) -> list[str]:
    attributes = player.attributes
    said = [f"**{player.name}**"]
    if kind := render_value(attributes.get("class")) or player.role:
        said.append(kind)
    if render_attribute(attributes, "hp"):
        said.append(render_player_line(player).removeprefix(player.name).strip())
    if place:
        said.append(f"at {place}")
    if gold := render_value(attributes.get("gold")):
        said.append(f"{gold} gold")
    if conditions := render_value(attributes.get("conditions")):
        said.append(f"conditions: {conditions}")
    lines = [" | ".join(said)]
    if inventory := render_value(attributes.get("inventory")):
        lines.append(f"Inventory: {inventory}")
    return lines + render_attributes(attributes, besides=_KNOWN)


_KNOWN = frozenset({"class", "hp", "hp_max", "gold", "conditions", "inventory"})


def _render_location(now: Situation) -> list[str]:
    if now.location is None:
        return []
    place = now.location.entity
    text = f"**{place.name}**" + (f": {place.description}" if place.description else "")
    return [now.marks.mark(text, place.audience)]


def _render_people(now: Situation) -> list[str]:
    lines: list[str] = []
    players = {player.id for player in now.players}
    feelings = {each.from_id: each for each in now.relations if each.to_id in players}
    for person in now.present[:MAX_DETAILED]:
        lines.append(_render_person(now, person, feelings.get(person.id)))
        if person.entity.voice:
            lines.append(f"*Voice: {'; '.join(person.entity.voice)}*")
        if person.entity.wants:
            lines.append(f"Wants: {person.entity.wants}")
    if others := [_render_name(now, person) for person in now.present[MAX_DETAILED:]]:
        lines.append(f"Also here: {', '.join(others)}")
    return lines


def _render_name(now: Situation, person: VisibleEntity) -> str:
    return now.marks.mark(person.entity.name, person.entity.audience)


def _render_person(now: Situation, person: VisibleEntity, relation: Relation | None) -> str:
    entity, feeling = person.entity, person.entity.disposition
    if relation and not feeling:
        label = label_relation(relation.score)
        feeling = now.marks.mark(label, relation.audience, within=entity.audience)
    said = f"**{entity.name}**" + (f" [{entity.status}]" if entity.status else "")
    return now.marks.mark(said + (f" - {feeling}" if feeling else ""), entity.audience)


def _sort_by_tension(threads: Iterable[Thread]) -> list[Thread]:
    return sorted(threads, key=lambda thread: -_TENSIONS.index(thread.tension))


def _render_thread(now: Situation, thread: Thread) -> str:
    said = f"[{thread.tension.upper()}] **{thread.title}**"
    said += f": {thread.summary}" if thread.summary else ""
    said += f" → Next: {thread.next_step}" if thread.next_step else ""
    steps = "; ".join(step.text for step in thread.objectives if not step.done)
    return now.marks.mark(said + (f" (to do: {steps})" if steps else ""), thread.audience)


def _render_clock(now: Situation, clock: Clock) -> str:
    said = f"{clock.name} {clock.filled}/{clock.segments}"
    said += f": {clock.consequence}" if clock.consequence else ""
    # The players must not learn of a hidden one.
    return now.marks.mark(said, clock.audience if clock.visible else GM)
