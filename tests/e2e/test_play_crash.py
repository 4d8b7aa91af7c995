"""Killed while a played turn waits or goes on: it can be played, and the choice counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_crash import browser, database_of
from tests.integration.turns.following import TURN, check_tree, follow
from tests.integration.turns.playing import Game, named, new_game
from tests.support.process import serving
from tests.support.server import Event, read_events, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LINE = "I pick the lock of the counting house."


async def counting(game: Game) -> list[dict[str, Any]]:
    return [each for each in await game.changes() if each["counts"] and each["actor"] == "tool"]


async def test_a_turn_that_waits_outlives_its_process_and_a_choice_outlives_it_too(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, demo_tokens_per_second="0") as served:
        async with browser(served) as ada:
            game = await new_game(ada, rules="blades")
            heard = await game.say(LINE)
            assert heard[-1].name == "turn.awaiting_choice"
            served.process.kill()
            cookies = ada.client.cookies
    turn_id = heard[0].data["turn_id"]
    option = heard[-1].data["options"][0]["id"]

    # Slow enough to be killed in the middle of a reply.
    with serving(tmp_path, demo_tokens_per_second="10") as served:
        async with browser(served, cookies) as ada:
            again = game.at(ada)
            assert (await again.turn(turn_id))["waiting"] == heard[-1].data
            assert await counting(again) == []
            rest = await again.choose(turn_id, option)
            assert rest[-1].name == "turn.completed"
            [changed] = named(rest, "state.changed")
            assert len(await counting(again)) == len(changed["changes"]) > 0
            replies = await ada.messages(game.chat)
            assert text_of(await follow(ada.client, turn_id)) == replies[-1]["text"]
            await ada.client.delete(f"/api/v1/messages/{replies[-1]['id']}")
            assert await counting(again) == []

            turn_id, option = await waiting(again)
            path, events = f"{TURN}/{turn_id}/choice", list[Event]()
            async with ada.client.stream("POST", path, json={"option": option}) as response:
                async for event in read_events(response):
                    events.append(event)
                    if text_of(events):
                        break
                served.process.kill()

    with serving(tmp_path, demo_tokens_per_second="0") as served:
        async with browser(served, cookies) as ada:
            again = game.at(ada)
            assert (await again.turn(turn_id))["state"] == "interrupted"
            stored = await counting(again)
            state = await again.state()
            play = state["attributes"]["play"]
            assert (play["mood"], bool(play["tier"])) == ("action", True)
            await again.refused(turn_id, "1.99", 422, "validation-failed")
            assert (await again.choose(turn_id, option))[-1].name == "turn.failed"
            assert (await again.state(), await counting(again)) == (state, stored)

            rest = await ada.turn(game.chat, **{"continue": True})
            assert rest[-1].name == "turn.completed"
            after = await again.state()
            assert after["attributes"]["play"]["mood"] == "aftermath"
            assert after["attributes"]["dice"] == state["attributes"]["dice"]
            database = database_of(tmp_path)
            await check_tree(database, game.chat)
            await database.dispose()


async def waiting(game: Game) -> tuple[str, str]:
    """A turn that waits: its id, and an option."""
    heard = await game.say(LINE)
    assert heard[-1].name == "turn.awaiting_choice"
    return heard[0].data["turn_id"], heard[-1].data["options"][0]["id"]
