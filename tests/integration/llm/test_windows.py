"""Windows that a provider's server reports when its models are listed, and when it is tested."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.documented_servers import WINDOW, OllamaServer, VLLMServer
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer
from tests.fakes.scripted_server import Answer
from tests.support.server import Account, Running, ok, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PROVIDERS = "/api/v1/providers"
LIST = Answer(body={"object": "list", "data": [{"id": MODEL, "object": "model"}]})


@pytest.fixture
async def server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account("ada") as ada:
        yield ada


async def add(ada: Account, vendor: OpenAIServer, preset: str) -> str:
    """The path of a provider."""
    body = {"preset": preset, "slug": "mine", "base_url": vendor.url, "api_key": API_KEY}
    return f"{PROVIDERS}/{ok(await ada.client.post(PROVIDERS, json=body), 201)['id']}"


async def listed(ada: Account, path: str, **query: Any) -> tuple[int, str]:
    (item,) = ok(await ada.client.get(f"{path}/models", params=query))["items"]
    return item["context_window"], item["figures_from"]


async def offered(ada: Account) -> tuple[int, str]:
    models = ok(await ada.client.get("/api/v1/models"))["items"]
    found = next(each for each in models if each["id"] == f"mine/{MODEL}")
    return found["context_window"], found["figures_from"]


async def test_a_window_that_the_server_reports_comes_with_the_list_and_is_kept(
    ada: Account,
) -> None:
    async with OllamaServer() as vendor:
        path = await add(ada, vendor, "ollama")
        vendor.script(LIST)
        assert await listed(ada, path) == (WINDOW, "learned")
        probes = len(vendor.probes)

        async def is_kept() -> bool:
            return await listed(ada, path, refresh="false") == (WINDOW, "learned")

        await until(is_kept)
        assert len(vendor.probes) == probes
        # The user's own figure comes first.
        own = {"models": [{"name": MODEL, "context_window": 8_000}]}
        ok(await ada.client.patch(path, json=own))
        assert await offered(ada) == (8_000, "user")


async def test_a_test_asks_again_once_the_model_is_loaded(ada: Account) -> None:
    class Loading(OllamaServer):
        """Knows the window of its model once that has answered."""

        def usual(self, request: Any) -> Answer:
            if request.path == "/v1/models":
                return LIST
            self.aside["/api/ps"] = Answer(body=self.windows["/api/ps"])
            return super().usual(request)

    async with Loading() as vendor:
        vendor.aside["/api/ps"] = Answer(body={"models": []})
        path = await add(ada, vendor, "ollama")
        assert await listed(ada, path) == (32_768, "default")
        assert ok(await ada.client.post(f"{path}/test", json={}))["ok"]

        async def is_known() -> bool:
            return await listed(ada, path, refresh="false") == (WINDOW, "learned")

        await until(is_known)


async def test_a_list_with_another_window_replaces_what_was_learned(ada: Account) -> None:
    def listing(window: int) -> Answer:
        return Answer(body={"data": [{"id": MODEL, "max_model_len": window}]})

    async with VLLMServer() as vendor:
        path = await add(ada, vendor, "vllm")
        vendor.script(listing(8_192))
        assert await listed(ada, path) == (8_192, "provider")
        ok(await ada.client.patch("/api/v1/me/settings", json={"model": f"mine/{MODEL}"}))
        chat = (await ada.new_chat())["id"]
        message = "This model's maximum context length is 4096 tokens. However, you requested 5000."
        vendor.script(Answer(400, body={"object": "error", "message": message, "code": 400}))
        assert (await ada.turn(chat, text="Well?"))[-1].name == "turn.completed"
        assert await offered(ada) == (4_096, "learned")
        vendor.script(listing(16_384))
        assert await listed(ada, path) == (16_384, "provider")
        assert await offered(ada) == (16_384, "provider")
