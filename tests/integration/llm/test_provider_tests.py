"""`POST /providers/test` and `/providers/{id}/test`: whether a provider works, stored or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import pytest
from sqlalchemy import func, select

from backend.llm.models import InstallationProvider, Provider
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, error, reply
from tests.fakes.scripted_server import Answer
from tests.fakes.strict_server import StrictServer, gemma_2, mistral, qwen
from tests.integration.llm.test_providers import PROVIDERS, add, models, provider
from tests.support.logs import caught_logs
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio

TEST = f"{PROVIDERS}/test"
_names = count(1)


@pytest.fixture(scope="module")
async def keeper(server: Running) -> AsyncGenerator[Account]:
    """An administrator, because the first who signs up is one."""
    async with server.account("Keeper") as keeper:
        yield keeper


@pytest.fixture
async def ada(server: Running, keeper: Account) -> AsyncGenerator[Account]:
    async with server.account(f"Ada {next(_names)}") as ada:
        yield ada


def listing(*names: str) -> Answer:
    return Answer(body={"data": [{"id": name} for name in names]})


async def run_test(account: Account, server: OpenAIServer, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {**provider(server), "models": [], **fields}
    tested: dict[str, Any] = ok(await account.client.post(TEST, json=body))
    return tested


async def test_a_provider_is_tested_before_it_is_added_and_nothing_is_stored(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    model.script(listing("first", "second"), reply("Good", " evening."))
    with caught_logs() as logged:
        tested = await run_test(ada, model)
    assert (tested["ok"], tested["models"], tested["model"]) == (True, 2, "first")
    assert [(step["step"], step["ok"]) for step in tested["steps"]] == [
        ("models", True),
        ("reply", True),
    ]
    assert tested["problem"] is None
    assert {request.headers["authorization"] for request in model.requests} == {f"Bearer {API_KEY}"}
    assert API_KEY not in logged.text
    assert API_KEY[-4:] not in str(tested)
    assert ok(await ada.client.get(PROVIDERS))["items"] == []
    async with server.parts.database.read() as session:
        for table in (Provider, InstallationProvider):
            assert await session.scalar(select(func.count()).select_from(table)) == 0


async def test_a_test_holds_a_conversation_such_as_chats_have(
    ada: Account, model: OpenAIServer
) -> None:
    """A greeting before any user's line, and a system message that is not the first."""
    await run_test(ada, model, models=[{"name": MODEL}])
    assert [each["role"] for each in model.requests[-1].body["messages"]] == [
        *("system", "assistant", "system", "user")
    ]


async def test_the_model_that_a_test_names_is_asked_though_it_is_not_listed(
    ada: Account, model: OpenAIServer
) -> None:
    model.script(listing("first"), reply("Hello."))
    tested = await run_test(ada, model, model="hidden")
    assert (tested["ok"], tested["model"]) == (True, "hidden")
    assert model.requests[-1].body["model"] == "hidden"
    model.script(listing("first"), error(404, code="model_not_found"))
    tested = await run_test(ada, model, model="missing")
    assert (tested["ok"], tested["answered"], tested["model"]) == (False, None, "missing")


async def test_a_test_says_what_is_known_of_the_model_that_answered(
    ada: Account, model: OpenAIServer
) -> None:
    tested = await run_test(ada, model, models=[{"name": "unheard-of"}])
    assert tested["answered"] == {
        "name": "unheard-of",
        "shape": "lenient",
        "context_window": 32_768,
        "figures_from": "default",
    }
    entry = {"name": MODEL, "context_window": 9_000, "message_shape": "system_first"}
    answered = (await run_test(ada, model, models=[entry]))["answered"]
    assert (answered["context_window"], answered["figures_from"]) == (9_000, "user")


@pytest.mark.parametrize(
    ("template", "shape"),
    [(qwen, "system_first"), (mistral, "alternating"), (gemma_2, "no_system")],
)
async def test_a_test_learns_which_messages_a_chat_template_accepts(
    ada: Account, template: Any, shape: str
) -> None:
    async with StrictServer(template) as strict:
        tested = await run_test(ada, strict, models=[{"name": MODEL}])
        assert (tested["ok"], tested["answered"]["shape"]) == (True, shape)
        made = await add(ada, strict)
        path = f"{PROVIDERS}/{made['id']}"
        assert ok(await ada.client.post(f"{path}/test", json={}))["answered"]["shape"] == shape
        listed = ok(await ada.client.get(f"{path}/models", params={"refresh": "false"}))["items"]
        assert [each["message_shape"] for each in listed] == [shape]
        refusals = strict.refusals
        ok(await ada.client.patch("/api/v1/me/settings", json={"model": f"mine/{MODEL}"}))
        character = await ada.new_character()
        chat = await ada.new_chat(character_ids=[character["id"]])
        events = await ada.turn(chat["id"], text="Hello.")
        assert (events[-1].name, strict.refusals) == ("turn.completed", refusals)


async def test_a_test_starts_with_the_user_s_figures_of_a_model(ada: Account) -> None:
    async with StrictServer(gemma_2) as strict:
        entry = {"name": MODEL, "message_shape": "no_system", "tool_support": "fenced"}
        made = await add(ada, strict, models=[entry])
        path = f"{PROVIDERS}/{made['id']}"
        tested = ok(await ada.client.post(f"{path}/test", json={}))
        assert (tested["answered"]["shape"], strict.refusals) == ("no_system", 0)
        (model,) = [each for each in (await models(ada)).values() if each["id"] != "demo"]
        assert model["tool_support"] == "fenced"


async def test_a_test_asks_the_server_for_the_window_of_its_model(
    ada: Account, model: OpenAIServer
) -> None:
    props = {"default_generation_settings": {"n_ctx": 6_144}}
    model.aside["/props"] = Answer(body=props)
    answered = (await run_test(ada, model, models=[{"name": MODEL}]))["answered"]
    assert (answered["context_window"], answered["figures_from"]) == (6_144, "learned")
    made = await add(ada, model, models=[{"name": MODEL}])
    path = f"{PROVIDERS}/{made['id']}"
    assert (await models(ada))[f"mine/{MODEL}"]["figures_from"] == "default"
    model.script(listing(MODEL))
    (listed,) = ok(await ada.client.get(f"{path}/models"))["items"]
    assert (listed["context_window"], listed["figures_from"]) == (6_144, "learned")
    assert (await models(ada))[f"mine/{MODEL}"]["context_window"] == 6_144
    model.aside["/props"] = Answer(404)
    ok(await ada.client.post(f"{path}/test", json={}))
    assert (await models(ada))[f"mine/{MODEL}"]["figures_from"] == "default"


async def test_a_model_that_says_nothing_has_not_passed(ada: Account, model: OpenAIServer) -> None:
    model.script(listing(MODEL), reply(""))
    tested = await run_test(ada, model)
    assert (tested["ok"], tested["problem"]["slug"]) == (False, "model-empty-reply")


async def test_one_whose_test_failed_is_marked_until_a_test_passes(
    ada: Account, model: OpenAIServer
) -> None:
    refused = Answer(401, body={"error": {"message": f"{API_KEY} is wrong"}})
    model.script(refused, refused)
    failed = await run_test(ada, model, models=[{"name": MODEL}])
    assert (failed["ok"], failed["problem"]["slug"]) == (False, "model-key-refused")
    assert API_KEY not in str(failed)
    made = await add(ada, model, failed_test=True)
    path = f"{PROVIDERS}/{made['id']}"
    assert made["failed_test"]
    assert f"mine/{MODEL}" in await models(ada)

    model.script(refused, refused)
    assert not ok(await ada.client.post(f"{path}/test", json={}))["ok"]
    ok(await ada.client.patch(path, json={"name": "Renamed"}))
    assert ok(await ada.client.get(path))["failed_test"]
    model.script(listing(MODEL), reply("Hello."))
    assert ok(await ada.client.post(f"{path}/test", json={}))["ok"]
    (kept,) = ok(await ada.client.get(PROVIDERS))["items"]
    assert (kept["failed_test"], kept["revision"]) == (False, 2)
    assert not (await add(ada, model, slug="other"))["failed_test"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"base_url": "file:///etc/passwd"}, "base_url"),
        ({"api_key": "sk-a key\n"}, "api_key"),
        ({"extra_headers": {"Authorization": "x"}}, "Authorization"),
        ({"extra_body": {"a": "b" * 40_000}}, "extra_body"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "models"),
        ({"base_url": "http://169.254.169.254/v1"}, "provider-address-refused"),
        ({"model": "m" * 201}, "model"),
        ({"unknown": 1}, "unknown"),
        ({"scope": "installation"}, "administrator"),
    ],
)
async def test_an_invalid_provider_is_not_tested(
    ada: Account, model: OpenAIServer, fields: dict[str, Any], named: str
) -> None:
    answer = await ada.client.post(TEST, json={**provider(model), **fields})
    assert answer.status_code in {400, 403, 422}
    assert named in answer.text
    assert not model.requests


async def test_a_provider_that_could_not_be_added_is_not_tested(
    ada: Account, model: OpenAIServer
) -> None:
    await add(ada, model)
    answer = await ada.client.post(TEST, json=provider(model))
    problem(answer, 409, "slug-taken")
    for number in range(19):
        await add(ada, model, slug=f"s{number}")
    answer = await ada.client.post(TEST, json=provider(model, slug="free"))
    problem(answer, 409, "too-many-providers")
    assert not model.requests


async def test_an_administrator_tests_one_for_everybody(
    keeper: Account, model: OpenAIServer
) -> None:
    assert (await run_test(keeper, model, scope="installation", models=[{"name": MODEL}]))["ok"]
    assert ok(await keeper.client.get(PROVIDERS))["items"] == []


async def test_a_program_tests_providers_only_with_a_key_that_manages(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    for scope, status in (("chat", 403), ("manage", 200)):
        body = {"label": "script", "scope": scope}
        token = ok(await ada.client.post("/api/v1/api-keys", json=body), 201)["token"]
        async with server.program(token) as client:
            answer = await client.post(TEST, json=provider(model))
            assert answer.status_code == status, answer.text
