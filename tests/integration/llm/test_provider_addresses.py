"""Tests of the networks and addresses in which providers may be."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Generator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from backend.accounts.models import User
from backend.generation.client import network
from backend.generation.client.network import HOST_NAME
from backend.generation.registry import ModelRegistry
from backend.llm.providers.addresses import MAX_ADDRESSES
from backend.llm.user_models import RELOAD_SECONDS, UserModels
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, reply
from tests.fakes.scripted_server import Answer
from tests.support.logs import caught_logs
from tests.support.server import ROOT, Account, Running, ok, problem, running, text_of

pytestmark = pytest.mark.anyio

PROVIDERS = "/api/v1/providers"
ADDRESSES = "/api/v1/admin/provider-addresses"
REFUSED = "provider-address-refused"
SERVED: dict[str, Any] = {"allowed_hosts": ("tales.lan",)}
"""Settings of a public server, which allows no internal address by default."""

_names = count(1)


@pytest.fixture(scope="module")
def no_container() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "runs_in_container", lambda: False)
        yield


@pytest.fixture(scope="module")
async def server(
    no_container: None, shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **SERVED) as server:
        yield server


@pytest.fixture(scope="module")
async def ada(server: Running) -> AsyncGenerator[Account]:
    """An administrator, because the first who signs up is one."""
    async with server.account("Ada") as ada:
        yield ada


@pytest.fixture
async def ben(server: Running, ada: Account) -> AsyncGenerator[Account]:
    async with server.account(f"Ben {next(_names)}") as ben:
        yield ben


def fields(model: OpenAIServer, **more: Any) -> dict[str, Any]:
    return {"preset": "other", "slug": "home", "base_url": model.url, **more}


def place(model: OpenAIServer) -> dict[str, Any]:
    parts = urlsplit(model.url)
    return {"host": parts.hostname, "port": parts.port}


async def allow(account: Account, **address: Any) -> dict[str, Any]:
    allowed: dict[str, Any] = ok(await account.client.post(ADDRESSES, json=address), 201)
    return allowed


async def list_addresses(account: Account) -> list[str]:
    items = ok(await account.client.get(ADDRESSES))["items"]
    return [f"{each['host']} {each['port']}" for each in items]


async def test_an_administrator_allows_the_address_that_an_error_names(
    ada: Account, ben: Account, model: OpenAIServer
) -> None:
    body = fields(model, models=[{"name": MODEL}])
    refused = problem(await ben.client.post(PROVIDERS, json=body), 422, REFUSED)
    assert f"http://127.0.0.1:{place(model)['port']} is refused" in refused["detail"]
    assert "administrator" in refused["detail"]
    named = refused["address"]
    assert named == {**place(model), "can_be_allowed": True, "instead": None}
    allowed = await allow(ada, host=named["host"], port=named["port"])
    assert f"127.0.0.1 {named['port']}" in await list_addresses(ada)

    made = ok(await ben.client.post(PROVIDERS, json=body), 201)
    ok(await ben.client.patch("/api/v1/me/settings", json={"model": f"home/{MODEL}"}))
    chat = await ben.new_chat()
    model.script(reply("Well met."))
    assert text_of(await ben.turn(chat["id"], text="Hello.")) == "Well met."

    ok(await ada.client.delete(f"{ADDRESSES}/{allowed['id']}"), 204)
    events = await ben.turn(chat["id"], text="And now?")
    assert events[-1].data["type"].endswith(REFUSED)
    change = {"base_url": f"{model.url}/v2"}
    changed = await ben.client.patch(f"{PROVIDERS}/{made['id']}", json=change)
    problem(changed, 422, REFUSED)
    assert len(model.requests) == 1


async def test_the_address_of_a_provider_for_everybody_is_for_administrators(
    ada: Account, ben: Account, model: OpenAIServer
) -> None:
    allowed = await allow(ada, **place(model))
    body = fields(model, slug="shared", scope="installation", models=[{"name": MODEL}])
    made = ok(await ada.client.post(PROVIDERS, json=body), 201)
    ok(await ada.client.delete(f"{ADDRESSES}/{allowed['id']}"), 204)
    said: dict[str, str] = {}
    for account in (ada, ben):
        chat = await account.new_chat()
        settings = f"/api/v1/chats/{chat['id']}/settings"
        ok(await account.client.patch(settings, json={"model": f"shared/{MODEL}"}))
        (*_, failed) = await account.turn(chat["id"], text="Hello.")
        assert failed.data["type"].endswith(REFUSED)
        said[account.name] = str(failed.data)
    port = str(place(model)["port"])
    assert f"http://127.0.0.1:{port} is refused" in said[ada.name]
    assert port not in said[ben.name]
    ok(await ada.client.delete(f"{PROVIDERS}/{made['id']}"), 204)


async def test_another_port_of_an_allowed_address_stays_refused(
    ada: Account, ben: Account, model: OpenAIServer
) -> None:
    async with OpenAIServer() as other:
        allowed = await allow(ada, **place(other))
        problem(await ben.client.post(PROVIDERS, json=fields(model)), 422, REFUSED)
        ok(await ada.client.delete(f"{ADDRESSES}/{allowed['id']}"), 204)


async def test_only_administrators_see_and_change_allowed_addresses(
    ada: Account, ben: Account
) -> None:
    allowed = await allow(ada, host="NAS.lan", port=8080)
    assert allowed["host"] == "nas.lan"
    path = f"{ADDRESSES}/{allowed['id']}"
    for method, where in (("GET", ADDRESSES), ("POST", ADDRESSES), ("DELETE", path)):
        answer = await ben.client.request(method, where, json={"host": "b.lan", "port": 8080})
        problem(answer, 403, "forbidden")
    assert "nas.lan 8080" in await list_addresses(ada)
    ok(await ada.client.delete(path), 204)
    assert "nas.lan 8080" not in await list_addresses(ada)
    problem(await ada.client.delete(path), 404, "provider-address-not-found")


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        *(("169.254.169.254", 80, "host"), ("127.0.0.1", 8000, "port"), ("10.0.0.0/8", 80, "host")),
        *(("a" * 300, 80, "host"), ("nas.lan", 0, "port"), ("nas.lan", 65_536, "port")),
    ],
)
async def test_an_address_that_cannot_be_allowed_is_refused_by_name(
    ada: Account, host: str, port: int, named: str
) -> None:
    before = await list_addresses(ada)
    answer = await ada.client.post(ADDRESSES, json={"host": host, "port": port})
    assert answer.status_code in {400, 422}
    assert named in answer.text
    assert await list_addresses(ada) == before


async def test_allowing_twice_changes_nothing(ada: Account) -> None:
    first, second = [await allow(ada, host="twice.lan", port=8080) for _ in range(2)]
    assert first == second
    assert (await list_addresses(ada)).count("twice.lan 8080") == 1


async def test_there_may_be_a_hundred_allowed_addresses(server: Running, ada: Account) -> None:
    have = len(await list_addresses(ada))
    made = [await allow(ada, host="many.lan", port=1 + at) for at in range(MAX_ADDRESSES - have)]
    more = await ada.client.post(ADDRESSES, json={"host": "more.lan", "port": 1})
    problem(more, 409, "too-many-provider-addresses")
    for each in made:
        ok(await ada.client.delete(f"{ADDRESSES}/{each['id']}"), 204)


async def test_the_log_says_which_administrator_changed_what(ada: Account) -> None:
    with caught_logs() as logged:
        allowed = await allow(ada, host="logged.lan", port=8080)
        ok(await ada.client.delete(f"{ADDRESSES}/{allowed['id']}"), 204)
    lines = logged.lines("provider.address_changed")
    assert [line["state"] for line in lines] == ["allowed", "refused"]
    for line in lines:
        assert (line["user_id"], line["address"]) == (ada.user["id"], "logged.lan:8080")


async def test_another_process_allows_an_address_after_some_seconds(
    server: Running, ada: Account
) -> None:
    time = [0.0]
    elsewhere = UserModels(ModelRegistry(), server.parts.settings, ROOT, clock=lambda: time[0])
    user: Any = User(providers_revision=0)

    async def is_allowed() -> bool:
        async with server.parts.database.read() as session:
            await elsewhere.of(session, user, sealer=None)  # type: ignore[arg-type]
        try:
            elsewhere.network.check_url("http://10.9.8.7:8080/v1")
        except network.AddressRefusedError:
            return False
        return True

    assert not await is_allowed()
    allowed = await allow(ada, host="10.9.8.7", port=8080)
    assert not await is_allowed()
    time[0] = RELOAD_SECONDS
    assert await is_allowed()
    ok(await ada.client.delete(f"{ADDRESSES}/{allowed['id']}"), 204)
    time[0] = 2 * RELOAD_SECONDS
    assert not await is_allowed()
    await elsewhere.aclose()


async def test_the_setting_prevents_changes_of_allowed_addresses(
    sqlite_url: str, tmp_path: Path, model: OpenAIServer
) -> None:
    async with (
        running(sqlite_url, tmp_path, provider_networks=("10.0.0.1",)) as server,
        server.account("Ada") as ada,
    ):
        assert ok(await ada.client.get(ADDRESSES)) == {"items": [], "networks_are_set": True}
        answer = await ada.client.post(ADDRESSES, json=place(model))
        problem(answer, 409, "provider-networks-set")
        refused = problem(await ada.client.post(PROVIDERS, json=fields(model)), 422, REFUSED)
        assert "TALEKEEPER_PROVIDER_NETWORKS" in refused["detail"]
        assert not refused["address"]["can_be_allowed"]


async def test_in_a_container_local_programs_are_looked_for_on_its_machine(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "runs_in_container", lambda: True)
    async with running(sqlite_url, tmp_path, **SERVED) as server, server.account("Ada") as ada:
        presets = ok(await ada.client.get("/api/v1/provider-presets"))["items"]
        urls = {each["name"]: each["base_url"] for each in presets}
        assert urls["ollama"] == f"http://{HOST_NAME}:11434/v1"
        assert urls["openrouter"] == "https://openrouter.ai/api/v1"
        body = {"preset": "llama-cpp", "base_url": "http://127.0.0.1:8080/v1"}
        refused = problem(await ada.client.post(PROVIDERS, json=body), 422, REFUSED)
        assert "container" in refused["detail"]
        assert refused["address"]["instead"] == HOST_NAME


async def test_an_unknown_address_is_not_found(ada: Account) -> None:
    answer = await ada.client.delete(f"{ADDRESSES}/{uuid4()}")
    problem(answer, 404, "provider-address-not-found")


NAME = "models.example"


@pytest.fixture(scope="module")
async def local_server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    async with running(
        shared_url, tmp_path_factory.mktemp("data"), provider_networks=("127.0.0.1",)
    ) as local_server:
        yield local_server


@pytest.fixture(scope="module")
async def local_ada(local_server: Running) -> AsyncGenerator[Account]:
    async with local_server.account("Local Ada") as local_ada:
        yield local_ada


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


async def take_turn(local_ada: Account, base_url: str) -> dict[str, Any]:
    """Play a turn with a provider at `base_url`. Return its last event."""
    fields = {"kind": "openai", "api_key": API_KEY, "models": [{"name": MODEL}]}
    made = ok(await local_ada.client.post(PROVIDERS, json={**fields, "base_url": base_url}), 201)
    settings = {"model": f"{made['slug']}/{MODEL}"}
    ok(await local_ada.client.patch("/api/v1/me/settings", json=settings))
    events = await local_ada.turn((await local_ada.new_chat())["id"], text="Hello.")
    ok(await local_ada.client.patch("/api/v1/me/settings", json={"model": None}))
    ok(await local_ada.client.delete(f"{PROVIDERS}/{made['id']}"), 204)
    told = {name: value for name, value in events[-1].data.items() if name != "turn_id"}
    return {"event": events[-1].name, **told}


async def try_out(local_ada: Account, base_url: str) -> dict[str, Any]:
    fields = {"kind": "openai", "api_key": API_KEY, "models": [{"name": MODEL}]}
    made = ok(await local_ada.client.post(PROVIDERS, json={**fields, "base_url": base_url}), 201)
    path = f"{PROVIDERS}/{made['id']}"
    tested: dict[str, Any] = ok(await local_ada.client.post(f"{path}/test", json={}))
    ok(await local_ada.client.delete(path), 204)
    return tested


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.2:8080/v1", "http://[::1]:8080/v1", "http://10.0.0.1", "http://0.0.0.0"),
        *("http://169.254.169.254/latest", "http://[::ffff:127.0.0.1]/", "http://2130706433:8080"),
        *("http://127.0.0.1:22", "http://127.0.0.1:8000/api/v1"),  # a known service; Talekeeper
    ],
)
async def test_a_refused_address_is_not_stored(local_ada: Account, url: str) -> None:
    fields = {"kind": "openai", "api_key": API_KEY, "models": [{"name": MODEL}]}
    refused = await local_ada.client.post(PROVIDERS, json={**fields, "base_url": url})
    problem(refused, 422, REFUSED)
    assert ok(await local_ada.client.get(PROVIDERS))["items"] == []


async def test_a_name_leads_to_its_allowed_addresses_alone(
    local_ada: Account, model: OpenAIServer, names: dict[str, list[str]]
) -> None:
    names[NAME] = ["127.0.0.2", "::1", "127.0.0.1"]
    told = await take_turn(local_ada, model.url.replace("127.0.0.1", NAME))
    assert told["event"] == "turn.completed"
    assert model.requests[0].headers["host"].startswith(NAME)


async def test_a_refused_name_and_one_that_does_not_exist_get_the_same_answer(
    local_ada: Account, model: OpenAIServer, names: dict[str, list[str]]
) -> None:
    names["inner.example"], names["nothing.example"] = ["127.0.0.2", "10.0.0.1"], []
    inner = await take_turn(local_ada, model.url.replace("127.0.0.1", "inner.example"))
    port = urlsplit(model.url).port
    nothing = await take_turn(local_ada, f"http://nothing.example:{port}/v1")
    assert json.loads(json.dumps(inner).replace("inner.example", "nothing.example")) == nothing
    assert "TALEKEEPER_PROVIDER_NETWORKS" in inner["detail"]
    assert inner["event"] == "turn.failed"
    assert inner["type"].endswith(REFUSED)
    assert not model.requests


async def test_trying_a_provider_out_goes_no_further_than_a_turn(
    local_ada: Account, model: OpenAIServer, names: dict[str, list[str]]
) -> None:
    names["inner.example"] = ["127.0.0.2"]
    inner = await try_out(local_ada, model.url.replace("127.0.0.1", "inner.example"))
    assert inner["problem"]["slug"] == REFUSED
    assert [step["ok"] for step in inner["steps"]] == [False, False]
    assert not model.requests


async def test_trying_a_provider_out_follows_no_redirect(
    local_ada: Account, model: OpenAIServer
) -> None:
    async with OpenAIServer() as elsewhere:
        away = Answer(307, headers={"location": f"{elsewhere.url}/models"})
        model.script(away, away)
        tested = await try_out(local_ada, model.url)
    assert not tested["ok"]
    assert len(model.requests) == 2
    assert not elsewhere.requests
