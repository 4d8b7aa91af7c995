"""Tests of the networks in which users' providers may be."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer
from tests.fakes.scripted_server import Answer
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

PROVIDERS = "/api/v1/providers"
REFUSED = "provider-address-refused"
NAME = "models.example"


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with running(
        shared_url, tmp_path_factory.mktemp("data"), provider_networks=("127.0.0.1",)
    ) as server:
        yield server


@pytest.fixture(scope="module")
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account("Ada") as ada:
        yield ada


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Additional addresses of the system's resolver, by name."""
    known: dict[str, list[str]] = {}
    look_up = socket.getaddrinfo

    def resolve(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        found = [look_up(each, port, *more, **named) for each in known.get(name, [name])]
        return [each for answer in found for each in answer]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


async def take_turn(ada: Account, base_url: str) -> dict[str, Any]:
    """Play a turn with a provider at `base_url`. Return its last event."""
    fields = {"kind": "openai", "api_key": API_KEY, "models": [{"name": MODEL}]}
    made = ok(await ada.client.post(PROVIDERS, json={**fields, "base_url": base_url}), 201)
    settings = {"model": f"{made['slug']}/{MODEL}"}
    ok(await ada.client.patch("/api/v1/me/settings", json=settings))
    events = await ada.turn((await ada.new_chat())["id"], text="Hello.")
    ok(await ada.client.patch("/api/v1/me/settings", json={"model": None}))
    ok(await ada.client.delete(f"{PROVIDERS}/{made['id']}"), 204)
    told = {name: value for name, value in events[-1].data.items() if name != "turn_id"}
    return {"event": events[-1].name, **told}


async def try_out(ada: Account, base_url: str) -> dict[str, Any]:
    fields = {"kind": "openai", "api_key": API_KEY, "models": [{"name": MODEL}]}
    made = ok(await ada.client.post(PROVIDERS, json={**fields, "base_url": base_url}), 201)
    path = f"{PROVIDERS}/{made['id']}"
    tested: dict[str, Any] = ok(await ada.client.post(f"{path}/test", json={}))
    ok(await ada.client.delete(path), 204)
    return tested


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.2:8080/v1", "http://[::1]:8080/v1", "http://10.0.0.1", "http://0.0.0.0"),
        *("http://169.254.169.254/latest", "http://[::ffff:127.0.0.1]/", "http://2130706433:8080"),
        *("http://127.0.0.1:22", "http://127.0.0.1:8000/api/v1"),  # a known service; Talekeeper
    ],
)
async def test_a_refused_address_is_not_stored(ada: Account, url: str) -> None:
    fields = {"kind": "openai", "api_key": API_KEY, "models": [{"name": MODEL}]}
    refused = await ada.client.post(PROVIDERS, json={**fields, "base_url": url})
    problem(refused, 422, REFUSED)
    assert ok(await ada.client.get(PROVIDERS))["items"] == []


async def test_a_name_leads_to_its_allowed_addresses_alone(
    ada: Account, model: OpenAIServer, names: dict[str, list[str]]
) -> None:
    names[NAME] = ["127.0.0.2", "::1", "127.0.0.1"]
    told = await take_turn(ada, model.url.replace("127.0.0.1", NAME))
    assert told["event"] == "turn.completed"
    assert model.requests[0].headers["host"].startswith(NAME)


async def test_a_refused_name_and_one_that_does_not_exist_get_the_same_answer(
    ada: Account, model: OpenAIServer, names: dict[str, list[str]]
) -> None:
    names["inner.example"], names["nothing.example"] = ["127.0.0.2", "10.0.0.1"], []
    inner = await take_turn(ada, model.url.replace("127.0.0.1", "inner.example"))
    port = urlsplit(model.url).port
    nothing = await take_turn(ada, f"http://nothing.example:{port}/v1")
    assert json.loads(json.dumps(inner).replace("inner.example", "nothing.example")) == nothing
    assert "TALEKEEPER_PROVIDER_NETWORKS" in inner["detail"]
    assert inner["event"] == "turn.failed"
    assert inner["type"].endswith(REFUSED)
    assert not model.requests


async def test_trying_a_provider_out_goes_no_further_than_a_turn(
    ada: Account, model: OpenAIServer, names: dict[str, list[str]]
) -> None:
    names["inner.example"] = ["127.0.0.2"]
    inner = await try_out(ada, model.url.replace("127.0.0.1", "inner.example"))
    assert inner["problem"]["slug"] == REFUSED
    assert [step["ok"] for step in inner["steps"]] == [False, False]
    assert not model.requests


async def test_trying_a_provider_out_follows_no_redirect(ada: Account, model: OpenAIServer) -> None:
    async with OpenAIServer() as elsewhere:
        away = Answer(307, headers={"location": f"{elsewhere.url}/models"})
        model.script(away, away)
        tested = await try_out(ada, model.url)
    assert not tested["ok"]
    assert len(model.requests) == 2
    assert not elsewhere.requests
