"""The adapter of each vendor, with a server that speaks the vendor's format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from backend.generation.model import ChatModel
from backend.generation.registry import ModelRegistry
from tests.fakes import anthropic_server, gemini_server, openai_server
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Event


@dataclass(frozen=True)
class Vendor:
    """The parts of a vendor's fake that tests of all adapters need.

    Args:
        connect: Returns the model, with changed settings.
        reply: A whole reply.
        called: A stream with tool calls.
        said: An event with text.
        thought: An event with thoughts.
        ended: The last events of a stream.
        failed: An error with a status and a message.
    """

    server: GeminiServer | OpenAIServer | AnthropicServer
    key: str
    connect: Callable[..., ChatModel]
    reply: Callable[..., Answer]
    called: Callable[..., Answer]
    said: Callable[[str], Event]
    thought: Callable[[str], Event]
    ended: tuple[Event, ...]
    failed: Callable[[int, str], Answer]


@asynccontextmanager
async def connecting(
    server: GeminiServer | OpenAIServer | AnthropicServer, name: str, model_id: str
) -> AsyncGenerator[Callable[..., ChatModel]]:
    """Yield a function that returns the model, with changed settings."""
    registries: list[ModelRegistry] = []

    def connect(**changes: Any) -> ChatModel:
        config: dict[str, Any] = {name: server.config(**changes)}
        registries.append(ModelRegistry(**config))
        return registries[-1].get(model_id)

    yield connect
    for registry in registries:
        await registry.aclose()


@pytest.fixture
async def gemini() -> AsyncGenerator[Vendor]:
    fake = gemini_server
    async with GeminiServer() as server, connecting(server, "gemini", fake.MODEL_ID) as connect:
        yield Vendor(
            server=server,
            key=fake.API_KEY,
            connect=connect,
            reply=fake.reply,
            called=fake.called,
            said=lambda text: fake.chunk(fake.text_part(text)),
            thought=lambda text: fake.chunk(fake.thought_part(text)),
            ended=(fake.chunk(finish="STOP", used=fake.usage(12, 2)),),
            failed=lambda status, message: fake.error(status, "SOME_WORD", message),
        )


@pytest.fixture
async def openai() -> AsyncGenerator[Vendor]:
    fake = openai_server
    async with OpenAIServer() as server, connecting(server, "openai", fake.MODEL_ID) as connect:
        yield Vendor(
            server=server,
            key=fake.API_KEY,
            connect=connect,
            reply=fake.reply,
            called=fake.called,
            said=lambda text: fake.chunk(content=text),
            thought=lambda text: fake.chunk(reasoning_content=text),
            ended=(fake.chunk("stop"), fake.usage_chunk(fake.usage(12, 2)), fake.DONE),
            failed=lambda status, message: fake.error(status, message=message, code="some_code"),
        )


@pytest.fixture
async def anthropic() -> AsyncGenerator[Vendor]:
    fake = anthropic_server
    async with (
        AnthropicServer() as server,
        connecting(server, "anthropic", fake.MODEL_ID) as connect,
    ):
        yield Vendor(
            server=server,
            key=fake.API_KEY,
            connect=connect,
            reply=fake.reply,
            called=fake.called,
            said=lambda text: fake.delta(0, "text", text=text),
            thought=lambda text: fake.delta(1, "thinking", thinking=text),
            ended=fake.ended(),
            failed=lambda status, message: fake.error(status, "some_error", message),
        )


@pytest.fixture(params=["gemini", "openai", "anthropic"])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    chosen: Vendor = request.getfixturevalue(request.param)
    return chosen
