"""Campaigns played through `/v1`: options as text, choices as lines, replies in several parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.fakes.game_master import ENGAGE, OUTCOMES
from tests.fakes.openai_server import OpenAIServer, called, reply
from tests.integration.openai_api.conftest import make_key
from tests.integration.turns.playing import CHOICES, FINISH, QUESTION
from tests.support.clients import AssistantClient, Wire
from tests.support.server import Account, Running, ok
from tests.support.shared import asking_server, shared_url, vendor

__all__ = ["asking_server", "shared_url", "vendor"]

pytestmark = pytest.mark.anyio

NUMBERS = count(1)
ASKED = "Which way?\n1. Left\n2. Right\nOr answer in your own words."


class Player(AssistantClient):
    """A client that plays a campaign."""

    def __init__(self, account: Account, program: httpx.AsyncClient, campaign: str) -> None:
        super().__init__("You lead a game of thieves.")
        self.account = account
        self.program = program
        self.model = f"campaign:{campaign}"
        self.chat_id = ""

    async def send(self, messages: list[Wire], **headers: str) -> str:
        """Send a request. Returns the text of the reply, and takes it into the list."""
        response = await self.program.post(
            "/v1/chat/completions",
            json={"model": self.model, "messages": messages},
            headers=headers,
        )
        text: str = ok(response)["choices"][0]["message"]["content"]
        self.chat_id = response.headers["x-talekeeper-chat"]
        self.receive(text)
        return text

    async def ask(self, text: str) -> str:
        return await self.send(self.say(text))

    def list_messages(self) -> list[Wire]:
        return [{"role": role, "content": text} for role, text in self.lines]

    async def stored(self) -> list[str]:
        """Return the texts of the active path."""
        return [each["text"] for each in await self.account.messages(self.chat_id)]

    async def kinds(self) -> list[str]:
        """Return the kinds of all requests, oldest first."""
        items = (await self.account.get("/client-requests"))["items"]
        return [each["kind"] for each in reversed(items)]


@pytest.fixture
async def player(asking_server: Running, vendor: OpenAIServer) -> AsyncGenerator[Player]:
    vendor.unscript()
    vendor.requests.clear()
    async with asking_server.account(f"ada-{next(NUMBERS)}") as account:
        body = {"name": "Doskvol", "rules": "freeform", "day": 1}
        await account.post("/campaigns", body, 201)
        async with asking_server.program(await make_key(account, "chat")) as program:
            yield Player(account, program, "doskvol")


def sent(vendor: OpenAIServer) -> list[tuple[str, Any]]:
    """Return the messages of the last request to the model."""
    return [(each["role"], each["content"]) for each in vendor.requests[-1].body["messages"]]


def ask(text: str = "Two tunnels.") -> Any:
    return called(QUESTION, text=text)


async def test_a_chat_that_begins_in_a_campaign_belongs_to_it_and_is_recognised(
    player: Player, vendor: OpenAIServer
) -> None:
    vendor.script(called(FINISH, text="It rains."), called(FINISH, text="It still rains."))
    assert await player.ask("I go out.") == "It rains."
    first = player.chat_id
    assert await player.ask("And now?") == "It still rains."
    assert player.chat_id == first
    chat = await player.account.get(f"/chats/{first}")
    assert chat["campaign_id"] == (await player.account.get("/campaigns"))["items"][0]["id"]
    assert "finish_turn" in {each["function"]["name"] for each in vendor.requests[-1].body["tools"]}
    assert await player.stored() == ["I go out.", "It rains.", "And now?", "It still rains."]


@pytest.mark.parametrize("choice", ["2", "Right", "right.", "I dig a third tunnel."])
async def test_a_question_ends_the_reply_and_the_next_line_chooses(
    player: Player, vendor: OpenAIServer, choice: str
) -> None:
    vendor.script(ask(), called(FINISH, text="You walk for an hour."))
    assert await player.ask("I go in.") == f"Two tunnels.\n\n{ASKED}"
    assert await player.ask(choice) == "You walk for an hour."

    # The rest of the reply is written to the client's own prompt.
    assert ("system", player.system_prompt) in sent(vendor)
    assert ("user", "I go in.") in sent(vendor)
    whole = "Two tunnels.\n\nYou walk for an hour."
    assert await player.stored() == ["I go in.", whole]

    # Three messages of the client are one reply.
    vendor.script(called(FINISH, text="A door."))
    assert await player.ask("What is there?") == "A door."
    assert await player.stored() == ["I go in.", whole, "What is there?", "A door."]
    assert len(player.chat) == 6
    assert await player.kinds() == ["turn", "turn", "turn"]


async def test_an_unclear_answer_to_a_die_gets_the_options_again_and_stores_nothing(
    player: Player, vendor: OpenAIServer
) -> None:
    game = await player.account.post("/campaigns", {"name": "Crows", "rules": "blades"}, 201)
    items = {"entities": {"kind": "pc", "name": "Jake"}, "clocks": {"name": "Alarm", "segments": 4}}
    for kind, item in items.items():
        await player.account.post(f"/campaigns/{game['id']}/{kind}", item, 201)
    player.model = "campaign:crows"
    vendor.script(
        called(("engage", ENGAGE)),
        called(("spend_die", {"situation": "The lock.", "outcomes": OUTCOMES}), text="Click."),
    )
    first = await player.ask("I pick the lock.")
    assert first.startswith("Click.\n\n")
    options = first[first.index("1. ") :]
    for unclear in ("Hm?", "Which are there?"):
        assert (await player.ask(unclear)).endswith(options)
    assert await player.stored() == ["I pick the lock.", "Click."]
    assert len(vendor.requests) == 2

    tier = options.partition("(")[2].partition(":")[0]
    vendor.script(called(("resolve", {"tier": tier})), called(FINISH, text="It is done."))
    assert await player.ask("1") == "It is done."
    vendor.script(called(FINISH, text="A door."))
    await player.ask("What is there?")
    assert await player.stored() == ["I pick the lock.", "It is done.", "What is there?", "A door."]


async def test_the_same_question_can_be_asked_in_each_turn(
    player: Player, vendor: OpenAIServer
) -> None:
    story: list[str] = []
    for number in range(3):
        vendor.script(ask(""), called(FINISH, text=f"Hour {number} passes."))
        assert await player.ask(f"Hour {number}.") == ASKED
        assert await player.ask("1") == f"Hour {number} passes."
        story += [f"Hour {number}.", f"Hour {number} passes."]
        assert await player.stored() == story


async def test_a_turn_can_ask_twice(player: Player, vendor: OpenAIServer) -> None:
    vendor.script(ask(), ask("Two more."), called(FINISH, text="The end."))
    await player.ask("I go in.")
    assert await player.ask("1") == f"Two more.\n\n{ASKED}"
    assert await player.ask("2") == "The end."
    vendor.script(called(FINISH, text="A door."))
    await player.ask("What is there?")
    whole = "Two tunnels.\n\nTwo more.\n\nThe end."
    assert await player.stored() == ["I go in.", whole, "What is there?", "A door."]


async def test_the_rest_of_a_reply_is_swiped(player: Player, vendor: OpenAIServer) -> None:
    vendor.script(ask(), called(FINISH, text="You walk."), called(FINISH, text="You run."))
    await player.ask("I go in.")
    await player.ask("2")
    assert await player.send(player.regenerate()) == "You run."
    assert await player.stored() == ["I go in.", "You run."]
    assert await player.kinds() == ["turn", "turn", "swipe"]
    vendor.script(called(FINISH, text="A door."))
    await player.ask("What is there?")
    assert await player.stored() == ["I go in.", "You run.", "What is there?", "A door."]


async def test_a_question_is_swiped(player: Player, vendor: OpenAIServer) -> None:
    vendor.script(ask(), ask("Three tunnels."), called(FINISH, text="You walk."))
    await player.ask("I go in.")
    assert await player.send(player.regenerate()) == f"Three tunnels.\n\n{ASKED}"
    assert await player.ask("1") == "You walk."
    assert await player.stored() == ["I go in.", "Three tunnels.\n\nYou walk."]


async def test_a_retry_of_a_choice_joins_the_rest(player: Player, vendor: OpenAIServer) -> None:
    vendor.script(ask(), called(FINISH, text="You walk."))
    await player.ask("I go in.")
    await player.ask("2")
    again = player.regenerate()
    assert await player.send(again, **{"x-stainless-retry-count": "1"}) == "You walk."
    assert await player.stored() == ["I go in.", "Two tunnels.\n\nYou walk."]
    assert len(vendor.requests) == 2


async def test_a_client_that_trims_sentences_still_has_one_reply(
    player: Player, vendor: OpenAIServer
) -> None:
    question = ("ask_player", {"prompt": "Which way?", "options": list(CHOICES)})
    vendor.script(called(question, text="Two tunnels."), called(FINISH, text="You walk. And th"))
    await player.ask("I go in.")
    player.chat[-1].text = player.chat[-1].text[: player.chat[-1].text.rfind(".") + 1]
    await player.ask("Left")
    player.chat[-1].text = "You walk."
    vendor.script(called(FINISH, text="A door."))
    await player.ask("What is there?")
    assert await player.stored() == [
        "I go in.", "Two tunnels.\n\nYou walk. And th", "What is there?", "A door."
    ]  # fmt: skip


async def test_a_draft_of_the_answer_leaves_the_question_open(
    player: Player, vendor: OpenAIServer
) -> None:
    vendor.script(ask(), reply("I go left."), called(FINISH, text="You walk."))
    await player.ask("I go in.")
    nudge = "[Write your next reply from the point of view of Alex, without Marlena's lines.]"
    sent = [*player.list_messages(), {"role": "system", "content": nudge}]
    body = {"model": player.model, "messages": sent}
    draft = ok(await player.program.post("/v1/chat/completions", json=body))
    assert draft["choices"][0]["message"]["content"] == "I go left."
    assert await player.stored() == ["I go in.", "Two tunnels."]
    assert await player.ask("I go left.") == "You walk."
    assert await player.stored() == ["I go in.", "Two tunnels.\n\nYou walk."]
