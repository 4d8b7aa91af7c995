"""Images and tool messages of prompts, and the options of clients, as each vendor receives them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from backend.generation.model import (
    NO_OPTIONS,
    JsonForm,
    ModelRequestError,
    Piece,
    Prompt,
    PromptImage,
    PromptMessage,
    RequestOptions,
    SentRequest,
    Tool,
    ToolCall,
    ToolChoice,
)
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ModelAbilities, ServerAbilities
from tests.fakes import openai_server
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG"
DATA = base64.b64encode(PNG).decode()
PHOTO = PromptImage(media_type="image/png", data=PNG)
LINK = PromptImage(url="https://example.org/door.png")
LOOK = Tool("look", "Look around.", {"type": "object", "properties": {"at": {"type": "string"}}})
SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}}
CALLED = PromptMessage(
    "assistant",
    "I look.",
    calls=(ToolCall("call-1", "look", {"at": "door"}),),
    results=("It is shut.",),
)


async def send(
    vendor: Vendor,
    *messages: PromptMessage,
    tools: Sequence[Tool] = (),
    options: RequestOptions = NO_OPTIONS,
    sampling: Sampling = Sampling(),  # noqa: B008  # frozen
    **changes: Any,
) -> tuple[Mapping[str, Any], list[Piece]]:
    """Return the last request that the vendor received, and the reply."""
    vendor.server.script(vendor.reply("Yes."))
    model = vendor.connect(**changes)
    stream = model.stream(Prompt(messages), sampling, tools=tools, options=options)
    pieces = [piece async for piece in stream]
    return vendor.server.requests[-1].body, pieces


async def test_an_image_is_sent_as_a_data_address_to_openai(openai: Vendor) -> None:
    body, pieces = await send(openai, PromptMessage("user", "Look.", images=(PHOTO,)))
    url = f"data:image/png;base64,{DATA}"
    parts = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": url}}]
    assert body["messages"] == [{"role": "user", "content": parts}]
    assert not any(isinstance(piece, SentRequest) for piece in pieces)


async def test_an_image_is_sent_as_a_block_to_anthropic(anthropic: Vendor) -> None:
    body, _ = await send(anthropic, PromptMessage("user", "Look.", images=(PHOTO, LINK)))
    assert body["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "image", "source": {"type": "url", "url": LINK.url}},
        {"type": "text", "text": "Look."},
    ]


async def test_gemini_gets_no_addresses_and_the_reply_says_so(gemini: Vendor) -> None:
    first, last = PromptMessage("user", "Hm."), PromptMessage("user", "", images=(PHOTO, LINK))
    body, pieces = await send(gemini, first, last)
    assert body["contents"] == [
        {
            "role": "user",
            "parts": [{"text": "Hm."}, {"inlineData": {"mimeType": "image/png", "data": DATA}}],
        }
    ]
    assert pieces[0] == SentRequest(images_left_out=1)


@pytest.mark.parametrize(("server", "sent"), [("openai", 1), ("llama-cpp", 0), ("other", 0)])
async def test_only_services_are_asked_to_load_an_image_from_an_address(
    openai: Vendor, server: str, sent: int
) -> None:
    body, _ = await send(openai, PromptMessage("user", "Look.", images=(LINK,)), server=server)
    assert str(body["messages"]).count(LINK.url) == sent


async def test_images_survive_a_strict_message_shape(openai: Vendor) -> None:
    abilities = ServerAbilities(models={openai_server.MODEL: ModelAbilities(shape="alternating")})
    messages = [PromptMessage("user", "a", images=(PHOTO,)), PromptMessage("user", "b")]
    body, _ = await send(openai, *messages, abilities=abilities)
    ((text, image),) = [each["content"] for each in body["messages"]]
    assert (text["text"], image["type"]) == ("a\n\nb", "image_url")


async def test_a_refusal_of_images_is_remembered_and_the_reply_comes_without_them(
    openai: Vendor,
) -> None:
    learned: list[ServerAbilities] = []
    openai.server.script(openai.failed(400, "Model does not support images."))
    photo = PromptMessage("user", "Look.", images=(PHOTO,))
    body, pieces = await send(openai, photo, on_learned=learned.append)
    assert body["messages"] == [{"role": "user", "content": "Look."}]
    assert pieces[0] == SentRequest(images_left_out=1)
    assert learned[-1].find(openai_server.MODEL).images == "none"
    asked = len(openai.server.requests)
    body, pieces = await send(openai, photo, abilities=learned[-1])
    assert (pieces[0], len(openai.server.requests)) == (SentRequest(images_left_out=1), asked + 1)


async def test_a_refusal_of_one_broken_image_is_an_error(openai: Vendor) -> None:
    openai.server.script(openai.failed(400, "You uploaded an unsupported image."))
    stream = openai.connect().stream(
        Prompt([PromptMessage("user", "Look.", images=(PHOTO,))]), Sampling()
    )
    with pytest.raises(ModelRequestError):
        [piece async for piece in stream]


async def test_openai_gets_tool_messages_in_their_place(openai: Vendor) -> None:
    start, end = PromptMessage("user", "Look.", name="Ada"), PromptMessage("user", "And now?")
    body, _ = await send(openai, start, CALLED, end, tools=[LOOK])
    asked, asks, told, last = body["messages"]
    assert (asked["name"], asks["content"]) == ("Ada", "I look.")
    assert asks["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "door"}'}
    assert told == {"role": "tool", "tool_call_id": "call-1", "content": "It is shut."}
    assert last == {"role": "user", "content": "And now?"}


async def test_anthropic_gets_results_before_the_next_line(anthropic: Vendor) -> None:
    body, _ = await send(
        anthropic, PromptMessage("user", "Look."), CALLED, PromptMessage("user", "And now?")
    )
    _, asks, told = body["messages"]
    assert asks["content"][-1] == {
        "type": "tool_use",
        "id": "call-1",
        "name": "look",
        "input": {"at": "door"},
    }
    assert told["content"] == [
        {"type": "tool_result", "tool_use_id": "call-1", "content": "It is shut."},
        {"type": "text", "text": "And now?"},
    ]


async def test_gemini_gets_the_text_before_a_call_in_the_same_turn(gemini: Vendor) -> None:
    body, _ = await send(
        gemini, PromptMessage("user", "Look."), PromptMessage("assistant", "Hm."), CALLED
    )
    _, asks, told = body["contents"]
    assert [*asks["parts"]] == [
        {"text": "Hm."},
        {"text": "I look."},
        {"functionCall": {"name": "look", "args": {"at": "door"}}},
    ]
    (part,) = told["parts"]
    assert part["functionResponse"] == {"name": "look", "response": {"output": "It is shut."}}


NAMED = ToolChoice("named", "look")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice("none"), "none"),
        (ToolChoice("required"), "required"),
        (NAMED, {"type": "function", "function": {"name": "look"}}),
        (ToolChoice(), None),
    ],
)
async def test_openai_gets_the_choice_of_a_tool(
    openai: Vendor, choice: ToolChoice, sent: Any
) -> None:
    line = PromptMessage("user", "Look.")
    body, _ = await send(openai, line, tools=[LOOK], options=RequestOptions(tool_choice=choice))
    assert body.get("tool_choice") == sent


async def test_gemini_gets_the_choice_of_a_tool(gemini: Vendor) -> None:
    line = PromptMessage("user", "Look.")
    body, _ = await send(gemini, line, tools=[LOOK], options=RequestOptions(tool_choice=NAMED))
    assert body["toolConfig"]["functionCallingConfig"] == {
        "mode": "ANY",
        "allowedFunctionNames": ["look"],
    }


async def test_claude_does_not_think_before_a_forced_call(anthropic: Vendor) -> None:
    line = PromptMessage("user", "Look.")
    body, pieces = await send(
        anthropic,
        line,
        tools=[LOOK],
        options=RequestOptions(tool_choice=NAMED),
        sampling=Sampling(reasoning_effort="high"),
    )
    assert body["tool_choice"] == {"type": "tool", "name": "look"}
    assert not {"thinking", "output_config"}.intersection(body)
    assert pieces[0] == SentRequest(left_out=("reasoning_effort",))


async def test_each_vendor_is_asked_for_json_in_its_own_way(
    openai: Vendor, gemini: Vendor, anthropic: Vendor
) -> None:
    line = PromptMessage("user", "Who?")
    form = RequestOptions(form=JsonForm(schema=SCHEMA, name="who", strict=True))
    body, _ = await send(openai, line, options=form)
    assert body["response_format"]["json_schema"] == {
        "name": "who",
        "schema": SCHEMA,
        "strict": True,
    }
    body, _ = await send(gemini, line, options=form)
    assert body["generationConfig"]["responseJsonSchema"] == SCHEMA
    body, _ = await send(anthropic, line, options=form)
    assert body["output_config"]["format"]["schema"]["properties"] == SCHEMA["properties"]


async def test_each_vendor_is_asked_for_any_object_in_its_own_way(
    openai: Vendor, gemini: Vendor, anthropic: Vendor
) -> None:
    line = PromptMessage("user", "Who?")
    form = RequestOptions(form=JsonForm())
    body, _ = await send(openai, line, options=form)
    assert body["response_format"] == {"type": "json_object"}
    body, _ = await send(gemini, line, options=form)
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    body, _ = await send(anthropic, line, options=form)
    assert "JSON object" in body["system"][-1]["text"]


async def test_further_members_never_replace_ours(openai: Vendor) -> None:
    extra: dict[str, Any] = {"model": "another", "messages": [], "stream": False, "mirostat": 2}
    body, _ = await send(
        openai, PromptMessage("user", "Hello."), options=RequestOptions(extra=extra)
    )
    assert (body["model"], body["stream"], body["mirostat"]) == (openai_server.MODEL, True, 2)
    assert body["messages"] != []
