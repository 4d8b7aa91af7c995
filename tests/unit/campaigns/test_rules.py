"""Game rules: found by name, played and validated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.campaigns.ledger.changes import Operations, fold
from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.rules.protocol import (
    DEFAULT_RULES,
    check_rules,
    find_rules,
    is_unsettled,
    load_rules,
)
from backend.prompts import load_prompts
from tests.support.logs import caught_logs
from tests.support.play import JAKE, attributes, table_of, town, use

pytestmark = pytest.mark.anyio

CANARY = "the-canary-sings-in-the-cellar"


def test_a_change_that_is_no_longer_valid_is_skipped_and_logged_without_its_text() -> None:
    made = Operations(set={"exists": True, "text": "The gate is shut."})
    broken = Operations(set={CANARY: CANARY})
    with caught_logs() as logged:
        state = fold("fact", [made, broken])
    assert state == {"exists": True, "text": "The gate is shut."}
    [line] = logged.lines("campaign.change_skipped")
    assert line["source"] == "fact"
    assert CANARY not in logged.text


def test_rules_that_are_not_installed_are_named_in_the_log_once() -> None:
    with caught_logs() as logged:
        assert find_rules("a-game-of-long-ago") is load_rules()[DEFAULT_RULES]
        find_rules("a-game-of-long-ago")
        find_rules(DEFAULT_RULES)
    [line] = logged.lines("campaign.rules_missing")
    assert line["source"] == "a-game-of-long-ago"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the module as a package."""
    info = tmp_path / "moonlight-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moonlight\nVersion: 1\n")
    point = "[talekeeper.rules]\nmoonlight = tests.support.moonlight:RULES\n"
    (info / "entry_points.txt").write_text(point)
    monkeypatch.syspath_prepend(str(tmp_path))
    load_rules.cache_clear()
    yield
    load_rules.cache_clear()


@pytest.mark.usefixtures("installed")
async def test_installed_rules_are_found_and_played() -> None:
    check_rules("moonlight")
    table = table_of(town(wolf=1), "moonlight")
    assert [tool.name for tool in table.list_tools()] == ["howl", "finish_turn"]
    assert "The sun is up." in render_guidance(table, load_prompts())
    outcome = await use(table, "howl", times=2)
    assert outcome.kind == "break"
    assert outcome.events[1] == ("mood.changed", {"mood": "night", "variant": "full"})
    assert "It is night: be brief." in render_guidance(table, load_prompts())
    assert "Voice: Low and hungry." in render_guidance(table, load_prompts())
    assert "no such tool" in (await use(table, "howl")).result["error"]
    change = {"item": "Jake", "field": "scent", "value": "wet dog"}
    assert (await use(table, "finish_turn", deltas={"changes": [change]})).kind == "end"
    assert attributes(table, JAKE) == {"wolf": 3, "scent": "wet dog"}


@pytest.mark.usefixtures("installed")
async def test_bounds_of_installed_rules_are_enforced() -> None:
    table = table_of(town(wolf=3), "moonlight")
    outcome = await use(table, "howl")
    assert outcome.result["error"] == "`attributes.wolf` must be a whole number from 0 to 3."
    assert table.play.mood == "day"


def test_rules_that_are_not_installed_are_not_listed() -> None:
    assert "moonlight" not in load_rules()


@pytest.mark.parametrize(
    ("rules", "mood", "expected"),
    [
        ("blades", "action", True),
        ("blades", "scene", False),
        ("blades", "aftermath", False),
        ("dnd", "combat", True),
        ("dnd", "explore", False),
        ("freeform", "story", False),
        ("blades", "unknown", False),
    ],
)
def test_a_played_campaign_is_unsettled_in_some_moods(
    rules: str, mood: str, *, expected: bool
) -> None:
    world = {"attributes": {"play": {"mood": mood}}}
    assert is_unsettled(world, load_rules()[rules], is_played=True) is expected
    assert not is_unsettled(world, load_rules()[rules], is_played=False)


def test_any_campaign_is_unsettled_during_combat() -> None:
    rules = load_rules()["freeform"]
    assert is_unsettled({"flags": {"combat": True}}, rules, is_played=False)
    assert not is_unsettled({"flags": {"combat": False}}, rules, is_played=False)
    assert not is_unsettled({}, rules, is_played=True)
