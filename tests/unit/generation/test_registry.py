from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.generation.adapters.gemini import ADAPTER_ACCEPTS
from backend.generation.adapters.openai.model import OpenAICompatibleConfig
from backend.generation.catalogue import ListedModel
from backend.generation.client.provider import ServerConfig
from backend.generation.model import ChatModel
from backend.generation.registry import (
    KINDS,
    KindName,
    ModelRegistry,
    OfferedProvider,
    UnknownModelError,
    build_registry,
)
from backend.generation.sampling import SAMPLING_FIELDS, Sampling, SettingNotTakenError, check_taken
from backend.generation.servers.abilities import ModelAbilities, ServerAbilities
from backend.settings import Settings

CLAUDE = ServerConfig(api_key="sk-ant-secret", models=())
GEMINI = ServerConfig(api_key="AIza-secret", models=("gemini-2.5-flash", "gemini-9-huge"))
SERVER = OpenAICompatibleConfig(
    base_url="http://127.0.0.1:9/v1",
    api_key="sk-secret",
    models=("qwen/qwen3:8b",),
    context_window=40_960,
    max_output_tokens=4_096,
)


def test_the_demo_is_always_there_and_takes_every_setting() -> None:
    registry = ModelRegistry()

    (spec,) = registry.specs()
    assert (spec.id, spec.context_window) == ("demo", 1_000_000)
    assert spec.accepts == set(SAMPLING_FIELDS)


def test_models_are_offered_before_the_demo_in_the_order_configured() -> None:
    registry = ModelRegistry(gemini=GEMINI, openai=SERVER)

    assert [spec.id for spec in registry.specs()] == [
        "gemini/gemini-2.5-flash",
        "gemini/gemini-9-huge",
        "openai/qwen/qwen3:8b",
        "demo",
    ]


def test_every_id_leads_to_its_model() -> None:
    registry = ModelRegistry(gemini=GEMINI, openai=SERVER)

    for spec in registry.specs():
        model = registry.get(spec.id)
        assert isinstance(model, ChatModel)
        assert model.spec is registry.spec(spec.id) is spec


def test_a_known_gemini_model_has_its_window_and_its_vocabulary() -> None:
    spec = ModelRegistry(gemini=GEMINI).spec("gemini/gemini-2.5-flash")

    assert spec.title == "Gemini 2.5 Flash"
    assert (spec.context_window, spec.max_output_tokens) == (1_048_576, 65_536)
    assert spec.tokenizer == "gemma3"


def test_an_unknown_gemini_model_is_taken_as_configured() -> None:
    spec = ModelRegistry(gemini=GEMINI).spec("gemini/gemini-9-huge")

    assert (spec.title, spec.context_window) == ("gemini-9-huge", 1_048_576)
    assert "thinking_budget" in spec.accepts


def test_penalties_are_refused_when_set_and_not_by_google_in_every_turn() -> None:
    spec = ModelRegistry(gemini=GEMINI).spec("gemini/gemini-2.5-flash")

    with pytest.raises(SettingNotTakenError):
        check_taken(Sampling(presence_penalty=0.5), accepts=spec.accepts, model_id=spec.id)


def test_the_one_family_that_takes_penalties_may_be_given_them() -> None:
    old = ServerConfig(api_key="AIza-secret", models=("gemini-2.0-flash",))

    assert ModelRegistry(gemini=old).spec("gemini/gemini-2.0-flash").accepts == ADAPTER_ACCEPTS


def test_an_openai_compatible_model_is_what_the_configuration_says() -> None:
    spec = ModelRegistry(openai=SERVER).spec("openai/qwen/qwen3:8b")

    assert spec.name == "qwen/qwen3:8b"
    assert (spec.context_window, spec.max_output_tokens) == (40_960, 4_096)
    assert spec.tokenizer == "o200k_base"


def test_a_window_that_is_set_counts_before_what_is_known_of_the_model() -> None:
    known: Any = {"openai_base_url": "http://127.0.0.1:1/v1", "openai_models": ("gpt-4o",)}
    table = build_registry(Settings(**known)).spec("openai/gpt-4o")
    own = build_registry(Settings(**known, openai_context_window=9_000)).spec("openai/gpt-4o")
    assert (table.figures_from, own.figures_from) == ("table", "user")
    assert own.context_window == 9_000 < table.context_window


def test_a_model_that_is_called_by_its_file_is_shown_without_the_folders() -> None:
    name = "/home/ada/models/Mistral-7B.Q4_K_M.gguf"
    config = OpenAICompatibleConfig(
        base_url="http://127.0.0.1:1/v1", models=(name,), context_window=9, max_output_tokens=9
    )
    spec = ModelRegistry(openai=config).spec(f"openai/{name}")
    assert (spec.title, spec.name) == ("Mistral-7B.Q4_K_M", name)


def test_how_a_model_calls_tools_is_set_for_its_server() -> None:
    name = "qwen/qwen3:8b"
    told = {f"openai/{name}": ListedModel(name=name, tool_support="fenced")}
    registry = ModelRegistry(gemini=GEMINI, openai=SERVER, figures=told)

    supports = [(spec.tool_support, "tool_support" in spec.fixed) for spec in registry.specs()]

    assert supports == [("native", False), ("native", False), ("fenced", True), ("native", True)]


@pytest.mark.parametrize(
    "learned", [ModelAbilities(), ModelAbilities(tools="fenced", shape="no_system")]
)
def test_what_a_user_says_of_a_model_counts_before_what_was_learned(
    learned: ModelAbilities,
) -> None:
    server = replace(SERVER, abilities=ServerAbilities().with_model("qwen", learned))
    said = ListedModel(name="qwen", tool_support="structured", message_shape="system_first")
    spec = _offered(server, said).spec
    assert (spec.tool_support, spec.shape) == ("structured", "system_first")
    assert spec.fixed == {"tool_support", "shape"}


def test_what_was_learned_of_a_model_counts_before_its_servers_default() -> None:
    learned = ModelAbilities(tools="fenced", shape="alternating")
    server = replace(SERVER, abilities=ServerAbilities().with_model("qwen", learned))
    spec = _offered(server, ListedModel(name="qwen")).spec
    assert (spec.tool_support, spec.shape, spec.fixed) == ("fenced", "alternating", frozenset())


@pytest.mark.parametrize(
    ("kind", "config"), [("gemini", GEMINI), ("openai", SERVER), ("anthropic", CLAUDE)]
)
def test_models_of_every_vendor_do_as_their_user_says(kind: KindName, config: ServerConfig) -> None:
    said = ListedModel(name="qwen", tool_support="fenced", message_shape="alternating")
    spec = _offered(config, said, kind=kind).spec
    assert (spec.tool_support, spec.shape) == ("fenced", "alternating")


def _offered(config: ServerConfig, said: ListedModel, *, kind: KindName = "openai") -> ChatModel:
    offered = OfferedProvider(
        slug="home",
        name="Home",
        kind=kind,
        adapter=KINDS[kind].provider(config),
        chosen={said.name: said},
    )
    model = offered.get(said.name)
    assert model is not None
    return model


def test_an_unknown_model_is_answered_with_those_that_there_are() -> None:
    registry = ModelRegistry(gemini=GEMINI)

    with pytest.raises(UnknownModelError, match=r"gemini/gemini-2\.5-flash.*demo") as caught:
        registry.get("gemini/gemini-0.1")

    problem = caught.value.to_problem()
    assert problem["status"] == 422
    assert problem["type"].endswith(":unknown-model")
    assert problem["models"] == ["gemini/gemini-2.5-flash", "gemini/gemini-9-huge", "demo"]
    assert "TALEKEEPER_GEMINI_API_KEY" not in problem["detail"]


def test_gemini_without_a_key_says_which_setting_is_missing() -> None:
    with pytest.raises(UnknownModelError, match="TALEKEEPER_GEMINI_API_KEY"):
        ModelRegistry().spec("gemini/gemini-2.5-flash")


def test_a_server_that_is_not_configured_says_which_setting_is_missing() -> None:
    with pytest.raises(UnknownModelError, match="TALEKEEPER_OPENAI_BASE_URL"):
        ModelRegistry().spec("openai/any")


def test_a_configuration_does_not_show_its_key() -> None:
    assert "secret" not in f"{GEMINI!r} {SERVER!r}"


@pytest.mark.anyio
async def test_closing_a_registry_that_was_never_used_is_nothing() -> None:
    await ModelRegistry(gemini=GEMINI, openai=SERVER).aclose()


@pytest.mark.parametrize("name", ["default_model", "enrichment_model"])
def test_a_model_that_is_not_offered_cannot_be_a_default(name: str) -> None:
    values: dict[str, Any] = {"_env_file": None, name: "gemini/of-another-day"}
    with pytest.raises(UnknownModelError, match="of-another-day"):
        build_registry(Settings(**values))
