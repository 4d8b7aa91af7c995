"""What servers refuse is said by its name, and is not sent again."""

from __future__ import annotations

import pytest

from backend.generation.model import (
    ModelContextOverflowError,
    Prompt,
    PromptMessage,
    SentRequest,
    TextPiece,
)
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ModelAbilities, ServerAbilities
from tests.fakes.openai_server import MODEL, completion, error, reply
from tests.fakes.scripted_server import Answer
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Go on.")])

OPENAI = error(
    400,
    message="Unsupported parameter: 'top_k' is not supported with this model.",
    code="unsupported_parameter",
)
MISTRAL = Answer(
    status=422,
    body={"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs"}]},
)
BARE = error(400, message="Unrecognized request argument supplied: top_k")
WRONG_VALUE = error(400, message="'top_k' must be -1 or at least 1, got 40")


async def say(openai: Vendor, sampling: Sampling, **changes: object) -> str:
    model = openai.connect(**changes)
    pieces = [piece async for piece in model.stream(PROMPT, sampling)]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


@pytest.mark.parametrize("answer", [OPENAI, MISTRAL, BARE])
async def test_a_refused_setting_is_left_out_named_and_no_longer_accepted(
    openai: Vendor, answer: Answer
) -> None:
    learned: list[ServerAbilities] = []
    model = openai.connect(on_learned=learned.append)
    openai.server.script(answer)

    for _ in range(2):
        pieces = [piece async for piece in model.stream(PROMPT, Sampling(top_k=40, seed=1))]
        assert pieces[0] == SentRequest(left_out=("top_k",))

    assert learned == [ServerAbilities(models={MODEL: ModelAbilities(refused=("top_k",))})]
    assert ["top_k" in request.body for request in openai.server.requests] == [True, False, False]
    assert openai.server.requests[-1].body["seed"] == 1
    spec = openai.connect(abilities=learned[0]).spec
    assert "top_k" not in spec.accepts
    assert spec.refused == {"top_k"}


async def test_a_value_that_is_refused_is_left_out_once(openai: Vendor) -> None:
    model = openai.connect()
    openai.server.script(WRONG_VALUE, reply("{}"))

    await model.generate_json(PROMPT, {"type": "object"}, Sampling(top_k=40))

    assert "top_k" in model.spec.accepts
    assert "top_k" not in openai.server.requests[-1].body


async def test_a_prompt_that_is_too_long_refuses_no_setting(openai: Vendor) -> None:
    said = "the prompt and max_tokens are more than the unsupported length"
    openai.server.script(error(400, message=said, code="context_length_exceeded"))

    with pytest.raises(ModelContextOverflowError):
        await say(openai, Sampling(max_output_tokens=100))

    assert len(openai.server.requests) == 1


async def test_what_talekeeper_adds_itself_is_left_out_or_renamed(openai: Vendor) -> None:
    learned: list[ServerAbilities] = []
    openai.server.script(
        error(400, message="Unknown parameter: 'stream_options'.", code="unknown_parameter"),
        error(400, message="Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."),
        reply("No."),
    )

    said = await say(openai, Sampling(max_output_tokens=9), on_learned=learned.append)
    await say(openai, Sampling(max_output_tokens=8), abilities=learned[-1])

    assert said == "No."
    assert learned[-1].find(MODEL).without == ("stream_options", "max_tokens")
    body = openai.server.requests[-1].body
    assert len(openai.server.requests) == 4
    assert "stream_options" not in body
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 8


async def test_extra_headers_and_members_go_into_each_request(openai: Vendor) -> None:
    more = {"extra_headers": {"x-title": "Tale"}, "extra_body": {"provider": {"sort": "price"}}}
    openai.server.script(reply("No."), Answer(body=completion("{}")))
    model = openai.connect(**more)

    _ = [piece async for piece in model.stream(PROMPT, Sampling())]
    await model.generate_json(PROMPT, {"type": "object"}, Sampling())

    for request in openai.server.requests:
        assert request.body["provider"] == {"sort": "price"}
        assert request.headers["x-title"] == "Tale"
