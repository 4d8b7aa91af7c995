"""Beginnings of replies, characters that clients bring, and the account's settings for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.integration.openai_api.conftest import make_key
from tests.integration.openai_api.sequences import CHAT, GREETING, Player
from tests.support.clients import SillyTavernClient, SillyTavernSettings
from tests.support.server import Running, ok, running
from tests.support.shared import asking_server, shared_url, vendor

__all__ = ["asking_server", "shared_url", "vendor"]

pytestmark = pytest.mark.anyio

BEGINNING = "Well, "
NUMBERS = count(1)

CARD = (
    "Write Tamsin's next reply in a fictional chat between Tamsin and Alex. "
    "Tamsin mends nets at the harbour and remembers every boat that never came back."
)


@pytest.fixture
def beginner(player: Player) -> Player:
    """A client that begins each reply, and shows the beginning itself."""
    player.client = SillyTavernClient(SillyTavernSettings(prefix=BEGINNING))
    return player


async def bring(player: Player, **settings: Any) -> None:
    """Change the account's settings of the endpoint."""
    await player.account.patch("/me/settings", {"client": settings})


async def keeps_chronicle(player: Player, chat_id: str) -> bool:
    settings = await player.account.get(f"/chats/{chat_id}/settings")
    return bool(settings.get("chronicle_enabled"))


@pytest.mark.parametrize("is_stream", [True, False])
async def test_the_beginning_that_a_client_sends_is_stored_and_not_sent_back(
    beginner: Player, *, is_stream: bool
) -> None:
    client = beginner.client
    spoken = await beginner.ask(client.say("Who are you?"), "I keep the mill.", is_stream=is_stream)
    assert spoken == "I keep the mill."
    assert beginner.prompt[-1] == ("assistant", BEGINNING)
    assert (await beginner.show())[-1] == ("assistant", "Well, I keep the mill.")
    await beginner.check("turn", "new_chat")
    spoken = await beginner.ask(client.swipe(), "nobody.", is_stream=is_stream)
    assert spoken == "nobody."
    await beginner.check("swipe", "reply_missing")
    await beginner.ask(client.say("And now?"), "now it rains.", is_stream=is_stream)
    await beginner.check("turn", "new_line")


async def test_the_beginning_can_be_in_the_one_message_of_a_client(player: Player) -> None:
    settings = SillyTavernSettings(prefix=BEGINNING, post_processing="single")
    client = player.client = SillyTavernClient(settings)
    for line in ("Who are you?", "And now?"):
        assert await player.ask(client.say(line), f"so it is: {line}") == f"so it is: {line}"
        assert await player.show() == client.lines


async def test_a_retry_gets_the_reply_without_its_beginning(beginner: Player) -> None:
    sent = beginner.client.say("Who are you?")
    await beginner.ask(sent, "I keep the mill.")
    again = await beginner.send(sent, x_stainless_retry_count="1")
    assert ok(again)["choices"][0]["message"]["content"] == "I keep the mill."


@pytest.fixture(scope="module")
async def stubborn_server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server with a model whose replies cannot be begun."""
    registry = ModelRegistry(
        demo_tokens_per_second=0, openai=vendor.config(server="openai"), default=MODEL_ID
    )
    async with running(shared_url, tmp_path_factory.mktemp("data"), registry=registry) as server:
        yield server


async def test_a_model_whose_replies_cannot_be_begun_writes_them_without(
    stubborn_server: Running, vendor: OpenAIServer
) -> None:
    async with stubborn_server.account(f"eve-{next(NUMBERS)}") as account:
        await account.new_character(name="Marlena", first_mes=GREETING)
        async with stubborn_server.program(await make_key(account, "chat")) as program:
            player = Player(
                server=stubborn_server,
                account=account,
                program=program,
                vendor=vendor,
                client=SillyTavernClient(SillyTavernSettings(prefix=BEGINNING)),
            )
            sent = player.client.say("Who are you?")
            spoken = await player.ask(sent, "Well, I keep the mill by the river.")
            assert spoken == "I keep the mill by the river."
            await player.check("turn", "new_chat")
            # A reply that begins in another way follows the client's beginning.
            spoken = await player.ask(player.client.swipe(), "The one who keeps the old mill.")
            assert spoken == "The one who keeps the old mill."
            await player.ask(player.client.say("And now?"), "Well, it rains.")
            assert await player.show() == player.client.lines


async def test_auto_finds_the_character_of_a_card_and_is_a_plain_model_without_one(
    player: Player,
) -> None:
    player.model = "auto"
    player.client = SillyTavernClient(SillyTavernSettings())
    await player.ask(player.client.say("Good morning."))
    await player.check("turn", "new_chat")
    other = SillyTavernClient(
        SillyTavernSettings(character="Tamsin", main_prompt=CARD, description="")
    )
    player.client = other
    await player.ask(other.say("Good evening."))
    assert await player.decide() == ("plain", "plain_model")
    assert len(await player.list_chats()) == 1

    await bring(player, unknown_characters="create")
    other.go_back(1)
    await player.ask(other.say("Good evening."))
    assert await player.decide() == ("turn", "new_chat")
    await player.ask(other.say("Any boats?"))
    assert await player.decide() == ("turn", "new_line")
    characters = (await player.account.get("/characters"))["items"]
    [made] = [each for each in characters if each["name"] == "Tamsin"]
    assert len(characters) == 2
    chats = (await player.account.get("/chats"))["items"]
    [chat] = [each for each in chats if each["character_ids"] == [made["id"]]]
    assert await player.show(chat["id"]) == other.lines

    await bring(player, auto=False)
    refused = await player.send(other.say("Hello?"))
    assert refused.status_code == 404


async def test_equal_requests_at_the_same_time_make_one_character(player: Player) -> None:
    await bring(player, unknown_characters="create")
    player.vendor.unscript()
    settings = SillyTavernSettings(character="Tamsin", main_prompt=CARD, description="")
    messages = SillyTavernClient(settings).say("Good evening.")
    body = {"model": "auto", "messages": messages}
    sent = (player.program.post(CHAT, json=body) for _ in range(3))
    for response in await asyncio.gather(*sent):
        ok(response)
    names = [each["name"] for each in (await player.account.get("/characters"))["items"]]
    assert sorted(names) == ["Marlena", "Tamsin"]
    assert len(await player.list_chats()) == 1


async def test_a_chat_keeps_a_chronicle_if_the_account_wants_it(player: Player) -> None:
    await player.ask(player.client.say("Good morning."))
    first = await player.find_chat()
    assert not await keeps_chronicle(player, first)

    await bring(player, chronicle=True)
    player.client = SillyTavernClient()
    await player.ask(player.client.say("Is anyone there?"))
    [second] = [each for each in await player.list_chats() if each != first]
    assert await keeps_chronicle(player, second)
    await player.ask(player.client.say("I come in."))
    assert not await keeps_chronicle(player, first)
