"""Calls out of fragments, as servers in the wild send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation._openai_calls import CallFragments
from backend.generation._tool_calls import MAX_CALLS


def read(*chunks: Any) -> list[tuple[str, Any]]:
    calls = CallFragments()
    for fragments in chunks:
        calls.add({"role": "assistant", "tool_calls": fragments})
    return [(call.name, call.problem or call.arguments) for call in calls.finish()]


def fragment(arguments: Any = "", **members: Any) -> dict[str, Any]:
    function = {"arguments": arguments}
    if "name" in members:
        function["name"] = members.pop("name")
    return {**members, "function": function}


ROLL = ("roll", {"dice": 2})
LOOK: tuple[str, Any] = ("look", {})
NAMELESS: tuple[str, Any] = ("", {})
HEAD, TAIL = '{"dice"', ": 2}"


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
    ],
)
def test_every_way_of_sending_a_call_is_read(chunks: list[Any], calls: list[Any]) -> None:
    assert read(*chunks) == calls


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


def test_a_call_is_handed_out_once() -> None:
    calls = CallFragments()
    calls.add({"tool_calls": [fragment("{}", name="roll")]})

    assert len(calls.finish()) == 1
    assert calls.finish() == []
