"""Whatever a campaign holds, it is the same after it went out into a file and in again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from typing import Any, cast
from uuid import UUID

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.campaigns.api.schemas import Brief, CampaignFields
from backend.campaigns.files.archive import (
    ChangeRecord,
    CompactionRecord,
    OpenCampaign,
    write_archive,
)
from backend.campaigns.files.draft import CampaignDraft, settle_ledger
from backend.campaigns.files.transfer import read_campaign
from backend.campaigns.files.vault_writer import write_vault
from backend.campaigns.ledger.changes import Operations, State, build_creation, exists, fold
from backend.campaigns.ledger.items import (
    Chapter,
    Clock,
    Echo,
    Entity,
    Fact,
    Item,
    Kind,
    Objective,
    Relation,
    Scene,
    Term,
    Thread,
    World,
)
from backend.characters.cards.charx import pack
from backend.chronicles.events import ChronicleFields
from backend.database.base import new_id
from tests.support.thorough import rounds
from tests.support.zips import seagate_vault

UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOW = datetime(2026, 11, 1, tzinfo=UTC)

# What Markdown, YAML and JSON could take for something else.
ODD = [
    "- a", "# b", "1. c", "> d", "---", "```", "a\nb", " a ", '"q"', "a: b", "**bold**",
    "08", "1e5", "null", "~", "[x] y", "→", "&a *b", "a\tb", "{}", "é鐘🗝", "@", "a #b",
    "\u2026\u2028\u2026", "## Personality\n- x", "Day 5", "\\", "<b>", "100%", "True", "\x85",
    "* *", "World", "Go. Next: x", "a → Next: y", "next: z", "Urgent", "### Voice\nx", "a | b",
    "| a |\n|--|\n| b |", "# Secret\n## b",
]  # fmt: skip

_char = st.characters(codec="utf-8", exclude_characters="\0[]\r")
TEXT = st.one_of(st.sampled_from(ODD), st.text(_char, max_size=30))
NAME = st.one_of(st.sampled_from(ODD), st.text(_char, min_size=1, max_size=20)).map(
    lambda text: text.strip() or "A"
)
LINES = st.lists(TEXT, max_size=3)
SCALAR = st.one_of(TEXT, st.integers(-(10**15), 10**15), st.booleans(), st.none())
ATTRIBUTES = st.dictionaries(
    st.one_of(st.sampled_from(["class", "level", "inventory", "name", "secret"]), NAME),
    st.one_of(st.integers(0, 99), st.lists(SCALAR, max_size=3), st.floats(-1e9, 1e9)),
    max_size=4,
)


@st.composite
def campaigns(draw: st.DrawFn) -> dict[UUID, tuple[Kind, Item]]:
    """Items of every kind that refer to each other."""
    ids = [new_id() for _ in range(draw(st.integers(1, 5)))]
    one = st.sampled_from(ids)
    maybe = st.one_of(st.none(), one)
    audience = st.one_of(
        st.just("public"), st.just("gm"), st.lists(one, min_size=1, max_size=3, unique=True)
    )
    locked = st.lists(NAME, max_size=2)
    made: dict[UUID, tuple[Kind, Item]] = {}
    known: dict[str, Any] = {"audience": audience, "locked": locked}

    def add(kind: Kind, item: st.SearchStrategy[Any], most: int) -> list[UUID]:
        new = [new_id() for _ in range(draw(st.integers(0, most)))]
        made.update({each: (kind, draw(item)) for each in new})
        return new

    for entity_id in ids:
        kinds = st.sampled_from(["pc", "npc", "location", "item", "faction", "ability"])
        entity = st.builds(
            Entity, kind=kinds, name=NAME, aliases=st.lists(NAME, max_size=2), status=NAME,
            role=NAME, description=TEXT, disposition=NAME, personality=TEXT, voice=LINES,
            wants=NAME, location_id=maybe, attributes=ATTRIBUTES, **known,
        )  # fmt: skip
        made[entity_id] = "entity", draw(entity)
    clock = st.builds(
        Clock, name=NAME, segments=st.sampled_from([4, 6, 8]), filled=st.integers(0, 4),
        consequence=TEXT, visible=st.booleans(), **known,
    )  # fmt: skip
    clocks = add("clock", clock, 2)
    objective = st.builds(Objective, text=TEXT, done=st.booleans())
    thread = st.builds(
        Thread, kind=st.sampled_from(["quest", "threat"]), title=NAME, summary=TEXT,
        priority=st.sampled_from(["low", "medium", "high"]),
        tension=st.sampled_from(["simmering", "rising", "urgent", "critical"]),
        status=st.sampled_from(["open", "resolved", "failed", "dormant"]), next_step=TEXT,
        objectives=st.lists(objective, max_size=2), giver_id=maybe,
        clock_id=st.sampled_from([None, *clocks]), **known,
    )  # fmt: skip
    add("thread", thread, 2)
    words = TEXT.filter(bool)
    facts = add("fact", st.builds(Fact, text=words, about_id=maybe, **known), 3)
    for earlier, later in pairwise(facts):
        if draw(st.booleans()):
            kind, fact = made[earlier]
            made[earlier] = kind, msgspec.structs.replace(fact, superseded_by=later)
    score = st.integers(-100, 100)
    relation = st.builds(Relation, from_id=one, to_id=one, score=score, note=TEXT, **known)
    add("relation", relation, 2)
    scene = st.builds(
        Scene, title=TEXT, location_id=maybe, present=st.lists(one, max_size=3, unique=True),
        stakes=TEXT, type=TEXT, mood=TEXT, variant=TEXT, beats=st.integers(0, 99),
        status=st.sampled_from(["open", "closed"]), summary=TEXT, key_moments=LINES, **known,
    )  # fmt: skip
    scenes = add("scene", scene, 2)
    told = st.lists(st.sampled_from(scenes), unique=True) if scenes else st.just([])
    chapter = st.builds(Chapter, title=TEXT, summary=TEXT, scene_ids=told, **known)
    add("chapter", chapter, 2)
    echo = st.builds(Echo, text=words, kind=st.sampled_from(["cost", "threat"]),
                     resolved=st.booleans(), **known)  # fmt: skip
    add("echo", echo, 2)
    term = st.builds(Term, term=NAME, definition=TEXT, status=st.sampled_from(["proposed", "raw"]),
                     source=st.sampled_from(["auto", "manual"]), **known)  # fmt: skip
    add("term", term, 2)
    return made


def opened(items: dict[UUID, tuple[Kind, Item]], changes: list[ChangeRecord]) -> OpenCampaign:
    campaign_id = new_id()
    attributes: dict[str, Any] = {"heat": 3, "dice": [6, 1], "play": {"mood": "- a: b"}}
    world = World(
        day=5, time_of_day="late: 5", flags={"a: b": True}, attributes=attributes, locked=["day"]
    )
    everything: dict[UUID, tuple[Kind, Item]] = {campaign_id: ("world", world), **items}
    return OpenCampaign(
        id=campaign_id,
        fields=CampaignFields(name="Seagate", brief=Brief(setting="- a\n\n# b", city="08")),
        counters=CompactionRecord(version=7, edits=3, compactions=1),
        items=[(each, kind, build_creation(item).set) for each, (kind, item) in everything.items()],
        uses={each: 3 for each, (kind, _) in items.items() if kind == "term"},
        changes=changes,
        chronicle=ChronicleFields(name="Seagate"),
        events=[],
    )


def shape(states: Mapping[UUID, State], kinds: Mapping[UUID, str]) -> list[str]:
    """What states say, whatever their ids are: each is known by what it says."""
    names: dict[str, str] = {str(each): kinds[each] for each in states}
    said: dict[str, str] = {}
    for _ in range(3):
        said = {
            str(each): msgspec.json.encode(_renamed(state, names), order="sorted").decode()
            for each, state in states.items()
        }
        names = {each: sha256(text.encode()).hexdigest() for each, text in said.items()}
    return sorted(said.values())


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        members = cast("State", value)
        return {key: _renamed(each, names) for key, each in members.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in cast("Any", value)]
    is_id = isinstance(value, str) and UUID_TEXT.fullmatch(value)
    return names.get(value, "gone") if is_id else value


def read(files: dict[str, bytes]) -> tuple[CampaignDraft, dict[UUID, State]]:
    draft, told = read_campaign(pack(files, deflated=True), "")
    settled = settle_ledger(draft, covered=told)
    return draft, {each: state for each, (state, _) in settled.items() if exists(state)}


def of(campaign: OpenCampaign) -> list[str]:
    kinds = {each: kind for each, kind, _ in campaign.items}
    return shape({each: state for each, _, state in campaign.items}, kinds)


def thorough(count: int) -> settings:
    return settings(
        max_examples=rounds(count, 10 * count),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@thorough(25)
@given(campaigns())
def test_an_archive_without_a_ledger_gives_the_same_state(
    items: dict[UUID, tuple[Kind, Item]],
) -> None:
    campaign = opened(items, [])
    draft, states = read(write_archive(campaign))
    assert shape(states, draft.kinds) == of(campaign)
    assert {line.actor for line in draft.lines} == {"import"}
    assert sorted(draft.uses.values()) == sorted(campaign.uses.values())


@thorough(25)
@given(campaigns(), st.randoms())
def test_an_archive_with_a_ledger_gives_the_same_ledger(
    items: dict[UUID, tuple[Kind, Item]], random: Any
) -> None:
    plain = opened(items, [])
    changes: list[ChangeRecord] = []
    for seq, (item_id, kind, state) in enumerate(plain.items, start=1):
        changes.append(
            ChangeRecord(
                seq=seq * 2, version=seq, actor=random.choice(["user", "tool"]), kind=kind,
                item_id=item_id, created_at=NOW, set=state, undone=random.random() < 0.2,
                on_path=random.random() < 0.8,
            )
        )  # fmt: skip
    counting = {each.item_id for each in changes if each.on_path and not each.undone}
    kept = [each for each in plain.items if each[0] in counting or each[0] == plain.id]
    out = replace(plain, items=kept, changes=changes)
    draft, states = read(write_archive(out))
    assert shape(states, draft.kinds) == of(out)
    added = 0 if plain.id in counting else 1
    assert len(draft.lines) == len(changes) + added
    for line, change in zip(draft.lines, changes, strict=False):
        assert (line.seq, line.version, line.actor) == (change.seq, change.version, change.actor)
        assert (line.is_undone, line.is_on_path) == (change.undone, change.on_path)
    for item_id, state in states.items():
        own = [
            Operations(set=line.operations.set)
            for line in draft.lines
            if line.item_id == item_id and line.is_on_path and not line.is_undone
        ]
        assert fold(draft.kinds[item_id], own) == state


@thorough(25)
@given(campaigns())
def test_a_vault_gives_the_same_state(items: dict[UUID, tuple[Kind, Item]]) -> None:
    campaign = opened(items, [])
    draft, states = read(write_vault(campaign))
    assert shape(states, draft.kinds) == of(campaign)
    assert sorted(draft.uses.values()) == sorted(campaign.uses.values())


BY_HAND = {
    "canon/open-threads.md": "## Urgent\n### The Muffle\nIt fades.\n- Reward: peace\nNext: Go\n\n"
    "## Medium\n| Thread | Next | Odd |\n|--|--|--|\n| Debt | Pay. Next: flee | x |\n",
    "canon/facts.md": "## Marlena\n### Habits\n- Smokes\n## Nobody\n- Gone\n",
    "canon/clocks.md": "## Goals\n### The tide\nFlood.\n- filled: 2/6\n",
    "canon/npcs/ada.md": "---\nHP: {current: 9, max: 13, temp: 2}\ngold: 15 gp and a ruby\n---\n"
    "Text.\n\n### Voice\n- dry\n\n## Speech Patterns\nSays aye.\n\n## Personality\n"
    "| Trait | When |\n|--|--|\n| slow | always |\n\n### Childhood\nPoor.\n\n## GM notes\nLies.\n",
    "notes.md": "# One\n| A | B |\n|--|--|\n| 1 | 2 |\n",
}


def test_a_vault_that_people_wrote_is_the_same_after_an_export() -> None:
    files = {path: text.encode() for path, text in BY_HAND.items()}
    first, states = read({**seagate_vault(""), **files})
    assert first.warnings
    campaign = replace(
        opened({}, []),
        id=first.id,
        fields=first.fields,
        items=[(each, first.kinds[each], state) for each, state in states.items()],
    )
    second, again = read(write_vault(campaign))
    assert shape(again, second.kinds) == of(campaign)
    assert second.warnings == [
        "canon/locations/the-salty-sigil.md: `district` is kept among the attributes",
        "canon/npcs/ada.md: `hp_temp` is kept among the attributes",
    ]


def test_a_vault_names_its_files_so_that_every_system_can_have_them() -> None:
    names = ["CON", "aux", "a:b", "trailing dots...", "日" * 150]
    items: dict[UUID, tuple[Kind, Item]] = {
        new_id(): ("entity", Entity(kind="npc", name=name)) for name in names
    }
    files = write_vault(opened(items, []))

    stems = {path.rpartition("/")[2] for path in files if path.startswith("canon/npcs/")}
    assert stems == {
        "con-npc.md",
        "aux-npc.md",
        "a-b.md",
        "trailing-dots.md",
        "日" * 66 + ".md",
    }
    _, states = read(files)
    assert {state["name"] for state in states.values() if "name" in state} == set(names)
