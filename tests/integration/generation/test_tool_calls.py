"""Tool calls within a streamed reply, through the vendors' SDKs."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.model import (
    Finish,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    TokenUsage,
    Tool,
    ToolCall,
)
from backend.generation.sampling import Sampling
from backend.generation.tool_streams import stream_with_tools
from tests.fakes.openai_server import called
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("system", "You run the game."), PromptMessage("user", "I duck.")])
PLAIN = Sampling()
SEARCH = Tool(name="search", description="Search the chronicle.", parameters={"type": "object"})


async def play(vendor: Vendor, **more: Any) -> list[Piece]:
    stream = stream_with_tools(vendor.connect(), PROMPT, [SEARCH], PLAIN, **more)
    return [piece async for piece in stream]


async def test_a_call_in_fragments_is_one_piece(openai: Vendor) -> None:
    openai.server.script(called(("search", {"query": "knife"}), text="Hm.", size=3))

    said, call, usage, finish = await play(openai)

    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.arguments) == ("call-0", "search", {"query": "knife"})
    assert (said, finish) == (TextPiece("Hm."), Finish("tool_calls"))
    assert isinstance(usage, TokenUsage)
