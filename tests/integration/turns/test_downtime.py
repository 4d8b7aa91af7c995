"""Downtime over HTTP: when it begins and ends, what it comes to, and when it is refused."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.integration.turns.playing import Game, new_game
from tests.support.server import Account, problem
from tests.support.shared import asking_server as server

__all__ = ["server"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def game(ada: Account) -> Game:
    game = await new_game(ada, rules="blades")
    await game.add("entities", kind="pc", name="Silk", attributes={"stress": 8})
    return game


async def rest(game: Game, status: int = 200, **body: Any) -> Any:
    return await game.account.post(
        f"{game.path}/downtime", {"activity": "recovery", **body}, status
    )


@pytest.mark.every_database
async def test_downtime_begins_with_an_activity_and_ends_by_the_users_call(game: Game) -> None:
    begun = await rest(game, target="Silk")
    lost = begun["result"]["die"]
    assert (begun["result"]["character"], begun["result"]["stress"]) == ("Silk", -lost)
    assert {each["actor"] for each in begun["changes"]} == {"user"}
    [silk] = (await game.state())["entities"]
    assert silk["attributes"]["stress"] == 8 - lost
    campaign = await game.account.get(game.path)
    assert campaign["version"] == begun["version"]
    problem(
        await game.account.ask("POST", f"{game.path}/downtime", json={"activity": "project"}),
        409,
        "downtime",
    )
    await game.account.delete(f"{game.path}/downtime")
    problem(await game.account.ask("DELETE", f"{game.path}/downtime"), 409, "downtime")
    [silk] = (await game.state())["entities"]
    assert silk["attributes"]["stress"] == 8 - lost


async def test_what_cannot_be_is_refused_and_nothing_changes(game: Game) -> None:
    path = f"{game.path}/downtime"
    before = await game.changes()
    for body in ({"activity": "sleep"}, {"activity": "project", "target": "No clock"}, {}):
        problem(await game.account.ask("POST", path, json=body), 422, "validation-failed")
    stale = await game.account.ask(
        "POST", path, json={"activity": "recovery"}, headers={"If-Match": '"1"'}
    )
    problem(stale, 412, "revision-mismatch")
    nowhere = f"/campaigns/{uuid4()}/downtime"
    problem(
        await game.account.ask("POST", nowhere, json={"activity": "recovery"}),
        404,
        "campaign-not-found",
    )
    assert await game.changes() == before


async def test_rules_without_downtime_and_campaigns_without_tools_have_none(
    ada: Account, game: Game
) -> None:
    plain = await new_game(ada)
    for each in (plain, game):
        if each is game:
            await game.account.patch(game.path, {"settings": {"tools": False}})
        answer = await ada.ask("POST", f"{each.path}/downtime", json={"activity": "recovery"})
        problem(answer, 422, "validation-failed")


async def test_not_while_a_turn_waits(game: Game, vendor: OpenAIServer) -> None:
    turn_id = await game.wait_for_choice(vendor)
    answer = await game.account.ask("POST", f"{game.path}/downtime", json={"activity": "recovery"})
    assert problem(answer, 409, "turn-waiting")["turn_id"] == turn_id
    answer = await game.account.ask("DELETE", f"{game.path}/downtime")
    assert problem(answer, 409, "turn-waiting")["waiting"]["kind"] == "question"
    await game.account.post(f"/turns/{turn_id}/stop", status=202)
    await rest(game, target="Silk")


@pytest.mark.every_database
async def test_not_in_the_middle_of_an_action(game: Game) -> None:
    campaign = game.campaign["id"]
    world = {"attributes": {"play": {"mood": "action"}}}
    await game.account.patch(f"/campaigns/{campaign}", world)
    answer = await game.account.ask("POST", f"{game.path}/downtime", json={"activity": "recovery"})
    problem(answer, 409, "downtime")
