"""Plain models and embeddings: the requests to providers, the replies, and the counted tokens."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.names import InstanceKeys
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.errors import AppError
from backend.generation.catalogue import ListedModel
from backend.generation.model import (
    Finish,
    JsonForm,
    ModelAuthError,
    ModelInterruptedError,
    Piece,
    TextPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolChoice,
)
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import Sampling
from backend.llm.server_slots import ModelSlots
from backend.llm.user_models import UserModels
from backend.openai_api.contracts import SentMessage
from backend.openai_api.embeddings import (
    DimensionsNotTakenError,
    EmbeddingInputError,
    NoEmbeddingModelError,
    PlainEmbeddings,
    render_vectors,
)
from backend.openai_api.plain import (
    MAX_CHOICES,
    PlainModels,
    PlainReply,
    PlainRequest,
)
from backend.quotas.ledgers import count_tokens_today
from backend.quotas.limits import QuotaExceededError
from backend.quotas.service import Quotas
from tests.fakes import openai_server as fake
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.integration.chats.trees import sign_up
from tests.support.server import ROOT, settings_of

pytestmark = pytest.mark.anyio

LOOK = Tool("look", "Look around.", {"type": "object", "properties": {"at": {"type": "string"}}})


def said(role: Any, text: str, **members: Any) -> SentMessage:
    return SentMessage(role=role, text=text, **members)


HELLO = (said("system", "Be brief."), said("user", "Hello."))


@dataclass
class Service:
    model: OpenAIServer
    plain: PlainModels
    embeddings: PlainEmbeddings
    identity: Identity
    database: Database
    quotas: Quotas

    async def start(self, *messages: SentMessage, **fields: Any) -> PlainReply:
        values: dict[str, Any] = {"model": MODEL_ID, "messages": messages or HELLO, **fields}
        return await self.plain.start(self.identity, PlainRequest(**values))

    async def ask(
        self, *messages: SentMessage, **fields: Any
    ) -> tuple[list[tuple[int, Piece]], Sequence[str]]:
        """Return the pieces of a reply, and the parameters that were left out."""
        reply = await self.start(*messages, **fields)
        return [each async for each in reply.pieces()], reply.left_out

    async def tokens(self) -> int:
        async with self.database.read() as session:
            return await count_tokens_today(session, self.identity.user_id)


@pytest.fixture
async def service(database: Database, request: pytest.FixtureRequest) -> AsyncGenerator[Service]:
    settings = settings_of(**getattr(request, "param", {}))
    async with OpenAIServer() as model:
        registry = ModelRegistry(
            demo_tokens_per_second=0,
            openai=model.config(server="openai"),
            concurrency={"openai": getattr(request, "param", {}).get("openai_concurrency")},
        )
        models = UserModels(registry, settings, ROOT)
        quotas = Quotas(database, settings, counts={})
        slots, pool = ModelSlots(database, InstanceKeys(b"i" * 32)), CpuPool(1)
        plain = PlainModels(database, models, quotas, slots)
        embeddings = PlainEmbeddings(
            database, models, quotas, slots, pool, find_shared=lambda: None, batch=2
        )
        identity = await sign_up(database)
        yield Service(model, plain, embeddings, identity, database, quotas)
        await plain.aclose()
        await slots.aclose()
        await pool.aclose()
        await models.aclose()


async def test_a_reply_comes_piece_by_piece_and_its_tokens_are_counted(service: Service) -> None:
    pieces, left_out = await service.ask(sampling=Sampling(temperature=0.5))
    assert pieces == [
        (0, TextPiece("The rain")),
        (0, TextPiece(" has stopped.")),
        (0, Finish("stop")),
        (0, TokenUsage(prompt_tokens=12, completion_tokens=2)),
    ]
    assert left_out == []
    body = service.model.requests[-1].body
    assert [each["content"] for each in body["messages"]] == ["Be brief.", "Hello."]
    assert body["temperature"] == 0.5
    assert await service.tokens() == 14


async def test_settings_that_the_model_lacks_are_left_out_and_named(service: Service) -> None:
    _, left_out = await service.ask(sampling=Sampling(top_k=5, min_p=0.1, seed=3))
    assert left_out == ["top_k", "min_p"]
    body = service.model.requests[-1].body
    assert (body["seed"], "top_k" in body) == (3, False)


async def test_a_setting_that_the_server_refuses_is_named_too(service: Service) -> None:
    service.model.script(fake.error(400, message="Unsupported parameter: 'max_tokens'"))
    service.model.script(fake.error(400, message="Unsupported parameter: 'seed'"))
    _, left_out = await service.ask(sampling=Sampling(seed=3, max_output_tokens=9))
    assert left_out == ["seed"]
    assert service.model.requests[-1].body["max_completion_tokens"] == 9


async def test_several_choices_are_written_at_the_same_time(service: Service) -> None:
    pieces, _ = await service.ask(n=3)
    texts = dict.fromkeys(range(3), "")
    for index, piece in pieces:
        if isinstance(piece, TextPiece):
            texts[index] += piece.text
    assert set(texts.values()) == {"The rain has stopped."}
    assert sorted(index for index, piece in pieces if isinstance(piece, Finish)) == [0, 1, 2]
    assert pieces[-1] == (0, TokenUsage(prompt_tokens=36, completion_tokens=6))
    assert await service.tokens() == 42


async def test_choices_of_several_prompts_are_numbered_in_order(service: Service) -> None:
    requests = [
        PlainRequest(model="demo", messages=[said("user", text)], n=2) for text in ("One", "Two")
    ]
    reply = await service.plain.start(service.identity, *requests)
    texts = dict.fromkeys(range(4), "")
    async for index, piece in reply.pieces():
        if isinstance(piece, TextPiece):
            texts[index] += piece.text
    assert ["One" in text for text in texts.values()] == [True, True, False, False]


@pytest.mark.parametrize("service", [{"openai_concurrency": 1}], indirect=True)
async def test_choices_wait_for_the_one_slot_of_a_server(service: Service) -> None:
    gate = Gate()
    service.model.script(
        fake.stream(fake.chunk(content="One"), gate, fake.chunk("stop"), fake.DONE)
    )
    reply = await service.start(n=2)
    assert len(service.model.requests) == 1
    gate.opened.set()
    pieces = [each async for each in reply.pieces()]
    assert sum(isinstance(piece, Finish) for _, piece in pieces) == 2
    assert len(service.model.requests) == 2


async def test_an_error_before_the_first_piece_is_raised_at_the_start(service: Service) -> None:
    service.model.script(fake.error(401, message="wrong key"))
    with pytest.raises(ModelAuthError):
        await service.start()
    assert await service.tokens() == 0
    with pytest.raises(UnknownModelError):
        await service.start(model="openai/none")


async def test_an_error_in_the_middle_is_raised_there_and_the_tokens_count(
    service: Service,
) -> None:
    service.model.script(fake.stream(fake.chunk(content="Once upon a time"), fake.chunk()))
    reply = await service.start()
    heard: list[Piece] = []
    with pytest.raises(ModelInterruptedError):
        async for _, piece in reply.pieces():
            heard.append(piece)
    assert heard == [TextPiece("Once upon a time")]
    assert await service.tokens() > 0


async def test_a_client_that_closes_the_reply_ends_the_request(service: Service) -> None:
    gate = Gate()
    service.model.script(fake.stream(fake.chunk(content="Once"), gate))
    reply = await service.start()
    async with aclosing(reply.pieces()) as pieces:
        assert await anext(pieces) == (0, TextPiece("Once"))
    await service.model.hung_up.wait()
    assert service.quotas.turns.used(service.identity.user_id) == 0
    assert await service.tokens() > 0


async def test_the_end_of_the_server_ends_all_replies(service: Service) -> None:
    service.model.script(fake.stream(fake.chunk(content="Once"), Gate()))
    reply = await service.start()
    await service.plain.aclose()
    with pytest.raises(ModelInterruptedError):
        [each async for each in reply.pieces()]


async def test_an_empty_reply_is_a_choice_without_text(service: Service) -> None:
    service.model.script(fake.stream(fake.chunk("stop"), fake.DONE))
    pieces, _ = await service.ask()
    assert pieces[0] == (0, Finish("stop"))


@pytest.mark.parametrize(
    "service", [{"max_turns_per_user": 1, "max_tokens_per_day_per_user": 14}], indirect=True
)
async def test_the_quotas_of_turns_hold(service: Service) -> None:
    gate = Gate()
    service.model.script(
        fake.stream(fake.chunk(content="One"), gate, fake.chunk("stop"), fake.DONE)
    )
    reply = await service.start()
    with pytest.raises(QuotaExceededError) as caught:
        await service.start()
    assert caught.value.extra["quota"] == "turns"
    gate.opened.set()
    [each async for each in reply.pieces()]
    await service.ask()
    with pytest.raises(QuotaExceededError) as caught:
        await service.start()
    assert caught.value.extra["quota"] == "tokens_per_day"


async def test_tools_are_offered_and_their_calls_and_results_passed_through(
    service: Service,
) -> None:
    service.model.script(fake.called(("look", {"at": "door"})))
    pieces, _ = await service.ask(tools=[LOOK], tool_choice=ToolChoice("named", "look"))
    call = next(piece for _, piece in pieces if isinstance(piece, ToolCall))
    assert (call.name, call.arguments) == ("look", {"at": "door"})
    assert (0, Finish("tool_calls")) in pieces
    body = service.model.requests[-1].body
    assert body["tools"][0]["function"]["name"] == "look"
    assert body["tool_choice"]["function"] == {"name": "look"}
    asked = said("assistant", "", calls=(ToolCall("a", "look", {}), ToolCall("b", "look", {})))
    results = [said("tool", "A cat.", call_id="b"), said("tool", "A door.", call_id="a")]
    await service.ask(*HELLO, asked, *results, tools=[LOOK])
    sent = service.model.requests[-1].body["messages"]
    assert [each["role"] for each in sent[2:]] == ["assistant", "tool", "tool"]
    assert [each["content"] for each in sent[3:]] == ["A door.", "A cat."]


async def test_a_model_that_writes_calls_into_its_text_is_offered_tools_as_well(
    database: Database,
) -> None:
    async with OpenAIServer() as model:
        listed = ListedModel(name=fake.MODEL, tool_support="fenced")
        registry = ModelRegistry(openai=model.config(), figures={MODEL_ID: listed})
        settings = settings_of()
        models = UserModels(registry, settings, ROOT)
        slots = ModelSlots(database, InstanceKeys(b"i" * 32))
        plain = PlainModels(database, models, Quotas(database, settings, counts={}), slots)
        call = '```tools\n[{"tool": "look", "arguments": {"at": "door"}}]\n```'
        model.script(fake.reply("I look.\n", call))
        request = PlainRequest(
            model=MODEL_ID, messages=HELLO, tools=[LOOK], tool_choice=ToolChoice("required")
        )
        reply = await plain.start(await sign_up(database), request)
        pieces = [piece async for _, piece in reply.pieces()]
        assert [each.name for each in pieces if isinstance(each, ToolCall)] == ["look"]
        assert (reply.left_out, "tools" in model.requests[-1].body) == (["tool_choice"], False)
        await slots.aclose()
        await models.aclose()


async def test_json_is_requested_with_the_client_s_schema(service: Service) -> None:
    schema = {"type": "object", "properties": {"who": {"type": "string"}}}
    await service.ask(form=JsonForm(schema=schema, name="who", strict=True))
    wanted = service.model.requests[-1].body["response_format"]["json_schema"]
    assert wanted == {"name": "who", "schema": schema, "strict": True}
    await service.ask(form=JsonForm())
    assert service.model.requests[-1].body["response_format"] == {"type": "json_object"}


async def test_the_beginning_of_a_reply_is_not_sent_back(service: Service) -> None:
    pieces, _ = await service.ask(*HELLO, said("assistant", "The"), model="demo")
    text = "".join(piece.text for _, piece in pieces if isinstance(piece, TextPiece))
    assert text
    service.model.script(fake.reply(" rain", " has stopped."))
    pieces, _ = await service.ask(*HELLO, said("assistant", "The"))
    assert pieces[0] == (0, TextPiece(" rain"))
    assert service.model.requests[-1].body["messages"][-1]["content"] == "The"


async def test_unknown_parameters_reach_only_servers_that_the_account_may_use_freely(
    service: Service,
) -> None:
    _, left_out = await service.ask(extra={"mirostat": 2})
    assert (left_out, "mirostat" in service.model.requests[-1].body) == (["mirostat"], False)
    service.identity.user.is_administrator = True
    _, left_out = await service.ask(extra={"mirostat": 2, "model": "other"})
    body = service.model.requests[-1].body
    assert (left_out, body["mirostat"], body["model"]) == ([], 2, fake.MODEL)


@pytest.mark.parametrize(
    ("slug", "fields"),
    [
        ("too-many-choices", {"n": MAX_CHOICES + 1}),
        ("too-many-choices", {"n": 0}),
        ("tools-not-valid", {"tool_choice": ToolChoice("named", "look")}),
        ("tools-not-valid", {"tool_choice": ToolChoice("required")}),
        ("tools-not-valid", {"tools": [LOOK, LOOK]}),
        ("tools-not-valid", {"tools": [Tool("no name", "", {})]}),
        ("tools-not-valid", {"tools": [Tool(f"t{at}", "", {}) for at in range(129)]}),
        ("extra-parameters-too-large", {"extra": {"a": "x" * 17_000}}),
        ("validation-failed", {"messages": ()}),
        ("tool-messages", {"messages": [said("tool", "A door.", call_id="a")]}),
        (
            "tool-messages",
            {"messages": [said("assistant", "", calls=(ToolCall("a", "look", {}),))]},
        ),
        (
            "tool-messages",
            {
                "messages": [
                    said("assistant", "", calls=(ToolCall("a", "look", {}),)),
                    said("tool", "One.", call_id="a"),
                    said("tool", "Two.", call_id="a"),
                ]
            },
        ),
    ],
)
async def test_what_is_not_valid_is_refused_before_anything_is_sent(
    service: Service, slug: str, fields: dict[str, Any]
) -> None:
    service.identity.user.is_administrator = True
    with pytest.raises(AppError) as caught:
        await service.start(**fields)
    assert caught.value.slug == slug
    assert (caught.value.status, service.model.requests) == (422, [])


async def test_the_demo_model_calls_tools_and_writes_json(service: Service) -> None:
    line = said("user", "/demo call")
    pieces, _ = await service.ask(line, model="demo", tools=[LOOK])
    (call,) = [piece for _, piece in pieces if isinstance(piece, ToolCall)]
    assert (call.name, call.arguments) == ("look", {"at": "/demo call"})
    asked = said("assistant", "", calls=(call,))
    told = said("tool", "A door.", call_id=call.id)
    pieces, _ = await service.ask(line, asked, told, model="demo", tools=[LOOK])
    assert "A door." in "".join(piece.text for _, piece in pieces if isinstance(piece, TextPiece))
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "tags": {"type": "array"}},
    }
    pieces, _ = await service.ask(model="demo", form=JsonForm(schema=schema))
    text = "".join(piece.text for _, piece in pieces if isinstance(piece, TextPiece))
    assert json.loads(text) == {"age": 1, "tags": []}


async def test_texts_are_embedded_in_batches_and_counted(service: Service) -> None:
    texts = ["a door", "a cat", "a door"]
    found = await service.embeddings.embed(service.identity, "openai/words", texts)
    assert found.vectors.shape == (3, fake.OWN_DIMENSION)
    assert np.allclose(found.vectors[0], found.vectors[2])
    assert [len(each.body["input"]) for each in service.model.requests] == [2, 1]
    assert (found.model, await service.tokens()) == ("openai/words", found.tokens)


async def test_vectors_are_rendered_as_numbers_and_as_base64(service: Service) -> None:
    found = await service.embeddings.embed(service.identity, "openai/words", ["a door"])
    numbers = json.loads(render_vectors(found, "float"))
    assert (numbers["object"], numbers["model"]) == ("list", "openai/words")
    (first,) = numbers["data"]
    assert np.allclose(first["embedding"], found.vectors[0])
    (second,) = json.loads(render_vectors(found, "base64"))["data"]
    decoded = np.frombuffer(base64.b64decode(second["embedding"]), "<f4")
    assert np.array_equal(decoded, found.vectors[0])
    assert numbers["usage"] == {"prompt_tokens": found.tokens, "total_tokens": found.tokens}


async def test_dimensions_are_passed_on_or_refused(service: Service) -> None:
    embed = service.embeddings.embed
    found = await embed(service.identity, "openai/words", ["a door"], dimensions=64)
    assert found.vectors.shape == (1, 64)
    service.model.script(fake.error(400, message="This model does not support `dimensions`."))
    with pytest.raises(DimensionsNotTakenError):
        await embed(service.identity, "openai/words", ["a door"], dimensions=64)
    service.model.script(fake.embeddings([1.0, 2.0]))
    with pytest.raises(DimensionsNotTakenError):
        await embed(service.identity, "openai/words", ["a door"], dimensions=64)


async def test_texts_that_cannot_be_embedded_whole_are_refused(service: Service) -> None:
    with pytest.raises(EmbeddingInputError):
        await service.embeddings.embed(service.identity, "openai/words", ["a", "word " * 3_000])
    assert service.model.requests == []


async def test_an_account_without_an_embedding_model_is_told_so(service: Service) -> None:
    with pytest.raises(NoEmbeddingModelError):
        await service.embeddings.embed(service.identity, "default", ["a door"])
