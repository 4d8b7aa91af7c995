"""Requests and streams of the OpenAI and Gemini adapters."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.adapters.gemini import build_request_body
from backend.generation.adapters.openai.mapping import CallFragments
from backend.generation.model import Prompt, PromptMessage, Role, ToolCall, ToolRound
from backend.generation.sampling import Sampling
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


def part(arguments: Any = "", **members: Any) -> dict[str, Any]:
    """A fragment of a call, as a server streams it."""
    function = {"arguments": arguments}
    if "name" in members:
        function["name"] = members.pop("name")
    return {**members, "function": function}


roll, look, hit = (partial(part, name=name) for name in ("roll", "look", "damage"))


ROLL = ("roll", {"dice": 2})
BARE: tuple[str, Any] = ("roll", {})
LOOK: tuple[str, Any] = ("look", {})
NAMELESS: tuple[str, Any] = ("", {})
HEAD, TAIL = '{"dice"', ": 2}"
TAKEN = HEAD + TAIL
FIRST, SECOND = '{"target": "Anna", "damage": "1d2+2"}', '{"target": "Anna", "damage": "1d2+4"}'
HITS: list[tuple[str, Any]] = [("damage", json.loads(each)) for each in (FIRST, SECOND)]


SENT: dict[str, tuple[list[Any], list[Any]]] = {
    "as OpenAI does": ([[roll(HEAD, index=0, id="a")], [part(TAIL, index=0)]], [ROLL]),
    "the id in each fragment": (
        [[roll(HEAD, index=0, id="a")], [part(TAIL, index=0, id="a")]],
        [ROLL],
    ),
    "the name in each fragment": (
        [[roll(HEAD, index=0, id="a")], [roll(TAIL, index=0, id="")]],
        [ROLL],
    ),
    "in one chunk": ([[roll(HEAD + TAIL, index=0, id="a")]], [ROLL]),
    "several in one chunk": (
        [[roll(HEAD + TAIL, index=0, id="a"), look(index=1, id="b")]],
        [ROLL, LOOK],
    ),
    "mixed": (
        [
            [roll(HEAD, index=0, id="a")],
            [look("{", index=1, id="b")],
            [part(TAIL, index=0), part("}", index=1)],
        ],
        [ROLL, LOOK],
    ),
    "all under index 0": (
        [[roll(HEAD + TAIL, index=0, id="a")], [look("{}", index=0, id="b")]],
        [ROLL, LOOK],
    ),
    "ids alone": ([[roll(HEAD + TAIL, id="a")], [look("{}", id="b")]], [ROLL, LOOK]),
    "names alone": ([[roll(HEAD)], [part(TAIL)], [look("{}")]], [ROLL, LOOK]),
    "an id that comes late": (
        [[roll(HEAD, index=0, id="")], [part(TAIL, index=0, id="late")]],
        [ROLL],
    ),
    "an object": ([[roll({"dice": 2}, index=0)]], [ROLL]),
    "no arguments": ([[look(None, index=0)]], [LOOK]),
    "odd": ([[{"index": 0, "function": None}], None, "x", [7]], [NAMELESS]),
    "one index and no ids": ([[hit(FIRST, index=0)], [hit(SECOND, index=0)]], HITS),
    "the same hit twice under one index": (
        [[hit(FIRST, index=0)], [hit(FIRST, index=0)]],
        [HITS[0]] * 2,
    ),
    "one index, no ids, in fragments": (
        [
            [hit(FIRST[:9], index=0)],
            [part(FIRST[9:], index=0)],
            [hit(SECOND[:9], index=0)],
            [part(SECOND[9:], index=0)],
        ],
        HITS,
    ),
    "one index, no ids, the name in each fragment": (
        [
            [hit(FIRST[:9], index=0)],
            [hit(FIRST[9:], index=0)],
            [hit("", index=0)],
            [hit(SECOND[:9], index=0)],
            [hit(SECOND[9:], index=0)],
        ],
        HITS,
    ),
    "one index and one id": ([[hit(FIRST, index=0, id="x")], [hit(SECOND, index=0, id="x")]], HITS),
    "one id for all indexes": (
        [
            [hit(FIRST[:9], index=0, id="x")],
            [hit(SECOND[:9], index=1, id="x")],
            [part(FIRST[9:], index=0, id="x"), part(SECOND[9:], index=1, id="x")],
        ],
        HITS,
    ),
    "one id and no index, in one chunk": ([[hit(FIRST, id="x"), hit(SECOND, id="x")]], HITS),
    "neither id nor index, in one chunk": ([[hit(FIRST), hit(SECOND)]], HITS),
    "two objects under one name": ([[hit(FIRST, index=0, id="a")], [part(SECOND, index=0)]], HITS),
    "one index, without arguments": ([[look("{}", index=0)], [roll("{}", index=0)]], [LOOK, BARE]),
    "null, then another call under the index": (
        [[look(None, index=0)], [roll(TAKEN, index=0)]],
        [LOOK, ROLL],
    ),
    "an empty object before the arguments": (
        [[roll("{}", index=0, id="a")], [part(TAKEN, index=0)]],
        [ROLL],
    ),
    "an empty object, then the whole one": (
        [[roll({}, index=0, id="a")], [roll({"dice": 2}, index=0, id="a")]],
        [ROLL],
    ),
    "one index, told apart by their ids": (
        [
            [hit(FIRST[:9], index=0, id="a")],
            [hit(SECOND[:9], index=0, id="b")],
            [part(FIRST[9:], index=0, id="a"), part(SECOND[9:], index=0, id="b")],
        ],
        HITS,
    ),
    "another id for each fragment": (
        [[roll(HEAD, index=0, id="a")], [part(TAIL, index=0, id="b")]],
        [ROLL],
    ),
    "an index that is a text": ([[roll(HEAD, index="0", id="a")], [part(TAIL, index=0)]], [ROLL]),
    "an id that is a number": ([[roll(HEAD, index=0, id=7)], [part(TAIL, index=0, id=7)]], [ROLL]),
    "a fragment without an index": ([[roll(HEAD, index=0, id="a")], [part(TAIL)]], [ROLL]),
    "an index that counts fragments": (
        [[roll(HEAD, index=0, id="a")], [part(TAIL, index=1)]],
        [ROLL],
    ),
    "the name in fragments": (
        [[roll(index=0, id="a")], [part(index=0, name="_again")], [part(TAKEN, index=0)]],
        [("roll_again", {"dice": 2})],
    ),
    "the name in fragments, the last with arguments": (
        [[part(index=0, name="ro")], [part(TAKEN, index=0, name="ll")]],
        [ROLL],
    ),
    "names alone under one index": ([[look(index=0), roll(index=0)]], [LOOK, BARE]),
    "the name after the arguments": ([[part(TAKEN, index=0)], [roll(index=0)]], [ROLL]),
    "without a member function": (
        [[{"index": 0, "id": "a", "name": "roll", "arguments": {"dice": 2}}]],
        [ROLL],
    ),
    "a call instead of a list": ([roll(TAKEN, id="a")], [ROLL]),
    "a code fence": ([[roll(f"```json\n{TAKEN}\n```", index=0, id="a")]], [ROLL]),
    "code fences in fragments under one index": (
        [
            [hit("```json\n", index=0)],
            [part(FIRST, index=0), part("\n```", index=0)],
            [hit("```json\n", index=0)],
            [part(SECOND, index=0), part("\n```", index=0)],
        ],
        HITS,
    ),
    "encoded twice under one index": (
        [[hit(json.dumps(FIRST), index=0)], [hit(json.dumps(SECOND), index=0)]],
        HITS,
    ),
}
"""Streamed chunks by the way of sending, and the calls that they contain."""


@pytest.mark.parametrize(("chunks", "calls"), SENT.values(), ids=SENT)
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
                "tool_calls": [part(TAKEN, id="a", name="roll")],
            },
            [ROLL],
        ),
        ({"tool_calls": [part(TAKEN, index=0, id="x", name="roll") for _ in range(2)]}, [ROLL] * 2),
        ({"tool_calls": [part(name="look"), part(name="look")]}, [LOOK] * 2),
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
    calls.add({"tool_calls": [part(text, name="roll") for text in texts]}, is_whole=True)
    sent = [call.vendor_state["function"]["arguments"] for call in calls.finish()]
    assert sent == ['{"dice":2 }', '{"dice": 2}']


ARGUMENTS = st.dictionaries(st.text(max_size=20), st.text(max_size=40) | st.integers(), max_size=4)


@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.data())
def test_calls_are_read_the_same_from_any_mix_of_fragments(
    arguments: list[dict[str, Any]], data: st.DataObject
) -> None:
    texts = {index: json.dumps(each) for index, each in enumerate(arguments)}
    chunks = [
        [part(index=index, id=f"c{index}", name=f"tool-{index}") for index in range(len(texts))]
    ]
    while texts:
        index = data.draw(st.sampled_from(sorted(texts)))
        cut = data.draw(st.integers(1, len(texts[index])))
        chunks.append([part(texts[index][:cut], index=index)])
        texts[index] = texts[index][cut:]
        if not texts[index]:
            del texts[index]

    assert read(*chunks) == [(f"tool-{index}", each) for index, each in enumerate(arguments)]


def test_no_more_calls_are_kept_than_there_may_be() -> None:
    chunks = [[part("{}", index=index, name="roll")] for index in range(MAX_CALLS + 5)]
    assert len(read(*chunks, [part("more", index=MAX_CALLS + 1)])) == MAX_CALLS


def test_fragments_of_calls_beyond_the_limit_are_dropped() -> None:
    chunks = [[part("{}", index=index, name="roll")] for index in range(MAX_CALLS + 1)]
    calls = read(*chunks, [part(HEAD)], [part(TAIL, index=MAX_CALLS)], [part("x", index=999)])
    assert calls == [BARE] * MAX_CALLS


def test_an_endless_call_keeps_few_members() -> None:
    calls = CallFragments(NAMES)
    calls.add({"tool_calls": [part("{}", index=0, name="roll")]})
    for number in range(10_000):
        calls.add({"tool_calls": [part(index=0, **{f"extra-{number}": "x"})]})
    [call] = calls.finish()
    assert len(call.vendor_state) < 50


def test_a_call_is_handed_out_once() -> None:
    calls = CallFragments()
    calls.add({"tool_calls": [part("{}", name="roll")]})
    assert len(calls.finish()) == 1
    assert calls.finish() == []


def turns(*messages: tuple[Role, str], rounds: tuple[ToolRound, ...] = ()) -> Any:
    prompt = Prompt([PromptMessage(role, text) for role, text in messages], rounds)
    return build_request_body(prompt, Sampling(), thinks=False, show_thoughts=False)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def model(text: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"text": text}]}


def test_leading_system_messages_become_the_system_instruction() -> None:
    sent = turns(("system", "You are Oswin."), ("system", "Be brief."), ("user", "Hello."))
    assert sent["systemInstruction"] == {"parts": [{"text": "You are Oswin.\n\nBe brief."}]}
    assert sent["contents"] == [user("Hello.")]


def test_later_system_messages_stay_in_their_place_as_the_user_s() -> None:
    sent = turns(("user", "Hello."), ("assistant", "Hm."), ("system", "It rains."), ("user", "Oh."))
    assert sent["contents"] == [user("Hello."), model("Hm."), user("It rains.\n\nOh.")]
    assert "systemInstruction" not in sent


def test_neighbours_of_one_role_become_one_turn() -> None:
    sent = turns(
        ("user", "One."), ("user", "Two."), ("assistant", "Three."), ("assistant", "Four.")
    )
    assert sent["contents"] == [user("One.\n\nTwo."), model("Three.\n\nFour.")]


def test_a_greeting_comes_after_a_turn_of_the_user_s() -> None:
    sent = turns(("system", "You are Oswin."), ("assistant", "Who is there?"), ("user", "Me."))
    assert [turn["role"] for turn in sent["contents"]] == ["user", "model", "user"]
    assert sent["contents"][0]["parts"][0]["text"]
    assert sent["contents"][1:] == [model("Who is there?"), user("Me.")]


def test_a_prompt_of_system_messages_alone_has_a_turn_to_answer() -> None:
    assert [turn["role"] for turn in turns(("system", "Summarise."))["contents"]] == ["user"]


def test_messages_without_text_stay_out() -> None:
    sent = turns(("system", ""), ("user", "One."), ("assistant", " \n"), ("user", "Two."))
    assert sent["contents"] == [user("One.\n\nTwo.")]
    assert "systemInstruction" not in sent


def test_a_round_without_calls_or_text_leaves_no_empty_turn() -> None:
    sent = turns(("user", "Go."), rounds=(ToolRound((), ()), ToolRound((), (), text="Done.")))
    assert sent["contents"] == [user("Go."), model("Done.")]


def test_a_call_of_another_vendor_can_be_sent() -> None:
    call = ToolCall(id="c9", name="search", arguments={"query": "knife"})

    sent = turns(("user", "Go."), rounds=(ToolRound([call], [{"hits": 0}]),))

    assert sent["contents"][1:] == [
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "search", "args": {"query": "knife"}}}],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "search", "response": {"hits": 0}}}],
        },
    ]
