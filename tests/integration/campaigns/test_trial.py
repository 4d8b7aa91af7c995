"""The trial of docs/explanation/performance.md, for a few rounds: that it runs, and can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import _campaign_compaction
from scripts._bench import made_up
from scripts._bench_table import DatabaseName
from scripts._campaign_compaction import bench_compaction, fillers
from scripts._campaign_continuity import Score, bench_continuity
from scripts._campaign_script import SWIPED, write_script
from scripts._campaign_story import Probe, Thing, read_story, summarised

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 16
COMPACTED_ROUNDS = 12


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
    rows = await bench_continuity(spoken(), windows=(4_096,), rounds=ROUNDS, embedding=None)
    mine, window, summary = rows
    assert mine.value > max(window.value, summary.value)
    assert "leaked 0" in mine.note


def spoken() -> list[tuple[str, str]]:
    """Lines of players and of the game master, by turns."""
    return [("MATT" if place % 2 else name, text) for place, (name, text) in enumerate(made_up())]


def test_a_script_is_the_same_each_time_and_knows_what_each_sentence_changes() -> None:
    one, other = (write_script(fillers(spoken()), 100) for _ in range(2))
    assert one == other
    told = " ".join(f"{each.reply} {each.discarded} {each.aside}" for each in one.rounds)
    assert all(text in told for text in one.updates)
    assert len({update.tool for each in one.updates.values() for update in each}) == 11
    assert sum(len(each.questions) for each in one.rounds) > 100
    for thrown_away in filter(None, (each.discarded for each in one.rounds)):
        assert not any(fact in thrown_away for fact in one.truth.facts), thrown_away


# On PostgreSQL two workers take turns at being killed, on SQLite the one process that there is.
# A minute for each: what compaction does when calls fail has shorter tests beside it, and so have
# workers that are killed.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
async def test_a_campaign_is_kept_though_calls_fail_and_what_works_is_killed(
    name: DatabaseName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # for PostgreSQL's lock file
    monkeypatch.setattr(_campaign_compaction, "TIMED", 3)
    monkeypatch.setattr(_campaign_compaction, "TIMED_PACE", 0.0)
    assert SWIPED <= COMPACTED_ROUNDS
    found = await bench_compaction(name, spoken(), rounds=COMPACTED_ROUNDS, explain=True)
    rows = {row.what.strip(): row for row in found}
    assert rows["lost"].value == rows["doubled or made up"].value == 0, found
    assert rows["fields as the script knows them"].value >= 98, found
    kept, calls = rows["8,192: with the compactor"], rows["calls behind replies"].note
    assert kept.value >= 95
    assert kept.note.startswith("stale 0, leaked 0;")
    assert "2 kills" in calls
    assert not calls.startswith("0 failed")
    assert rows["compactions"].value > 0
