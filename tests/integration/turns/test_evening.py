"""A long session: the state always is the fold of the changes that count."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from random import Random
from typing import Any, get_args
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.generation.registry import ModelRegistry
from backend.turns.models import Turn, TurnState
from tests.fakes.game_master import GeminiGameMaster, OpenAIGameMaster
from tests.integration.turns.following import check_tree, follow
from tests.integration.turns.playing import Game, new_game
from tests.integration.turns.seeding import identity_of
from tests.support.server import Account, Event, Running, running
from tests.support.stored import check_fold
from tests.support.thorough import THOROUGH

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

TURNS = 30 if THOROUGH else 15
"""Minimum turns. The session continues until all moods and deeds have occurred."""

LONGEST = 150
MOODS = {"scene", "action", "aftermath", "downtime"}
DEEDS = {
    *("chosen", "stopped", "swiped", "edited", "activated", "deleted", "undone", "rested"),
    *("turn.completed", "turn.failed"),
}

Master = OpenAIGameMaster | GeminiGameMaster


MASTERS: dict[str, type[Master]] = {"postgresql": OpenAIGameMaster, "sqlite": GeminiGameMaster}
"""Wire formats by database. A thorough run has all pairs."""


@pytest.fixture(scope="module", params=list(MASTERS.values()) if THOROUGH else [None])
async def master(request: pytest.FixtureRequest, shared_url: str) -> AsyncGenerator[Master]:
    chosen: type[Master] = request.param or MASTERS[shared_url.partition("+")[0]]
    async with chosen() as master:
        yield master


@pytest.fixture(scope="module")
async def server(
    shared_url: str, master: Master, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    gemini = master.config() if isinstance(master, GeminiGameMaster) else None
    openai = master.config() if isinstance(master, OpenAIGameMaster) else None
    registry = ModelRegistry(
        demo_tokens_per_second=0, gemini=gemini, openai=openai, default=master.model_id
    )
    async with running(shared_url, tmp_path_factory.mktemp("data"), registry=registry) as server:
        yield server


class Evening:
    """One player at one table."""

    def __init__(self, game: Game, server: Running, identity: Any, seed: int) -> None:
        self.game, self.server, self.identity = game, server, identity
        self.dice = Random(seed)
        self.moods: set[str] = set()
        self.done: defaultdict[str, int] = defaultdict(int)
        self.chosen = set[UUID]()
        """Turns in which the player chose."""

    async def play(self, **body: Any) -> None:
        """Take a turn; make the choices that it asks for, or stop it."""
        heard = await self.game.account.turn(self.game.chat, **body)
        turn_id = heard[0].data["turn_id"]
        while heard[-1].name == "turn.awaiting_choice":
            await self.check()
            if self.dice.random() < 0.15:
                assert (
                    await self.game.account.ask("POST", f"/turns/{turn_id}/stop")
                ).status_code == 202
                heard += await follow(self.game.client, turn_id, last_id=heard[-1].id)
                self.done["stopped"] += 1
                break
            option = self.dice.choice(heard[-1].data["options"])["id"]
            self.chosen.add(UUID(turn_id))
            told = [self.game.choose(turn_id, option) for _ in range(self.dice.randint(1, 3))]
            rests = await asyncio.gather(*told)
            assert all(without_splits(rest) == without_splits(rests[0]) for rest in rests)
            heard += rests[0]
            self.done["chosen"] += 1
        self.moods |= {each.data["mood"] for each in heard if each.name == "mood.changed"}
        self.moods.add((await self.game.state())["attributes"].get("play", {}).get("mood", "scene"))
        self.done[heard[-1].name] += 1
        again = await follow(self.game.client, turn_id)
        assert [(each.id, each.name) for each in again if not each.name.endswith("delta")] == [
            (each.id, each.name) for each in heard if not each.name.endswith("delta")
        ]

    async def wander(self) -> None:
        """Swipe, edit, go back, or delete."""
        path = await self.game.account.messages(self.game.chat)
        message = self.dice.choice(path[-4:])
        url = f"/messages/{message['id']}"
        match self.dice.choice(["swipe", "edit", "activate", "delete", "undo"]):
            case "swipe" if path[-1]["role"] == "assistant":
                await self.play(regenerate_of=path[-1]["id"])
                self.done["swiped"] += 1
            case "edit":
                await self.game.account.patch(url, {"text": f"{self.dice.random()}"})
                self.done["edited"] += 1
            case "activate":
                for each in reversed(path[-12:]):
                    url = f"/messages/{each['id']}/siblings"
                    others = (await self.game.account.get(url))["items"]
                    if len(others) > 1:
                        other = self.dice.choice(others)["id"]
                        await self.game.account.post(f"/messages/{other}/activate")
                        self.done["activated"] += 1
                        break
            case "delete" if len(path) > 6:
                await self.game.account.delete(url, 200)
                self.done["deleted"] += 1
            case "undo":
                changes = [each for each in await self.game.changes() if each["counts"]]
                if changes:
                    await self.game.account.ask(
                        "POST",
                        f"{self.game.path}/changes/{self.dice.choice(changes[:5])['id']}/undo",
                    )
                    self.done["undone"] += 1
            case _:
                pass

    async def rest(self) -> None:
        """Take a turn of downtime unless another action is open."""
        path = f"{self.game.path}/downtime"
        body = {"activity": "recovery", "target": "Jake"}
        begun = await self.game.account.ask("POST", path, json=body)
        if begun.status_code == 409:
            return
        assert begun.is_success, begun.text
        state = await self.game.state()
        self.moods.add(state["attributes"]["play"]["mood"])
        await self.check()
        await self.play(text="I rest.")
        await self.check()
        await self.game.account.delete(path)
        self.done["rested"] += 1

    async def check(self) -> None:
        """Raise unless the state of every item is the fold of its changes."""
        counting = await check_fold(self.server, self.identity, self.game.campaign["id"])
        async with self.server.parts.database.read() as session:
            turns = {
                row.id: row.state
                for row in await session.execute(
                    select(Turn.id, Turn.state).where(Turn.chat_id == UUID(self.game.chat))
                )
            }
        for change, _ in counting:
            # Stopped, failed and waiting turns have only written at a choice.
            if change.turn_id is not None and change.actor == "tool":
                assert turns[change.turn_id] == "completed" or change.turn_id in self.chosen
        assert set(turns.values()) <= set(get_args(TurnState))
        await check_tree(self.server.parts.database, self.game.chat)


def without_splits(events: list[Event]) -> list[Any]:
    """Return events as a late client receives them: joined deltas, without dropped text."""
    joined: list[Any] = []
    for each in events:
        if each.name == "text.reset":
            joined = [one for one in joined if one[0] != "text.delta"]
        if each.name.endswith(".delta") and joined and joined[-1][0] == each.name:
            joined[-1] = (each.name, joined[-1][1] + each.data["text"])
        else:
            is_delta = each.name.endswith(".delta")
            joined.append((each.name, each.data["text"] if is_delta else each.data))
    return joined


@pytest.mark.parametrize("seed", [1])
async def test_an_evening_through_all_moods(
    ada: Account, server: Running, master: Master, seed: int
) -> None:
    game = await new_game(ada, rules="blades")
    await game.add("entities", kind="pc", name="Jake", attributes={"stress": 0})
    await game.add("clocks", name="Alarm", segments=6)
    master.dice.seed(seed)
    evening = Evening(game, server, await identity_of(server, ada), seed)
    for number in range(LONGEST):
        # The server rolls dice itself, so two sessions are never the same.
        if number >= TURNS and evening.moods >= MOODS and evening.done.keys() >= DEEDS:
            break
        master.failing = 0.5 if number % 5 == 4 else 0.0
        await evening.play(text=f"I go on, for the {number}th time.")
        await evening.check()
        await evening.wander()
        await evening.check()
        if number % 3 == 2:
            await evening.rest()
    master.failing = 0.0
    assert evening.moods >= MOODS
    assert DEEDS - evening.done.keys() == set()
    assert evening.done["turn.completed"] > evening.done["turn.failed"]
