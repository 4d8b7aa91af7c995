"""The arguments and the ids of tool calls, as models and servers write them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.adapters import anthropic, gemini
from backend.generation.adapters.anthropic import MessageReader
from backend.generation.adapters.gemini import ResponseReader
from backend.generation.json_text import ValueProgress, find_values
from backend.generation.model import Prompt, PromptMessage, ToolCall, ToolRound
from backend.generation.sampling import Sampling
from backend.generation.tools.calls import (
    MAX_ARGUMENTS,
    TOO_LONG_PROBLEM,
    assign_distinct_ids,
    make_ids_distinct,
    read_calls,
)

HIT: dict[str, Any] = {"target": "Anna", "damage": "1d2+2"}
TEXT = json.dumps(HIT)


def arguments_of(arguments: object) -> list[Any]:
    """The arguments of each call, or its problem."""
    return [call.problem or call.arguments for call in read_calls("damage", arguments)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(TEXT, id="JSON"),
        pytest.param(HIT, id="an object"),
        pytest.param([HIT], id="a list of one"),
        pytest.param(f"\ufeff {TEXT}\n", id="white space"),
        pytest.param(f"```json\n{TEXT}\n```", id="a code fence"),
        pytest.param(f"```{TEXT}```", id="a code fence in one line"),
        pytest.param(json.dumps(TEXT), id="encoded twice"),
        pytest.param(json.dumps(json.dumps(TEXT)), id="encoded three times"),
        pytest.param(json.dumps(f"```json\n{TEXT}\n```"), id="a code fence, encoded twice"),
        pytest.param(f"{TEXT[:-1]},}}", id="a trailing comma"),
        pytest.param(f"{TEXT},", id="a comma after the object"),
        pytest.param(f"Here you are: {TEXT} That's [all] of it.", id="words around it"),
        pytest.param(f"<arguments>{TEXT}</arguments>", id="tags around it"),
        pytest.param(str(HIT), id="single quotation marks"),
        pytest.param(f"{TEXT[:-1]} // a hit\n}}", id="a comment"),
        pytest.param(f"{{}}{TEXT}", id="an empty object before it"),
        pytest.param(f"{TEXT}{{}}", id="an empty object after it"),
        pytest.param(f"{TEXT}\n{TEXT}", id="sent again"),
    ],
)
def test_arguments_are_read_in_every_form(arguments: object) -> None:
    assert arguments_of(arguments) == [HIT]


@pytest.mark.parametrize(
    "arguments",
    ["", " \n", None, "null", "None", "{}", "[]", {}, [], '""', '"{}"', "```json\n{}\n```"],
)
def test_no_arguments_are_read_in_every_form(arguments: object) -> None:
    assert arguments_of(arguments) == [{}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'ends': True, 'why': None, 'dead': False,}", {"ends": True, "why": None, "dead": False}),
        ("""{'says': 'It\\'s "late"'}""", {"says": 'It\'s "late"'}),
        ('{"says": "It\\\'s, }late{"}', {"says": "It's, }late{"}),
        ('{"says": "one\ntwo"}', {"says": "one\ntwo"}),
        ("{'path': 'C:\\\\x'}", {"path": "C:\\x"}),
        ('{"url": "http://x//y",}', {"url": "http://x//y"}),
        ('{"list": [1, 2,], "deep": {"a": [],},}', {"list": [1, 2], "deep": {"a": []}}),
    ],
)
def test_what_is_almost_json_keeps_its_meaning(text: str, value: Any) -> None:
    assert arguments_of(text) == [value]


def test_objects_that_a_server_has_joined_are_calls_of_their_own() -> None:
    harder = {**HIT, "damage": "1d2+4"}

    calls = read_calls("damage", f"{TEXT}{json.dumps(harder)}", call_id="a", vendor_state="kept")

    assert [call.arguments for call in calls] == [HIT, harder]
    assert [call.vendor_state for call in calls] == ["kept", None]
    assert calls[0].id == "a"
    assert calls[1].id not in {"", "a"}


@pytest.mark.parametrize(
    "arguments",
    [
        "Anna",
        '{"target": "Anna"',
        "{'target': 'Anna's'}",
        '{"target": NaN}',
        '{"target": Anna}',
        "[1]",
        "7",
        '"Anna"',
        "[" * 100_0,
        [HIT, HIT],
        7,
        json.dumps(json.dumps(json.dumps(TEXT))),
    ],
)
def test_arguments_that_cannot_be_read_are_a_problem(arguments: object) -> None:
    (call,) = read_calls("damage", arguments)

    assert call.arguments == {}
    assert call.problem.endswith(".")


@pytest.mark.parametrize("arguments", [json.dumps("x" * MAX_ARGUMENTS), {"a": "x" * MAX_ARGUMENTS}])
def test_arguments_have_a_largest_size(arguments: object) -> None:
    assert arguments_of(arguments) == [TOO_LONG_PROBLEM]


@pytest.mark.parametrize(
    "text", ["{'", "'\\", "{'\\'", "[", "{}", '"\\', "{//", "{/", "x{,", '{"a": \'', "[1]"]
)
def test_arguments_are_read_in_proportion_to_their_length(text: str) -> None:
    begun = time.process_time()
    read_calls("damage", text * (MAX_ARGUMENTS // len(text)))

    assert time.process_time() - begun < 2


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    )
)
def test_an_object_is_found_in_other_words(value: Any) -> None:
    assert find_values(f"So: {json.dumps({'value': value})} Done")[0] == {"value": value}


@pytest.mark.parametrize(
    ("text", "is_complete"),
    [
        (TEXT, True),
        (f"```json\n{TEXT}", True),
        (f"```json\n{TEXT}\n```", True),
        (f'He said "go": {TEXT}', True),
        (json.dumps(TEXT), True),
        (str(HIT), True),
        ('{"a": {"b": 1}', False),
        ('{"a": "}', False),
        ('{"a": "\\"}', False),
        ('He said "go": ', False),
        (json.dumps(TEXT)[:-1], False),
        ("{}", False),
        ("```json\n", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_value_is_seen_to_end(text: str, is_complete: bool, size: int) -> None:
    progress = ValueProgress()
    for at in range(0, len(text), size):
        progress.feed(text[at : at + size])

    assert progress.is_complete == is_complete


def calls_with(*ids: str) -> list[ToolCall]:
    return [ToolCall(each, "roll", {}) for each in ids]


def test_calls_with_one_id_get_ids_of_their_own() -> None:
    ids = [call.id for call in assign_distinct_ids(calls_with("a", "a", "b", "a"))]

    assert ids[0] == "a"
    assert ids[2] == "b"
    assert len(set(ids)) == 4
    # One that a call of the server's has by chance is not used again.
    assert len({call.id for call in assign_distinct_ids(calls_with(*ids, *ids))}) == 8


def test_the_ids_of_a_prompt_s_rounds_are_distinct_and_stay_the_same() -> None:
    rounds = [ToolRound(calls_with("a", "a"), [1, 2]), ToolRound(calls_with("a", "b"), [3, 4])]

    first = make_ids_distinct(rounds[:1])
    both = make_ids_distinct(rounds)

    assert [call.id for call in first[0].calls] == [call.id for call in both[0].calls]
    assert len({call.id for each in both for call in each.calls}) == 4
    assert [list(each.results) for each in both] == [[1, 2], [3, 4]]


def test_an_id_that_is_made_up_is_one_that_mistral_accepts() -> None:
    (call,) = read_calls("roll", {})

    assert len(call.id) == 9
    assert call.id.isalnum()


def test_many_calls_with_one_id_take_time_in_proportion() -> None:
    begun = time.process_time()
    assert len({call.id for call in assign_distinct_ids(calls_with(*["a"] * 20_000))}) == 20_000

    assert time.process_time() - begun < 2


def anthropic_calls(*events: dict[str, Any]) -> list[tuple[str, Any]]:
    reader = MessageReader()
    pieces = [piece for event in events for piece in reader.read_event(event).pieces]
    pieces += reader.close()
    return [
        (piece.name, piece.problem or piece.arguments)
        for piece in pieces
        if isinstance(piece, ToolCall)
    ]


def started(call_id: str, index: int | None = 0, given: object = None) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "tool_use",
        "id": call_id,
        "name": "damage",
        "input": given or {},
    }
    return {"type": "content_block_start", "index": index, "content_block": block}


def added(part: object, index: int | None = 0) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": part}
    return {"type": "content_block_delta", "index": index, "delta": delta}


STOP = {"type": "content_block_stop", "index": 0}
END = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [started("a"), added(TEXT), STOP, started("b"), added(TEXT), STOP, END],
            id="one index, one after the other",
        ),
        pytest.param(
            [started("a"), added(TEXT), started("b"), added(TEXT), END], id="no end of a block"
        ),
        pytest.param(
            [started("a", None), added(TEXT, None), started("b", None), added(TEXT, None), END],
            id="no index",
        ),
        pytest.param(
            [started("x", 0), started("x", 1), added(TEXT, 1), added(TEXT, 0), END],
            id="one id, mixed",
        ),
        pytest.param([started("a", 0, HIT), started("b", 1, HIT), END], id="whole at the start"),
        pytest.param([started("a", 0, TEXT), started("b", 1, TEXT), END], id="text at the start"),
        pytest.param([started("a"), added(HIT), started("b"), added(HIT), END], id="objects"),
        pytest.param(
            [started("a"), added("{}"), added(TEXT), started("b"), added(f"```\n{TEXT}\n```"), END],
            id="an empty object first, and a code fence",
        ),
        pytest.param([started("a"), added(TEXT), started("b"), added(TEXT)], id="no end at all"),
    ],
)
def test_blocks_of_servers_that_imitate_anthropic_are_calls(events: list[dict[str, Any]]) -> None:
    assert anthropic_calls(*events) == [("damage", HIT)] * 2


def test_calls_with_one_id_go_back_to_anthropic_with_ids_of_their_own() -> None:
    rounds = [ToolRound(calls_with("x", "x"), [1, 2]), ToolRound(calls_with("x"), [3])]
    prompt = Prompt([PromptMessage("user", "I duck.")], rounds)

    sent = anthropic.build_request_body(
        prompt, Sampling(), start="", max_output_tokens=99, is_adaptive=False
    )

    blocks = [block for message in sent["messages"][1:] for block in message["content"]]
    asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    answered = {block["tool_use_id"]: block["content"] for block in blocks if "content" in block}
    assert asked[0] == "x"
    assert [answered[call_id] for call_id in asked] == ["1", "2", "3"]


def gemini_calls(*calls: dict[str, Any]) -> list[ToolCall]:
    parts = [{"functionCall": call} for call in calls]
    answer = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    pieces = ResponseReader().read_event(answer).pieces
    return [piece for piece in pieces if isinstance(piece, ToolCall)]


@pytest.mark.parametrize("args", [HIT, TEXT, f"```json\n{TEXT}\n```", json.dumps(TEXT), [HIT]])
def test_arguments_from_gemini_are_read_in_every_form(args: object) -> None:
    calls = gemini_calls({"name": "damage", "args": args}, {"name": "look", "args": None})

    assert [(call.name, call.arguments) for call in calls] == [("damage", HIT), ("look", {})]


def test_an_id_that_several_calls_have_does_not_go_back_to_gemini() -> None:
    calls = gemini_calls(*({"name": "roll", "args": HIT, "id": each} for each in ("x", "x", "y")))
    prompt = Prompt([PromptMessage("user", "I duck.")], [ToolRound(calls, [1, 2, 3])])

    asked, answered = gemini.build_request_body(
        prompt, Sampling(), thinks=False, show_thoughts=False
    )["contents"][1:]

    for turn, member in ((asked, "functionCall"), (answered, "functionResponse")):
        assert [part[member].get("id") for part in turn["parts"]] == [None, None, "y"]


def test_of_an_answer_without_an_end_a_bounded_part_is_kept_for_the_next_request() -> None:
    reader = MessageReader()
    for index in range(anthropic.MAX_BLOCKS + 500):
        block = {"type": "thinking", "thinking": ""}
        reader.read_event({"type": "content_block_start", "index": index, "content_block": block})
    signed = {
        "type": "signature_delta",
        "signature": "x" * (anthropic.MAX_SIGNATURE_CHARACTERS // 4),
    }
    for _ in range(50):
        reader.read_event({"type": "content_block_delta", "index": 0, "delta": signed})
    reader.close()
    call = started("1")["content_block"]
    answer = {"content": [call], "stop_reason": "tool_use"}

    [piece] = reader.read_whole(answer).pieces
    assert isinstance(piece, ToolCall)
    thoughts = piece.vendor_state["thoughts"]
    assert len(thoughts) == anthropic.MAX_BLOCKS
    assert len(thoughts[0]["signature"]) < 2 * anthropic.MAX_SIGNATURE_CHARACTERS
