"""The demo model at the table: a scene of blades that needs no key, as a newcomer sees it."""

from __future__ import annotations

import pytest

from tests.integration.turns.playing import Game, named, new_game
from tests.support.server import Account, text_of

pytestmark = [pytest.mark.anyio]

LINE = "I pick the lock of the counting house."


async def started(ada: Account) -> tuple[Game, str, list[dict[str, object]]]:
    """A game of blades whose turn waits for a die: the game, the turn and the options."""
    game = await new_game(ada, rules="blades")
    events = await game.say(LINE)
    assert events[-1].name == "turn.awaiting_choice"
    assert events[-1].data["kind"] == "die"
    return game, str(events[0].data["turn_id"]), events[-1].data["options"]


async def test_a_lock_is_picked_with_a_die_a_price_and_a_clock(ada: Account) -> None:
    game, turn_id, options = await started(ada)
    worst = options[-1]
    events = await game.choose(turn_id, str(worst["id"]))
    moods = [each["mood"] for each in named(events, "mood.changed")]
    assert moods[-1] == "aftermath"
    state = await game.state()
    (clock,) = state["clocks"]
    assert clock["filled"] == 1
    (player,) = state["entities"]
    costs = {"critical": 0, "success": 0, "partial": 1, "bad": 2}
    tier = str(worst["detail"]).partition(":")[0]
    assert player["attributes"].get("stress", 0) == costs[tier]
    assert named(events, "suggestions")
    changed = named(events, "state.changed")[0]["changes"]
    assert {each["target"]["kind"] for each in changed} >= {"world", "entity", "clock"}


async def test_swiping_the_reply_undoes_all_of_it_and_another_can_be_played(ada: Account) -> None:
    game, turn_id, options = await started(ada)
    await game.choose(turn_id, str(options[0]["id"]))
    reply_id = (await game.turn(turn_id))["reply_id"]
    assert (await game.state())["entities"]
    again = await ada.turn(game.chat, regenerate_of=reply_id)
    assert again[-1].name == "turn.awaiting_choice"
    state = await game.state()
    assert (state["clocks"], state["entities"]) == ([], [])
    await ada.post(f"/turns/{again[0].data['turn_id']}/stop", status=202)
    # The reply that has nothing to say is gone, and the one before it is told again.
    assert len((await game.state())["clocks"]) == 1


async def test_what_is_not_risky_is_told_and_the_aftermath_passes(ada: Account) -> None:
    game, turn_id, options = await started(ada)
    await game.choose(turn_id, str(options[0]["id"]))
    events = await game.say("I look around.")
    assert [each["mood"] for each in named(events, "mood.changed")] == ["scene"]
    assert events[-1].name == "turn.completed"
    state = await game.state()
    assert state["attributes"]["play"]["mood"] == "scene"


async def test_each_of_two_risks_in_a_row_is_told_to_its_end(ada: Account) -> None:
    game, turn_id, options = await started(ada)
    first = await game.choose(turn_id, str(options[0]["id"]))
    # With the same outcome, where the dice allow it.
    events = await game.say("I climb the stairs.")
    assert [each["mood"] for each in named(events, "mood.changed")] == ["scene", "action"]
    again = events[-1].data["options"]
    same = [each for each in again if each["detail"] == options[0]["detail"]]
    choice = str((same or again)[0]["id"])
    events = await game.choose(str(events[0].data["turn_id"]), choice)
    assert [each["mood"] for each in named(events, "mood.changed")][-1] == "aftermath"
    assert text_of(first).startswith("You try, and ")
    assert text_of(events).startswith("You try, and ")
    (clock,) = (await game.state())["clocks"]
    assert clock["filled"] == 2


async def test_a_game_without_moods_is_told_and_has_suggestions(ada: Account) -> None:
    game = await new_game(ada)
    events = await game.say(LINE)
    assert events[-1].name == "turn.completed"
    assert len(named(events, "suggestions")[0]["items"]) == 3
