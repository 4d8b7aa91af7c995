"""A campaign that is played over HTTP with a scripted model."""

from __future__ import annotations

from typing import Any

import httpx

from tests.fakes.openai_server import OpenAIServer, called
from tests.integration.campaigns.seagate import Table
from tests.support.server import Account, Event, problem, read_events

CHOICES = ("Left", "Right")
QUESTION = ("ask_player", {"prompt": "Which way?", "options": list(CHOICES)})
FINISH = ("finish_turn", {"suggested_actions": ["Wait", "Knock"]})


class Game(Table):
    """A chat of a campaign and its turns."""

    def __init__(self, account: Account, campaign: dict[str, Any], chat: str) -> None:
        super().__init__(account, campaign)
        self.chat = chat

    @property
    def client(self) -> httpx.AsyncClient:
        return self.account.client

    def at(self, account: Account) -> Game:
        """Return the same game for a session at another process."""
        return Game(account, self.campaign, self.chat)

    async def say(self, text: str = "I go on.", **body: Any) -> list[Event]:
        return await self.account.turn(self.chat, text=text, **body)

    async def choose(self, turn_id: str, option: str, **text: str) -> list[Event]:
        """Choose; return the events of the turn after the choice."""
        body = {"option": option, **text}
        async with self.account.stream("POST", f"/turns/{turn_id}/choice", json=body) as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in read_events(response)]

    async def refused(self, turn_id: str, option: str, status: int, slug: str) -> dict[str, Any]:
        """Choose; fail unless the choice is refused with this problem."""
        body = {"option": option}
        answer = await self.account.ask("POST", f"/turns/{turn_id}/choice", json=body)
        return problem(answer, status, slug)

    async def turn(self, turn_id: str) -> dict[str, Any]:
        return await self.account.get(f"/turns/{turn_id}")

    async def stop(self, turn_id: str) -> None:
        await self.account.post(f"/turns/{turn_id}/stop", status=202)

    async def state(self) -> dict[str, Any]:
        return await self.get("/state")

    async def changes(self) -> list[dict[str, Any]]:
        return await self.items("changes")

    async def last(self) -> dict[str, Any]:
        """Return the newest message of the active path."""
        return (await self.account.messages(self.chat))[-1]

    async def wait_for_choice(self, vendor: OpenAIServer, *, text: str = "") -> str:
        """Take a turn that ends with a question to the player; return its id."""
        vendor.script(called(QUESTION, text=text))
        events = await self.say()
        assert events[-1].name == "turn.awaiting_choice"
        return str(events[0].data["turn_id"])


async def new_game(account: Account, *, rules: str = "freeform", **chat: Any) -> Game:
    body = {"name": "Doskvol", "rules": rules, "day": 1}
    campaign = await account.post("/campaigns", body, 201)
    made = await account.new_chat(campaign_id=campaign["id"], **chat)
    return Game(account, campaign, made["id"])


def named(events: list[Event], name: str) -> list[Any]:
    """Return the data of the events of one name."""
    return [event.data for event in events if event.name == name]


def names(events: list[Event]) -> list[str]:
    """Return the names of events; deltas in a row count once."""
    found: list[str] = []
    for event in events:
        if not found or found[-1] != event.name or not event.name.endswith(".delta"):
            found.append(event.name)
    return found
