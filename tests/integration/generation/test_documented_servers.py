"""Tests of servers as documented: settings, thoughts, usage, counts, JSON and errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from backend.generation.adapters.openai.dialects import OPENAI_SERVERS
from backend.generation.adapters.openai.model import OpenAICompatibleProvider
from backend.generation.model import (
    ChatModel,
    Finish,
    ModelError,
    ModelRateLimitError,
    ModelUnavailableError,
    Piece,
    Prompt,
    PromptMessage,
    SentRequest,
    TokenUsage,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.tokens import MESSAGE_OVERHEAD
from tests.fakes.documented_servers import (
    SERVERS,
    THOUGHT,
    VALUE,
    WINDOW,
    DocumentedServer,
    KoboldCppServer,
    LlamaCppPythonServer,
    LlamaCppServer,
    LMStudioServer,
    MistralServer,
    OllamaServer,
    OpenAIOwnServer,
    OpenRouterServer,
    TabbyAPIServer,
    VLLMServer,
)
from tests.fakes.openai_server import API_KEY, MODEL
from tests.fakes.scripted_server import Answer
from tests.integration.generation.test_every_setting import VALUES
from tests.integration.generation.test_oddities import SCHEMA, joined

pytestmark = pytest.mark.anyio

PROMPT = Prompt(
    [PromptMessage("system", "You are Oswin."), PromptMessage("user", "How is the weather?")]
)
WORDS = 7 + 2 * MESSAGE_OVERHEAD
"""The tokens of the prompt on a server that counts words."""


@dataclass
class Connected:
    server: DocumentedServer
    learned: list[ServerAbilities] = field(default_factory=list[ServerAbilities])
    registries: list[ModelRegistry] = field(default_factory=list[ModelRegistry])

    def model(self, name: str = MODEL, **changes: Any) -> ChatModel:
        config = self.server.config(
            server=self.server.server, models=(name,), on_learned=self.learned.append, **changes
        )
        self.registries.append(ModelRegistry(openai=config))
        return self.registries[-1].get(f"openai/{name}")

    def paths(self) -> list[str]:
        return [request.path for request in self.server.requests]


@pytest.fixture
async def connected(request: pytest.FixtureRequest) -> AsyncGenerator[Connected]:
    async with request.param() as server:
        found = Connected(server)
        yield found
        for registry in found.registries:
            await registry.aclose()


def on_servers(*servers: type[DocumentedServer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("connected", servers, indirect=True)


async def listen(model: ChatModel, sampling: Sampling = Sampling()) -> list[Piece]:  # noqa: B008  # it is frozen
    return [piece async for piece in model.stream(PROMPT, sampling)]


def find_usage(pieces: list[Piece]) -> list[TokenUsage]:
    return [piece for piece in pieces if isinstance(piece, TokenUsage)]


def test_each_server_has_a_fake() -> None:
    assert {each.server for each in SERVERS} == OPENAI_SERVERS.keys() - {"other"}


@on_servers(*SERVERS)
async def test_a_reply_streams_under_every_setting_that_the_server_takes(
    connected: Connected,
) -> None:
    model = connected.model()
    # Only some servers accept a user's schema.
    accepted = model.spec.accepts - {"json_schema"}

    pieces = await listen(model, Sampling(**{name: VALUES[name] for name in accepted}))

    thinks = not isinstance(connected.server, OpenAIOwnServer)
    thought = THOUGHT if thinks else ""
    is_started = "start_reply_with" in accepted
    assert joined(pieces) == ("" if is_started else thought, "Oswin: it rains.")
    assert len(find_usage(pieces)) == 1
    # Refused settings of the adapter are left out from now on. No setting of the user was refused.
    assert model.spec.accepts == connected.model().spec.accepts
    asked = len(connected.server.requests)
    assert joined(await listen(model)) == (thought, "Oswin: it rains.")
    assert connected.paths()[asked:].count("/v1/chat/completions") == 1


@on_servers(*SERVERS)
async def test_servers_without_a_limit_get_a_length(connected: Connected) -> None:
    await listen(connected.model(max_output_tokens=700))
    await connected.model(max_output_tokens=700).generate_json(PROMPT, SCHEMA, Sampling())
    told = {
        request.body.get("max_tokens")
        for request in connected.server.requests
        if request.path == "/v1/chat/completions"
    }
    assert told == ({700} if connected.server.server in {"llama-cpp", "koboldcpp"} else {None})


@on_servers(*SERVERS)
async def test_json_comes_in_the_best_way_that_the_server_has(connected: Connected) -> None:
    ways = {"koboldcpp": "tool", "tabbyapi": "tool", "deepseek": "json_object"}
    is_python = isinstance(connected.server, LlamaCppPythonServer)
    way = "json_object" if is_python else ways.get(connected.server.server, "json_schema")
    for _ in range(2):
        answer = await connected.model().generate_json(
            PROMPT, SCHEMA, Sampling(max_output_tokens=50)
        )
        assert answer.value == VALUE
    model = connected.model()
    for _ in range(2):
        assert (await model.generate_json(PROMPT, SCHEMA, Sampling())).value == VALUE
    assert connected.learned
    assert connected.learned[-1].find(MODEL).json == way


@on_servers(*SERVERS)
async def test_errors_of_the_server_are_described(connected: Connected) -> None:
    kinds: dict[type[DocumentedServer], type[ModelError]] = {
        LlamaCppPythonServer: ModelUnavailableError,
        KoboldCppServer: ModelUnavailableError,
        OpenRouterServer: ModelUnavailableError,
        MistralServer: ModelRateLimitError,
    }
    with pytest.raises(ModelError) as caught:
        await listen(connected.model("no-such-model"))
    assert isinstance(caught.value, kinds.get(type(connected.server), ModelError))
    assert "no-such-model" not in str(caught.value).replace("openai/no-such-model", "")


def find_adapter(connected: Connected) -> OpenAICompatibleProvider:
    adapter = connected.registries[-1].providers["openai"].adapter
    assert isinstance(adapter, OpenAICompatibleProvider)
    return adapter


@on_servers(*SERVERS)
async def test_each_local_server_reports_its_window(connected: Connected) -> None:
    model = connected.model()
    assert (model.spec.context_window, model.spec.figures_from) == (32_768, "default")

    await find_adapter(connected).learn_windows([MODEL])

    spec = connected.registries[-1].spec(model.spec.id)
    known = (WINDOW, "learned") if connected.server.windows else (32_768, "default")
    assert (spec.context_window, spec.figures_from) == known
    assert [each.find(MODEL).window for each in connected.learned] == (
        [WINDOW] if connected.server.windows else []
    )
    sent = {probe.headers["authorization"] for probe in connected.server.probes}
    assert sent <= {f"Bearer {API_KEY}"}
    # Services on the internet are not sent requests to routes that they do not have.
    local = {"llama-cpp", "koboldcpp", "lm-studio", "ollama", "tabbyapi"}
    assert bool(connected.server.probes) == (connected.server.server in local)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, body={"error": "no"}),
        Answer(302, headers={"location": "http://127.0.0.1:9/props"}, body={}),
        Answer(body=b"<html>Log in</html>"),
        Answer(body=[{"default_generation_settings": {"n_ctx": 4_096}}]),
        Answer(body={"default_generation_settings": {"n_ctx": 10**12}}),
    ],
)
@on_servers(LlamaCppServer)
async def test_a_route_that_fails_leaves_the_window_unknown(
    connected: Connected, answer: Answer
) -> None:
    connected.server.aside["/props"] = answer
    connected.model()
    await find_adapter(connected).learn_windows([MODEL])
    assert len(connected.server.probes) == 1
    assert connected.learned == []


@on_servers(OllamaServer)
async def test_a_model_that_is_not_loaded_has_at_most_the_window_it_was_trained_for(
    connected: Connected,
) -> None:
    shown = {"model_info": {"phi2.context_length": 2_048}}
    connected.server.aside["/api/ps"] = Answer(body={"models": []})
    connected.server.aside["/api/show"] = Answer(body=shown)
    model = connected.model()
    await find_adapter(connected).learn_windows([MODEL])
    spec = connected.registries[-1].spec(model.spec.id)
    assert (spec.context_window, spec.max_output_tokens) == (2_048, 2_048)


@on_servers(KoboldCppServer, LlamaCppPythonServer)
async def test_the_server_counts_tokens_if_it_reports_no_usage(connected: Connected) -> None:
    route = connected.server.counts
    assert route is not None
    (counted,) = find_usage(await listen(connected.model()))
    assert counted == TokenUsage(WORDS, 4, thinking_tokens=1)
    assert connected.learned[-1].find(MODEL).counts == route[0]
    # Prompt, reply and thoughts are counted. Only the known route is used.
    connected.server.requests.clear()
    assert find_usage(await listen(connected.model(abilities=connected.learned[-1]))) == [counted]
    assert connected.paths()[1:] == [route[0]] * 3


@on_servers(VLLMServer, TabbyAPIServer)
async def test_reported_usage_is_not_counted_again(connected: Connected) -> None:
    assert find_usage(await listen(connected.model())) == [TokenUsage(12, 4)]
    assert connected.paths() == ["/v1/chat/completions"]


@on_servers(VLLMServer, TabbyAPIServer)
async def test_servers_that_report_usage_count_where_they_do_not(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(connected.server), "reports_usage", False)
    (counted,) = find_usage(await listen(connected.model()))
    assert counted.prompt_tokens == WORDS


@on_servers(KoboldCppServer)
async def test_a_server_that_cannot_count_is_not_asked_again(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(connected.server), "counts", None)
    model = connected.model()
    assert find_usage(await listen(model)) == []
    assert connected.learned[-1].find(MODEL).counts == ""
    connected.server.requests.clear()
    assert find_usage(await listen(model)) == []
    assert connected.paths() == ["/v1/chat/completions"]


@on_servers(LlamaCppPythonServer, LMStudioServer)
async def test_a_schema_of_the_user_that_is_refused_is_left_out(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(connected.server), "forms", frozenset({"json_object"}))
    model = connected.model()
    pieces = await listen(model, Sampling(json_schema='{"type": "object"}'))
    assert pieces[0] == SentRequest(left_out=("json_schema",))
    assert isinstance(pieces[-1], Finish)
