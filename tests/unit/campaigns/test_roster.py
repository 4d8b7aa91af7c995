"""The entities that a mention means."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from backend.campaigns.names.roster import Member, Roster

FIXTURES = Path(__file__).parents[2] / "fixtures"
WRITTEN = ("mentions.json", "mentions_held_out.json")


def _member(name: str, *aliases: str, kind: str = "npc", role: str = "") -> Member:
    return Member(uuid4(), kind, (name, *aliases), role, None, "public")


def _outcomes(*files: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    scenes = [scene for name in files for scene in json.loads((FIXTURES / name).read_text("utf-8"))]
    for scene in scenes:
        members = {
            each["name"]: _member(
                each["name"], *each.get("aliases", ()), kind=each["kind"], role=each.get("role", "")
            )
            for each in scene["cast"]
        }
        present = [members[each["name"]].id for each in scene["cast"] if each.get("present")]
        roster = Roster(members.values(), present=present)
        for mention in scene["mentions"]:
            means = {members[name].id for name in mention["means"]}
            found = set(roster.resolve(mention["said"], mention["kind"]))
            counts["all"] += 1
            counts["duplicated"] += bool(means) and not found
            counts["merged"] += len(found) == 1 and found != means
            counts["asked"] += len(found) > 1 and found != means
    return counts


def test_few_of_150_mentions_are_duplicated_or_wrongly_merged() -> None:
    counts = _outcomes(*WRITTEN)
    assert counts["all"] == 150
    assert counts["duplicated"] <= 0.02 * counts["all"]
    assert counts["merged"] <= 0.01 * counts["all"]
    assert not counts["asked"]


def test_mentions_that_were_written_afterwards_are_resolved_nearly_as_well() -> None:
    counts = _outcomes("mentions_unseen.json")
    assert counts["duplicated"] <= 0.04 * counts["all"]
    assert not counts["merged"]


def test_an_entity_that_is_added_is_found_by_the_next_mention() -> None:
    roster = Roster([])
    assert roster.resolve("Captain Vex", "npc") == []
    vex = _member("Captain Vex")
    roster.add(vex)
    assert roster.resolve("Vex", "npc") == [vex.id]
    assert roster.resolve("the captain", "pc") == [vex.id]


def test_a_new_alias_is_found_too() -> None:
    heron = _member("Rowan")
    roster = Roster([heron])
    roster.add(heron._replace(names=("Rowan", "The Heron")))
    assert roster.resolve("the Heron") == [heron.id]


def test_the_kind_separates_a_place_and_a_person_of_one_name() -> None:
    ash, town = _member("Ash"), _member("Ash", kind="location")
    roster = Roster([ash, town])
    assert roster.resolve("Ash", "npc") == [ash.id]
    assert roster.resolve("Ash", "location") == [town.id]
    assert set(roster.resolve("Ash")) == {ash.id, town.id}
    assert roster.resolve("Ash", "item") == []


def test_a_shared_name_means_the_sibling_who_is_present() -> None:
    jonas, emil = _member("Jonas Feld"), _member("Emil Feld")
    assert set(Roster([jonas, emil]).resolve("Feld")) == {jonas.id, emil.id}
    assert Roster([jonas, emil], present=[emil.id]).resolve("Feld") == [emil.id]


def test_a_role_means_the_person_at_this_place() -> None:
    sigil, anchor = uuid4(), uuid4()
    jake = Member(uuid4(), "pc", ("Jake",), "", anchor, "public")
    near = Member(uuid4(), "npc", ("Marlena",), "innkeeper", anchor, "public")
    far = Member(uuid4(), "npc", ("Osric",), "innkeeper", sigil, "public")
    assert Roster([jake, near, far], present=[jake.id]).resolve("the innkeeper") == [near.id]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("Marie", "Maria"),
        ("Александр", "Александра"),
        ("Волков", "Волкова"),
        ("Mirko", "Marko"),
        ("Martina", "Marina"),
        ("Clara", "Carla"),
        ("Erik", "Erika"),
        ("Harald", "Harald junior"),
        ("Harald", "Harald's son"),
        ("King Aldric", "Prince Aldric"),
        ("Herr Winter", "Frau Winter"),
        ("Inspector Vane", "the new Inspector"),
        ("Inspector Vane", "Inspector Holt"),
    ],
)
def test_similar_names_are_two_entities(known: str, said: str) -> None:
    assert Roster([_member(known)]).resolve(said, "npc") == []


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("Gareth", "Garreth"),
        ("Hendrik", "Hednrik"),
        ("John", "Jon"),
        ("José", "Jose"),
        ("Jürgen", "JÜRGEN"),
        ("Holt", "Daniel Holt"),
        ("Marlena", "Марлену"),
        ("Holt", "ホルト"),
        ("Weißbart", "Weissbart"),
        ("Athina", "Αθηνά"),
        ("Пётр", "Петру"),
        ("the Inspector", "Inspector Holt"),
        ("Jean-Luc", "Jean-Luc's"),
    ],
)
def test_two_spellings_of_one_name_are_one_entity(known: str, said: str) -> None:
    member = _member(known)
    assert Roster([member]).resolve(said, "npc") == [member.id]


@pytest.mark.parametrize("said", ["", " ", "the", "'", "・", "...", "Holt " * 5_000, "a" * 100_000])
def test_any_mention_is_resolved_without_an_error(said: str) -> None:
    assert len(Roster([_member("Holt"), _member("")]).resolve(said)) <= 1


def test_one_of_5000_entities_of_one_family_is_found() -> None:
    names = ["".join(letters) for letters in product("abcdefghij", repeat=4)][:5_000]
    members = [_member(f"Q{name} Thornley") for name in names]
    assert Roster(members).resolve(f"Q{names[4_711]} Thornley") == [members[4_711].id]


def test_ids_are_those_of_members() -> None:
    member = _member("Marlena", role="innkeeper")
    (found,) = Roster([member]).resolve("the innkeeper")
    assert isinstance(found, UUID)
    assert found == member.id
