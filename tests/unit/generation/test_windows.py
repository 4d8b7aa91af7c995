"""Evidence of a model's context window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from backend.generation.adapters.openai.probes import ModelReport, find_window, read_listed_window
from backend.generation.model import TokenUsage
from backend.generation.servers.window_evidence import (
    PromptCut,
    choose_window_after_cut,
    choose_window_after_refusal,
    find_cut,
    is_window,
)
from backend.settings import ServerName


@pytest.mark.parametrize(
    ("named", "needed", "current", "window"),
    [
        (4_096, 9_000, 32_768, 4_096),
        (16_384, 20_000, 4_096, 16_384),  # the server was started with more since
        (None, 5_000, 32_768, 4_096),
        (None, 9_000, 32_768, 8_192),
        (None, 8_192, 32_768, 4_096),
        (None, 32_768, 32_768, 16_384),
        (None, 60_000, 8_192, 4_096),
        (0, 9_000, 32_768, 8_192),  # no window at all
        (None, 10, 300, 256),
    ],
)
def test_a_refusal_leads_to_the_window_it_names_or_to_a_smaller_one(
    named: int | None, needed: int, current: int, window: int
) -> None:
    assert choose_window_after_refusal(named, needed=needed, current=current) == window


@pytest.mark.parametrize("value", [0, -1, 255, 10**9, 4096.0, "4096", True, None, [4096]])
def test_impossible_windows_are_rejected(value: object) -> None:
    assert not is_window(value)


@pytest.mark.parametrize(
    ("read", "cached", "counted", "ratio", "is_cut"),
    [
        (2_050, 0, 20_000, 1.0, True),
        (3_974, 0, 20_000, 1.0, True),
        # The most efficient vocabulary that was measured makes 0.68 tokens of one counted.
        (6_500, 0, 10_000, 1.0, False),
        (6_500, 0, 10_000, 0.65, False),
        (5_000, 0, 10_000, 0.5, True),  # a ratio that followed cut prompts hides nothing
        (6_500, 0, 10_000, 1.3, True),
        # Reported beside the tokens that came from the cache.
        (2_050, 7_000, 10_000, 1.0, False),
        # Only what was new, or nothing at all, is reported.
        (300, 0, 20_000, 1.0, False),
        (0, 0, 20_000, 1.0, False),
    ],
)
def test_a_prompt_counts_as_cut_if_no_tokenizer_and_no_cache_explains_the_report(
    read: int, cached: int, counted: int, ratio: float, *, is_cut: bool
) -> None:
    usage = TokenUsage(read, 100, cached_tokens=cached)
    cut = find_cut(usage, counted=counted, ratio=ratio)
    expected = PromptCut(sent=round(counted * max(ratio, 1)), read=read)
    assert cut == (expected if is_cut else None)


@pytest.mark.parametrize(
    ("read", "current", "window"),
    [
        (2_050, 32_768, 4_096),  # half of the window, and two
        (2_048, 32_768, 2_048),
        (3_974, 32_768, 4_096),  # as many messages as fit
        (32_770, 131_072, 65_536),
        (3_000, 4_096, 3_000),  # a window that is not a power of two
        (5_000, 4_096, 4_096),
    ],
)
def test_the_window_after_a_cut_is_the_next_power_of_two(
    read: int, current: int, window: int
) -> None:
    assert choose_window_after_cut(PromptCut(sent=100_000, read=read), current=current) == window


MODEL = "llama3.2"

PROPS: Any = {"default_generation_settings": {"n_ctx": 8_192, "params": {}}, "total_slots": 2}
LM_STUDIO = {
    "object": "list",
    "data": [
        {"id": "other", "state": "not-loaded", "max_context_length": 32_768},
        {
            "id": MODEL,
            "state": "loaded",
            "max_context_length": 131_072,
            "loaded_context_length": 4_096,
        },
    ],
}
PS = {"models": [{"name": f"{MODEL}:latest", "model": f"{MODEL}:latest", "context_length": 4_096}]}
SHOW = {
    "parameters": 'num_keep                       24\nstop                           "<|eot|>"',
    "model_info": {"general.architecture": "llama", "llama.context_length": 131_072},
}
CARD = {"id": MODEL, "object": "model", "parameters": {"max_seq_len": 16_384, "cache_size": 9}}


def told(**answers: Any) -> dict[str, Any]:
    """Answers by the path of their route."""
    return {f"/{path.replace('__', '/')}": answer for path, answer in answers.items()}


async def find(
    server: ServerName, answers: Mapping[str, Any], model: str = MODEL
) -> tuple[ModelReport, list[tuple[str, Any]]]:
    asked: list[tuple[str, Any]] = []

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        asked.append((path, body))
        return answers.get(path.partition("?")[0])

    return await find_window(ask, server, model), asked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("server", "answers", "report"),
    [
        ("llama-cpp", told(props=PROPS), ModelReport(8_192)),
        ("llama-cpp", told(props={"default_generation_settings": {"n_ctx": 0}}), ModelReport()),
        ("llama-cpp", told(props={"role": "router"}), ModelReport()),
        (
            "koboldcpp",
            told(api__extra__true_max_context_length={"value": 12_288}),
            ModelReport(12_288),
        ),
        ("lm-studio", told(api__v0__models=LM_STUDIO), ModelReport(4_096, 131_072)),
        (
            "lm-studio",
            told(api__v0__models={"data": [{"id": MODEL, "max_context_length": 2_048}]}),
            ModelReport(None, 2_048),
        ),
        ("ollama", told(api__ps=PS, api__show=SHOW), ModelReport(4_096)),
        ("ollama", told(api__ps={"models": []}, api__show=SHOW), ModelReport(None, 131_072)),
        (
            "ollama",
            told(api__show={**SHOW, "parameters": "num_ctx                        16384"}),
            ModelReport(16_384, 131_072),
        ),
        ("tabbyapi", told(v1__model=CARD), ModelReport(16_384)),
        ("tabbyapi", told(v1__model={**CARD, "id": "another"}), ModelReport()),
        ("other", told(props=PROPS), ModelReport(8_192)),
        ("other", told(api__ps=PS), ModelReport(4_096)),
        ("other", told(v1__model=CARD), ModelReport(16_384)),
        ("other", {}, ModelReport()),
        ("openrouter", told(props=PROPS), ModelReport()),
    ],
)
async def test_each_server_reports_its_window_by_its_own_route(
    server: ServerName, answers: Mapping[str, Any], report: ModelReport
) -> None:
    found, _ = await find(server, answers)
    assert found == report


@pytest.mark.anyio
async def test_a_router_is_asked_for_the_model_and_not_made_to_load_it() -> None:
    _, asked = await find("llama-cpp", {}, model="a/b c.gguf")
    assert asked == [("/props?model=a%2Fb%20c.gguf&autoload=false", None)]


@pytest.mark.anyio
async def test_once_a_window_is_known_no_other_route_is_asked() -> None:
    _, asked = await find("other", told(props=PROPS))
    assert len(asked) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    "odd",
    [None, [], "text", 7, {"data": {"id": MODEL}}, {"data": [None, 3, {"id": [MODEL]}]}, {"a": 1}],
)
@pytest.mark.parametrize("server", ["llama-cpp", "koboldcpp", "lm-studio", "ollama", "tabbyapi"])
async def test_answers_of_any_other_shape_tell_nothing(server: ServerName, odd: Any) -> None:
    routes = told(
        props=odd,
        api__extra__true_max_context_length=odd,
        api__v0__models=odd,
        api__ps=odd,
        api__show=odd,
        v1__model=odd,
    )
    found, _ = await find(server, routes)
    assert found == ModelReport()


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"context_length": 65_536}, 65_536),
        ({"max_model_len": 4_096}, 4_096),
        ({"meta": {"n_ctx": 8_192, "n_ctx_train": 131_072}}, 8_192),
        ({"meta": {"n_ctx_train": 131_072}}, None),
        ({"context_length": "65536", "meta": []}, None),
        ({}, None),
    ],
)
def test_a_model_list_gives_the_window_in_force_never_the_trained_one(
    entry: Mapping[str, Any], window: int | None
) -> None:
    assert read_listed_window(entry) == window
