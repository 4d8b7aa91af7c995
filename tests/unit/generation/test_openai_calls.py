"""Calls out of fragments, as servers in the wild send them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.adapters.openai.mapping import CallFragments
from backend.generation.tools.calls import MAX_CALLS

NAMES = ("roll", "look", "roll_again", "damage")


def read(*chunks: Any) -> list[tuple[str, Any]]:
    return read_messages(*({"role": "assistant", "tool_calls": each} for each in chunks))


def read_messages(*messages: Any, is_whole: bool = False) -> list[tuple[str, Any]]:
    calls = CallFragments(NAMES)
    for message in messages:
        calls.add(message, is_whole=is_whole)
    found = calls.finish()
    assert len({call.id for call in found} - {""}) == len(found)
    for call in found:
        sent = call.vendor_state
        assert sent["id"] == call.id
        assert json.loads(sent["function"]["arguments"]) == call.arguments
    return [(call.name, call.problem or call.arguments) for call in found]


def fragment(arguments: Any = "", **members: Any) -> dict[str, Any]:
    function = {"arguments": arguments}
    if "name" in members:
        function["name"] = members.pop("name")
    return {**members, "function": function}


ROLL = ("roll", {"dice": 2})
BARE: tuple[str, Any] = ("roll", {})
LOOK: tuple[str, Any] = ("look", {})
NAMELESS: tuple[str, Any] = ("", {})
HEAD, TAIL = '{"dice"', ": 2}"
TAKEN = HEAD + TAIL
FIRST, SECOND = '{"target": "Anna", "damage": "1d2+2"}', '{"target": "Anna", "damage": "1d2+4"}'
HITS: list[tuple[str, Any]] = [("damage", json.loads(each)) for each in (FIRST, SECOND)]


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        pytest.param(
            [[fragment(HEAD, index=0, id="a", name="roll")], [fragment(TAIL, index=0)]],
            [ROLL],
            id="as OpenAI does",
        ),
        pytest.param(
            [[fragment(HEAD, index=0, id="a", name="roll")], [fragment(TAIL, index=0, id="a")]],
            [ROLL],
            id="the id in each fragment",
        ),
        pytest.param(
            [
                [fragment(HEAD, index=0, id="a", name="roll")],
                [fragment(TAIL, index=0, id="", name="roll")],
            ],
            [ROLL],
            id="the name in each fragment",
        ),
        pytest.param(
            [[fragment(HEAD + TAIL, index=0, id="a", name="roll")]], [ROLL], id="in one chunk"
        ),
        pytest.param(
            [
                [
                    fragment(HEAD + TAIL, index=0, id="a", name="roll"),
                    fragment(index=1, id="b", name="look"),
                ]
            ],
            [ROLL, LOOK],
            id="several in one chunk",
        ),
        pytest.param(
            [
                [fragment(HEAD, index=0, id="a", name="roll")],
                [fragment("{", index=1, id="b", name="look")],
                [fragment(TAIL, index=0), fragment("}", index=1)],
            ],
            [ROLL, LOOK],
            id="mixed",
        ),
        pytest.param(
            [
                [fragment(HEAD + TAIL, index=0, id="a", name="roll")],
                [fragment("{}", index=0, id="b", name="look")],
            ],
            [ROLL, LOOK],
            id="all under index 0",
        ),
        pytest.param(
            [[fragment(HEAD + TAIL, id="a", name="roll")], [fragment("{}", id="b", name="look")]],
            [ROLL, LOOK],
            id="ids alone",
        ),
        pytest.param(
            [[fragment(HEAD, name="roll")], [fragment(TAIL)], [fragment("{}", name="look")]],
            [ROLL, LOOK],
            id="names alone",
        ),
        pytest.param(
            [[fragment(HEAD, index=0, id="", name="roll")], [fragment(TAIL, index=0, id="late")]],
            [ROLL],
            id="an id that comes late",
        ),
        pytest.param([[fragment({"dice": 2}, index=0, name="roll")]], [ROLL], id="an object"),
        pytest.param([[fragment(None, index=0, name="look")]], [LOOK], id="no arguments"),
        pytest.param([[{"index": 0, "function": None}], None, "x", [7]], [NAMELESS], id="odd"),
        pytest.param(
            [[fragment(FIRST, index=0, name="damage")], [fragment(SECOND, index=0, name="damage")]],
            HITS,
            id="one index and no ids",
        ),
        pytest.param(
            [[fragment(FIRST, index=0, name="damage")], [fragment(FIRST, index=0, name="damage")]],
            [HITS[0]] * 2,
            id="the same hit twice under one index",
        ),
        pytest.param(
            [
                [fragment(FIRST[:9], index=0, name="damage")],
                [fragment(FIRST[9:], index=0)],
                [fragment(SECOND[:9], index=0, name="damage")],
                [fragment(SECOND[9:], index=0)],
            ],
            HITS,
            id="one index, no ids, in fragments",
        ),
        pytest.param(
            [
                [fragment(FIRST[:9], index=0, name="damage")],
                [fragment(FIRST[9:], index=0, name="damage")],
                [fragment("", index=0, name="damage")],
                [fragment(SECOND[:9], index=0, name="damage")],
                [fragment(SECOND[9:], index=0, name="damage")],
            ],
            HITS,
            id="one index, no ids, the name in each fragment",
        ),
        pytest.param(
            [
                [fragment(FIRST, index=0, id="x", name="damage")],
                [fragment(SECOND, index=0, id="x", name="damage")],
            ],
            HITS,
            id="one index and one id",
        ),
        pytest.param(
            [
                [fragment(FIRST[:9], index=0, id="x", name="damage")],
                [fragment(SECOND[:9], index=1, id="x", name="damage")],
                [fragment(FIRST[9:], index=0, id="x"), fragment(SECOND[9:], index=1, id="x")],
            ],
            HITS,
            id="one id for all indexes",
        ),
        pytest.param(
            [[fragment(FIRST, id="x", name="damage"), fragment(SECOND, id="x", name="damage")]],
            HITS,
            id="one id and no index, in one chunk",
        ),
        pytest.param(
            [[fragment(FIRST, name="damage"), fragment(SECOND, name="damage")]],
            HITS,
            id="neither id nor index, in one chunk",
        ),
        pytest.param(
            [[fragment(FIRST, index=0, id="a", name="damage")], [fragment(SECOND, index=0)]],
            HITS,
            id="two objects under one name",
        ),
        pytest.param(
            [[fragment("{}", index=0, name="look")], [fragment("{}", index=0, name="roll")]],
            [LOOK, BARE],
            id="one index, without arguments",
        ),
        pytest.param(
            [[fragment(None, index=0, name="look")], [fragment(TAKEN, index=0, name="roll")]],
            [LOOK, ROLL],
            id="null, then another call under the index",
        ),
        pytest.param(
            [[fragment("{}", index=0, id="a", name="roll")], [fragment(TAKEN, index=0)]],
            [ROLL],
            id="an empty object before the arguments",
        ),
        pytest.param(
            [
                [fragment({}, index=0, id="a", name="roll")],
                [fragment({"dice": 2}, index=0, id="a", name="roll")],
            ],
            [ROLL],
            id="an empty object, then the whole one",
        ),
        pytest.param(
            [
                [fragment(FIRST[:9], index=0, id="a", name="damage")],
                [fragment(SECOND[:9], index=0, id="b", name="damage")],
                [fragment(FIRST[9:], index=0, id="a"), fragment(SECOND[9:], index=0, id="b")],
            ],
            HITS,
            id="one index, told apart by their ids",
        ),
        pytest.param(
            [[fragment(HEAD, index=0, id="a", name="roll")], [fragment(TAIL, index=0, id="b")]],
            [ROLL],
            id="another id for each fragment",
        ),
        pytest.param(
            [[fragment(HEAD, index="0", id="a", name="roll")], [fragment(TAIL, index=0)]],
            [ROLL],
            id="an index that is a text",
        ),
        pytest.param(
            [[fragment(HEAD, index=0, id=7, name="roll")], [fragment(TAIL, index=0, id=7)]],
            [ROLL],
            id="an id that is a number",
        ),
        pytest.param(
            [[fragment(HEAD, index=0, id="a", name="roll")], [fragment(TAIL)]],
            [ROLL],
            id="a fragment without an index",
        ),
        pytest.param(
            [[fragment(HEAD, index=0, id="a", name="roll")], [fragment(TAIL, index=1)]],
            [ROLL],
            id="an index that counts fragments",
        ),
        pytest.param(
            [
                [fragment(index=0, id="a", name="roll")],
                [fragment(index=0, name="_again")],
                [fragment(TAKEN, index=0)],
            ],
            [("roll_again", {"dice": 2})],
            id="the name in fragments",
        ),
        pytest.param(
            [[fragment(index=0, name="ro")], [fragment(TAKEN, index=0, name="ll")]],
            [ROLL],
            id="the name in fragments, the last with arguments",
        ),
        pytest.param(
            [[fragment(index=0, name="look"), fragment(index=0, name="roll")]],
            [LOOK, BARE],
            id="names alone under one index",
        ),
        pytest.param(
            [[fragment(TAKEN, index=0)], [fragment(index=0, name="roll")]],
            [ROLL],
            id="the name after the arguments",
        ),
        pytest.param(
            [[{"index": 0, "id": "a", "name": "roll", "arguments": {"dice": 2}}]],
            [ROLL],
            id="without a member function",
        ),
        pytest.param([fragment(TAKEN, id="a", name="roll")], [ROLL], id="a call instead of a list"),
        pytest.param(
            [[fragment(f"```json\n{TAKEN}\n```", index=0, id="a", name="roll")]],
            [ROLL],
            id="a code fence",
        ),
        pytest.param(
            [
                [fragment("```json\n", index=0, name="damage")],
                [fragment(FIRST, index=0), fragment("\n```", index=0)],
                [fragment("```json\n", index=0, name="damage")],
                [fragment(SECOND, index=0), fragment("\n```", index=0)],
            ],
            HITS,
            id="code fences in fragments under one index",
        ),
        pytest.param(
            [
                [fragment(json.dumps(FIRST), index=0, name="damage")],
                [fragment(json.dumps(SECOND), index=0, name="damage")],
            ],
            HITS,
            id="encoded twice under one index",
        ),
    ],
)
def test_every_way_of_sending_a_call_is_read(chunks: list[Any], calls: list[Any]) -> None:
    assert read(*chunks) == calls


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({"function_call": {"name": "roll", "arguments": TAKEN}}, [ROLL]),
        ({"function_call": {"name": "look", "arguments": None}, "tool_calls": []}, [LOOK]),
        (
            {
                "function_call": {"name": "roll", "arguments": TAKEN},
                "tool_calls": [fragment(TAKEN, id="a", name="roll")],
            },
            [ROLL],
        ),
        (
            {"tool_calls": [fragment(TAKEN, index=0, id="x", name="roll") for _ in range(2)]},
            [ROLL] * 2,
        ),
        ({"tool_calls": [fragment(name="look"), fragment(name="look")]}, [LOOK] * 2),
        ({"tool_calls": {"id": "a", "function": {"name": "roll", "arguments": TAKEN}}}, [ROLL]),
    ],
)
def test_a_whole_answer_s_calls_are_read(message: Any, calls: list[Any]) -> None:
    assert read_messages(message, is_whole=True) == calls


def test_the_form_before_tool_calls_is_read_in_fragments() -> None:
    functions = [{"name": "roll", "arguments": ""}, {"arguments": HEAD}, {"arguments": TAIL}]

    assert read_messages(*({"function_call": each} for each in functions)) == [ROLL]


def test_the_model_s_own_text_goes_back_if_it_is_json() -> None:
    calls = CallFragments()
    texts = ['{"dice":2 }', '{"dice": 2,}']
    calls.add({"tool_calls": [fragment(text, name="roll") for text in texts]}, is_whole=True)

    sent = [call.vendor_state["function"]["arguments"] for call in calls.finish()]
    assert sent == ['{"dice":2 }', '{"dice": 2}']


ARGUMENTS = st.dictionaries(st.text(max_size=20), st.text(max_size=40) | st.integers(), max_size=4)


@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.data())
def test_calls_are_the_same_however_their_fragments_are_cut_and_mixed(
    arguments: list[dict[str, Any]], data: st.DataObject
) -> None:
    texts = {index: json.dumps(each) for index, each in enumerate(arguments)}
    chunks = [
        [fragment(index=index, id=f"c{index}", name=f"tool-{index}") for index in range(len(texts))]
    ]
    while texts:
        index = data.draw(st.sampled_from(sorted(texts)))
        cut = data.draw(st.integers(1, len(texts[index])))
        chunks.append([fragment(texts[index][:cut], index=index)])
        texts[index] = texts[index][cut:]
        if not texts[index]:
            del texts[index]

    assert read(*chunks) == [(f"tool-{index}", each) for index, each in enumerate(arguments)]


def test_no_more_calls_are_kept_than_there_may_be() -> None:
    chunks = [[fragment("{}", index=index, name="roll")] for index in range(MAX_CALLS + 5)]

    assert len(read(*chunks, [fragment("more", index=MAX_CALLS + 1)])) == MAX_CALLS


def test_fragments_of_calls_beyond_the_limit_are_dropped() -> None:
    chunks = [[fragment("{}", index=index, name="roll")] for index in range(MAX_CALLS + 1)]

    calls = read(
        *chunks, [fragment(HEAD)], [fragment(TAIL, index=MAX_CALLS)], [fragment("x", index=999)]
    )

    assert calls == [BARE] * MAX_CALLS


def test_of_a_call_without_an_end_few_members_are_kept() -> None:
    calls = CallFragments(NAMES)
    calls.add({"tool_calls": [fragment("{}", index=0, name="roll")]})
    for number in range(10_000):
        calls.add({"tool_calls": [fragment(index=0, **{f"extra-{number}": "x"})]})

    [call] = calls.finish()
    assert len(call.vendor_state) < 50


def test_many_fragments_with_the_name_in_each_take_time_in_proportion() -> None:
    text = json.dumps({"why": "x" * 60_000})
    begun = time.process_time()
    chunks = [[fragment(text[at : at + 2], index=0, name="roll")] for at in range(0, len(text), 2)]

    assert [name for name, _ in read(*chunks)] == ["roll"]
    assert time.process_time() - begun < 5


def test_a_call_is_handed_out_once() -> None:
    calls = CallFragments()
    calls.add({"tool_calls": [fragment("{}", name="roll")]})

    assert len(calls.finish()) == 1
    assert calls.finish() == []
