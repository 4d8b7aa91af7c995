"""Tests of the bodies of requests: what clients send, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from backend.errors import BadRequestError
from backend.generation.model import ToolChoice
from backend.openai_api.errors import InvalidParameterError
from backend.openai_api.wire import (
    MAX_MESSAGES,
    ChatCompletionRequest,
    parse_chat_request,
    parse_embedding_request,
    parse_text_request,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


def chat(*messages: Any, **members: Any) -> ChatCompletionRequest:
    sent = list(messages) or [{"role": "user", "content": "Hello"}]
    body = {"model": "character:bor", "messages": sent, **members}
    return parse_chat_request(json.dumps(body).encode())


def image(data: bytes = PNG, media_type: str = "image/png") -> dict[str, Any]:
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello", "Hello"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}], "One.\nTwo."),
        (["One.", {"type": "input_text", "text": "Two."}], "One.\nTwo."),
        ([{"type": "refusal", "refusal": "No."}], "No."),
    ],
)
def test_content_is_text_or_null_or_parts(content: Any, text: str) -> None:
    assert chat({"role": "user", "content": content}).messages[0].text == text


@pytest.mark.parametrize(
    ("role", "read"), [("developer", "system"), ("function", "tool"), ("assistant", "assistant")]
)
def test_old_and_new_roles_are_read(role: str, read: str) -> None:
    assert chat({"role": role, "content": "x"}).messages[0].role == read


def test_images_are_recognised_by_their_content() -> None:
    [message] = chat(
        {"role": "user", "content": [image(media_type="image/jpeg"), {"type": "text", "text": "a"}]}
    ).messages
    assert [(each.media_type, each.data) for each in message.images] == [("image/png", PNG)]
    address = "https://pictures.example/door.webp"
    [message] = chat(
        {"role": "user", "content": [{"type": "image_url", "image_url": address}]}
    ).messages
    assert message.images[0].url == address


def test_tool_calls_and_results_are_read() -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    call, result = chat(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain"},
    ).messages
    assert (call.calls[0].name, call.calls[0].arguments) == ("weather", {"city": "Oslo"})
    assert (result.call_id, result.text) == ("c1", "Rain")
    broken = {"name": "weather", "arguments": "{city"}
    [call] = chat({"role": "assistant", "tool_calls": [{"id": "c1", "function": broken}]}).messages
    assert call.calls[0].problem


@pytest.mark.parametrize(
    ("members", "name", "value"),
    [
        ({"max_tokens": 50}, "max_output_tokens", 50),
        ({"max_tokens": 50, "max_completion_tokens": 60}, "max_output_tokens", 60),
        ({"max_tokens": -1}, "max_output_tokens", None),
        ({"stop": "END"}, "stop", ("END",)),
        ({"stop": ["END", "", "END"]}, "stop", ("END",)),
        ({"stop": []}, "stop", None),
        ({"temperature": 1}, "temperature", 1.0),
        ({"top_p": 0}, "top_p", 1e-6),
        ({"top_k": -1}, "top_k", None),
        ({"seed": -1}, "seed", None),
        ({"seed": 2**40 + 5}, "seed", 5),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort", "high"),
        ({"reasoning_effort": "auto"}, "reasoning_effort", None),
        ({"logit_bias": {}}, "logit_bias", None),
        ({"temperature": None, "stop": None, "tools": None, "stream": None}, "temperature", None),
    ],
)
def test_settings_are_read_as_clients_mean_them(
    members: dict[str, Any], name: str, value: object
) -> None:
    assert getattr(chat(**members).sampling, name) == value


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"stop": ["a", "b", "c", "d", "e", "f"]}, "stop"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"logit_bias": {"50": 101}}, "logit_bias[...]"),
        ({"model": " "}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [{"role": "bard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": {"function": {"name": "a"}}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
def test_other_values_are_refused_by_name(members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        chat(**members)
    assert caught.value.extra["param"] == param


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_audio", "input_audio": {}}, "type"),
        ({"type": "file", "file": {}}, "type"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": "http://a.example/b.png"}, "image_url.url"),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, "image_url.url"),
        ({"type": "image_url", "image_url": "data:image/png,abc"}, "image_url.url"),
        ({"type": "image_url", "image_url": "data:image/png;base64,a"}, "image_url.url"),
        (image(b"<svg/>"), "image_url.url"),
    ],
)
def test_other_parts_are_refused_with_their_place(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        chat({"role": "user", "content": ["Look: ", part]})
    assert caught.value.extra["param"] == f"messages[0].content[1].{param}"


def test_too_many_images_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="64 images"):
        chat(*[{"role": "user", "content": [image()]}] * 65)


def test_unknown_members_are_collected() -> None:
    request = chat(logprobs=True, user="ada", temperature=1, store=None)
    assert request.unknown == {"logprobs": True, "user": "ada"}


def test_tools_and_formats_are_read() -> None:
    request = chat(
        tools=[{"type": "function", "function": {"name": "weather", "strict": True}}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        stream=True,
        stream_options={"include_usage": True},
    )
    assert request.tools[0].parameters == {"type": "object", "properties": {}}
    assert request.tool_choice == ToolChoice("named", "weather")
    assert request.format is not None
    assert request.format.schema == {"type": "object"}
    assert request.is_stream
    assert request.with_usage


def test_half_of_an_emoji_is_replaced() -> None:
    body = rb'{"model":"m","messages":[{"role":"user","content":"a\ud83d \\ud83d \ud83d\ude00"}]}'
    assert parse_chat_request(body).messages[0].text == "a\ufffd \\ud83d \U0001f600"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'"text"'])
def test_bodies_that_are_no_object_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_chat_request(data)


def test_texts_to_embed_are_one_or_several() -> None:
    def embed(**members: Any) -> Any:
        return parse_embedding_request(json.dumps({"model": "m", **members}).encode())

    assert embed(input="one").texts == ["one"]
    assert embed(input=["one", "two"], encoding_format="base64").is_base64
    for refused in ([1, 2], [[1]], [], ["one", " "], ["a"] * 2_049, ["a" * 2_000_001]):
        with pytest.raises(InvalidParameterError):
            embed(input=refused)


def test_prompts_to_continue_are_one_or_several() -> None:
    def complete(**members: Any) -> Any:
        return parse_text_request(json.dumps({"model": "m", **members}).encode())

    assert complete(prompt="Once").prompts == ["Once"]
    assert complete(prompt=["Once", "Then"], n=2).count == 2
    refusals: list[dict[str, Any]] = [
        {"prompt": [1]},
        {"prompt": []},
        {"prompt": ["a"] * 5, "n": 2},
    ]
    for refused in refusals:
        with pytest.raises(InvalidParameterError):
            complete(**refused)
