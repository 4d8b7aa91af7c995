"""Tests of shared providers: permissions, visibility and changes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update

from backend.accounts.keys.rotation import rotate_root_key
from backend.accounts.models import User
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.llm.models import InstallationProvider, ProviderConfig, open_shared, wrap_shared
from backend.llm.user_models import RELOAD_SECONDS, UserModels
from backend.operations.doctor import examine
from backend.settings import Settings
from backend.vault.root import RootKeyError, load_root_keys
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, error, reply
from tests.fakes.scripted_server import Answer, Gate
from tests.support.models import asking, held_back
from tests.support.server import ROOT, Account, Running, ok, problem, running, text_of
from tests.support.waiting import until_true

pytestmark = pytest.mark.anyio

PROVIDERS = "/api/v1/providers"
SHARED = f"everybodys/{MODEL}"
_names = count(1)


def quietly(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
async def ada(server: Running) -> AsyncGenerator[Account]:
    """The first account, which is an administrator."""
    async with server.account("Ada") as ada:
        yield ada


@pytest.fixture
async def ben(server: Running, ada: Account) -> AsyncGenerator[Account]:
    """An account that is no administrator."""
    async with server.account(f"Ben {next(_names)}") as ben:
        yield ben


def provider(model: OpenAIServer, **more: Any) -> dict[str, Any]:
    usual = {"kind": "openai", "slug": "everybodys", "name": "Ours", "models": [{"name": MODEL}]}
    return {**usual, "base_url": model.url, "api_key": API_KEY, **more}


@pytest.fixture
async def shared(ada: Account, model: OpenAIServer) -> AsyncGenerator[dict[str, Any]]:
    """A shared provider, which is deleted after the test."""
    body = provider(model, scope="installation", extra_headers={"X-Team": "a-secret-of-the-team"})
    made = ok(await ada.client.post(PROVIDERS, json=body), 201)
    yield made
    await ada.client.delete(f"{PROVIDERS}/{made['id']}")


async def ids(account: Account) -> list[str]:
    return [each["id"] for each in ok(await account.client.get("/api/v1/models"))["items"]]


async def test_everybody_plays_with_it_and_sees_no_more_than_its_name(
    ada: Account, ben: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    assert (shared["scope"], shared["is_editable"]) == ("installation", True)
    assert shared["key_hint"] == API_KEY[-4:]
    chat = await ben.new_chat()
    model.script(reply("Well met."))
    assert text_of(await ben.turn(chat["id"], text="Hello.")) == "Well met."
    assert model.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"
    (seen,) = ok(await ben.client.get(PROVIDERS))["items"]
    told = {name: value for name, value in seen.items() if value}
    assert set(told) == {"scope", "slug", "kind", "name", "models", "can_embed"}
    (seen,) = ok(await ada.client.get(PROVIDERS))["items"]
    assert (seen["id"], seen["base_url"]) == (shared["id"], model.url)


async def test_only_administrators_make_and_change_them(
    ben: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    wanted = provider(model, scope="installation", slug="another")
    problem(await ben.client.post(PROVIDERS, json=wanted), 403, "forbidden")
    path = f"{PROVIDERS}/{shared['id']}"
    for method, end in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/test")):
        problem(await ben.client.request(method, path + end, json={}), 404, "provider-not-found")
    assert not model.requests


async def test_one_without_a_name_does_not_tell_its_address_by_it(
    ada: Account, ben: Account, model: OpenAIServer
) -> None:
    body = {"preset": "other", "base_url": model.url, "scope": "installation"}
    made = ok(await ada.client.post(PROVIDERS, json=body), 201)
    (seen,) = ok(await ben.client.get(PROVIDERS))["items"]
    assert seen["name"] == "server"
    ok(await ada.client.delete(f"{PROVIDERS}/{made['id']}"), 204)


async def test_the_environments_can_be_seen_and_not_changed(
    sqlite_url: str, tmp_path: Path, model: OpenAIServer
) -> None:
    async with (
        running(sqlite_url, tmp_path, **asking(model), openai_api_key=API_KEY) as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        (seen,) = ok(await ada.client.get(PROVIDERS))["items"]
        assert (seen["scope"], seen["id"], seen["is_editable"]) == ("environment", None, False)
        assert (seen["base_url"], seen["key_hint"]) == (model.url, API_KEY[-4:])
        (seen,) = ok(await ben.client.get(PROVIDERS))["items"]
        told = {name: value for name, value in seen.items() if value}
        assert set(told) == {"scope", "slug", "kind", "name", "models", "can_embed"}


async def test_a_users_own_of_the_same_slug_comes_first(
    ada: Account, ben: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    body = provider(model, models=[{"name": "own"}])
    own = ok(await ben.client.post(PROVIDERS, json=body), 201)
    assert await ids(ben) == ["everybodys/own", "demo"]
    entries = {"models": [{"name": "changed"}]}
    ok(await ada.client.patch(f"{PROVIDERS}/{shared['id']}", json=entries))
    assert await ids(ben) == ["everybodys/own", "demo"]
    ok(await ben.client.delete(f"{PROVIDERS}/{own['id']}"), 204)
    assert await ids(ben) == ["everybodys/changed", "demo"]
    taken = await ada.client.post(PROVIDERS, json=provider(model, scope="installation"))
    problem(taken, 409, "slug-taken")


async def test_a_change_counts_at_once_and_a_reply_under_way_goes_on(
    ada: Account, ben: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    chat, gate = await ben.new_chat(), Gate()
    ok(await ben.client.post(PROVIDERS, json=provider(model, slug="mine")), 201)
    ok(await ben.client.patch("/api/v1/me/settings", json={"model": SHARED}))
    model.script(held_back(gate), reply("Anew."))
    turn = asyncio.create_task(ben.turn(chat["id"], text="Tell me."))
    await until_true(lambda: model.requests)
    path, key = f"{PROVIDERS}/{shared['id']}", "sk-another-another-another"
    changed = await ada.client.patch(path, json={"api_key": key}, headers={"If-Match": '"1"'})
    assert ok(changed)["revision"] == 2
    gate.opened.set()
    assert text_of(await turn) == "Once upon a time."
    assert text_of(await ben.turn(chat["id"], text="More.")) == "Anew."
    assert model.requests[-1].headers["authorization"] == f"Bearer {key}"
    ok(await ada.client.delete(path), 204)
    assert await ids(ben) == [f"mine/{MODEL}", "demo"]


async def test_models_that_a_test_lists_are_available_to_all_users(
    ada: Account, ben: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    path = f"{PROVIDERS}/{shared['id']}"
    ok(await ada.client.patch(path, json={"models": None}))
    model.script(Answer(body={"data": [{"id": MODEL}, {"id": "second"}]}), reply("Hello."))
    assert ok(await ada.client.post(f"{path}/test", json={}))["ok"]
    assert await ids(ben) == [SHARED, "everybodys/second", "demo"]


async def test_another_process_sees_a_change_after_some_seconds(
    server: Running, ada: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    time = [0.0]
    settings = server.parts.settings
    elsewhere = UserModels(ModelRegistry(), settings, ROOT, clock=lambda: time[0])
    user: Any = User(providers_revision=0)

    async def seen() -> list[str]:
        async with server.parts.database.read() as session:
            registry = await elsewhere.of(session, user, sealer=None)  # type: ignore[arg-type]
        return registry.ids()

    assert await seen() == [SHARED, "demo"]
    kept = elsewhere.shared
    time[0] = RELOAD_SECONDS
    await seen()
    assert elsewhere.shared is kept  # there was no change
    ok(await ada.client.delete(f"{PROVIDERS}/{shared['id']}"), 204)
    assert await seen() == [SHARED, "demo"]
    time[0] = 2 * RELOAD_SECONDS
    assert await seen() == ["demo"]
    await elsewhere.aclose()


async def test_a_damaged_provider_does_not_disturb_others(
    server: Running, ada: Account, ben: Account, shared: dict[str, Any]
) -> None:
    async with server.parts.database.write() as session:
        await session.execute(update(InstallationProvider).values(wrapped_config=b"x" * 99))
    (seen,) = ok(await ada.client.get(PROVIDERS))["items"]
    assert (seen["id"], seen["models"]) == (shared["id"], [])
    assert len(ok(await ben.client.get(PROVIDERS))["items"]) == 1
    ok(await ada.client.delete(f"{PROVIDERS}/{shared['id']}"), 204)


@pytest.mark.every_database
async def test_a_new_root_key_takes_them_along(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "root.key"
    before = load_root_keys(path, create=True)
    rows = [
        InstallationProvider(id=UUID(int=number), slug=f"p{number}", kind="openai", revision=1)
        for number in range(2)
    ]
    async with database.write() as session:
        for row in rows:
            wrap_shared(before, row, ProviderConfig(api_key=API_KEY, embedding_model="bge"))
            session.add(row)
        rows[1].wrapped_config = b"x" * 99
    values: dict[str, Any] = {"_env_file": None, "data_dir": tmp_path}
    settings = Settings(database_url=database_url, root_key_file=path, **values)
    found = {each.name: each for each in await examine(settings)}["providers"]
    assert (found.state, found.detail) == ("fault", "cannot be decrypted: p1")

    done = await rotate_root_key(database, path=path, value=None, report=quietly)

    assert (done.rewrapped, done.dropped) == (2, (1,))
    async with database.read() as session:
        kept = await session.get_one(InstallationProvider, rows[0].id)
        assert await session.get(InstallationProvider, rows[1].id) is None
    assert open_shared(load_root_keys(path), kept).api_key == API_KEY
    with pytest.raises(RootKeyError):
        open_shared(before, kept)
    found = {each.name: each for each in await examine(settings)}["providers"]
    assert (found.state, found.detail) == ("ok", "shared: p0")
    found = {each.name: each for each in await examine(settings)}["embeddings"]
    assert found.detail.startswith("p0, bge")


async def play_failing_turn(account: Account, chat: str) -> dict[str, Any]:
    """Play a turn that fails. Return the problem of its events and of the stored turn."""
    events = await account.turn(chat, text="Hello.")
    assert events[-1].name == "turn.failed"
    turn_id = events[-1].data["turn_id"]
    turn = ok(await account.client.get(f"/api/v1/turns/{turn_id}"))
    assert turn["problem"] == {each: events[-1].data[each] for each in turn["problem"]}
    found: dict[str, Any] = turn["problem"]
    return found


async def test_its_own_words_and_its_address_are_for_administrators(
    ada: Account, ben: Account, model: OpenAIServer, shared: dict[str, Any]
) -> None:
    said = f"{API_KEY} of a-secret-of-the-team may not use cluster seven"
    for account in (ada, ben):
        ok(await account.client.patch("/api/v1/me/settings", json={"model": SHARED}))
    chats = [(await account.new_chat())["id"] for account in (ada, ben)]
    model.script(error(403, message=said), error(403, message=said))
    told, kept = await play_failing_turn(ada, chats[0]), await play_failing_turn(ben, chats[1])
    assert told["provider_message"] == "[removed] of [removed] may not use cluster seven"
    assert (kept["title"], kept["detail"]) == (told["title"], told["detail"])
    assert "provider_message" not in kept

    path = "/api/v1/chats/{}/suggestions"
    model.script(*[error(403, message=said)] * 2)
    told = problem(await ada.client.post(path.format(chats[0])), 502, "model-key-refused")
    kept = problem(await ben.client.post(path.format(chats[1])), 502, "model-key-refused")
    assert "cluster seven" in told["provider_message"]
    assert "cluster seven" not in str(kept)

    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    moved = {"base_url": nowhere, "api_key": API_KEY, "extra_headers": {"X-Team": "red"}}
    ok(await ada.client.patch(f"{PROVIDERS}/{shared['id']}", json=moved))
    told, kept = await play_failing_turn(ada, chats[0]), await play_failing_turn(ben, chats[1])
    assert told["detail"] == f"Cannot connect to {nowhere}. Is the server running?"
    assert "127.0.0.1" not in str(kept)
