"""Connections of clients: closed ones, several at once, and the retries of SDKs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID, OpenAIServer, error, reply
from tests.fakes.scripted_server import Gate
from tests.integration.openai_api.conftest import make_key
from tests.support.models import held_back
from tests.support.server import Account, Running, ok, running
from tests.support.shared import asking_server, shared_url, vendor
from tests.support.waiting import until

__all__ = ["asking_server", "shared_url", "vendor"]

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/chat/completions"
RETRY = {"x-stainless-retry-count": "1"}
NUMBERS = count(1)

HELLO = {"role": "user", "content": "Who is there?"}


class Desk:
    """An account with one character, and a program that talks to it."""

    def __init__(self, account: Account, program: httpx.AsyncClient, character: str) -> None:
        self.account = account
        self.program = program
        self.character = character

    def body(self, *messages: Any, stream: bool = False) -> dict[str, Any]:
        sent = messages or (HELLO,)
        return {"model": f"character:{self.character}", "messages": sent, "stream": stream}

    async def ask(self, *messages: Any, headers: Any = None) -> str:
        """Return the text of the reply."""
        response = await self.program.post(COMPLETIONS, json=self.body(*messages), headers=headers)
        text: str = ok(response)["choices"][0]["message"]["content"]
        return text

    async def chats(self) -> list[str]:
        return [each["id"] for each in (await self.account.get("/chats"))["items"]]

    async def stored(self) -> list[str]:
        """Return the texts of the only chat's active path."""
        [chat] = await self.chats()
        return [each["text"] for each in await self.account.messages(chat)]

    async def turns(self) -> list[dict[str, Any]]:
        """Return the turns of the only chat, oldest first."""
        [chat] = await self.chats()
        items: list[dict[str, Any]] = (await self.account.get(f"/chats/{chat}/turns"))["items"]
        return items[::-1]

    async def states(self) -> list[str]:
        return [each["state"] for each in await self.turns()]

    async def wait_for_text(self, text: str) -> None:
        async def is_stored() -> bool:
            return bool(await self.chats()) and text in await self.stored()

        await until(is_stored)

    async def wait_for_states(self, *states: str) -> None:
        async def are_met() -> bool:
            return bool(await self.chats()) and await self.states() == list(states)

        await until(are_met)

    async def wait_for_kinds(self, *kinds: str) -> None:
        """Wait until these requests are recorded, oldest first."""

        async def are_recorded() -> bool:
            items = (await self.account.get("/client-requests"))["items"]
            return [each["kind"] for each in items[::-1]] == list(kinds)

        await until(are_recorded)


@contextlib.asynccontextmanager
async def sit_down(server: Running, name: str) -> AsyncGenerator[Desk]:
    async with server.account(name) as account:
        character = await account.new_character(first_mes="")
        async with server.program(await make_key(account, "chat")) as program:
            yield Desk(account, program, character["id"])


@pytest.fixture
async def desk(asking_server: Running, vendor: OpenAIServer) -> AsyncGenerator[Desk]:
    vendor.unscript()
    vendor.requests.clear()
    vendor.hung_up.clear()
    async with sit_down(asking_server, f"ada-{next(NUMBERS)}") as desk:
        yield desk


async def read_text(response: httpx.Response) -> AsyncGenerator[str]:
    """Yield the texts of a stream."""
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                yield choice["delta"].get("content") or ""


async def leave_early(desk: Desk, *messages: Any, stream: bool) -> None:
    """Send a request, and close the connection in the middle of the reply."""
    if stream:
        body = desk.body(*messages, stream=True)
        async with desk.program.stream("POST", COMPLETIONS, json=body) as response:
            async for text in read_text(response):
                if text:
                    break
        return
    request = asyncio.create_task(desk.ask(*messages))
    await desk.wait_for_states("running")
    await desk.wait_for_text("Once upon")
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_closed_connection_stops_the_turn_and_keeps_its_text(
    desk: Desk, vendor: OpenAIServer, *, stream: bool
) -> None:
    vendor.script(held_back(Gate()))
    await leave_early(desk, stream=stream)
    await desk.wait_for_states("stopped")
    await vendor.hung_up.wait()
    assert await desk.stored() == ["Who is there?", "Once upon"]


async def test_a_client_that_stopped_a_reply_goes_on_from_it(
    desk: Desk, vendor: OpenAIServer
) -> None:
    vendor.script(held_back(Gate()), reply("Nobody."))
    await leave_early(desk, stream=True)
    said = [HELLO, {"role": "assistant", "content": "Once upon"}]
    assert await desk.ask(*said, {"role": "user", "content": "Go on."}) == "Nobody."
    assert await desk.stored() == ["Who is there?", "Once upon", "Go on.", "Nobody."]


async def test_a_new_request_ends_the_running_one(desk: Desk, vendor: OpenAIServer) -> None:
    vendor.script(held_back(Gate()), reply("Another."))
    first = asyncio.create_task(desk.ask())
    await desk.wait_for_text("Once upon")
    assert await desk.ask() == "Another."
    assert await first == "Once upon"
    assert await desk.states() == ["stopped", "completed"]
    assert await desk.stored() == ["Who is there?", "Another."]
    [chat] = await desk.chats()
    [_, last] = await desk.account.messages(chat)
    assert last["sibling_count"] == 2


async def test_equal_requests_at_the_same_time_make_one_chat(
    desk: Desk, vendor: OpenAIServer
) -> None:
    texts = await asyncio.gather(*(desk.ask() for _ in range(3)))
    assert len(await desk.chats()) == 1
    stored = await desk.stored()
    assert stored[0] == "Who is there?"
    assert stored[1] in texts
    assert len(stored) == 2


async def test_a_retry_joins_the_running_turn(desk: Desk, vendor: OpenAIServer) -> None:
    gate = Gate()
    vendor.script(held_back(gate))
    first = asyncio.create_task(desk.ask())
    await desk.wait_for_text("Once upon")
    again = asyncio.create_task(desk.ask(headers=RETRY))
    await desk.wait_for_kinds("turn", "repeat")
    gate.opened.set()
    assert await first == await again == "Once upon a time."
    assert len(vendor.requests) == 1
    assert await desk.stored() == ["Who is there?", "Once upon a time."]


async def test_a_retry_gets_the_reply_of_the_finished_turn(
    desk: Desk, vendor: OpenAIServer
) -> None:
    vendor.script(reply("Nobody."))
    assert await desk.ask() == "Nobody."
    for attempt in ("1", "2"):
        assert await desk.ask(headers={"x-stainless-retry-count": attempt}) == "Nobody."
    assert len(vendor.requests) == 1
    assert await desk.stored() == ["Who is there?", "Nobody."]
    [chat] = await desk.chats()
    assert (await desk.account.messages(chat))[-1]["sibling_count"] == 1


async def test_a_retry_of_a_swipe_gets_the_swipe(desk: Desk, vendor: OpenAIServer) -> None:
    vendor.script(reply("Nobody."), reply("The wind."))
    await desk.ask()
    assert await desk.ask() == "The wind."
    assert await desk.ask(headers=RETRY) == "The wind."
    assert len(vendor.requests) == 2
    [chat] = await desk.chats()
    assert (await desk.account.messages(chat))[-1]["sibling_count"] == 2


async def test_a_retry_of_a_stopped_turn_gets_its_text_and_the_rest(
    desk: Desk, vendor: OpenAIServer
) -> None:
    vendor.script(held_back(Gate()), reply(" there was a mill."))
    after = {"role": "system", "content": "Write one sentence."}
    await leave_early(desk, HELLO, after, stream=True)
    await desk.wait_for_states("stopped")
    assert await desk.ask(HELLO, after, headers=RETRY) == "Once upon there was a mill."
    assert await desk.stored() == ["Who is there?", "Once upon there was a mill."]
    # The model sees the text that it has to continue.
    sent = [(each["role"], each["content"]) for each in vendor.requests[-1].body["messages"]]
    assert ("assistant", "Once upon") in sent
    assert sent.index(("user", "Who is there?")) + 1 == sent.index(("assistant", "Once upon"))


async def test_a_retry_of_a_turn_without_text_begins_again(
    desk: Desk, vendor: OpenAIServer
) -> None:
    vendor.script(error(401, message="no"))
    refused = await desk.program.post(COMPLETIONS, json=desk.body())
    assert refused.status_code == 502
    vendor.script(reply("Nobody."))
    assert await desk.ask(headers=RETRY) == "Nobody."
    assert await desk.stored() == ["Who is there?", "Nobody."]


async def test_a_retry_of_a_request_that_never_arrived_is_a_turn(
    desk: Desk, vendor: OpenAIServer
) -> None:
    vendor.script(reply("Nobody."), reply("Still nobody."))
    assert await desk.ask(headers=RETRY) == "Nobody."
    said = [HELLO, {"role": "assistant", "content": "Nobody."}]
    line = {"role": "user", "content": "And now?"}
    assert await desk.ask(*said, line, headers=RETRY) == "Still nobody."
    assert await desk.stored() == ["Who is there?", "Nobody.", "And now?", "Still nobody."]


@pytest.mark.postgres
async def test_a_retry_at_another_process_joins_the_turn(
    postgres_url: str, vendor: OpenAIServer, tmp_path: Path
) -> None:
    registry = ModelRegistry(demo_tokens_per_second=0, openai=vendor.config(), default=MODEL_ID)
    vendor.unscript()
    vendor.requests.clear()
    async with (
        running(postgres_url, tmp_path / "one", registry=registry) as one,
        running(postgres_url, tmp_path / "two", registry=registry) as two,
        sit_down(one, "ada") as desk,
        two.program(desk.program.headers["authorization"].removeprefix("Bearer ")) as program,
    ):
        other = Desk(desk.account, program, desk.character)
        gate = Gate()
        vendor.script(held_back(gate), held_back(Gate()), reply(" it rained."), reply("New."))

        first = asyncio.create_task(desk.ask())
        await desk.wait_for_text("Once upon")
        again = asyncio.create_task(other.ask(headers=RETRY))
        gate.opened.set()
        assert await first == await again == "Once upon a time."
        assert await other.ask(headers=RETRY) == "Once upon a time."

        # The other process stops the turn, or continues what was stopped.
        said = [HELLO, {"role": "assistant", "content": "Once upon a time."}]
        line = {"role": "user", "content": "Go on."}
        await leave_early(desk, *said, line, stream=True)
        await desk.wait_for_states("completed", "stopped")
        assert await other.ask(*said, line, headers=RETRY) == "Once upon it rained."
        assert await desk.stored() == [
            "Who is there?", "Once upon a time.", "Go on.", "Once upon it rained."
        ]  # fmt: skip

        vendor.unscript()
        vendor.script(held_back(Gate()), reply("New."))
        running_one = asyncio.create_task(desk.ask(*said, line))
        await desk.wait_for_states("completed", "stopped", "completed", "running")
        assert await other.ask(*said, line) == "New."
        await running_one
        assert len(await desk.chats()) == 1
