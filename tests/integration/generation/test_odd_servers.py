"""Replies as servers send them: thoughts in the text, no schema, errors in a 200, no usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.generation.model import (
    ChatModel,
    ModelInterruptedError,
    ModelRateLimitError,
    ModelRequestError,
    ModelUnavailableError,
    ModelWritesNoJsonError,
    Piece,
    Prompt,
    PromptMessage,
    TextPiece,
    TextReset,
    ThinkingPiece,
    Tool,
    apply_resets,
)
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.thoughts import ThoughtTags
from backend.generation.tools.streams import answer_with_tools, choose_tool_support
from tests.fakes.openai_server import (
    MODEL,
    chunk,
    completion,
    error,
    error_body,
    reply,
    stream,
    tool_call,
)
from tests.fakes.scripted_server import Answer, Break
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Who is there?")])
SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}}
VALUE = {"who": "Oswin"}
REFUSED = error(400, message="This response_format type is unavailable now")
CODE = "Use `<think>`:\n```\n<think>x</think>\n```"
TAGGED = "<think>Who?</think>Oswin."
FAILED = error(500, message="Internal Server Error")


async def heard(model: ChatModel, sampling: Sampling = Sampling()) -> list[Piece]:  # noqa: B008  # it is frozen
    return [piece async for piece in model.stream(PROMPT, sampling)]


async def listen(openai: Vendor, sampling: Sampling = Sampling(), **changes: Any) -> list[Piece]:  # noqa: B008  # it is frozen
    return apply_resets(await heard(openai.connect(**changes), sampling))


def joined(pieces: list[Piece]) -> tuple[str, str]:
    """What was thought and what was said."""
    thought = "".join(piece.text for piece in pieces if isinstance(piece, ThinkingPiece))
    return thought, "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


async def test_text_before_a_closing_tag_alone_is_taken_back_once_and_then_expected(
    openai: Vendor,
) -> None:
    openai.server.script(
        reply("Who ", "is it?", "</think>", "Oswin."), reply("Who", "?</think>", "Me.")
    )
    model = openai.connect()

    first = await heard(model)
    second = await heard(model)

    assert first[:-2] == [
        *(TextPiece("Who "), TextPiece("is it?"), TextReset()),
        *(ThinkingPiece("Who is it?"), TextPiece("Oswin.")),
    ]
    assert second[:-2] == [ThinkingPiece("Who"), ThinkingPiece("?"), TextPiece("Me.")]


async def test_a_reply_that_was_taken_for_thoughts_ends_as_text_and_the_next_begins_as_text(
    openai: Vendor,
) -> None:
    openai.server.script(reply("Hm.</think>Me."), reply("Who ", "else?"), reply("No ", "one."))
    model = openai.connect()
    await heard(model)

    wrong = await heard(model)
    right = await heard(model)

    assert joined(apply_resets(wrong)) == ("", "Who else?")
    assert right[:-2] == [TextPiece("No "), TextPiece("one.")]


async def test_thoughts_that_the_limit_cut_off_stay_thoughts(openai: Vendor) -> None:
    openai.server.script(reply("Hm.</think>Me."), reply("Who ", "else", finish="length"))
    model = openai.connect()
    await heard(model)

    assert joined(apply_resets(await heard(model))) == ("Who else", "")


async def test_a_provider_has_tags_of_its_own_and_can_leave_thoughts_in_the_text(
    openai: Vendor,
) -> None:
    own = ThoughtTags("(muse)", "(/muse)")
    openai.server.script(*(reply("(Muse)Who?(/muse)Oswin.") for _ in range(2)), reply(TAGGED))

    async def told(**config: Any) -> tuple[str, str]:
        return joined(apply_resets(await heard(openai.connect(**config))))

    assert await told() == ("", "(Muse)Who?(/muse)Oswin.")
    assert await told(thought_tags=(own,)) == ("Who?", "Oswin.")
    assert await told(reads_thoughts=False) == ("", TAGGED)


async def test_what_was_held_back_as_a_possible_tag_is_kept_when_the_reply_breaks_off(
    openai: Vendor,
) -> None:
    openai.server.script(stream(chunk(content="It is <thi"), Break()))
    pieces: list[Piece] = []

    with pytest.raises(ModelInterruptedError):
        async for piece in openai.connect().stream(PROMPT, Sampling()):
            pieces.append(piece)  # noqa: PERF401 - it raises

    assert joined(pieces) == ("", "It is <thi")


async def test_a_reply_begins_as_it_was_told_to(openai: Vendor) -> None:
    openai.server.script(reply(" who else?"), reply("it is me</think>Oswin."))

    said = await listen(openai, Sampling(start_reply_with="Oswin,"), server="vllm")
    thought = await listen(openai, Sampling(start_reply_with="<think>So "), server="mistral")

    assert joined(said) == ("", "Oswin, who else?")
    assert joined(thought) == ("So it is me", "Oswin.")
    first, second = (request.body for request in openai.server.requests)
    assert first["messages"][-1] == {"role": "assistant", "content": "Oswin,"}
    assert (first["continue_final_message"], first["add_generation_prompt"]) == (True, False)
    assert second["messages"][-1]["prefix"] is True


@pytest.mark.parametrize(
    "body",
    [
        error_body("slow down", code=429),
        {"object": "error", "message": "slow down", "code": "rate_limit_exceeded"},
    ],
)
async def test_an_error_within_a_200_is_an_error(openai: Vendor, body: Any) -> None:
    openai.server.script(Answer(body=body), Answer(body=body), stream(body))

    with pytest.raises(ModelRateLimitError):
        await openai.connect().generate_json(PROMPT, SCHEMA, Sampling())
    for _ in range(2):
        with pytest.raises(ModelRateLimitError):
            await listen(openai)


def told(text: str) -> Answer:
    return Answer(body=completion(text))


CALLED = Answer(
    body=completion(None, calls=[tool_call("answer", VALUE, call_id="1")], finish="tool_calls")
)


@pytest.mark.parametrize(
    ("answers", "way"),
    [
        ([told(json.dumps(VALUE))], "json_schema"),
        ([FAILED, told(json.dumps(VALUE))], "json_object"),
        ([REFUSED, told("No."), CALLED], "tool"),
        ([REFUSED, REFUSED, FAILED, told('Here:\n```json\n{"who": "Oswin"}\n```')], "fenced"),
        ([REFUSED, REFUSED, told("No."), told('<think>{}</think>{"who": "Oswin"}')], "fenced"),
    ],
)
async def test_json_is_asked_for_in_the_next_way_and_what_works_is_remembered(
    openai: Vendor, answers: list[Answer], way: str
) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(*answers)

    answer = await model.generate_json(PROMPT, SCHEMA, Sampling())
    if not learned:  # an answer that is no JSON may be chance, once
        openai.server.script(*answers)
        await model.generate_json(PROMPT, SCHEMA, Sampling())
    asked = len(openai.server.requests)
    openai.server.script(answers[-1])
    again = await openai.connect(abilities=learned[-1]).generate_json(PROMPT, SCHEMA, Sampling())

    assert answer.value == again.value == VALUE
    assert learned[-1].find(MODEL).json == way
    assert len(openai.server.requests) == asked + 1


async def test_calls_are_asked_for_in_the_next_way_where_the_server_has_none(
    openai: Vendor,
) -> None:
    model = openai.connect()
    finish = Tool("finish", "End the work.", {"type": "object"})
    openai.server.script(
        error(400, message="tools are not there"),
        FAILED,
        reply('Done.\n```tools\n[{"tool": "finish"}]\n```'),
    )

    answer = await answer_with_tools(model, PROMPT, [finish], Sampling(start_reply_with="Hm"))

    assert (answer.text.strip(), [call.name for call in answer.calls]) == ("Done.", ["finish"])
    assert choose_tool_support(model) == "fenced"


async def test_the_schema_is_told_where_the_request_alone_may_not(openai: Vendor) -> None:
    openai.server.script(REFUSED, told(json.dumps(VALUE)))

    await openai.connect().generate_json(PROMPT, SCHEMA, Sampling())

    first, second = (request.body for request in openai.server.requests)
    assert len(first["messages"]) == 1
    assert second["response_format"] == {"type": "json_object", "schema": SCHEMA}
    assert json.dumps(SCHEMA) in second["messages"][-1]["content"]


async def test_one_answer_that_is_no_json_does_not_settle_on_a_weaker_way(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(told("No."), told(json.dumps(VALUE)), told(json.dumps(VALUE)))
    for _ in range(2):
        assert (await model.generate_json(PROMPT, SCHEMA, Sampling())).value == VALUE
    assert [each.find(MODEL).json for each in learned] == ["json_schema"]


async def test_a_model_that_writes_no_json_in_any_way_is_told_as_that(openai: Vendor) -> None:
    openai.server.script(*[told("No.")] * 4)

    with pytest.raises(ModelWritesNoJsonError, match="did not return JSON"):
        await openai.connect().generate_json(PROMPT, SCHEMA, Sampling())


async def test_a_server_that_refuses_everything_is_told_as_that(openai: Vendor) -> None:
    openai.server.script(*[FAILED] * 4)
    with pytest.raises(ModelUnavailableError):
        await openai.connect().generate_json(PROMPT, SCHEMA, Sampling())

    openai.server.script(*[REFUSED] * 4)
    with pytest.raises(ModelRequestError):
        await openai.connect().generate_json(PROMPT, SCHEMA, Sampling())
