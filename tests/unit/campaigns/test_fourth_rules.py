"""A rules module of another package is found by its entry point, and played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.rules.protocol import check_rules, load_rules
from backend.prompts import load_prompts
from tests.support.play import JAKE, attributes, table_of, town, use

pytestmark = pytest.mark.anyio


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module as an installed package brings it."""
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
async def test_it_is_found_and_played() -> None:
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
async def test_its_bounds_hold() -> None:
    table = table_of(town(wolf=3), "moonlight")
    outcome = await use(table, "howl")
    assert outcome.result["error"] == "`attributes.wolf` must be a whole number from 0 to 3."
    assert table.play.mood == "day"


def test_it_is_gone_where_it_is_not_installed() -> None:
    assert set(load_rules()) == {"blades", "dnd", "freeform"}
