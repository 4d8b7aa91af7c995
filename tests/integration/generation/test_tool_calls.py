"""Tests of tool calls within a streamed reply."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from backend.generation.catalogue import ToolSupport
from backend.generation.model import (
    ChatModel,
    Finish,
    ModelEmptyReplyError,
    ModelInterruptedError,
    ModelRequestError,
    ModelUnavailableError,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.sampling import Sampling
from backend.generation.tools.calls import MAX_ARGUMENTS, MAX_CALLS, TOO_LONG_PROBLEM
from backend.generation.tools.streams import choose_tool_support, stream_with_tools
from tests.fakes import gemini_server, openai_server
from tests.fakes.openai_server import DONE, chunk, stream, tool_call
from tests.fakes.scripted_server import Answer, Break, Gate, Silence
from tests.integration.generation.conftest import Vendor
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("system", "You run the game."), PromptMessage("user", "I duck.")])
PLAIN = Sampling()
ROLL = Tool(
    name="roll",
    description="Roll dice.",
    parameters={"type": "object", "properties": {"dice": {"type": "integer"}}},
)
CALL = ("roll", {"dice": 2})
ANSWER = json.dumps({"narration": "He ducks.", "calls": [{"tool": "roll", "arguments": CALL[1]}]})
BLOCK = 'He ducks.\n```tools\n[{"tool": "roll", "arguments": {"dice": 2}}]\n```'


async def play(
    model: ChatModel, *rounds: ToolRound, support: ToolSupport | None = None, tools: int = 1
) -> list[Piece]:
    prompt = Prompt(PROMPT.messages, rounds)
    pieces = stream_with_tools(model, prompt, [ROLL] * tools, PLAIN, support)
    return [piece async for piece in pieces]


def find_calls(pieces: list[Piece]) -> list[tuple[str, Any]]:
    return [(piece.name, piece.arguments) for piece in pieces if isinstance(piece, ToolCall)]


def find_problem(pieces: list[Piece]) -> str:
    (call,) = (piece for piece in pieces if isinstance(piece, ToolCall))
    assert call.arguments == {}
    return call.problem


def join_text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def sent(vendor: Vendor) -> Any:
    return vendor.server.requests[-1].body


async def test_a_call_is_one_piece_after_the_text_before_it(vendor: Vendor) -> None:
    vendor.server.script(vendor.called(CALL, text="He ducks."))
    said, call, usage, finish = await play(vendor.connect())
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.arguments, call.problem) == ("call-0", *CALL, "")
    assert (said, finish) == (TextPiece("He ducks."), Finish("tool_calls"))
    assert usage == TokenUsage(prompt_tokens=12, completion_tokens=2)
    assert "roll" in json.dumps(sent(vendor)["tools"])


async def test_several_calls_come_in_order_and_without_a_word(vendor: Vendor) -> None:
    calls = [("roll", {"dice": number, "why": "“fear”"}) for number in range(3)]
    vendor.server.script(vendor.called(*calls))
    pieces = await play(vendor.connect())
    assert find_calls(pieces) == calls
    assert len({piece.id for piece in pieces if isinstance(piece, ToolCall)}) == 3
    assert join_text(pieces) == ""


async def test_a_plain_stream_offers_no_tools(vendor: Vendor) -> None:
    pieces = await play(vendor.connect(), tools=0)
    assert join_text(pieces) == "The rain has stopped."
    assert pieces[-1] == Finish("stop")
    assert "tools" not in sent(vendor)


async def test_streamed_calls_go_back_with_their_results(vendor: Vendor) -> None:
    vendor.server.script(vendor.called(CALL, CALL, text="He ducks."))
    model = vendor.connect()
    calls = [piece for piece in await play(model) if isinstance(piece, ToolCall)]

    await play(model, ToolRound(calls, [{"rolled": 6}, "nothing"], text="He ducks."))

    if "contents" in sent(vendor):
        assert sent(vendor)["contents"][1:] == [
            gemini_turn(
                "model",
                gemini_server.text_part("He ducks."),
                gemini_server.call_part(*CALL, call_id="call-0", signature="c2lnbmF0dXJl"),
                gemini_server.call_part(*CALL, call_id="call-1"),
            ),
            gemini_turn(
                "user",
                gemini_answer("call-0", {"rolled": 6}),
                gemini_answer("call-1", {"output": "nothing"}),
            ),
        ]
    elif "system" in sent(vendor):
        assert sent(vendor)["messages"][1:] == [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "He ducks."},
                    *(
                        {"type": "tool_use", "id": f"call-{n}", "name": "roll", "input": CALL[1]}
                        for n in range(2)
                    ),
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call-0", "content": '{"rolled": 6}'},
                    {"type": "tool_result", "tool_use_id": "call-1", "content": "nothing"},
                ],
            },
        ]
    else:
        assert sent(vendor)["messages"][2:] == [
            {
                "role": "assistant",
                "content": "He ducks.",
                "tool_calls": [tool_call(*CALL, call_id=f"call-{n}") for n in range(2)],
            },
            {"role": "tool", "tool_call_id": "call-0", "content": '{"rolled": 6}'},
            {"role": "tool", "tool_call_id": "call-1", "content": "nothing"},
        ]


def gemini_turn(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def gemini_answer(call_id: str, response: dict[str, Any]) -> dict[str, Any]:
    return {"functionResponse": {"id": call_id, "name": "roll", "response": response}}


async def test_a_call_without_a_name_is_answered_in_words(vendor: Vendor) -> None:
    call = ToolCall("c1", "", {}, problem="broken")
    await play(vendor.connect(), ToolRound([call], [{"error": "What was that?"}]))
    body = sent(vendor)
    *_, last = body.get("contents") or body["messages"]
    assert last["role"] == "user"
    assert "What was that?" in json.dumps(last)
    assert "c1" not in json.dumps(body)


async def test_more_calls_than_there_may_be_are_passed_over(vendor: Vendor) -> None:
    vendor.server.script(vendor.called(*[CALL] * (MAX_CALLS + 2)))
    assert len(find_calls(await play(vendor.connect()))) == MAX_CALLS


async def test_arguments_that_are_too_long_are_a_problem(vendor: Vendor) -> None:
    long = ("roll", {"why": "x" * MAX_ARGUMENTS})
    vendor.server.script(vendor.called(long, **({} if is_gemini(vendor) else {"size": 10_000})))
    assert find_problem(await play(vendor.connect())) == TOO_LONG_PROBLEM


async def test_arguments_that_are_nested_too_deeply_are_a_problem(vendor: Vendor) -> None:
    nested: dict[str, Any] = {}
    for _ in range(100):
        nested = {"a": nested}
    vendor.server.script(vendor.called(("roll", nested)))
    assert "nested" in find_problem(await play(vendor.connect()))


async def test_a_stream_that_breaks_off_amid_a_call_is_an_interruption(vendor: Vendor) -> None:
    events = vendor.called(CALL).events or ()
    vendor.server.script(Answer(events=[vendor.said("He"), *events[:-3], Break()]))
    with pytest.raises(ModelInterruptedError):
        await play(vendor.connect())


async def test_a_text_of_a_schema_streams(vendor: Vendor) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    vendor.server.script(vendor.reply('{"a"', ": 1}"))
    pieces = [piece async for piece in vendor.connect().stream(PROMPT, PLAIN, schema=schema)]
    assert pieces[:2] == [TextPiece('{"a"'), TextPiece(": 1}")]
    assert '"properties": {"a": {"type": "integer"}}' in json.dumps(sent(vendor))


@pytest.mark.parametrize(
    ("support", "reply"), [("structured", ANSWER), ("fenced", BLOCK)], ids=["structured", "fenced"]
)
async def test_calls_are_read_out_of_the_text(
    vendor: Vendor, support: ToolSupport, reply: str
) -> None:
    vendor.server.script(vendor.reply(*(reply[at : at + 4] for at in range(0, len(reply), 4))))
    pieces = await play(vendor.connect(), support=support)
    assert join_text(pieces).strip() == "He ducks."
    assert find_calls(pieces) == [CALL]
    assert [type(piece) for piece in pieces[-3:]] == [ToolCall, TokenUsage, Finish]
    assert pieces[-1] == Finish("tool_calls")
    assert "Roll dice." in json.dumps(sent(vendor))
    assert "tools" not in sent(vendor)
    assert ("additionalProperties" in json.dumps(sent(vendor))) == (support == "structured")


@pytest.mark.parametrize("support", ["structured", "fenced"])
async def test_rounds_of_such_calls_go_back_as_messages(
    vendor: Vendor, support: ToolSupport
) -> None:
    vendor.server.script(vendor.reply(ANSWER if support == "structured" else BLOCK))
    model = vendor.connect()
    calls = [piece for piece in await play(model, support=support) if isinstance(piece, ToolCall)]
    vendor.server.script(vendor.reply("The end."))

    pieces = await play(
        model, ToolRound(calls, [{"rolled": 6}], "He ducks."), support=support, tools=0
    )

    assert join_text(pieces) == "The end."
    told = json.dumps(sent(vendor))
    assert "He ducks." in told
    assert "rolled" in told
    assert "Roll dice." not in told
    assert "functionCall" not in told
    assert "tool_calls" not in told


async def test_narration_is_handed_on_before_the_answer_is_complete(vendor: Vendor) -> None:
    gate = Gate()
    vendor.server.script(
        Answer(
            events=[
                vendor.thought("Hm."),
                vendor.said('{"narration": "He'),
                gate,
                vendor.said(' ducks.", "calls": []}'),
                *vendor.ended,
            ]
        )
    )

    pieces = stream_with_tools(vendor.connect(), PROMPT, [ROLL], PLAIN, "structured")
    async with aclosing(pieces):
        assert await anext(pieces) == ThinkingPiece("Hm.")
        assert await anext(pieces) == TextPiece("He")
        gate.opened.set()
        assert await anext(pieces) == TextPiece(" ducks.")


@pytest.mark.parametrize("support", ["native", "structured", "fenced"])
async def test_closing_the_stream_early_hangs_up(vendor: Vendor, support: ToolSupport) -> None:
    vendor.server.script(Answer(events=[vendor.said('{"narration": "He'), Silence()]))
    pieces = stream_with_tools(vendor.connect(), PROMPT, [ROLL], PLAIN, support)
    async with aclosing(pieces):
        await anext(pieces)
    await asyncio.wait_for(vendor.server.hung_up.wait(), timeout=PATIENCE)


@pytest.mark.parametrize(
    ("support", "reply"),
    [
        ("structured", "{}"),
        ("structured", '{"narration": "", "calls": []}'),
        ("fenced", "\n```tools\n[]\n```"),
    ],
)
async def test_an_answer_with_neither_narration_nor_calls_is_empty(
    vendor: Vendor, support: ToolSupport, reply: str
) -> None:
    vendor.server.script(vendor.reply(reply))
    with pytest.raises(ModelEmptyReplyError):
        await play(vendor.connect(), support=support)


async def test_a_reply_cut_at_the_limit_says_so(vendor: Vendor) -> None:
    finish = "MAX_TOKENS" if is_gemini(vendor) else "length"
    vendor.server.script(vendor.reply(ANSWER[:-5], finish=finish))
    pieces = await play(vendor.connect(), support="structured")
    assert join_text(pieces) == "He ducks."
    assert find_problem(pieces)
    assert pieces[-1] == Finish("length")


@pytest.mark.parametrize(("refusals", "support"), [(1, "structured"), (2, "fenced")])
async def test_a_refused_way_of_calling_tools_is_replaced_and_remembered(
    vendor: Vendor, refusals: int, support: ToolSupport
) -> None:
    model = vendor.connect()
    reply = ANSWER if support == "structured" else BLOCK
    assert choose_tool_support(model) == "native"
    vendor.server.script(*[vendor.failed(400, "no tools")] * refusals, vendor.reply(reply))
    assert find_calls(await play(model)) == [CALL]
    assert choose_tool_support(model) == support
    assert choose_tool_support(vendor.connect()) == "native"
    vendor.server.requests.clear()
    vendor.server.script(vendor.reply(reply))
    assert find_calls(await play(model)) == [CALL]
    assert len(vendor.server.requests) == 1


async def test_a_request_that_is_refused_in_every_way_is_the_first_refusal(vendor: Vendor) -> None:
    model = vendor.connect()
    vendor.server.script(*(vendor.failed(status, "no") for status in (422, 400, 415)))
    with pytest.raises(ModelRequestError, match="422"):
        await play(model)
    assert len(vendor.server.requests) == 3
    assert choose_tool_support(model) == "native"


async def test_without_tools_a_refusal_is_one(vendor: Vendor) -> None:
    vendor.server.script(vendor.failed(400, "no"))
    with pytest.raises(ModelRequestError):
        await play(vendor.connect(), tools=0)
    assert len(vendor.server.requests) == 1


async def test_a_server_that_fails_has_not_refused_tools(vendor: Vendor) -> None:
    model = vendor.connect()
    vendor.server.script(vendor.failed(503, "later"))
    with pytest.raises(ModelUnavailableError):
        await play(model)
    assert (len(vendor.server.requests), choose_tool_support(model)) == (1, "native")


@pytest.mark.parametrize(
    "message", ["tools param requires --jinja flag", "Unsupported param: tools"]
)
async def test_llama_cpp_refuses_tools_with_a_status_of_its_own(
    openai: Vendor, message: str
) -> None:
    model = openai.connect()
    refusal = openai_server.error(500, message=message, code="500", kind="server_error")
    openai.server.script(refusal, openai.reply(ANSWER))
    assert find_calls(await play(model)) == [CALL]
    assert choose_tool_support(model) == "structured"


def is_gemini(vendor: Vendor) -> bool:
    return vendor.connect().spec.provider == "gemini"


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
async def test_a_call_that_gemini_could_not_read_is_a_problem(gemini: Vendor, reason: str) -> None:
    gemini.server.script(
        gemini_server.stream(
            gemini_server.chunk(gemini_server.text_part("He ducks.")),
            gemini_server.chunk(finish=reason),
        )
    )
    pieces = await play(gemini.connect())
    assert reason in find_problem(pieces)
    assert pieces[-1] == Finish("tool_calls")


async def test_a_server_s_own_members_of_a_call_go_back_with_it(openai: Vendor) -> None:
    extra: dict[str, Any] = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    begun = tool_call(*CALL, call_id="c1", index=0, **extra)
    openai.server.script(stream(chunk(tool_calls=[begun]), chunk("tool_calls"), DONE))
    model = openai.connect()
    calls = [piece for piece in await play(model) if isinstance(piece, ToolCall)]
    await play(model, ToolRound(calls, ["six"]))
    assert sent(openai)["messages"][2]["tool_calls"] == [tool_call(*CALL, call_id="c1", **extra)]


@pytest.mark.parametrize("thoughts", [["Hm", "m."], [""]])
async def test_thoughts_go_back_with_the_calls_that_followed_from_them(
    openai: Vendor, thoughts: list[str]
) -> None:
    begun = tool_call(*CALL, call_id="c1", index=0)
    told = [chunk(reasoning_content=text) for text in thoughts]
    openai.server.script(stream(*told, chunk(tool_calls=[begun]), chunk("tool_calls"), DONE))
    model = openai.connect()
    calls = [piece for piece in await play(model) if isinstance(piece, ToolCall)]
    await play(model, ToolRound(calls, ["six"]))
    assert sent(openai)["messages"][2] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "".join(thoughts),
        "tool_calls": [tool_call(*CALL, call_id="c1")],
    }


@pytest.mark.parametrize("support", ["native", "structured", "fenced"])
async def test_a_model_that_has_called_and_says_no_more_has_finished(
    vendor: Vendor, support: ToolSupport
) -> None:
    call = ToolCall("c1", *CALL)
    vendor.server.script(vendor.reply())
    pieces = await play(vendor.connect(), ToolRound([call], ["six"], "He ducks."), support=support)
    assert pieces == [Finish("stop")]


@pytest.mark.parametrize("arguments", ['{"dice": ', "[2]", '"two"', "{dice: 2}"])
async def test_broken_arguments_are_a_problem_and_go_back_as_none(
    openai: Vendor, arguments: str
) -> None:
    openai.server.script(openai_server.called(("roll", arguments), text="He ducks."))
    model = openai.connect()
    pieces = await play(model)
    assert find_problem(pieces)
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    await play(model, ToolRound(calls, [{"error": calls[0].problem}], "He ducks."))
    assert sent(openai)["messages"][2]["tool_calls"] == [tool_call("roll", {}, call_id="call-0")]


async def test_calls_without_ids_get_one_each(openai: Vendor) -> None:
    fragments = [tool_call(*CALL, call_id="", index=index) for index in range(2)]
    openai.server.script(stream(chunk(tool_calls=fragments), chunk("stop"), DONE))
    pieces = await play(openai.connect())
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert find_calls(pieces) == [CALL, CALL]
    assert len({call.id for call in calls} - {""}) == 2
    assert [call.vendor_state["id"] for call in calls] == [call.id for call in calls]
    assert pieces[-1] == Finish("tool_calls")
