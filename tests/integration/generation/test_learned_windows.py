"""Refusals of prompts that are too long, in the words of each vendor: the window is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.model import (
    ModelContextOverflowError,
    ModelError,
    Prompt,
    PromptMessage,
    Tool,
)
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.tools.streams import (
    answer_with_tools,
    choose_tool_support,
    stream_with_tools,
)
from tests.fakes.openai_server import MODEL, error, stream
from tests.fakes.scripted_server import Answer
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Who is there?")])
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"who": {"type": "string"}}}
TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})

WORDS = {
    "gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed "
    "(1048576).",
    "openai": "This model's maximum context length is 4096 tokens. However, your messages resulted "
    "in 5000 tokens.",
    "anthropic": "prompt is too long: 215000 tokens > 190000 maximum",
}
WINDOWS = {"gemini": 1_048_576, "openai": 4_096, "anthropic": 190_000}


def name_of(vendor: Vendor) -> str:
    return next(name for name in WORDS if name in type(vendor.server).__name__.lower())


async def test_the_window_that_a_refusal_names_is_remembered(vendor: Vendor) -> None:
    name, learned = name_of(vendor), list[ServerAbilities]()
    model = vendor.connect(on_learned=learned.append)
    vendor.server.script(vendor.failed(400, WORDS[name]))
    with pytest.raises(ModelContextOverflowError) as caught:
        async for _ in model.stream(PROMPT, Sampling()):
            pass
    assert caught.value.window == WINDOWS[name]
    (known,) = learned[-1].models.values()
    assert known.window == WINDOWS[name]


async def test_a_prompt_that_is_too_long_is_not_asked_about_in_another_way(openai: Vendor) -> None:
    model = openai.connect()
    refusal = error(400, message=WORDS["openai"], code="context_length_exceeded")
    for ask in (
        lambda: model.generate_json(PROMPT, SCHEMA, Sampling()),
        lambda: answer_with_tools(model, PROMPT, [TOOL], Sampling()),
        lambda: anext(aiter(stream_with_tools(model, PROMPT, [TOOL], Sampling()))),
    ):
        openai.server.script(refusal)
        asked = len(openai.server.requests)
        with pytest.raises(ModelContextOverflowError):
            await ask()
        assert len(openai.server.requests) == asked + 1
    assert choose_tool_support(model) == "native"


async def test_the_reason_of_a_stream_without_an_event_is_asked_for_once(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(stream(), error(400, message=WORDS["openai"]))
    with pytest.raises(ModelContextOverflowError) as caught:
        async for _ in model.stream(PROMPT, Sampling()):
            pass
    assert (caught.value.window, caught.value.needed) == (4_096, 5_000)
    assert learned[-1].find(MODEL).window == 4_096
    streamed, whole = openai.server.requests
    assert (streamed.body["stream"], whole.body.get("stream")) == (True, None)


async def test_of_a_refusal_without_numbers_a_smaller_window_is_remembered(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    refusal = error(400, message="The prompt is too long.")
    for window in (16_384, 8_192, 4_096):
        openai.server.script(refusal)
        with pytest.raises(ModelContextOverflowError):
            await model.generate_json(PROMPT, SCHEMA, Sampling())
        assert learned[-1].find(MODEL).window == window


@pytest.mark.parametrize("status", [200, 413])
async def test_a_proxy_s_limit_on_requests_teaches_no_window(openai: Vendor, status: int) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(Answer(status, body=b"<html>Request Entity Too Large</html>"))
    with pytest.raises(ModelError) as caught:
        await model.generate_json(PROMPT, SCHEMA, Sampling())
    assert not isinstance(caught.value, ModelContextOverflowError)
    assert learned == []
