"""Models whose chat template raises errors: the prompt is sent again in a shape they accept."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.catalogue import MessageShape
from backend.generation.model import (
    ModelRequestError,
    Piece,
    Prompt,
    PromptMessage,
    SentRequest,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.tools.streams import stream_with_tools
from tests.fakes.openai_server import MODEL, MODEL_ID, error
from tests.fakes.strict_server import (
    StrictServer,
    gemma_2,
    llama_cpp_mistral,
    mistral,
    qwen,
)

pytestmark = pytest.mark.anyio

STORY = [
    PromptMessage("system", "You are Oswin."),
    PromptMessage("assistant", "Who is there?"),
    PromptMessage("system", "It rains."),
    PromptMessage("user", "It is me."),
    PromptMessage("user", "Hello?"),
    PromptMessage("system", "Write in his voice."),
]
SCHEMA = {"type": "object"}

TEMPLATES: list[tuple[Any, MessageShape]] = [
    (qwen, "system_first"),
    (mistral, "alternating"),
    (gemma_2, "no_system"),
    (llama_cpp_mistral, "no_system"),
]


async def heard(model: Any, prompt: Prompt, sampling: Sampling = Sampling()) -> list[Piece]:  # noqa: B008
    return [piece async for piece in model.stream(prompt, sampling)]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(("template", "shape"), TEMPLATES)
async def test_the_shape_is_learned_from_the_first_refusal(
    template: Any, shape: MessageShape, status: int
) -> None:
    learned: list[ServerAbilities] = []
    async with StrictServer(template, status=status) as server:
        registry = ModelRegistry(openai=server.config(on_learned=learned.append))
        model = registry.get(MODEL_ID)
        first = await heard(model, Prompt(STORY))
        refusals = server.refusals
        second = await heard(model, Prompt(STORY), Sampling(start_reply_with="Oswin:"))
        value = await model.generate_json(Prompt(STORY), SCHEMA, Sampling())
        restarted = ModelRegistry(openai=server.config(abilities=learned[-1]))
        again = restarted.get(MODEL_ID)
        await heard(again, Prompt(STORY))
        await registry.aclose()
        await restarted.aclose()

        assert 1 <= refusals == server.refusals
    assert first[0] == second[0] == SentRequest(shape=shape)
    assert learned[-1].find(MODEL).shape == shape
    assert model.spec.shape == again.spec.shape == shape
    assert value is not None


async def test_a_shape_is_not_learned_from_a_request_that_fails_in_all_of_them() -> None:
    learned: list[ServerAbilities] = []
    async with StrictServer(lambda _: "roles must alternate") as server:
        registry = ModelRegistry(openai=server.config(on_learned=learned.append))
        model = registry.get(MODEL_ID)
        with pytest.raises(ModelRequestError):
            await heard(model, Prompt(STORY))
        await registry.aclose()

    assert learned == []
    assert model.spec.shape == "lenient"


async def test_an_error_in_the_first_event_of_a_stream_is_a_refusal_too() -> None:
    async with StrictServer(gemma_2, status=200) as server:
        registry = ModelRegistry(openai=server.config())
        pieces = await heard(registry.get(MODEL_ID), Prompt(STORY))
        await registry.aclose()

    assert pieces[0] == SentRequest(shape="no_system")


async def test_rounds_of_tools_are_sent_as_text_if_the_template_refuses_their_messages() -> None:
    tool = Tool("roll", "Roll dice.", {"type": "object"})
    call = ToolCall("1", "roll", {"dice": 2})
    prompt = Prompt(STORY, [ToolRound([call], [{"sum": 7}])])
    async with StrictServer(gemma_2) as server:
        registry = ModelRegistry(openai=server.config())
        stream = stream_with_tools(registry.get(MODEL_ID), prompt, [tool], Sampling())
        pieces = [piece async for piece in stream]
        await registry.aclose()

        assert "7" in server.accepted[-1]["content"]
    assert SentRequest(shape="no_system") in pieces


async def test_a_continued_reply_and_its_beginning_are_one_message() -> None:
    prompt = Prompt([*STORY[:5], PromptMessage("assistant", "He opens")])
    async with StrictServer(gemma_2) as server:
        registry = ModelRegistry(openai=server.config())
        await heard(registry.get(MODEL_ID), prompt, Sampling(start_reply_with="the door"))
        await registry.aclose()

        assert server.accepted[-1] == {"role": "assistant", "content": "He opens\n\nthe door"}


async def test_the_shape_that_a_user_sets_is_sent_at_once() -> None:
    async with StrictServer(gemma_2) as server:
        abilities = ServerAbilities().with_model(
            MODEL, ServerAbilities().find(MODEL).__class__(shape="no_system")
        )
        registry = ModelRegistry(openai=server.config(abilities=abilities))
        await heard(registry.get(MODEL_ID), Prompt(STORY))
        await registry.aclose()

        assert server.refusals == 0


async def test_another_error_is_not_taken_for_a_refused_shape() -> None:
    async with StrictServer(qwen) as server:
        server.script(error(500, message="CUDA out of memory"))
        registry = ModelRegistry(openai=server.config())
        with pytest.raises(Exception, match="500"):
            await heard(registry.get(MODEL_ID), Prompt(STORY))
        await registry.aclose()

        assert len(server.requests) == 1
