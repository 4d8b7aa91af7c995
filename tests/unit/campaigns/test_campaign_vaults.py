"""What people's vaults hold besides what is expected: it is kept, and told of."""

from __future__ import annotations

from typing import Any

import pytest

from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files.draft import CampaignDraft
from backend.campaigns.files.reader import read_campaign
from tests.support.zips import seagate_vault, zipped


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


def test_a_personality_is_voice_where_it_is_listed_or_in_brackets() -> None:
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


def test_what_is_not_understood_is_kept_and_named() -> None:
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
        "weather",
        "mood",
        "location",
        "[[Bob]]",
        "Reward",
        "relations.md",
        "session-1",
        "map.png",
    ]
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


def test_an_audience_that_is_not_clear_is_the_game_masters() -> None:
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


@pytest.mark.parametrize(
    "files",
    [
        {"canon/npcs/a.md": "---\na: !!python/object:os.system x\n---\n"},
        {"canon/npcs/a.md": "---\na: [b\n---\n"},
    ],
)
def test_front_matter_that_is_no_plain_yaml_is_text(files: dict[str, bytes | str]) -> None:
    draft = read(files)
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
def test_what_is_too_large_or_no_campaign_is_refused(files: dict[str, bytes | str]) -> None:
    with pytest.raises(CampaignFileError):
        read(files)
