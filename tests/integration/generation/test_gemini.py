"""Tests of features that only Gemini's API has."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.model import (
    Finish,
    ModelAuthError,
    ModelBlockedError,
    ModelInterruptedError,
    ModelMalformedAnswerError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRequestError,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
    ToolRound,
)
from backend.generation.sampling import Sampling
from tests.fakes.gemini_server import (
    call_part,
    chunk,
    error,
    error_body,
    reply,
    stream,
    text_part,
    usage,
)
from tests.fakes.scripted_server import Answer, Break
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt(
    [PromptMessage("system", "You are Oswin."), PromptMessage("user", "Open the door!")]
)
PLAIN = Sampling()
SEARCH = Tool(
    name="search",
    description="Search the chronicle.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
)


async def listen(gemini: Vendor, sampling: Sampling = PLAIN) -> list[Piece]:
    return [piece async for piece in gemini.connect().stream(PROMPT, sampling)]


async def ask(gemini: Vendor, *rounds: ToolRound) -> ToolAnswer:
    return await gemini.connect().call_tools(Prompt(PROMPT.messages, rounds), [SEARCH], PLAIN)


def sent(gemini: Vendor) -> Any:
    return gemini.server.requests[-1].body


async def test_the_prompt_arrives_as_it_was_put_together(gemini: Vendor) -> None:
    await listen(gemini)
    request = gemini.server.requests[0]
    assert request.path == "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
    assert request.query == {"alt": "sse"}
    assert request.headers["x-goog-api-key"] == gemini.key
    assert request.body["systemInstruction"]["parts"] == [{"text": "You are Oswin."}]
    assert request.body["contents"] == [{"role": "user", "parts": [{"text": "Open the door!"}]}]


async def test_thoughts_and_cached_tokens_are_counted(gemini: Vendor) -> None:
    used = usage(1200, 40, thoughts=60, cached=1000)
    gemini.server.script(reply("No.", used=used))
    assert (await listen(gemini))[1] == TokenUsage(
        prompt_tokens=1200, completion_tokens=100, cached_tokens=1000, thinking_tokens=60
    )


@pytest.mark.parametrize(
    ("budget", "asked"),
    [
        (None, {"includeThoughts": True}),
        (0, {"thinkingBudget": 0}),
        (512, {"thinkingBudget": 512, "includeThoughts": True}),
        (-1, {"thinkingBudget": -1, "includeThoughts": True}),
    ],
)
async def test_thoughts_are_asked_for_whenever_the_model_thinks(
    gemini: Vendor, budget: int | None, asked: dict[str, Any]
) -> None:
    await listen(gemini, Sampling(thinking_budget=budget))
    assert sent(gemini)["generationConfig"]["thinkingConfig"] == asked


@pytest.mark.parametrize("reason", ["SAFETY", "PROHIBITED_CONTENT", "RECITATION", "BLOCKLIST"])
async def test_a_reply_that_was_blocked_entirely_is_an_error(gemini: Vendor, reason: str) -> None:
    gemini.server.script(reply(finish=reason))
    with pytest.raises(ModelBlockedError) as caught:
        await listen(gemini)
    assert caught.value.reason == reason


async def test_a_reply_that_was_blocked_midway_keeps_what_was_said(gemini: Vendor) -> None:
    gemini.server.script(reply("The blade", finish="SAFETY"))
    pieces = await listen(gemini)
    assert (pieces[0], pieces[-1]) == (TextPiece("The blade"), Finish("safety"))


async def test_a_key_that_google_does_not_know_is_a_refused_key(gemini: Vendor) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    gemini.server.script(error(400, "INVALID_ARGUMENT", "API key not valid.", details=details))
    with pytest.raises(ModelAuthError):
        await listen(gemini)


async def test_the_pause_in_the_error_details_wins_over_the_header(gemini: Vendor) -> None:
    details: list[dict[str, Any]] = [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"},
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
    ]
    gemini.server.script(
        error(429, "RESOURCE_EXHAUSTED", details=details, headers={"retry-after": "5"})
    )
    with pytest.raises(ModelRateLimitError) as caught:
        await listen(gemini)
    assert caught.value.retry_after == pytest.approx(34.07)


async def test_a_refused_request_names_the_field(gemini: Vendor) -> None:
    violation = {"field": "generation_config.seed", "description": "quotes: Open the door!"}
    details: list[dict[str, Any]] = [
        {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
    ]
    gemini.server.script(error(400, "INVALID_ARGUMENT", details=details))
    with pytest.raises(ModelRequestError) as caught:
        await listen(gemini)
    assert "400 INVALID_ARGUMENT generation_config.seed" in caught.value.detail


@pytest.mark.parametrize("details", [None, "none", [None], [{"fieldViolations": "odd"}]])
async def test_error_details_of_an_odd_shape_do_no_harm(gemini: Vendor, details: Any) -> None:
    body = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": details}}
    gemini.server.script(Answer(status=400, body=body))
    with pytest.raises(ModelRequestError):
        await listen(gemini)


async def test_an_error_within_the_stream_before_a_word_is_what_it_says(gemini: Vendor) -> None:
    gemini.server.script(stream(error_body(429, "RESOURCE_EXHAUSTED")))
    with pytest.raises(ModelRateLimitError):
        await listen(gemini)


async def test_an_error_amid_the_reply_names_its_cause(gemini: Vendor) -> None:
    gemini.server.script(stream(chunk(text_part("The")), error_body(503, "UNAVAILABLE")))
    with pytest.raises(ModelOverloadedError):
        await listen(gemini)


async def test_a_checkpoint_in_a_broken_stream_does_not_make_the_sdk_ask_again(
    gemini: Vendor,
) -> None:
    begun = chunk(text_part("The"))
    begun["candidates"][0]["continuationToken"] = "Y2hlY2twb2ludA=="
    gemini.server.script(stream(begun, Break()))
    with pytest.raises(ModelInterruptedError):
        await listen(gemini)
    assert len(gemini.server.requests) == 1


async def test_a_call_comes_with_its_arguments(gemini: Vendor) -> None:
    parts = text_part("Let me look."), call_part("search", {"query": "Seventh of nine"})
    gemini.server.script(Answer(body=chunk(*parts, finish="STOP", used=usage(12, 5))))
    answer = await ask(gemini)
    assert (answer.text, answer.finish) == ("Let me look.", "tool_calls")
    assert [(call.name, call.arguments) for call in answer.calls] == [
        ("search", {"query": "Seventh of nine"})
    ]
    assert answer.usage == TokenUsage(prompt_tokens=12, completion_tokens=5)


async def test_a_call_nested_without_end_is_no_answer(gemini: Vendor) -> None:
    nested: dict[str, Any] = {}
    for _ in range(100):
        nested = {"a": nested}
    gemini.server.script(Answer(body=chunk(call_part("search", nested), finish="STOP")))
    with pytest.raises(ModelMalformedAnswerError):
        await ask(gemini)


async def test_tools_are_declared_with_their_own_schema(gemini: Vendor) -> None:
    await ask(gemini)
    assert sent(gemini)["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "search",
                    "description": "Search the chronicle.",
                    "parametersJsonSchema": SEARCH.parameters,
                }
            ]
        }
    ]


async def test_a_call_goes_back_with_its_signature_and_its_result(gemini: Vendor) -> None:
    call = call_part("search", {"query": "knife"}, call_id="c1", signature="c2lnbmF0dXJlLy8=")
    bare = call_part("search", {"query": "Oswin"})
    gemini.server.script(Answer(body=chunk(call, bare, finish="STOP")))
    first = await ask(gemini)

    await ask(gemini, ToolRound(first.calls, [{"hits": 2}, ["no", "object"]], text="Hm."))

    assert sent(gemini)["contents"][1:] == [
        {"role": "model", "parts": [{"text": "Hm."}, call, bare]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "search", "response": {"hits": 2}}},
                {"functionResponse": {"name": "search", "response": {"output": ["no", "object"]}}},
            ],
        },
    ]


async def test_calls_without_an_id_of_gemini_s_get_one_each(gemini: Vendor) -> None:
    call = call_part("search", {})
    gemini.server.script(Answer(body=chunk(call, call, finish="STOP")))
    answer = await ask(gemini)
    assert len({call.id for call in answer.calls}) == 2


async def test_a_call_that_gemini_cannot_read_itself_is_named(gemini: Vendor) -> None:
    gemini.server.script(Answer(body=chunk(finish="MALFORMED_FUNCTION_CALL")))
    with pytest.raises(ModelMalformedAnswerError, match="MALFORMED_FUNCTION_CALL"):
        await ask(gemini)


async def test_structured_output_is_asked_for_by_schema_and_without_tools(gemini: Vendor) -> None:
    schema = {"type": "object", "properties": {"lines": {"type": "array"}}}
    gemini.server.script(reply('{"lines": []}'))
    await gemini.connect().generate_json(PROMPT, schema, PLAIN)
    config = sent(gemini)["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"] == schema
    assert "tools" not in sent(gemini)
