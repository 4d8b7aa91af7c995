"""Turns with the prompt of a client, to which Talekeeper adds its memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import UUID

import pytest

from backend.generation.model import PromptMessage, Role
from backend.turns.api.schemas import TurnRequest
from backend.turns.prompt.client import ClientMessage, ClientPrompt
from tests.fakes.openai_server import OpenAIServer
from tests.integration.turns.following import follow
from tests.integration.turns.seeding import identity_of
from tests.support.memory import context_of, tell
from tests.support.memory import remembering_server as server
from tests.support.server import Account, Event, Running

__all__ = ["server"]

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where did the captain bury the astrolabe, under which bell?"
HEAD = "You are Mara, a lighthouse keeper."

Shown = list[tuple[str, str]]


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


def said(role: Role, text: str, position: int | None = None) -> ClientMessage:
    return ClientMessage(message=PromptMessage(role, text), position=position)


async def read_path(ada: Account, chat: str) -> list[ClientMessage]:
    """Return the stored messages of the active path, as a client would send them."""
    return [said(each["role"], each["text"], each["position"]) for each in await ada.messages(chat)]


def make_prompt(
    *messages: ClientMessage, line: str | None = None, tail: Sequence[str] = (), **more: Any
) -> ClientPrompt:
    """Return a client's prompt that ends with a line and the instructions after it."""
    end = [] if line is None else [said("user", line)]
    return ClientPrompt(
        messages=[*messages, *end, *(said("system", text) for text in tail)],
        line=None if line is None else len(messages),
        **more,
    )


async def take(
    server: Running, ada: Account, chat: str, client: ClientPrompt, **request: Any
) -> list[Event]:
    """Take a turn to its end and return its events."""
    identity = await identity_of(server, ada)
    turn_id = await server.parts.turns.take(
        identity, UUID(chat), TurnRequest(**request), client=client
    )
    events = await follow(ada.client, str(turn_id))
    assert events[-1].name == "turn.completed", events[-1]
    return events


def sent(model: OpenAIServer) -> Shown:
    """Return the messages of the last request."""
    return [(each["role"], each["content"]) for each in model.requests[-1].body["messages"]]


def rain(count: int, first: int = 0) -> list[str]:
    """Return different lines without meaning."""
    return [f"It rains on roof number {n}." for n in range(first, first + count)]


async def test_a_line_outside_the_clients_window_is_found_and_added_after_its_history(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    await tell(server, ada, chat, [*rain(4), FACT, *rain(115, 10)])
    window = (await read_path(ada, chat))[-20:]
    events = await take(
        server,
        ada,
        chat,
        make_prompt(said("system", HEAD), *window, line=QUESTION, tail=["Write two sentences."]),
        text=QUESTION,
    )
    prompt = sent(model)
    assert prompt[:21] == [("system", HEAD), *((w.message.role, w.message.text) for w in window)]
    assert prompt[-2:] == [("user", QUESTION), ("system", "Write two sentences.")]
    [memory] = prompt[21:-2]
    assert memory[0] == "system"
    assert sum(text.count(FACT) for _, text in prompt) == memory[1].count(FACT) == 1

    context = await context_of(ada, events[0].data["reply_id"])
    assert [(each["role"], each["text"]) for each in context["prompt"]] == prompt
    assert [(item["kind"], item["title"]) for item in context["items"]] == [
        ("client_system", "Client's system message"),
        ("user_line", "User's line"),
        ("client_instruction", "Client's instruction"),
    ]
    assert {each["kind"] for each in context["left_out"]} >= {"system_prompt"}
    first, last = window[0].position, window[-1].position
    assert (context["history"]["first"], context["history"]["last"]) == (first, last)
    assert context["history"]["changed"] == []
    stored = await ada.messages(chat)
    assert [each["text"] for each in stored[-2:]] == [QUESTION, "The rain has stopped."]
