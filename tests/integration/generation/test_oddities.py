"""Tests of servers with odd replies and strict chat templates."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from backend.generation.catalogue import MessageShape
from backend.generation.model import (
    ChatModel,
    Finish,
    FinishReason,
    ModelError,
    ModelInterruptedError,
    ModelRateLimitError,
    ModelRequestError,
    ModelUnavailableError,
    ModelWritesNoJsonError,
    Piece,
    Prompt,
    PromptMessage,
    SentRequest,
    TextPiece,
    TextReset,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
    apply_resets,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ModelAbilities, ServerAbilities
from backend.generation.thoughts import ThoughtTags
from backend.generation.tools.streams import (
    answer_with_tools,
    choose_tool_support,
    stream_with_tools,
)
from tests.fakes.oddities.oddity import Oddity, Result
from tests.fakes.oddities.server import serve
from tests.fakes.oddities.settings import SETTINGS
from tests.fakes.oddities.streams import STREAMS
from tests.fakes.oddities.templates import TEMPLATES
from tests.fakes.oddities.thoughts import THOUGHTS
from tests.fakes.oddities.tool_calls import CALLS
from tests.fakes.oddities.values import VALUES
from tests.fakes.oddities.wire_formats import FORMATS, WireFormat
from tests.fakes.openai_server import (
    MODEL,
    MODEL_ID,
    chunk,
    completion,
    error,
    error_body,
    reply,
    stream,
    tool_call,
)
from tests.fakes.scripted_server import Answer, Break
from tests.fakes.strict_server import Check, StrictServer, gemma_2, llama_cpp_mistral, mistral, qwen
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

STORY = [
    PromptMessage("system", "You are Mags."),
    PromptMessage("assistant", "Who is there?"),
    PromptMessage("system", "It rains."),
    PromptMessage("user", "It is me."),
    PromptMessage("user", "Hello?"),
    PromptMessage("system", "Write in her voice."),
]

SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}

DAMAGE = Tool(
    "damage",
    "Apply damage.",
    {"type": "object", "properties": {"target": {"type": "string"}, "damage": {"type": "string"}}},
)


def parametrize_rows(*tables: Iterable[Oddity]) -> pytest.MarkDecorator:
    """Parametrize a test with each row in each of its formats."""
    found = [(row, FORMATS[name]) for table in tables for row in table for name in row.formats]
    names = [f"{form.name}-{row.name}" for row, form in found]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize(("row", "form"), found, ids=names)


@dataclass
class Connected:
    model: ChatModel
    learned: list[ServerAbilities] = field(default_factory=list[ServerAbilities])


@asynccontextmanager
async def connect(row: Oddity, form: WireFormat) -> AsyncGenerator[Connected]:
    learned: list[ServerAbilities] = []
    async with serve(form, [row]) as server:
        config: dict[str, Any] = {form.name: server.config(on_learned=learned.append)}
        registry = ModelRegistry(**config)
        try:
            yield Connected(registry.get(f"{form.name}/{row.name}"), learned)
        finally:
            await registry.aclose()


def sum_up(row: Oddity, heard: Sequence[Piece], problem: ModelError | None) -> Result:
    """Return the pieces as a result of the table."""
    kept = apply_resets(heard)
    words = f"{problem.title}: {problem.detail}" if problem else ""
    sent = next((piece for piece in kept if isinstance(piece, SentRequest)), SentRequest())
    used = [piece for piece in kept if isinstance(piece, TokenUsage)]
    counted = next(((each.prompt_tokens, each.completion_tokens) for each in used), ())
    reasons: list[FinishReason] = [piece.reason for piece in kept if isinstance(piece, Finish)]
    return Result(
        text="".join(piece.text for piece in kept if isinstance(piece, TextPiece)),
        thinking="".join(piece.text for piece in kept if isinstance(piece, ThinkingPiece)),
        finish=reasons[0] if reasons else "stop",
        error=problem.slug if problem else "",
        says=row.result.says if row.result.says in words else words,
        usage=None if row.result.usage is None else counted,
        calls=[(each.name, each.arguments) for each in kept if isinstance(each, ToolCall)],
        shape=sent.shape,
        left_out=sent.left_out,
    )


def find_learned(connected: Connected, row: Oddity) -> dict[str, Any]:
    found = connected.learned[-1].find(row.name) if connected.learned else None
    return {
        name: value
        for name, value in (msgspec.structs.asdict(found) if found else {}).items()
        if value and name not in {"json", "tools", "counts"}
    }


def build_expected(row: Oddity) -> Result:
    return replace(row.result, calls=list(row.result.calls), left_out=tuple(row.result.left_out))


@parametrize_rows(STREAMS, THOUGHTS, TEMPLATES, SETTINGS)
async def test_a_reply_is_read_as_it_was_meant(row: Oddity, form: WireFormat) -> None:
    heard: list[Piece] = []
    problem: ModelError | None = None
    prompt = Prompt([*STORY, *([PromptMessage("assistant", "Well,")] if row.continues else ())])
    async with connect(row, form) as connected:
        try:
            async for piece in connected.model.stream(prompt, Sampling(**row.sampling)):
                heard.append(piece)  # noqa: PERF401 - what came before an error counts
        except ModelError as error:
            problem = error
    found = replace(sum_up(row, heard, problem), learned=find_learned(connected, row))
    assert found == build_expected(row)


@parametrize_rows(CALLS)
async def test_calls_are_read_as_they_were_meant(row: Oddity, form: WireFormat) -> None:
    async with connect(row, form) as connected:
        stream = stream_with_tools(connected.model, Prompt(STORY), [DAMAGE], Sampling())
        heard = [piece async for piece in stream]
        answer = await connected.model.call_tools(Prompt(STORY), [DAMAGE], Sampling())
    assert sum_up(row, heard, None) == build_expected(row)
    assert [(call.name, call.arguments) for call in answer.calls] == list(row.result.calls)


@parametrize_rows(VALUES)
async def test_a_value_is_read_as_it_was_meant(row: Oddity, form: WireFormat) -> None:
    async with connect(row, form) as connected:
        answer = await connected.model.generate_json(Prompt(STORY), SCHEMA, Sampling())
    assert answer.value == row.result.value


TALE = [
    PromptMessage("system", "You are Oswin."),
    PromptMessage("assistant", "Who is there?"),
    PromptMessage("system", "It rains."),
    PromptMessage("user", "It is me."),
    PromptMessage("user", "Hello?"),
    PromptMessage("system", "Write in his voice."),
]

ANY_OBJECT = {"type": "object"}

STRICT_TEMPLATES: list[tuple[Any, MessageShape]] = [
    (qwen, "system_first"),
    (mistral, "alternating"),
    (gemma_2, "no_system"),
    (llama_cpp_mistral, "no_system"),
]


async def heard(model: Any, prompt: Prompt, sampling: Sampling = Sampling()) -> list[Piece]:  # noqa: B008
    return [piece async for piece in model.stream(prompt, sampling)]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(("template", "shape"), STRICT_TEMPLATES)
async def test_the_shape_is_learned_from_the_first_refusal(
    template: Any, shape: MessageShape, status: int
) -> None:
    learned: list[ServerAbilities] = []
    async with StrictServer(template, status=status) as server:
        registry = ModelRegistry(openai=server.config(on_learned=learned.append))
        model = registry.get(MODEL_ID)
        first = await heard(model, Prompt(TALE))
        refusals = server.refusals
        second = await heard(model, Prompt(TALE), Sampling(start_reply_with="Oswin:"))
        value = await model.generate_json(Prompt(TALE), ANY_OBJECT, Sampling())
        restarted = ModelRegistry(openai=server.config(abilities=learned[-1]))
        again = restarted.get(MODEL_ID)
        await heard(again, Prompt(TALE))
        await registry.aclose()
        await restarted.aclose()

        assert 1 <= refusals == server.refusals
    assert first[0] == second[0] == SentRequest(shape=shape)
    assert learned[-1].find(MODEL).shape == shape
    assert model.spec.shape == again.spec.shape == shape
    assert value is not None


@asynccontextmanager
async def strict(
    template: Check, *, status: int = 400, **config: Any
) -> AsyncGenerator[tuple[StrictServer, ChatModel]]:
    """Yield a server with this chat template, and its model."""
    async with StrictServer(template, status=status) as server:
        registry = ModelRegistry(openai=server.config(**config))
        yield server, registry.get(MODEL_ID)
        await registry.aclose()


async def test_a_shape_is_not_learned_from_a_request_that_fails_in_all_of_them() -> None:
    learned: list[ServerAbilities] = []
    async with strict(lambda _: "roles must alternate", on_learned=learned.append) as (_, model):
        with pytest.raises(ModelRequestError):
            await heard(model, Prompt(TALE))
    assert learned == []
    assert model.spec.shape == "lenient"


async def test_an_error_in_the_first_event_of_a_stream_is_a_refusal_too() -> None:
    async with strict(gemma_2, status=200) as (_, model):
        pieces = await heard(model, Prompt(TALE))
    assert pieces[0] == SentRequest(shape="no_system")


async def test_rounds_of_tools_are_sent_as_text_if_the_template_refuses_their_messages() -> None:
    tool = Tool("roll", "Roll dice.", {"type": "object"})
    call = ToolCall("1", "roll", {"dice": 2})
    prompt = Prompt(TALE, [ToolRound([call], [{"sum": 7}])])
    async with strict(gemma_2) as (server, model):
        pieces = [piece async for piece in stream_with_tools(model, prompt, [tool], Sampling())]
        assert "7" in server.accepted[-1]["content"]
    assert SentRequest(shape="no_system") in pieces


async def test_a_continued_reply_and_its_beginning_are_one_message() -> None:
    prompt = Prompt([*TALE[:5], PromptMessage("assistant", "He opens")])
    async with strict(gemma_2) as (server, model):
        await heard(model, prompt, Sampling(start_reply_with="the door"))
        assert server.accepted[-1] == {"role": "assistant", "content": "He opens\n\nthe door"}


async def test_the_shape_that_a_user_sets_is_sent_at_once() -> None:
    abilities = ServerAbilities(models={MODEL: ModelAbilities(shape="no_system")})
    async with strict(gemma_2, abilities=abilities) as (server, model):
        await heard(model, Prompt(TALE))
        assert server.refusals == 0


async def test_another_error_is_not_taken_for_a_refused_shape() -> None:
    async with strict(qwen) as (server, model):
        server.script(error(500, message="CUDA out of memory"))
        with pytest.raises(Exception, match="500"):
            await heard(model, Prompt(TALE))
        assert len(server.requests) == 1


PROMPT = Prompt([PromptMessage("user", "Who is there?")])
WHO_SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}}
VALUE = {"who": "Oswin"}
REFUSED = error(400, message="This response_format type is unavailable now")
TAGGED = "<think>Who?</think>Oswin."
FAILED = error(500, message="Internal Server Error")


async def heard_of(model: ChatModel, sampling: Sampling = Sampling()) -> list[Piece]:  # noqa: B008  # it is frozen
    return [piece async for piece in model.stream(PROMPT, sampling)]


async def listen(openai: Vendor, sampling: Sampling = Sampling(), **changes: Any) -> list[Piece]:  # noqa: B008  # it is frozen
    return apply_resets(await heard_of(openai.connect(**changes), sampling))


def joined(pieces: list[Piece]) -> tuple[str, str]:
    thought = "".join(piece.text for piece in pieces if isinstance(piece, ThinkingPiece))
    return thought, "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


async def test_text_before_a_closing_tag_alone_is_taken_back_once_and_then_expected(
    openai: Vendor,
) -> None:
    openai.server.script(
        reply("Who ", "is it?", "</think>", "Oswin."), reply("Who", "?</think>", "Me.")
    )
    model = openai.connect()
    first = await heard_of(model)
    second = await heard_of(model)
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
    await heard_of(model)
    wrong = await heard_of(model)
    right = await heard_of(model)
    assert joined(apply_resets(wrong)) == ("", "Who else?")
    assert right[:-2] == [TextPiece("No "), TextPiece("one.")]


async def test_thoughts_that_the_limit_cut_off_stay_thoughts(openai: Vendor) -> None:
    openai.server.script(reply("Hm.</think>Me."), reply("Who ", "else", finish="length"))
    model = openai.connect()
    await heard_of(model)
    assert joined(apply_resets(await heard_of(model))) == ("Who else", "")


async def test_a_provider_has_tags_of_its_own_and_can_leave_thoughts_in_the_text(
    openai: Vendor,
) -> None:
    own = ThoughtTags("(muse)", "(/muse)")
    openai.server.script(*(reply("(Muse)Who?(/muse)Oswin.") for _ in range(2)), reply(TAGGED))

    async def told(**config: Any) -> tuple[str, str]:
        return joined(apply_resets(await heard_of(openai.connect(**config))))

    assert await told() == ("", "(Muse)Who?(/muse)Oswin.")
    assert await told(thought_tags=(own,)) == ("Who?", "Oswin.")
    assert await told(reads_thoughts=False) == ("", TAGGED)


async def test_a_possible_tag_is_kept_if_the_reply_breaks_off(openai: Vendor) -> None:
    openai.server.script(stream(chunk(content="It is <thi"), Break()))
    pieces: list[Piece] = []
    with pytest.raises(ModelInterruptedError):
        async for piece in openai.connect().stream(PROMPT, Sampling()):
            pieces.append(piece)  # noqa: PERF401 - it raises
    assert joined(pieces) == ("", "It is <thi")


async def test_a_reply_starts_with_the_given_text(openai: Vendor) -> None:
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
        await openai.connect().generate_json(PROMPT, WHO_SCHEMA, Sampling())
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
    answer = await model.generate_json(PROMPT, WHO_SCHEMA, Sampling())
    if not learned:  # one answer without JSON may be chance
        openai.server.script(*answers)
        await model.generate_json(PROMPT, WHO_SCHEMA, Sampling())
    asked = len(openai.server.requests)
    openai.server.script(answers[-1])
    again = await openai.connect(abilities=learned[-1]).generate_json(
        PROMPT, WHO_SCHEMA, Sampling()
    )
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


async def test_the_schema_is_in_the_prompt_if_the_request_cannot_enforce_it(openai: Vendor) -> None:
    openai.server.script(REFUSED, told(json.dumps(VALUE)))
    await openai.connect().generate_json(PROMPT, WHO_SCHEMA, Sampling())
    first, second = (request.body for request in openai.server.requests)
    assert len(first["messages"]) == 1
    assert second["response_format"] == {"type": "json_object", "schema": WHO_SCHEMA}
    assert json.dumps(WHO_SCHEMA) in second["messages"][-1]["content"]


async def test_one_answer_that_is_no_json_does_not_settle_on_a_weaker_way(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(told("No."), told(json.dumps(VALUE)), told(json.dumps(VALUE)))
    for _ in range(2):
        assert (await model.generate_json(PROMPT, WHO_SCHEMA, Sampling())).value == VALUE
    assert [each.find(MODEL).json for each in learned] == ["json_schema"]


async def test_a_model_that_writes_no_json_is_an_error(openai: Vendor) -> None:
    openai.server.script(*[told("No.")] * 4)
    with pytest.raises(ModelWritesNoJsonError, match="did not return JSON"):
        await openai.connect().generate_json(PROMPT, WHO_SCHEMA, Sampling())


async def test_a_server_that_refuses_everything_is_an_error(openai: Vendor) -> None:
    openai.server.script(*[FAILED] * 4)
    with pytest.raises(ModelUnavailableError):
        await openai.connect().generate_json(PROMPT, WHO_SCHEMA, Sampling())
    openai.server.script(*[REFUSED] * 4)
    with pytest.raises(ModelRequestError):
        await openai.connect().generate_json(PROMPT, WHO_SCHEMA, Sampling())
