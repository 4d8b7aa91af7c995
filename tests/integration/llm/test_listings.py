"""Tests of the lists of models that providers' servers report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.generation.servers.listing import MAX_LISTED
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.documented_servers import WINDOW, OllamaServer, VLLMServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import API_KEY, MODEL, MODEL_ID, OpenAIServer, reply
from tests.fakes.scripted_server import Answer
from tests.integration.llm.test_providers import PROVIDERS, add
from tests.support.heartbeat import PROMISED, heartbeat
from tests.support.models import asking
from tests.support.server import Account, ok, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def listing(account: Account, made: dict[str, Any], **query: Any) -> dict[str, Any]:
    path = f"{PROVIDERS}/{made['id']}/models"
    found: dict[str, Any] = ok(await account.client.get(path, params=query))
    return found


async def test_listed_models_have_figures_and_are_stored(ada: Account, model: OpenAIServer) -> None:
    made = await add(ada, model, models=[{"name": "b", "context_window": 9_000}])
    price = {"prompt": "0.000001", "completion": "0.000002"}
    entries = [{"id": "a", "context_length": 64_000, "pricing": price}, {"id": "b"}, {"id": 3}]
    model.script(Answer(body={"data": entries}))
    now = await listing(ada, made)
    first, second = now["items"]
    assert (first["id"], first["context_window"], first["enabled"]) == ("mine/a", 64_000, False)
    assert (first["figures_from"], first["price"]["output"]) == ("provider", 2.0)
    assert (second["id"], second["context_window"], second["enabled"]) == ("mine/b", 9_000, True)
    assert (second["figures_from"], now["problem"]) == ("user", None)
    assert model.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"
    asked = len(model.requests)
    assert await listing(ada, made, refresh="false") == now
    assert len(model.requests) == asked
    # An empty choice means all listed models.
    ok(await ada.client.patch(f"{PROVIDERS}/{made['id']}", json={"models": []}))
    kept = await listing(ada, made, refresh="false")
    assert all(each["enabled"] for each in kept["items"])
    model.script(Answer(401, body={"error": {"message": f"{API_KEY} is wrong"}}))
    failed = await listing(ada, made)
    assert failed["problem"]["slug"] == "model-key-refused"
    assert API_KEY not in failed["problem"]["detail"]
    assert (failed["items"], failed["listed_at"]) == (kept["items"], kept["listed_at"])


async def test_gemini_lists_what_can_write_with_its_windows(ada: Account) -> None:
    async with GeminiServer() as google:
        google.script(
            Answer(
                body={
                    "models": [
                        {
                            "name": "models/gemini-of-tomorrow",
                            "displayName": "Gemini of tomorrow",
                            "inputTokenLimit": 300_000,
                            "outputTokenLimit": 4_000,
                            "supportedGenerationMethods": ["generateContent", "countTokens"],
                        },
                        {
                            "name": "models/embedding-001",
                            "supportedGenerationMethods": ["embedContent"],
                        },
                    ]
                }
            )
        )
        body = {"kind": "gemini", "slug": "google", "api_key": "AIza-key", "base_url": google.url}
        made = ok(await ada.client.post(PROVIDERS, json=body), 201)
        (only,) = (await listing(ada, made))["items"]
        assert (only["id"], only["title"]) == ("google/gemini-of-tomorrow", "Gemini of tomorrow")
        assert (only["context_window"], only["max_output_tokens"]) == (300_000, 4_000)
        (request,) = google.requests
        assert (request.path, request.query["pageSize"]) == ("/v1beta/models", "1000")
        assert request.headers["x-goog-api-key"] == "AIza-key"


async def test_anthropic_lists_its_models_by_their_titles(ada: Account) -> None:
    async with AnthropicServer() as anthropic:
        entry = {"type": "model", "id": "claude-of-tomorrow", "display_name": "Claude of tomorrow"}
        anthropic.script(Answer(body={"data": [entry], "has_more": False}))
        key, url = "sk-ant-a-key-of-hers", anthropic.url
        body = {"kind": "anthropic", "slug": "claude", "api_key": key, "base_url": url}
        made = ok(await ada.client.post(PROVIDERS, json=body), 201)
        (only,) = (await listing(ada, made))["items"]
        assert (only["id"], only["title"]) == ("claude/claude-of-tomorrow", "Claude of tomorrow")
        assert (only["context_window"], only["figures_from"]) == (200_000, "default")
        (request,) = anthropic.requests
        assert (request.path, request.query["limit"]) == ("/v1/models", "1000")
        assert request.headers["x-api-key"] == key
        assert request.headers["anthropic-version"]


async def test_a_model_without_text_output_is_no_default(ada: Account, model: OpenAIServer) -> None:
    made = await add(ada, model, models=[])
    names = ("nomic-embed-text", "whisper-1", "storyteller")
    model.script(Answer(body={"data": [{"id": name} for name in names]}))
    await listing(ada, made)
    offered = ok(await ada.client.get("/api/v1/models"))["items"]
    assert [each["id"] for each in offered[:2]] == ["mine/storyteller", "mine/nomic-embed-text"]
    assert [each["id"] for each in offered if each["is_default"]] == ["mine/storyteller"]


LISTS: list[Any] = [
    [{"id": "a"}, {"id": "b"}],
    ["a", "b"],
    {"data": ["a", {"name": "b"}]},
    {"models": [{"model": "a"}, {"name": "models/b"}]},
    {"object": "list", "data": None, "models": [{"name": "a"}, {"name": "b"}]},
    {"success": True, "result": [{"id": "a", "name": "A"}, {"name": "b"}]},
    {"items": [{"id": "a"}, 3, None, {"id": ""}, [], {"id": "b"}]},
    b'\xef\xbb\xbf{"data": [{"id": "a"}, {"id": "b"}]}',
]
"""Lists of the models `a` and `b`."""


@pytest.mark.parametrize("body", LISTS)
async def test_a_list_of_any_usual_form_is_read(
    ada: Account, model: OpenAIServer, body: Any
) -> None:
    made = await add(ada, model, models=[])
    model.script(Answer(body=body))
    found = await listing(ada, made)
    assert sorted(each["name"] for each in found["items"]) == ["a", "b"]
    assert found["problem"] is None


@pytest.mark.parametrize(
    "answer",
    [
        *(Answer(404), Answer(405), Answer(501), Answer(body={}), Answer(body={"data": "none"})),
        *(Answer(body="models"), Answer(body=b"<html>Hello</html>"), Answer(body=7)),
    ],
)
async def test_names_typed_by_hand_work_where_a_server_has_no_list(
    ada: Account, model: OpenAIServer, answer: Answer
) -> None:
    made = await add(ada, model, models=[{"name": "typed"}])
    model.script(answer)
    found = await listing(ada, made)
    assert [each["name"] for each in found["items"]] == ["typed"]
    assert found["problem"]["slug"] == "no-model-list"
    assert f"{model.url}/models" in found["problem"]["detail"]
    model.script(answer, reply("Hello."))
    tested = ok(await ada.client.post(f"{PROVIDERS}/{made['id']}/test", json={}))
    assert (tested["ok"], tested["model"], tested["models"]) == (True, "typed", 0)
    assert [(step["step"], step["ok"]) for step in tested["steps"]] == [
        ("models", False),
        ("reply", True),
    ]
    assert model.requests[-1].body["model"] == "typed"


async def test_a_list_that_is_too_large_is_not_read_and_the_test_says_so(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model, models=[{"name": "typed"}])
    large = Answer(body={"data": [{"id": "a", "description": "x" * 2**20}]})
    model.script(large)
    found = await listing(ada, made)
    assert [each["name"] for each in found["items"]] == ["typed"]
    assert found["problem"]["slug"] == "model-list-too-large"
    model.script(large, reply("Hello."))
    tested = ok(await ada.client.post(f"{PROVIDERS}/{made['id']}/test", json={}))
    assert (tested["ok"], tested["models"]) == (True, 0)
    listed, replied = tested["steps"]
    assert (listed["ok"], replied["ok"]) == (False, True)
    assert f"{model.url}/models is larger than 1 MB" in listed["detail"]


async def test_a_list_of_very_many_models_is_cut_and_read_beside_everybody_s_work(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model, models=[])
    model.script(Answer(body=[f"{number:x}" for number in range(100_000)]))
    async with heartbeat() as heart:
        found = await listing(ada, made)
    assert (len(found["items"]), found["is_cut"]) == (MAX_LISTED, True)
    assert heart.longest < PROMISED


async def test_a_server_without_models_has_an_empty_list(ada: Account, model: OpenAIServer) -> None:
    made = await add(ada, model, models=[])
    model.script(Answer(body={"object": "list", "data": None}))
    found = await listing(ada, made)
    assert (found["items"], found["problem"]) == ([], None)
    model.script(Answer(body={"object": "list", "data": []}))
    tested = ok(await ada.client.post(f"{PROVIDERS}/{made['id']}/test", json={}))
    assert (tested["ok"], tested["problem"]["slug"]) == (False, "unknown-model")


LIST = Answer(body={"object": "list", "data": [{"id": MODEL, "object": "model"}]})


async def add_preset(ada: Account, vendor: OpenAIServer, preset: str) -> str:
    """Add a provider. Return its path."""
    body = {"preset": preset, "slug": "mine", "base_url": vendor.url, "api_key": API_KEY}
    return f"{PROVIDERS}/{ok(await ada.client.post(PROVIDERS, json=body), 201)['id']}"


async def read_window(ada: Account, path: str, **query: Any) -> tuple[int, str]:
    (item,) = ok(await ada.client.get(f"{path}/models", params=query))["items"]
    return item["context_window"], item["figures_from"]


async def read_offer(ada: Account) -> tuple[int, str]:
    models = ok(await ada.client.get("/api/v1/models"))["items"]
    found = next(each for each in models if each["id"] == f"mine/{MODEL}")
    return found["context_window"], found["figures_from"]


async def test_a_window_that_the_server_reports_comes_with_the_list_and_is_kept(
    ada: Account,
) -> None:
    async with OllamaServer() as vendor:
        path = await add_preset(ada, vendor, "ollama")
        vendor.script(LIST)
        assert await read_window(ada, path) == (WINDOW, "learned")
        probes = len(vendor.probes)

        async def is_kept() -> bool:
            return await read_window(ada, path, refresh="false") == (WINDOW, "learned")

        await until(is_kept)
        assert len(vendor.probes) == probes
        # The user's own figure comes first.
        own = {"models": [{"name": MODEL, "context_window": 8_000}]}
        ok(await ada.client.patch(path, json=own))
        assert await read_offer(ada) == (8_000, "user")


async def test_a_test_asks_again_once_the_model_is_loaded(ada: Account) -> None:
    class Loading(OllamaServer):
        """Reports the window of its model after the first answer."""

        def usual(self, request: Any) -> Answer:
            if request.path == "/v1/models":
                return LIST
            self.aside["/api/ps"] = Answer(body=self.windows["/api/ps"])
            return super().usual(request)

    async with Loading() as vendor:
        vendor.aside["/api/ps"] = Answer(body={"models": []})
        path = await add_preset(ada, vendor, "ollama")
        assert await read_window(ada, path) == (32_768, "default")
        assert ok(await ada.client.post(f"{path}/test", json={}))["ok"]

        async def is_known() -> bool:
            return await read_window(ada, path, refresh="false") == (WINDOW, "learned")

        await until(is_known)


async def test_a_list_with_another_window_replaces_what_was_learned(ada: Account) -> None:
    def listing(window: int) -> Answer:
        return Answer(body={"data": [{"id": MODEL, "max_model_len": window}]})

    async with VLLMServer() as vendor:
        path = await add_preset(ada, vendor, "vllm")
        vendor.script(listing(8_192))
        assert await read_window(ada, path) == (8_192, "provider")
        ok(await ada.client.patch("/api/v1/me/settings", json={"model": f"mine/{MODEL}"}))
        chat = (await ada.new_chat())["id"]
        message = "This model's maximum context length is 4096 tokens. However, you requested 5000."
        vendor.script(Answer(400, body={"object": "error", "message": message, "code": 400}))
        assert (await ada.turn(chat, text="Well?"))[-1].name == "turn.completed"
        assert await read_offer(ada) == (4_096, "learned")
        vendor.script(listing(16_384))
        assert await read_window(ada, path) == (16_384, "provider")
        assert await read_offer(ada) == (16_384, "provider")


async def test_the_list_says_how_each_model_calls_tools(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        OpenAIServer() as model,
        running(sqlite_url, tmp_path, **asking(model), openai_tool_support="structured") as server,
        server.account("Ada") as ada,
    ):
        listed = ok(await ada.client.get("/api/v1/models"))["items"]
        support = {model["id"]: model["tool_support"] for model in listed}
        assert support == {MODEL_ID: "structured", "demo": "native"}
