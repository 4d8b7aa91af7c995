"""Tests of refusals by a server: settings, and prompts that are too long."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.model import (
    ModelContextOverflowError,
    ModelError,
    Prompt,
    PromptMessage,
    SentRequest,
    TextPiece,
    Tool,
)
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ModelAbilities, ServerAbilities
from backend.generation.tools.streams import (
    answer_with_tools,
    choose_tool_support,
    stream_with_tools,
)
from tests.fakes.openai_server import MODEL, completion, error, reply, stream
from tests.fakes.scripted_server import Answer
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Go on.")])

OPENAI = error(
    400,
    message="Unsupported parameter: 'top_k' is not supported with this model.",
    code="unsupported_parameter",
)

MISTRAL = Answer(
    status=422,
    body={"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs"}]},
)

BARE = error(400, message="Unrecognized request argument supplied: top_k")
WRONG_VALUE = error(400, message="'top_k' must be -1 or at least 1, got 40")


async def listen(openai: Vendor, sampling: Sampling, **changes: object) -> str:
    model = openai.connect(**changes)
    pieces = [piece async for piece in model.stream(PROMPT, sampling)]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


@pytest.mark.parametrize("answer", [OPENAI, MISTRAL, BARE])
async def test_a_refused_setting_is_left_out_named_and_no_longer_accepted(
    openai: Vendor, answer: Answer
) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(answer)
    for _ in range(2):
        pieces = [piece async for piece in model.stream(PROMPT, Sampling(top_k=40, seed=1))]
        assert pieces[0] == SentRequest(left_out=("top_k",))
    assert learned == [ServerAbilities(models={MODEL: ModelAbilities(refused=("top_k",))})]
    assert ["top_k" in request.body for request in openai.server.requests] == [True, False, False]
    assert openai.server.requests[-1].body["seed"] == 1
    spec = openai.connect(abilities=learned[0]).spec
    assert "top_k" not in spec.accepts
    assert spec.refused == {"top_k"}


async def test_a_value_that_is_refused_is_left_out_once(openai: Vendor) -> None:
    model = openai.connect()
    openai.server.script(WRONG_VALUE, reply("{}"))
    await model.generate_json(PROMPT, {"type": "object"}, Sampling(top_k=40))
    assert "top_k" in model.spec.accepts
    assert "top_k" not in openai.server.requests[-1].body


async def test_a_prompt_that_is_too_long_refuses_no_setting(openai: Vendor) -> None:
    said = "the prompt and max_tokens are more than the unsupported length"
    openai.server.script(error(400, message=said, code="context_length_exceeded"))
    with pytest.raises(ModelContextOverflowError):
        await listen(openai, Sampling(max_output_tokens=100))
    assert len(openai.server.requests) == 1


async def test_refused_members_of_talekeeper_are_left_out_or_renamed(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    openai.server.script(
        error(400, message="Unknown parameter: 'stream_options'.", code="unknown_parameter"),
        error(400, message="Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."),
        reply("No."),
    )

    said = await listen(openai, Sampling(max_output_tokens=9), on_learned=learned.append)
    await listen(openai, Sampling(max_output_tokens=8), abilities=learned[-1])

    assert said == "No."
    assert learned[-1].find(MODEL).without == ("stream_options", "max_tokens")
    body = openai.server.requests[-1].body
    assert len(openai.server.requests) == 4
    assert "stream_options" not in body
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 8


async def test_extra_headers_and_members_go_into_each_request(openai: Vendor) -> None:
    more = {"extra_headers": {"x-title": "Tale"}, "extra_body": {"provider": {"sort": "price"}}}
    openai.server.script(reply("No."), Answer(body=completion("{}")))
    model = openai.connect(**more)
    _ = [piece async for piece in model.stream(PROMPT, Sampling())]
    await model.generate_json(PROMPT, {"type": "object"}, Sampling())
    for request in openai.server.requests:
        assert request.body["provider"] == {"sort": "price"}
        assert request.headers["x-title"] == "Tale"


WHO_IS_THERE = Prompt([PromptMessage("user", "Who is there?")])
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


def find_name(vendor: Vendor) -> str:
    return next(name for name in WORDS if name in type(vendor.server).__name__.lower())


async def test_the_window_that_a_refusal_names_is_remembered(vendor: Vendor) -> None:
    name, learned = find_name(vendor), list[ServerAbilities]()
    model = vendor.connect(on_learned=learned.append)
    vendor.server.script(vendor.failed(400, WORDS[name]))
    with pytest.raises(ModelContextOverflowError) as caught:
        async for _ in model.stream(WHO_IS_THERE, Sampling()):
            pass
    assert caught.value.window == WINDOWS[name]
    (known,) = learned[-1].models.values()
    assert known.window == WINDOWS[name]


async def test_a_prompt_that_is_too_long_is_not_asked_about_in_another_way(openai: Vendor) -> None:
    model = openai.connect()
    refusal = error(400, message=WORDS["openai"], code="context_length_exceeded")
    for ask in (
        lambda: model.generate_json(WHO_IS_THERE, SCHEMA, Sampling()),
        lambda: answer_with_tools(model, WHO_IS_THERE, [TOOL], Sampling()),
        lambda: anext(aiter(stream_with_tools(model, WHO_IS_THERE, [TOOL], Sampling()))),
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
        async for _ in model.stream(WHO_IS_THERE, Sampling()):
            pass
    assert (caught.value.window, caught.value.needed) == (4_096, 5_000)
    assert learned[-1].find(MODEL).window == 4_096
    streamed, whole = openai.server.requests
    assert (streamed.body["stream"], whole.body.get("stream")) == (True, None)


async def test_a_refusal_without_numbers_reduces_the_window(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    refusal = error(400, message="The prompt is too long.")
    for window in (16_384, 8_192, 4_096):
        openai.server.script(refusal)
        with pytest.raises(ModelContextOverflowError):
            await model.generate_json(WHO_IS_THERE, SCHEMA, Sampling())
        assert learned[-1].find(MODEL).window == window


@pytest.mark.parametrize("status", [200, 413])
async def test_a_proxy_s_limit_on_requests_teaches_no_window(openai: Vendor, status: int) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(Answer(status, body=b"<html>Request Entity Too Large</html>"))
    with pytest.raises(ModelError) as caught:
        await model.generate_json(WHO_IS_THERE, SCHEMA, Sampling())
    assert not isinstance(caught.value, ModelContextOverflowError)
    assert learned == []
