"""All vendors' adapters, each against a server that speaks its vendor's format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
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
    """What a test that concerns all vendors needs of one.

    `connect` gives the model, under changed settings. `said`, `thought` and `ended` are events of
    a stream, `reply` a whole reply, `called` a stream with calls, `failed` an error with a status
    and a message of the vendor's.
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


@pytest.fixture
async def gemini() -> AsyncGenerator[Vendor, None]:
    registries: list[ModelRegistry] = []

    def connect(**changes: Any) -> ChatModel:
        registries.append(ModelRegistry(gemini=server.config(**changes)))
        return registries[-1].get(gemini_server.MODEL_ID)

    async with GeminiServer() as server:
        yield Vendor(
            server=server,
            key=gemini_server.API_KEY,
            connect=connect,
            reply=gemini_server.reply,
            called=gemini_server.called,
            said=lambda text: gemini_server.chunk(gemini_server.text_part(text)),
            thought=lambda text: gemini_server.chunk(gemini_server.thought_part(text)),
            ended=(gemini_server.chunk(finish="STOP", used=gemini_server.usage(12, 2)),),
            failed=lambda status, message: gemini_server.error(status, "SOME_WORD", message),
        )
        for registry in registries:
            await registry.aclose()


@pytest.fixture
async def openai() -> AsyncGenerator[Vendor, None]:
    registries: list[ModelRegistry] = []

    def connect(**changes: Any) -> ChatModel:
        registries.append(ModelRegistry(openai=server.config(**changes)))
        return registries[-1].get(openai_server.MODEL_ID)

    async with OpenAIServer() as server:
        yield Vendor(
            server=server,
            key=openai_server.API_KEY,
            connect=connect,
            reply=openai_server.reply,
            called=openai_server.called,
            said=lambda text: openai_server.chunk(content=text),
            thought=lambda text: openai_server.chunk(reasoning_content=text),
            ended=(
                openai_server.chunk("stop"),
                openai_server.usage_chunk(openai_server.usage(12, 2)),
                openai_server.DONE,
            ),
            failed=lambda status, message: openai_server.error(
                status, message=message, code="some_code"
            ),
        )
        for registry in registries:
            await registry.aclose()


@pytest.fixture
async def anthropic() -> AsyncGenerator[Vendor, None]:
    registries: list[ModelRegistry] = []

    def connect(**changes: Any) -> ChatModel:
        registries.append(ModelRegistry(anthropic=server.config(**changes)))
        return registries[-1].get(anthropic_server.MODEL_ID)

    async with AnthropicServer() as server:
        yield Vendor(
            server=server,
            key=anthropic_server.API_KEY,
            connect=connect,
            reply=anthropic_server.reply,
            called=anthropic_server.called,
            said=lambda text: anthropic_server.delta(0, "text", text=text),
            thought=lambda text: anthropic_server.delta(1, "thinking", thinking=text),
            ended=anthropic_server.ended(),
            failed=lambda status, message: anthropic_server.error(status, "some_error", message),
        )
        for registry in registries:
            await registry.aclose()


@pytest.fixture(params=["gemini", "openai", "anthropic"])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    """One vendor after the other."""
    chosen: Vendor = request.getfixturevalue(request.param)
    return chosen
