"""Campaign archives and Markdown vaults."""

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
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.campaigns.api.schemas import Brief, CampaignFields
from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files.archive import (
    ChangeRecord,
    CompactionRecord,
    OpenCampaign,
    write_archive,
)
from backend.campaigns.files.draft import CampaignDraft, settle_ledger
from backend.campaigns.files.markdown import MAX_CELLS, MAX_HEADING, read_groups
from backend.campaigns.files.transfer import read_campaign
from backend.campaigns.files.vault_entities import MAX_LINKS
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
from tests.support.zips import seagate_vault, zipped

UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOW = datetime(2026, 11, 1, tzinfo=UTC)

# Texts that Markdown, YAML and JSON could misread.
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
    """Describe states without their ids: each id becomes a digest of its state."""
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


def read_back(files: dict[str, bytes]) -> tuple[CampaignDraft, dict[UUID, State]]:
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
    draft, states = read_back(write_archive(campaign))
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
    draft, states = read_back(write_archive(out))
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
    draft, states = read_back(write_vault(campaign))
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
    first, states = read_back({**seagate_vault(""), **files})
    assert first.warnings
    campaign = replace(
        opened({}, []),
        id=first.id,
        fields=first.fields,
        items=[(each, first.kinds[each], state) for each, state in states.items()],
    )
    second, again = read_back(write_vault(campaign))
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
    assert stems == {"con-npc.md", "aux-npc.md", "a-b.md", "trailing-dots.md", "日" * 66 + ".md"}
    _, states = read_back(files)
    assert {state["name"] for state in states.values() if "name" in state} == set(names)


def read(files: dict[str, bytes | str], name: str = "Vault") -> CampaignDraft:
    return read_campaign(zipped(files), name)[0]


def told(draft: CampaignDraft, kind: str) -> list[dict[str, Any]]:
    return [state for each, state in draft.states.items() if draft.kinds[each] == kind]


def one(draft: CampaignDraft, kind: str = "entity") -> dict[str, Any]:
    (found,) = told(draft, kind)
    return found


def person(text: str) -> CampaignDraft:
    return read({"canon/npcs/marlena.md": text})


@pytest.mark.parametrize("folder", ["", "seagate-vault/", "a/b/"])
def test_a_folder_around_everything_does_no_harm(folder: str) -> None:
    draft = read({**seagate_vault(folder), f"{folder}.obsidian/app.json": "{"})
    assert draft.fields.name == "Seagate"
    assert len(told(draft, "entity")) == 11


def test_names_come_from_front_matter_a_heading_or_the_file() -> None:
    assert one(person("---\nname: Marla\n---\n"))["name"] == "Marla"
    assert one(person("# Marlena of the Sigil\nKeeps a shop."))["name"] == "Marlena of the Sigil"
    assert one(read({"npcs/the-old_man.md": "Old."}))["name"] == "The Old Man"
    assert read({"npcs/a.md": ""}, "The Coast").fields.name == "The Coast"


def test_a_personality_in_a_list_or_in_brackets_is_voice() -> None:
    listed = one(person("## Personality\n- slow\n- dry\n"))
    assert (listed["voice"], listed["personality"]) == (["slow", "dry"], "")
    bracketed = one(person("Shop.\n\n## Personality\nKind at heart. [slow; dry]\n"))
    assert (bracketed["voice"], bracketed["personality"]) == (["slow", "dry"], "Kind at heart.")
    assert bracketed["description"] == "Shop."


def test_numbers_are_read_out_of_words_and_other_words_are_kept() -> None:
    draft = person("---\nhp: 9/13\ngold: 15 gp\nconditions: tired, wet\n---\n")
    assert one(draft)["attributes"] == {
        "hp": 9, "hp_max": 13, "gold": 15, "conditions": ["tired", "wet"],
    }  # fmt: skip
    poor = person("---\ngold: none to speak of\n---\n")
    assert one(poor)["attributes"] == {}
    assert one(poor, "fact")["text"] == "gold: none to speak of"
    assert one(poor, "fact")["audience"] == "gm"
    assert "no number" in poor.warnings[0]


def test_unknown_parts_are_kept_and_named() -> None:
    draft = read(
        {
            "campaign.md": "---\nname: Coast\nweather: fog\n---\nA coast.",
            "canon/npcs/a.md": "---\nmood: sour\nlocation: nowhere\n---\nKnows [[Bob]].",
            "canon/open-threads.md": "## Urgent\n- **Debt**: 200 gp\n  - Reward: peace\n",
            "canon/relations.md": "- A likes B\n",
            "notes/session-1.md": "# One\nThey met.\n- A fought\n",
            "map.png": b"\x89PNG",
        }
    )
    assert one(draft)["attributes"] == {"mood": "sour", "location": "nowhere"}
    assert one(draft)["description"] == "Knows Bob."
    assert one(draft, "thread")["summary"] == "200 gp Reward: peace"
    facts = {fact["text"] for fact in told(draft, "fact")}
    assert facts == {"weather: fog", "A likes B", "One: They met.", "One: A fought"}
    assert {fact["audience"] for fact in told(draft, "fact")} == {"gm"}
    named = [
        "weather", "mood", "location", "[[Bob]]", "Reward", "relations.md", "session-1", "map.png",
    ]  # fmt: skip
    assert [each for each in named if not any(each in text for text in draft.warnings)] == []


def test_threads_have_their_tension_from_their_heading() -> None:
    headings = ("Critical", "High priority", "Medium", "Low", "Resolved", "Simmering")
    text = "".join(f"## {each}\n- [[{each}]]: x\n  - [x] done\n  - [ ] not\n" for each in headings)
    threads = told(read({"canon/open-threads.md": text}), "thread")
    assert [each["tension"] for each in threads] == [
        "critical", "urgent", "rising", "simmering", "rising", "simmering",
    ]  # fmt: skip
    assert [each["status"] for each in threads] == ["open"] * 4 + ["resolved", "open"]
    assert threads[0]["objectives"] == [
        {"text": "done", "done": True}, {"text": "not", "done": False},
    ]  # fmt: skip
    assert (threads[1]["priority"], threads[3]["priority"]) == ("high", "low")


def test_days_of_the_timeline_are_days_of_events() -> None:
    text = "Before all.\n## Day 4 - dusk\n- found\n\nTold.\n### Day 5\n- went\n  - who: Jake\n"
    events = read({"canon/timeline.md": text}).events
    assert [(each.day, each.time, each.summary) for each in events] == [
        (None, "", "Before all."), (4, "dusk", "found"), (4, "dusk", "Told."), (5, "", "went"),
    ]  # fmt: skip
    assert events[-1].who == ["Jake"]


def test_an_unclear_audience_is_the_game_masters() -> None:
    draft = read(
        {
            "canon/npcs/a.md": "---\naudience: [b, nobody]\n---\n",
            "canon/npcs/b.md": "---\nsecret: [Lies, Steals]\naudience: [a]\n---\n",
            "canon/facts.md": "## B\n- Hides\n  - audience: the party\n",
        }
    )
    a, b = told(draft, "entity")
    assert (a["audience"], b["audience"]) == ("gm", "public")
    known = {fact["text"]: fact["audience"] for fact in told(draft, "fact")}
    ids = [str(each) for each, state in draft.states.items() if state is a]
    assert known == {"Lies": ids, "Steals": ids, "Hides": "gm"}


def test_a_file_that_is_not_utf8_is_read_as_windows_writes_it() -> None:
    draft = read({"npcs/a.md": "Küste".encode("cp1252")})
    assert one(draft)["description"] == "Küste"
    assert draft.warnings == ["npcs/a.md is not UTF-8: some letters may be wrong"]


@pytest.mark.parametrize("yaml", ["a: !!python/object:os.system x", "a: [b"])
def test_front_matter_that_is_no_plain_yaml_is_text(yaml: str) -> None:
    draft = person(f"---\n{yaml}\n---\n")
    assert "front matter" in draft.warnings[0]
    assert one(draft)["description"].startswith("---")


@pytest.mark.parametrize(
    "files",
    [
        {"npcs/a.md": "x" * 5_000_000, "npcs/b.md": "y" * 5_000_000},
        {"npcs/a.md": "- a\n" * 200_000},
        {"npcs/a.md": "---\n" + "a: [" * 100 + "\n---\n"},
        {"npcs/a.md": "---\n" + "a: b\n" * 300_000 + "---\n"},
        {"campaign.md": "---\nsettings: {memory_interval: 0}\n---\n"},
        {"a.txt": "x"},
        {},
    ],
)
def test_a_vault_that_is_too_large_or_no_campaign_is_refused(files: dict[str, bytes | str]) -> None:
    with pytest.raises(CampaignFileError):
        read(files)


@pytest.mark.parametrize("folder", ["The Coast/", "zip/The Coast/"])
def test_a_folder_around_everything_names_the_campaign(folder: str) -> None:
    assert read({f"{folder}canon/npcs/a.md": ""}).fields.name == "The Coast"
    assert read({f"{folder}NPCs/a.md": ""}).fields.name == "The Coast"
    assert read({f"{folder}campaign.md": "---\nname: Seagate\n---\n"}).fields.name == "Seagate"
    assert read({"NPCs/a.md": ""}).fields.name == "Vault"


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ("hp: {current: 9, max: 13}", {"hp": 9, "hp_max": 13}),
        ("hp_current: 9\nhp_max: 13", {"hp": 9, "hp_max": 13}),
        ("hp: 13\nhp_current: 9", {"hp": 9, "hp_max": 13}),
        ("HP: 9\nMax HP: 13", {"hp": 9, "hp_max": 13}),
        ("hit_points: 9/13", {"hp": 9, "hp_max": 13}),
        ("stress: {current: 2, max: 9}", {"stress": 2, "stress_max": 9}),
        ("hp:\n  current: 9\n  temp: 3", {"hp": 9, "hp_temp": 3}),
    ],
)
def test_points_are_read_in_every_spelling(points: str, found: dict[str, int]) -> None:
    assert one(person(f"---\n{points}\n---\n"))["attributes"] == found


def test_front_matter_that_says_a_thing_twice_is_kept_as_facts_and_named() -> None:
    draft = person("---\nhp: 9/13\nhp_max: 15\ngold: 15 gp and a ruby\nName: A\nname: B\n---\n")
    assert one(draft)["attributes"] == {"hp": 9, "hp_max": 15, "gold": 15}
    facts = [fact["text"] for fact in told(draft, "fact")]
    assert facts == ["name: B", "hp: 9/13", "gold: 15 gp and a ruby"]
    for name in ("`name`", "`hp`", "`gold`"):
        assert any(name in text for text in draft.warnings)


def test_voice_speech_and_personality_are_joined() -> None:
    draft = person(
        "---\nvoice: low\n---\nShop.\n\n## Voice\n- slow\n\n## Speech Patterns\nSays aye.\n\n"
        "## Personality\n- dry\n\nKind.\n\n### Mannerisms\n- hums\n\n### Childhood\nPoor.\n\n"
        "## Personality\nProud. [curt]\n"
    )
    found = one(draft)
    assert found["voice"] == ["low", "slow", "Says aye.", "dry", "hums", "curt"]
    assert found["personality"] == "Kind.\n\nProud."
    assert found["description"] == "Shop.\n\n### Childhood\nPoor."


def test_sections_inside_a_secret_stay_secret() -> None:
    draft = person("Shop.\n\n## GM notes\n- Lies.\n\n### Voice\nWhispers.\n\n## Voice\nLoud.\n")
    assert (one(draft)["description"], one(draft)["voice"]) == ("Shop.", ["Loud."])
    facts = [(fact["text"], fact["audience"]) for fact in told(draft, "fact")]
    assert facts == [("Lies.", "gm"), ("Voice: Whispers.", "gm")]


THREADS = """\
# Open threads

## Urgent
### The Fading Muffle
The anchor is muffled.
Next: Go in
- [ ] Get in
- Reward: peace

#### Objectives
- Get out

### Salon

## Medium
- **Debt**: 200 gp. Next: pay it
- **Bell**: rings
  Status: done

Next: silence it

### Low tide
The water falls.

## Personal
- **Old**: a grudge
"""


def test_headings_inside_a_priority_are_threads_of_that_priority() -> None:
    draft = read({"canon/open-threads.md": THREADS})
    found = {each["title"]: each for each in told(draft, "thread")}
    assert {title: each["tension"] for title, each in found.items()} == {
        "The Fading Muffle": "urgent", "Salon": "urgent", "Debt": "rising", "Bell": "rising",
        "Low tide": "rising", "Old": "rising",
    }  # fmt: skip
    muffle = found["The Fading Muffle"]
    assert muffle["summary"] == "The anchor is muffled.\nReward: peace"
    assert [each["text"] for each in muffle["objectives"]] == ["Get in", "Get out"]
    assert found["Low tide"]["summary"] == "The water falls."
    assert (found["Debt"]["summary"], found["Bell"]["status"]) == ("200 gp.", "resolved")
    steps = {title: each.get("next_step", "") for title, each in found.items()}
    assert steps == {
        "The Fading Muffle": "Go in", "Salon": "", "Debt": "pay it", "Bell": "silence it",
        "Low tide": "", "Old": "",
    }  # fmt: skip
    assert draft.warnings == ["canon/open-threads.md: the heading `Personal` is not known"]


def test_a_list_of_boxes_is_a_list_of_threads() -> None:
    text = "## Urgent\n- [ ] Find the token\n- [x] Save Gareth: he lives\n"
    threads = told(read({"canon/open-threads.md": text}), "thread")
    assert [(each["title"], each["status"]) for each in threads] == [
        ("Find the token", "open"), ("Save Gareth", "resolved"),
    ]  # fmt: skip


def test_headings_are_titles_in_every_list_of_titled_entries() -> None:
    draft = read(
        {
            "canon/clocks.md": "## Goals\n### The tide\nFlood.\n- filled: 2/6\n",
            "canon/glossary.md": "## Raw\n### Muffle\nA spell.\n",
            "canon/scenes.md": "## Closed\n### The Salon\nThey danced.\n",
            "canon/chapters.md": "## Over the roofs\nThey ran.\n",
            "canon/timeline.md": "## Day 5\n### Morning\n- Rose\n",
        }
    )
    clock, term = one(draft, "clock"), one(draft, "term")
    assert (clock["name"], clock["kind"], clock["filled"], clock["consequence"]) == (
        "The tide", "goal", 2, "Flood.",
    )  # fmt: skip
    assert (term["term"], term["definition"], term["status"]) == ("Muffle", "A spell.", "raw")
    scene, chapter = one(draft, "scene"), one(draft, "chapter")
    assert (scene["title"], scene["status"]) == ("The Salon", "closed")
    assert (chapter["title"], chapter["summary"]) == ("Over the roofs", "They ran.")
    assert [(each.day, each.time, each.summary) for each in draft.events] == [
        (5, "Morning", "Rose")
    ]
    assert draft.warnings == []


def test_rows_of_tables_are_entries() -> None:
    draft = read(
        {
            "canon/open-threads.md": "## High\n| Thread | Summary | Next | Odd |\n|--|--|--|--|\n"
            "| Debt | 200 gp | Pay | x |\n| [[Bell]] | rings | | |\n",
            "canon/timeline.md": "| Day | Event | Who |\n|--|--|--|\n| 4 | Found | Jake |\n",
            "canon/facts.md": "| Fact | About |\n|--|--|\n| Rich | [[Jake]] |\n",
            "canon/relations.md": "| From | To | Score | Notes |\n|--|--|--|--|\n"
            "| Jake | Ada | +20 | likes her |\n",
            "canon/glossary.md": "| Term | Definition |\n|--|--|\n| Muffle | A spell |\n",
            "pcs/jake.md": "## Personality\n| Trait | When |\n|--|--|\n| dry | always |\n",
            "npcs/ada.md": "| A | B |\n|--|--|\n| 1 | 2 |\n",
            "notes.md": "# One\n| A | B |\n|--|--|\n| 1 | 2 |\n",
        }
    )
    debt, bell = told(draft, "thread")
    assert (debt["title"], debt["summary"], debt["next_step"]) == ("Debt", "200 gp Odd: x", "Pay")
    assert (bell["title"], bell["summary"], bell["tension"]) == ("Bell", "rings", "urgent")
    assert [(e.day, e.summary, e.who) for e in draft.events] == [(4, "Found", ["Jake"])]
    ids = {state["name"]: each for each, state in draft.states.items() if "aliases" in state}
    relation = one(draft, "relation")
    ends = str(ids["Jake"]), str(ids["Ada"])
    assert (relation["from_id"], relation["to_id"]) == ends
    assert (relation["score"], relation["note"]) == (20, "likes her")
    assert one(draft, "term")["definition"] == "A spell"
    facts = {fact["text"]: fact.get("about_id") for fact in told(draft, "fact")}
    assert facts == {"Rich": ends[0], "One: A: 1; B: 2": None}
    people = {state["name"]: state for state in told(draft, "entity")}
    assert people["Jake"]["voice"] == ["Trait: dry; When: always"]
    assert people["Ada"]["description"] == "| A | B |\n|--|--|\n| 1 | 2 |"


def test_a_table_of_too_many_cells_stays_a_paragraph() -> None:
    head, row, columns = "| a |\n|--|\n", "| x |\n", 400
    few, many = (read_groups(head + row * rows)[0].bullets for rows in (9, MAX_CELLS // 2))
    assert [bullet.cells for bullet in few] == [[("a", "x")]] * 9
    assert [bullet.cells for bullet in many] == [()]
    # Markdown would add the missing cells of each row.
    widened = "|a" * columns + "\n" + "|-" * columns + "\n" + "x\n" * (MAX_CELLS // columns)
    assert [bullet.cells for bullet in read_groups(widened)[0].bullets] == [()]


def test_a_long_heading_is_a_paragraph() -> None:
    long = "a" * (MAX_HEADING + 1)
    [before, named] = read_groups(f"# {long}\n- x\n\n# {long[1:]}\n- y\n")
    assert [bullet.text for bullet in before.bullets] == [long, "x"]
    assert named.headings == (long[1:],)
    draft = person(f"# {long}\nKeeps a shop.")
    assert one(draft)["name"] == "Marlena"
    assert long in one(draft)["description"]


def test_a_table_with_a_long_header_keeps_all_its_cells() -> None:
    long = "a" * (MAX_HEADING + 1)
    [header, row] = read_groups(f"| {long} | b |\n|--|--|\n| x | y |\n")[0].bullets
    assert (header.text, row.text) == (f"{long}; b", "x; y")


def test_a_link_that_is_repeated_is_one_relation_with_its_first_sentence() -> None:
    text = "Loves [[Holt|the inspector]]. Hates [[holt]]. [[Nobody]] knows [[Nobody]]."
    draft = read({"npcs/marlena.md": text, "npcs/holt.md": ""})
    assert one(draft, "relation")["note"] == "Loves the inspector."
    assert draft.warnings == ["[[Nobody]] names nothing in the vault"]


def test_links_over_the_limit_make_no_relations_and_are_named() -> None:
    people = {f"npcs/p{number}.md": "" for number in range(MAX_LINKS + 5)}
    links = " ".join(f"[[p{number}]]" for number in range(MAX_LINKS + 5))
    draft = read({**people, "npcs/marlena.md": links})
    assert len(told(draft, "relation")) == MAX_LINKS
    [warning] = draft.warnings
    assert warning.startswith("npcs/marlena.md: it links to more than 1,000 names: 5 of them make")
    assert warning.endswith("no relations: [[p1000]], [[p1001]], [[p1002]] and others")


def test_a_shared_name_means_the_wanted_kind_and_then_the_first() -> None:
    same = {"1/npcs/rose.md": "Ann", "2/locations/rose.md": "Bay", "3/locations/rose.md": "Cape"}
    draft = read({**same, "pcs/ada.md": "---\nlocation: rose\n---\nMet [[rose]]."})
    ids = {each["description"]: key for key, each in draft.states.items() if "description" in each}
    assert draft.states[ids["Met rose."]]["location_id"] == str(ids["Bay"])
    assert one(draft, "relation")["to_id"] == str(ids["Ann"])


def test_more_items_than_a_campaign_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.campaigns.files.draft.MAX_ITEMS", 9)
    with pytest.raises(CampaignFileError, match="more than 9 items"):
        read({"canon/echoes.md": "- x\n" * 10})


LOST = {
    "canon/open-threads.md": "---\nmood: x\n---\n## Odd\n- **A**: b\n  - priority: who knows\n",
    "canon/timeline.md": "---\n[\n---\n## Before\n- x\n  - pinned: perhaps\n  - day: soon\n",
    "canon/clocks.md": "## Odd\n- **C**\n  - filled: half\n  - linked: none\n",
    "canon/facts.md": "## Nobody\n- x\n## World\n### Habits\n- y\n",
    "canon/relations.md": "## Friends\n- [[A]] → [[B]]\n",
    "canon/glossary.md": "## Spells\n- **T**\n  - uses: many\n  - source: auto\n  - source: me\n",
    "canon/scenes.md": "## Open\n- **S**\n  - present: Nobody\n  - beats: few\n",
    "canon/chapters.md": "- **One**\n  - scene: none\n",
    "canon/echoes.md": "## Debts\n- paid\n  - resolved: perhaps\n",
    "canon/temporal-index.json": "[]",
}
NAMED = {
    "canon/open-threads.md": ["`mood`", "`Odd`", "`priority`"],
    "canon/timeline.md": ["front matter", "`Before`", "`pinned`", "`day`"],
    "canon/clocks.md": ["`Odd`", "`filled`", "`linked_id`"],
    "canon/facts.md": ["`Nobody`", "`Habits`"],
    "canon/relations.md": ["`Friends`", "[[A]] → [[B]]"],
    "canon/glossary.md": ["`Spells`", "`uses`", "`source`"],
    "canon/scenes.md": ["`present`", "`**S**` is kept as a fact"],
    "canon/chapters.md": ["`scene_ids`"],
    "canon/echoes.md": ["`Debts`", "`resolved`"],
    "canon/temporal-index.json": ["no object"],
}


@pytest.mark.parametrize("path", LOST)
def test_everything_that_ends_in_no_field_is_named(path: str) -> None:
    draft = read({path: LOST[path], "campaign.md": ""})
    lost = [each for each in NAMED[path] if not any(each in text for text in draft.warnings)]
    assert lost == [], draft.warnings
