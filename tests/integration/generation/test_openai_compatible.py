"""Tests of features that only OpenAI-compatible servers have."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.model import (
    ModelAuthError,
    ModelBlockedError,
    ModelContextOverflowError,
    ModelError,
    ModelMalformedAnswerError,
    ModelRateLimitError,
    ModelRequestError,
    ModelServerError,
    ModelUnavailableError,
    Piece,
    Prompt,
    PromptMessage,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolCall,
    ToolRound,
)
from backend.generation.sampling import Sampling
from tests.fakes.openai_server import (
    DONE,
    chunk,
    completion,
    error,
    error_body,
    reply,
    stream,
    tool_call,
    usage,
)
from tests.fakes.scripted_server import Answer
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt(
    [
        PromptMessage("system", "You are Oswin."),
        PromptMessage("assistant", "Who is there?"),
        PromptMessage("user", "Open the door!"),
        PromptMessage("system", "Stay in character."),
    ]
)
PLAIN = Sampling()
SEARCH = Tool(name="search", description="Search the chronicle.", parameters={"type": "object"})


async def listen(openai: Vendor) -> list[Piece]:
    return [piece async for piece in openai.connect().stream(PROMPT, PLAIN)]


async def ask(openai: Vendor, *rounds: ToolRound) -> ToolAnswer:
    return await openai.connect().call_tools(Prompt(PROMPT.messages, rounds), [SEARCH], PLAIN)


def sent(openai: Vendor) -> Any:
    return openai.server.requests[-1].body


async def test_the_prompt_arrives_as_it_was_put_together(openai: Vendor) -> None:
    await listen(openai)

    request = openai.server.requests[0]
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {openai.key}"
    assert request.body == {
        "model": "local-model",
        "messages": [
            {"role": "system", "content": "You are Oswin."},
            {"role": "assistant", "content": "Who is there?"},
            {"role": "user", "content": "Open the door!"},
            {"role": "system", "content": "Stay in character."},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_reasoning_and_cached_tokens_are_counted(openai: Vendor) -> None:
    openai.server.script(reply("No.", used=usage(1200, 100, reasoning=60, cached=1000)))
    assert (await listen(openai))[1] == TokenUsage(
        prompt_tokens=1200, completion_tokens=100, cached_tokens=1000, thinking_tokens=60
    )


async def test_a_prompt_that_the_filter_refuses_is_blocked(openai: Vendor) -> None:
    openai.server.script(error(400, code="content_filter", message="Open the door!"))
    with pytest.raises(ModelBlockedError) as caught:
        await listen(openai)
    assert caught.value.reason == "content_filter"


async def test_a_prompt_that_is_too_long_is_said_to_be(openai: Vendor) -> None:
    openai.server.script(error(400, code="context_length_exceeded"))
    with pytest.raises(ModelContextOverflowError):
        await listen(openai)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (error_body("slow", code=429), ModelRateLimitError),
        (error_body("slow", kind="rate_limit_error"), ModelRateLimitError),
        (error_body("who?", code="invalid_api_key"), ModelAuthError),
        (error_body("what?", kind="invalid_request_error"), ModelRequestError),
        (error_body("hot", code="content_filter"), ModelBlockedError),
        (error_body("oops", kind="server_error"), ModelUnavailableError),
        ({"error": "a text in place of an object"}, ModelUnavailableError),
    ],
)
async def test_an_error_within_the_stream_before_a_word_is_what_it_says(
    openai: Vendor, body: dict[str, Any], kind: type[ModelError]
) -> None:
    openai.server.script(stream(body, DONE))
    with pytest.raises(kind):
        await listen(openai)


async def test_an_error_amid_the_reply_names_its_cause(openai: Vendor) -> None:
    openai.server.script(stream(chunk(content="The"), error_body("oops", code=502), DONE))
    with pytest.raises(ModelServerError):
        await listen(openai)


async def test_a_call_comes_with_its_arguments(openai: Vendor) -> None:
    calls = [tool_call("search", {"query": "knife"}, call_id="c1")]
    openai.server.script(Answer(body=completion(None, finish="tool_calls", calls=calls)))

    answer = await ask(openai)

    assert (answer.text, answer.finish) == ("", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in answer.calls] == [
        ("c1", "search", {"query": "knife"})
    ]
    assert sent(openai)["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search the chronicle.",
                "parameters": {"type": "object"},
            },
        }
    ]


async def test_a_call_goes_back_as_it_came_with_its_result(openai: Vendor) -> None:
    signed = tool_call("search", {}, call_id="c1", extra_content={"signature": "abc"})
    plain = tool_call("search", {}, call_id="c2")
    openai.server.script(Answer(body=completion("Hm.", calls=[signed, plain])))
    first = await ask(openai)
    await ask(openai, ToolRound(first.calls, [{"hits": 2}, "nothing"], text="Hm."))
    assert sent(openai)["messages"][-3:] == [
        {"role": "assistant", "content": "Hm.", "tool_calls": [signed, plain]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"hits": 2}'},
        {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
    ]


async def test_a_call_of_another_vendor_can_be_sent(openai: Vendor) -> None:
    state = {"thought_signature": "c2lnbmF0dXJl"}
    call = ToolCall(id="c9", name="search", arguments={"query": "knife"}, vendor_state=state)
    await ask(openai, ToolRound([call], ["nothing"]))
    assert sent(openai)["messages"][-2]["tool_calls"] == [
        tool_call("search", {"query": "knife"}, call_id="c9")
    ]


async def test_half_a_character_in_a_call_is_mended_on_its_way_in_and_back(openai: Vendor) -> None:
    halves = tool_call("sea\ud83d", {"que\udc00ry": "kni\ud83dfe \U0001f5e1"}, call_id="c1")
    openai.server.script(Answer(body=completion("Hm\ud83d.", calls=[halves])))
    first = await ask(openai)
    await ask(openai, ToolRound(first.calls, ["nothing"], text=first.text))
    (call,) = first.calls
    assert (first.text, call.name) == ("Hm\ufffd.", "sea\ufffd")
    assert call.arguments == {"que\ufffdry": "kni\ufffdfe \U0001f5e1"}
    assert sent(openai)["messages"][-2]["tool_calls"][0]["function"]["name"] == "sea\ufffd"


NESTED = '{"a":' * 5_000 + "1" + "}" * 5_000


@pytest.mark.parametrize("arguments", ['{"query": ', '["a list"]', NESTED, NESTED[24_500:-4_900]])
async def test_a_call_with_broken_arguments_is_no_answer(openai: Vendor, arguments: str) -> None:
    calls = [tool_call("search", arguments, call_id="c1")]
    openai.server.script(Answer(body=completion(None, calls=calls)))
    with pytest.raises(ModelMalformedAnswerError):
        await ask(openai)


async def test_structured_output_is_asked_for_by_schema(openai: Vendor) -> None:
    schema = {"type": "object", "properties": {"lines": {"type": "array"}}}
    openai.server.script(reply('{"lines": []}'))
    await openai.connect().generate_json(PROMPT, schema, PLAIN)
    assert sent(openai)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }
    assert "tools" not in sent(openai)
