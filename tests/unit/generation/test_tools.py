"""Tool calls that models send, or write into their text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.adapters import anthropic, gemini
from backend.generation.adapters.anthropic import MessageReader
from backend.generation.adapters.gemini import ResponseReader
from backend.generation.json_text import ValueProgress, find_values, parse_json
from backend.generation.model import Prompt, PromptMessage, TextPiece, Tool, ToolCall, ToolRound
from backend.generation.sampling import Sampling
from backend.generation.tools.calls import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    TOO_LONG_PROBLEM,
    assign_distinct_ids,
    list_messages,
    read_calls,
)
from backend.generation.tools.written_calls import (
    CallReader,
    FencedReader,
    StructuredReader,
    build_answer_schema,
    build_fenced_prompt,
    build_structured_prompt,
)

HIT: dict[str, Any] = {"target": "Anna", "damage": "1d2+2"}
TEXT = json.dumps(HIT)


def arguments_of(arguments: object) -> list[Any]:
    """The arguments of each call, or its problem."""
    return [call.problem or call.arguments for call in read_calls("damage", arguments)]


FORMS: dict[str, object] = {
    "JSON": TEXT,
    "an object": HIT,
    "a list of one": [HIT],
    "white space": f"\ufeff {TEXT}\n",
    "a code fence": f"```json\n{TEXT}\n```",
    "a code fence in one line": f"```{TEXT}```",
    "encoded twice": json.dumps(TEXT),
    "encoded three times": json.dumps(json.dumps(TEXT)),
    "a code fence, encoded twice": json.dumps(f"```json\n{TEXT}\n```"),
    "a trailing comma": f"{TEXT[:-1]},}}",
    "a comma after the object": f"{TEXT},",
    "words around it": f"Here you are: {TEXT} That's [all] of it.",
    "tags around it": f"<arguments>{TEXT}</arguments>",
    "single quotation marks": str(HIT),
    "a comment": f"{TEXT[:-1]} // a hit\n}}",
    "an empty object before it": f"{{}}{TEXT}",
    "an empty object after it": f"{TEXT}{{}}",
    "sent again": f"{TEXT}\n{TEXT}",
}


@pytest.mark.parametrize("arguments", FORMS.values(), ids=FORMS)
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
def test_almost_valid_json_keeps_its_meaning(text: str, value: Any) -> None:
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
    first = list_messages(Prompt((), rounds[:1]))
    both = list_messages(Prompt((), rounds))
    assert [call.id for call in first[0].calls] == [call.id for call in both[0].calls]
    assert len({call.id for each in both for call in each.calls}) == 4
    assert [list(each.results) for each in both] == [[1, 2], [3, 4]]


def test_an_id_that_is_made_up_is_one_that_mistral_accepts() -> None:
    (call,) = read_calls("roll", {})
    assert len(call.id) == 9
    assert call.id.isalnum()


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


FENCED = f"```\n{TEXT}\n```"
BLOCKS = {
    "one index": [started("a"), added(TEXT), STOP, started("b"), added(TEXT), STOP, END],
    "no end of a block": [started("a"), added(TEXT), started("b"), added(TEXT), END],
    "no index": [
        *(started("a", None), added(TEXT, None), started("b", None), added(TEXT, None), END)
    ],
    "one id, mixed": [started("x", 0), started("x", 1), added(TEXT, 1), added(TEXT, 0), END],
    "whole at the start": [started("a", 0, HIT), started("b", 1, HIT), END],
    "text at the start": [started("a", 0, TEXT), started("b", 1, TEXT), END],
    "objects": [started("a"), added(HIT), started("b"), added(HIT), END],
    "an empty object": [started("a"), added("{}"), added(TEXT), started("b"), added(TEXT), END],
    "a code fence": [started("a"), added(FENCED), started("b"), added(FENCED), END],
    "no end at all": [started("a"), added(TEXT), started("b"), added(TEXT)],
}


@pytest.mark.parametrize("events", BLOCKS.values(), ids=BLOCKS)
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


def test_an_endless_answer_keeps_a_bounded_part_for_the_next_request() -> None:
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


Cuts = list[int]
Read = tuple[str, list[tuple[str, Any, str]]]

CUTS = st.lists(st.integers(0, 400), max_size=40)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=60)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "tool": st.sampled_from(["engage", "roll"]),
            "arguments": st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS)),
        }
    ),
    max_size=4,
)


def parts(text: str, cuts: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[at:end] for at, end in pairwise(bounds)]


def read(reader: CallReader, *texts: str) -> Read:
    """The text that came, and the calls as (name, arguments, problem)."""
    pieces = [piece for text in texts for piece in reader.feed(text)]
    pieces += reader.close()
    assert all(piece.text for piece in pieces if isinstance(piece, TextPiece))
    assert list(reader.close()) == []
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert len({call.id for call in calls}) == len(calls)
    return (
        "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)),
        [(call.name, call.arguments, call.problem) for call in calls],
    )


@given(TEXTS, CALLS, CUTS, st.booleans(), st.booleans())
def test_an_answer_is_read_the_same_in_any_pieces(
    narration: str, calls: list[dict[str, Any]], cuts: Cuts, ascii_only: bool, calls_first: bool
) -> None:
    answer = {"narration": narration, "calls": calls}
    if calls_first:
        answer = dict(reversed(answer.items()))
    text = json.dumps(answer, ensure_ascii=ascii_only, indent=2 if len(cuts) % 2 else None)
    said, found = read(StructuredReader(), *parts(text, cuts))
    assert said == parse_json(json.dumps(narration))
    assert found == [(call["tool"], call["arguments"], "") for call in parse_json(text)["calls"]]


ROLLED: tuple[str, Any, str] = ("roll", {}, "")
ROLL_CALL = '{"tool": "roll", "arguments": {"dice": 2}}'
BROKEN = st.text(st.sampled_from('{}[]:,"\\u0dD8cn `jsontol\n\ud83d\ude00x'), max_size=120)


@given(BROKEN | st.builds('{{"narration": "{}'.format, BROKEN), CUTS)
def test_a_broken_answer_is_read_the_same_in_any_pieces(text: str, cuts: Cuts) -> None:
    assert read(StructuredReader(), *parts(text, cuts)) == read(StructuredReader(), text)


@given(st.lists(BROKEN | st.sampled_from(["```tools", "\n```", "[]", "{}"])), CUTS)
def test_fences_are_read_the_same_in_any_pieces(texts: list[str], cuts: Cuts) -> None:
    text = "".join(texts)
    assert read(FencedReader(), *parts(text, cuts)) == read(FencedReader(), text)


@given(TEXTS.filter(lambda text: "`" not in text), CALLS, CUTS)
def test_a_fence_holds_calls(text: str, calls: list[dict[str, Any]], cuts: Cuts) -> None:
    reply = f"{text}```tools\n{json.dumps(calls)}\n```\nThe end."
    said, found = read(FencedReader(), *parts(reply, cuts))
    assert said == f"{text}\nThe end."
    assert [name for name, _, _ in found] == [call["tool"] for call in calls]
    assert not any(problem for _, _, problem in found)


def test_the_narration_streams_while_it_comes() -> None:
    reader = StructuredReader()
    heard = [
        "".join(piece.text for piece in reader.feed(part))
        for part in ('{"narr', 'ation": "He', " ducks", "\\", "n\\ud83d", "\\ude00!", '", "calls')
    ]
    assert heard == ["", "He", " ducks", "", "\n", "\U0001f600!", ""]


@pytest.mark.parametrize(
    ("answer", "said", "calls"),
    [
        ('{"narration": "Yes."}', "Yes.", []),
        ('{"calls": [{"tool": "roll"}]}', "", [ROLLED]),
        ('{"narration": "Yes.", "calls": [{"tool": "roll",},],}', "Yes.", [ROLLED]),
        ('{"narration": "Yes.", "calls": "[{\\"tool\\": \\"roll\\"}]"}', "Yes.", [ROLLED]),
        ('{"narration": "Yes.", "calls": {"tool": "roll"}}', "Yes.", [ROLLED]),
        ('```json\n{"narration": "Yes.", "calls": []}\n```', "Yes.", []),
        ('{"calls": [{"tool": "say", "arguments": {"narration": "no"}}]}', "", None),
        ('{"a": {"narration": "no"}, "narration": "yes"}', "yes", []),
        ('{"a": "narration", "b": "no"}', "", []),
        ('{"narration": {"text": "no"}}', "", []),
        ('{"narration": "one\ntwo \\q \\u12 \\ud83d."}', "one\ntwo q \ufffd12 \ufffd.", []),
        ("He ducks {quickly}.", "He ducks {quickly}.", []),
        ("He ducks.", "He ducks.", []),
        ('{"narration": "He du', "He du", []),
        ('{"narration": "He ducks.", "ca', "He ducks.", []),
        ("[1]", "[1]", []),
        ("", "", []),
    ],
)
def test_answers_of_all_shapes(answer: str, said: str, calls: list[Any] | None) -> None:
    text, found = read(StructuredReader(), answer)
    assert text == said
    assert calls is None or found == calls


@pytest.mark.parametrize(
    "broken",
    [
        '{"narration": "He ducks.", "calls": [{"tool": "roll", "argum',
        '{"narration": "He ducks.", "calls": [{"tool": }]}',
        '{"narration": "He ducks.", "calls": ["roll"]}',
        '{"narration": "He ducks.", "calls": [{"tool": "roll", "arguments": [1]}]}',
    ],
)
def test_calls_that_cannot_be_read_are_one_with_a_problem(broken: str) -> None:
    said, ((_, arguments, problem),) = read(StructuredReader(), broken)
    assert said == "He ducks."
    assert arguments == {}
    assert problem


@pytest.mark.parametrize(
    ("block", "calls"),
    [
        ('[{"tool": "roll", "arguments": {"dice": 2}}]', [("roll", {"dice": 2}, "")]),
        ('{"tool": "roll"}', [ROLLED]),
        ('{"name": "roll", "arguments": null}', [ROLLED]),
        ('{"calls": [{"tool": "roll"}]}', [ROLLED]),
        (f"{ROLL_CALL}\n{ROLL_CALL}", [("roll", {"dice": 2}, "")] * 2),
        (f"[{ROLL_CALL},]", [("roll", {"dice": 2}, "")]),
        (f"I roll: [{ROLL_CALL}] now.", [("roll", {"dice": 2}, "")]),
        (json.dumps(f"[{ROLL_CALL}]"), [("roll", {"dice": 2}, "")]),
        (
            "[{'tool': 'roll', 'arguments': {'dice': 2, 'edge': None}}]",
            [("roll", {"dice": 2, "edge": None}, "")],
        ),
        ('{"tool": "roll", "arguments": "{\\"dice\\": 2}"}', [("roll", {"dice": 2}, "")]),
        ('{"name": "roll", "parameters": {"dice": 2}}', [("roll", {"dice": 2}, "")]),
        ('{"function": {"name": "roll", "arguments": {"dice": 2}}}', [("roll", {"dice": 2}, "")]),
        ('{"function": "roll", "args": {"dice": 2}}', [("roll", {"dice": 2}, "")]),
        ('{"tool_calls": [{"tool": "roll"}]}', [ROLLED]),
        ("[]", []),
        ("", []),
    ],
)
def test_blocks_of_all_shapes(block: str, calls: list[Any]) -> None:
    for closing in ("\n```", "```", ""):
        assert read(FencedReader(), f"Duck!\n```tools\n{block}{closing}") == ("Duck!\n", calls)


@pytest.mark.parametrize("block", ["{", "roll the dice", '[{"tool": 3}]', "[" * 5_000])
def test_a_block_that_is_no_json_is_a_call_with_a_problem(block: str) -> None:
    said, ((name, arguments, problem),) = read(FencedReader(), f"Duck!```tools\n{block}\n```")
    assert (said, name, arguments) == ("Duck!", "", {})
    assert problem


OTHER_FENCES = [
    "```python\nprint()\n```\nDone.",
    "```\nHP 20\n```\n```toolshed\nA rake.\n```",
    '```json\n{"dice": 2}\n```\nDone.',
    f"```json\n[{ROLL_CALL}, 7]\n```",
    '```json\n{"tool": "fly"}\n```',
    "```json",
    "````",
    "He says ``well`` and `no`.",
]


@pytest.mark.parametrize("text", OTHER_FENCES)
def test_other_fences_are_text(text: str) -> None:
    assert read(FencedReader(["roll"]), text) == (text, [])


@pytest.mark.parametrize(
    "block",
    [
        f"``` tools\n[{ROLL_CALL}]\n```",
        f"```Tools\n[{ROLL_CALL}]\n```",
        f"```tool_calls [{ROLL_CALL}]\n```",
        f"````tools\n[{ROLL_CALL}]\n````",
        f"```json\n[{ROLL_CALL}]\n```",
        f'```json\n{{"calls": [{ROLL_CALL}]}}',
        f"```\nHP 20\n```tools\n[{ROLL_CALL}]\n```",
    ],
)
def test_models_write_other_words_after_the_fence(block: str) -> None:
    _, calls = read(FencedReader(["roll"]), block)
    assert calls == [("roll", {"dice": 2}, "")]


@given(st.lists(st.sampled_from([*OTHER_FENCES, f"```json\n[{ROLL_CALL}]\n```"])), CUTS)
def test_blocks_of_json_are_read_the_same_in_any_pieces(texts: list[str], cuts: Cuts) -> None:
    text = "\n".join(texts)
    assert read(FencedReader(["roll"]), *parts(text, cuts)) == read(FencedReader(["roll"]), text)


def test_a_long_block_of_json_is_text() -> None:
    text = f"```json\n{'x' * (MAX_ARGUMENTS + 1)}\n```\nDone."
    assert read(FencedReader(["roll"]), *parts(text, range(0, 66_000, 1_000))) == (text, [])


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (StructuredReader, '{{"narration": "Yes.", "calls": [{{"tool": "roll", "a": "{}"}}]}}'),
        (FencedReader, 'Yes.```tools\n[{{"tool": "roll", "a": "{}"}}]\n```'),
    ],
)
def test_calls_have_a_largest_size(reader: Callable[[], CallReader], text: str) -> None:
    fits, too_long = text.format("x" * 60_000), text.format("x" * MAX_ARGUMENTS)
    assert read(reader(), fits) == ("Yes.", [ROLLED])
    cut = parts(too_long, range(0, 66_000, 1_000))
    assert read(reader(), *cut) == ("Yes.", [("", {}, TOO_LONG_PROBLEM)])


def test_more_calls_than_there_may_be_are_passed_over() -> None:
    block = json.dumps([{"tool": "roll"}] * (MAX_CALLS + 1))
    assert len(read(FencedReader(), f"```tools\n{block}")[1]) == MAX_CALLS


ROLL = Tool("roll", "Roll dice.", {"type": "object", "properties": {"dice": {"type": "integer"}}})
ROUND = ToolRound(
    [ToolCall("c1", "roll", {"dice": 2}), ToolCall("c2", "", {}, problem="broken")],
    [{"rolled": [6, 1]}, {"error": "broken"}],
    text="She “rolls”.",
)
PROMPT = Prompt(
    [
        PromptMessage("system", "You run the game."),
        PromptMessage("user", "I duck."),
        PromptMessage("system", "Stay in character."),
    ],
    [ROUND],
)


def test_the_schema_of_an_answer_ties_arguments_to_their_tool() -> None:
    schema = build_answer_schema([ROLL])
    (call,) = schema["properties"]["calls"]["items"]["anyOf"]
    assert list(schema["properties"]) == ["narration", "calls"]
    assert call["properties"]["tool"]["enum"] == ["roll"]
    assert call["properties"]["arguments"] == ROLL.parameters
    assert list(build_answer_schema([])["properties"]) == ["narration"]


@pytest.mark.parametrize(
    ("render", "reader"),
    [(build_structured_prompt, StructuredReader), (build_fenced_prompt, FencedReader)],
)
def test_rounds_are_rendered_in_the_form_of_written_calls(
    render: Callable[..., Prompt], reader: Callable[[], CallReader]
) -> None:
    prompt = render(PROMPT, [ROLL])

    roles = [message.role for message in prompt.messages]
    assert roles == ["system", "system", "user", "system", "assistant", "user"]
    assert "Roll dice." in prompt.messages[1].text
    assert '"dice"' in prompt.messages[1].text
    said, calls = read(reader(), prompt.messages[4].text)
    assert said.strip() == "She “rolls”."
    assert [(name, arguments) for name, arguments, _ in calls] == [("roll", {"dice": 2})]
    assert '{"rolled": [6, 1]}' in prompt.messages[5].text
    assert prompt.rounds == ()


@pytest.mark.parametrize("render", [build_structured_prompt, build_fenced_prompt])
def test_the_model_is_told_if_no_tools_can_be_called(render: Callable[..., Prompt]) -> None:
    instructions = render(PROMPT, []).messages[1].text
    assert "No tools can be called" in instructions
    assert "roll" not in instructions
