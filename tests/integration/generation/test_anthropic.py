"""Tests of features that only Anthropic's API has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.generation.model import (
    Finish,
    ModelAuthError,
    ModelBlockedError,
    ModelError,
    ModelRateLimitError,
    ModelRequestError,
    ModelUnavailableError,
    Piece,
    Prompt,
    PromptMessage,
    SentRequest,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolRound,
)
from backend.generation.sampling import Sampling
from tests.fakes.anthropic_server import (
    block,
    delta,
    ended,
    error,
    error_body,
    reply,
    started,
    usage,
)
from tests.fakes.scripted_server import Answer, Event
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

KEPT = {"type": "ephemeral"}
PROMPT = Prompt(
    [
        PromptMessage("system", "You are Oswin."),
        PromptMessage("assistant", "Who is there?"),
        PromptMessage("user", "It is me."),
        PromptMessage("assistant", "Come in."),
        PromptMessage("system", "It rains."),
        PromptMessage("user", "I come in."),
    ],
    stable=4,
)
PLAIN = Sampling()
SEARCH = Tool(name="search", description="Search the chronicle.", parameters={"type": "object"})


async def listen(
    anthropic: Vendor, prompt: Prompt = PROMPT, sampling: Sampling = PLAIN
) -> list[Piece]:
    return [piece async for piece in anthropic.connect().stream(prompt, sampling)]


def sent(anthropic: Vendor) -> Any:
    return anthropic.server.requests[-1].body


async def test_a_reply_starts_with_the_given_text(anthropic: Vendor) -> None:
    anthropic.server.script(reply(" the sea", " is rough."))
    pieces = await listen(anthropic, sampling=Sampling(start_reply_with="Oswin says: "))
    said = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    assert said == "Oswin says: the sea is rough."
    last = sent(anthropic)["messages"][-1]
    assert (last["role"], last["content"][-1]["text"]) == ("assistant", "Oswin says:")


async def test_a_beginning_that_the_model_refuses_is_left_out_from_then_on(
    anthropic: Vendor,
) -> None:
    model = anthropic.connect()
    no = "This model does not support assistant message prefill."
    anthropic.server.script(error(400, "invalid_request_error", no), reply("Hm."), reply("Hm."))
    for _ in range(2):
        pieces = [
            piece async for piece in model.stream(PROMPT, Sampling(start_reply_with="Oswin:"))
        ]
        assert pieces[:2] == [SentRequest(left_out=("start_reply_with",)), TextPiece("Hm.")]
    assert model.spec.refused == {"start_reply_with"}
    assert "start_reply_with" not in model.spec.accepts
    assert len(anthropic.server.requests) == 3


async def test_a_budget_for_thinking_stays_below_the_limit_of_tokens(anthropic: Vendor) -> None:
    await listen(anthropic, sampling=Sampling(thinking_budget=200_000))
    assert sent(anthropic)["max_tokens"] == 64_000
    assert sent(anthropic)["thinking"] == {"type": "enabled", "budget_tokens": 64_000 - 8_192}


async def test_a_model_that_takes_no_budget_thinks_as_much_as_it_wants(anthropic: Vendor) -> None:
    no = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    anthropic.server.script(error(400, "invalid_request_error", no))
    model = anthropic.connect()
    for _ in range(2):
        _ = [piece async for piece in model.stream(PROMPT, Sampling(thinking_budget=2000))]
    assert sent(anthropic)["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert len(anthropic.server.requests) == 3


async def test_the_prompt_arrives_with_marks_where_it_is_stable(anthropic: Vendor) -> None:
    await listen(anthropic)

    request = anthropic.server.requests[0]
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == anthropic.key
    assert request.body == {
        "model": "claude-sonnet-5-5",
        "max_tokens": 8192,
        "stream": True,
        "system": [{"type": "text", "text": "You are Oswin.", "cache_control": KEPT}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "[Start]"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Who is there?"}]},
            {"role": "user", "content": [{"type": "text", "text": "It is me."}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Come in.", "cache_control": KEPT}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "It rains."},
                    {"type": "text", "text": "I come in."},
                ],
            },
        ],
    }


async def test_a_prompt_that_nothing_is_stable_of_has_no_marks(anthropic: Vendor) -> None:
    await listen(anthropic, Prompt(PROMPT.messages))
    assert "cache_control" not in json.dumps(sent(anthropic))


async def test_a_reply_may_begin_with_words_of_the_user_s(anthropic: Vendor) -> None:
    await listen(anthropic, Prompt([*PROMPT.messages, PromptMessage("assistant", "He says: ")]))
    assert sent(anthropic)["messages"][-1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "He says:"}],
    }


async def test_cached_tokens_count_as_prompt(anthropic: Vendor) -> None:
    anthropic.server.script(reply("Yes.", used=usage(10, 3, read=900, kept=50)))
    assert (await listen(anthropic))[-2:] == [
        TokenUsage(prompt_tokens=960, completion_tokens=3, cached_tokens=900),
        Finish("stop"),
    ]


def thinking_then_call() -> list[Event]:
    return [
        started(),
        *block(
            0,
            {"type": "thinking", "thinking": ""},
            delta(0, "thinking", thinking="I should "),
            delta(0, "thinking", thinking="look."),
            delta(0, "signature", signature="c2ln"),
        ),
        *block(1, {"type": "redacted_thinking", "data": "b64"}),
        *block(2, {"type": "tool_use", "id": "t1", "name": "search", "input": {}}),
        *ended("tool_use"),
    ]


async def test_thoughts_go_back_signed_with_the_result_of_the_call(anthropic: Vendor) -> None:
    anthropic.server.script(Answer(events=thinking_then_call()))
    model = anthropic.connect()
    stream = model.stream(PROMPT, PLAIN, tools=[SEARCH])
    first, second, call, *_ = [piece async for piece in stream]
    assert [first, second] == [ThinkingPiece("I should "), ThinkingPiece("look.")]
    rounds = [ToolRound([call], [{"found": 1}])]  # type: ignore[list-item]  # it is the call
    assert [piece async for piece in model.stream(Prompt(PROMPT.messages, rounds), PLAIN)]
    assert sent(anthropic)["messages"][-2]["content"] == [
        {"type": "thinking", "thinking": "I should look.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b64"},
        {"type": "tool_use", "id": "t1", "name": "search", "input": {}},
    ]


async def test_a_whole_answer_has_its_calls(anthropic: Vendor) -> None:
    content = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "search", "input": {"query": "key"}},
    ]
    body = {"content": content, "stop_reason": "tool_use", "usage": usage(12, 2)}
    anthropic.server.script(Answer(body=body))
    answer = await anthropic.connect().call_tools(PROMPT, [SEARCH], PLAIN)
    assert (answer.text, answer.finish) == ("I look.", "tool_calls")
    assert [(call.name, call.arguments) for call in answer.calls] == [("search", {"query": "key"})]


async def test_a_schema_is_sent_in_the_form_that_the_api_takes(anthropic: Vendor) -> None:
    anthropic.server.script(reply('{"lines": []}'))
    schema = {
        "type": "object",
        "properties": {"lines": {"type": "array", "maxItems": 3, "items": {"type": "string"}}},
    }
    model = anthropic.connect()
    await model.generate_json(PROMPT, schema, Sampling(reasoning_effort="high"))
    config = sent(anthropic)["output_config"]
    assert config["effort"] == "high"
    assert config["format"]["schema"]["additionalProperties"] is False
    assert "maxItems" not in config["format"]["schema"]["properties"]["lines"]


@pytest.mark.parametrize(
    ("sampling", "thinking", "tokens"),
    [
        (Sampling(), None, 8192),
        (Sampling(thinking_budget=0), {"type": "disabled"}, 8192),
        (Sampling(reasoning_effort="none"), {"type": "disabled"}, 8192),
        (Sampling(thinking_budget=100), {"type": "enabled", "budget_tokens": 1024}, 9216),
        (
            Sampling(thinking_budget=4000, max_output_tokens=62_000),
            {"type": "enabled", "budget_tokens": 4000},
            64_000,
        ),
        (Sampling(thinking_budget=-1), {"type": "adaptive", "display": "summarized"}, 8192),
    ],
)
async def test_thinking_has_its_tokens_beside_the_reply_s(
    anthropic: Vendor, sampling: Sampling, thinking: object, tokens: int
) -> None:
    await listen(anthropic, sampling=sampling)
    assert sent(anthropic).get("thinking") == thinking
    assert sent(anthropic)["max_tokens"] == tokens


async def test_a_temperature_above_the_api_s_scale_is_its_highest(anthropic: Vendor) -> None:
    await listen(anthropic, sampling=Sampling(temperature=1.4))
    assert sent(anthropic)["temperature"] == 1.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", ModelUnavailableError),
        ("api_error", ModelUnavailableError),
        ("rate_limit_error", ModelRateLimitError),
        ("authentication_error", ModelAuthError),
        ("invalid_request_error", ModelRequestError),
    ],
)
async def test_an_error_within_a_stream_is_known_by_its_type(
    anthropic: Vendor, kind: str, expected: type[ModelError]
) -> None:
    anthropic.server.script(Answer(events=[started(), error_body(kind, "I am Oswin")]))
    with pytest.raises(expected) as caught:
        await listen(anthropic)
    assert kind in caught.value.detail
    assert "Oswin" not in caught.value.detail


async def test_a_refusal_is_a_blocked_reply(anthropic: Vendor) -> None:
    anthropic.server.script(reply(finish="refusal"))
    with pytest.raises(ModelBlockedError) as caught:
        await listen(anthropic)
    assert caught.value.reason == "refusal"
