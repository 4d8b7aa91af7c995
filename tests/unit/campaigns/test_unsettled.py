"""When nothing is compacted: in the middle of an action or a fight."""

from __future__ import annotations

import pytest

from backend.campaigns.rules.protocol import is_unsettled, load_rules


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
def test_the_mood_says_so_while_the_campaign_is_played(
    rules: str, mood: str, *, expected: bool
) -> None:
    world = {"attributes": {"play": {"mood": mood}}}
    assert is_unsettled(world, load_rules()[rules], is_played=True) is expected
    assert not is_unsettled(world, load_rules()[rules], is_played=False)


def test_the_flag_says_so_in_any_campaign() -> None:
    rules = load_rules()["freeform"]
    assert is_unsettled({"flags": {"combat": True}}, rules, is_played=False)
    assert not is_unsettled({"flags": {"combat": False}}, rules, is_played=False)
    assert not is_unsettled({}, rules, is_played=True)
