"""Calls that a model writes into its text: however a stream is cut, the same pieces come of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.generation.json_text import parse_json
from backend.generation.model import Prompt, PromptMessage, TextPiece, Tool, ToolCall, ToolRound
from backend.generation.tools.calls import MAX_ARGUMENTS, MAX_CALLS, TOO_LONG_PROBLEM
from backend.generation.tools.written_calls import (
    CallReader,
    FencedReader,
    StructuredReader,
    build_answer_schema,
    build_fenced_prompt,
    build_structured_prompt,
)

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
def test_an_answer_is_read_the_same_however_it_is_cut(
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
def test_a_broken_answer_is_read_the_same_however_it_is_cut(text: str, cuts: Cuts) -> None:
    assert read(StructuredReader(), *parts(text, cuts)) == read(StructuredReader(), text)


@given(st.lists(BROKEN | st.sampled_from(["```tools", "\n```", "[]", "{}"])), CUTS)
def test_fences_are_read_the_same_however_the_text_is_cut(texts: list[str], cuts: Cuts) -> None:
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
def test_blocks_of_json_are_read_the_same_however_they_are_cut(
    texts: list[str], cuts: Cuts
) -> None:
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
    assert read(reader(), *parts(too_long, range(0, 66_000, 1_000))) == (
        "Yes.",
        [("", {}, TOO_LONG_PROBLEM)],
    )


def test_more_calls_than_there_may_be_are_passed_over() -> None:
    block = json.dumps([{"tool": "roll"}] * (MAX_CALLS + 1))

    assert len(read(FencedReader(), f"```tools\n{block}")[1]) == MAX_CALLS


LONG = 200_000


@pytest.mark.parametrize(
    ("reader", "begin", "repeated"),
    [
        (StructuredReader, '{"narration": "', "\\u0041"),
        (StructuredReader, '{"narration": "', "\ud83d"),
        (StructuredReader, '{"narration": "', "word "),
        (StructuredReader, '{"', "\\n"),
        (StructuredReader, "{", "["),
        (StructuredReader, "", " "),
        (FencedReader, "", "`"),
        (FencedReader, "", "```tools\n```"),
        (FencedReader, "```tools", "\n``"),
        (FencedReader, "```tools\n[", "{'"),
        (FencedReader, "```tools\n", "{'\\'"),
        (FencedReader, "", "```json\n{}\n```\n"),
        (FencedReader, "", "``` "),
    ],
)
@pytest.mark.parametrize("size", [3, LONG])
def test_a_reply_is_read_in_proportion_to_its_length(
    reader: Callable[[], CallReader], begin: str, repeated: str, size: int
) -> None:
    text = begin + repeated * (LONG // len(repeated))

    began = time.process_time()
    read(reader(), *parts(text, range(0, LONG, size)))

    assert time.process_time() - began < 2


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
def test_rounds_are_told_in_the_form_in_which_calls_are_written(
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
def test_where_nothing_can_be_called_the_model_is_told_so(render: Callable[..., Prompt]) -> None:
    instructions = render(PROMPT, []).messages[1].text

    assert "No tools can be called" in instructions
    assert "roll" not in instructions
