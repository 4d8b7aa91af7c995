"""The trial of docs/performance.md, for a few rounds: that it runs, and can tell."""

from __future__ import annotations

import pytest

from scripts._bench import made_up
from scripts._campaign_continuity import Score, bench_continuity
from scripts._campaign_story import Probe, Thing, read_story, summarised

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 16


def test_the_story_plants_sixty_things_and_asks_twice_for_each() -> None:
    story = read_story()
    assert len(story.things) == 60
    assert {len(thing.probes) for thing in story.things} == {2}
    for thing in story.things:
        last = thing.steps[-1]
        assert all(probe.at > last.round + 4 for probe in thing.probes), last.says
        told = " ".join([last.says, *(str(change) for change in last.changes)]).casefold()
        for probe in thing.probes:
            words = [word.casefold() for word in (*probe.needs, *probe.hidden)]
            assert all(word in told for word in words), probe.asks
            assert any(word not in probe.asks.casefold() for word in words), probe.asks


def test_a_prompt_is_judged_line_by_line() -> None:
    thing = Thing("fact", [], [], stale=("toll", "copper"))
    probe = Probe(9, "How much?", needs=("toll", "crown"))
    right, old = ("prompt", "The toll is a crown."), ("prompt", "The toll was a copper.")
    scores = {name: Score() for name in ("both", "old", "present", "apart")}
    scores["both"].judge(thing, probe, [old, right])
    scores["old"].judge(thing, probe, [old])
    scores["present"].judge(thing, probe, [right, ("state", "Toll: one copper")])
    scores["apart"].judge(thing, probe, [("prompt", "The toll."), ("prompt", "A crown.")])
    assert [score.percent for score in scores.values()] == [100, 0, 100, 0]
    assert [len(score.stale) for score in scores.values()] == [0, 1, 1, 0]
    leaking = Score()
    leaking.judge(thing, Probe(9, "Who?", hidden=("Zeke",)), [("prompt", "Zeke did it.")])
    assert len(leaking.leaked) == 1


def test_a_summary_keeps_what_is_planted_the_newest_first() -> None:
    planted = {"One is old.", "Two is newer.", "Three is new."}
    lines = ["Noise here. Two is newer.", "Three is new. More noise."]
    assert summarised("One is old.", lines, 6, planted) == "Two is newer. Three is new."


async def test_prompts_hold_what_the_window_lost_and_no_secrets() -> None:
    turns = [("MATT" if place % 2 else name, text) for place, (name, text) in enumerate(made_up())]
    rows = await bench_continuity(turns, windows=(4_096,), rounds=ROUNDS, embedding=None)
    mine, window, summary = rows
    assert mine.value > max(window.value, summary.value)
    assert "leaked 0" in mine.note
