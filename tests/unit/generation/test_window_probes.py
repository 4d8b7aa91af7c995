"""Windows as servers tell them, and answers of any other shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from backend.generation.adapters.openai.probes import WindowReport, find_window, read_listed_window
from backend.settings import ServerName

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
) -> tuple[WindowReport, list[tuple[str, Any]]]:
    asked: list[tuple[str, Any]] = []

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        asked.append((path, body))
        return answers.get(path.partition("?")[0])

    return await find_window(ask, server, model), asked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("server", "answers", "report"),
    [
        ("llama-cpp", told(props=PROPS), WindowReport(8_192)),
        ("llama-cpp", told(props={"default_generation_settings": {"n_ctx": 0}}), WindowReport()),
        ("llama-cpp", told(props={"role": "router"}), WindowReport()),
        (
            "koboldcpp",
            told(api__extra__true_max_context_length={"value": 12_288}),
            WindowReport(12_288),
        ),
        ("lm-studio", told(api__v0__models=LM_STUDIO), WindowReport(4_096, 131_072)),
        (
            "lm-studio",
            told(api__v0__models={"data": [{"id": MODEL, "max_context_length": 2_048}]}),
            WindowReport(None, 2_048),
        ),
        ("ollama", told(api__ps=PS, api__show=SHOW), WindowReport(4_096)),
        ("ollama", told(api__ps={"models": []}, api__show=SHOW), WindowReport(None, 131_072)),
        (
            "ollama",
            told(api__show={**SHOW, "parameters": "num_ctx                        16384"}),
            WindowReport(16_384, 131_072),
        ),
        ("tabbyapi", told(v1__model=CARD), WindowReport(16_384)),
        ("tabbyapi", told(v1__model={**CARD, "id": "another"}), WindowReport()),
        ("other", told(props=PROPS), WindowReport(8_192)),
        ("other", told(api__ps=PS), WindowReport(4_096)),
        ("other", told(v1__model=CARD), WindowReport(16_384)),
        ("other", {}, WindowReport()),
        ("openrouter", told(props=PROPS), WindowReport()),
    ],
)
async def test_each_server_tells_its_window_by_its_own_route(
    server: ServerName, answers: Mapping[str, Any], report: WindowReport
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
    assert found == WindowReport()


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
def test_a_list_tells_the_window_in_force_and_never_the_trained_one(
    entry: Mapping[str, Any], window: int | None
) -> None:
    assert read_listed_window(entry) == window
