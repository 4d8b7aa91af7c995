"""A campaign that is played over HTTP with a model that answers out of a script."""

from __future__ import annotations

from typing import Any

import httpx

from tests.fakes.openai_server import OpenAIServer, called
from tests.integration.turns.following import TURN
from tests.support.server import Account, Event, ok, problem, read_events

CHOICES = ("Left", "Right")
QUESTION = ("ask_player", {"prompt": "Which way?", "options": list(CHOICES)})
FINISH = ("finish_turn", {"suggested_actions": ["Wait", "Knock"]})


class Game:
    """A chat of a campaign, and short words for what is done in it."""

    def __init__(self, account: Account, campaign: dict[str, Any], chat: str) -> None:
        self.account, self.campaign, self.chat = account, campaign, chat
        self.path = f"/api/v1/campaigns/{campaign['id']}"

    @property
    def client(self) -> httpx.AsyncClient:
        return self.account.client

    def at(self, account: Account) -> Game:
        """The same game at another process."""
        return Game(account, self.campaign, self.chat)

    async def add(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = ok(await self.client.post(f"{self.path}/{kind}", json=fields), 201)
        return made

    async def say(self, text: str = "I go on.", **body: Any) -> list[Event]:
        return await self.account.turn(self.chat, text=text, **body)

    async def choose(self, turn_id: str, option: str, **text: str) -> list[Event]:
        """The events of a turn from the choice on."""
        async with self.client.stream(
            "POST", f"{TURN}/{turn_id}/choice", json={"option": option, **text}
        ) as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in read_events(response)]

    async def refused(self, turn_id: str, option: str, status: int, slug: str) -> dict[str, Any]:
        answer = await self.client.post(f"{TURN}/{turn_id}/choice", json={"option": option})
        return problem(answer, status, slug)

    async def turn(self, turn_id: str) -> dict[str, Any]:
        turn: dict[str, Any] = ok(await self.client.get(f"{TURN}/{turn_id}"))
        return turn

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = ok(await self.client.get(f"{self.path}/state"))
        return state

    async def changes(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = ok(await self.client.get(f"{self.path}/changes"))["items"]
        return items

    async def wait_for_choice(self, vendor: OpenAIServer, *, text: str = "") -> str:
        """Take a turn that comes to a question: its id."""

        vendor.script(called(QUESTION, text=text))
        events = await self.say()
        assert events[-1].name == "turn.awaiting_choice"
        return str(events[0].data["turn_id"])


async def new_game(account: Account, *, rules: str = "freeform", **chat: Any) -> Game:
    body = {"name": "Doskvol", "rules": rules, "day": 1}
    campaign = ok(await account.client.post("/api/v1/campaigns", json=body), 201)
    made = await account.new_chat(campaign_id=campaign["id"], **chat)
    return Game(account, campaign, made["id"])


def named(events: list[Event], name: str) -> list[Any]:
    """The data of the events of one name."""
    return [event.data for event in events if event.name == name]


def names(events: list[Event]) -> list[str]:
    """The names of events, of several deltas in a row once."""
    found: list[str] = []
    for event in events:
        if not found or found[-1] != event.name or not event.name.endswith(".delta"):
            found.append(event.name)
    return found
