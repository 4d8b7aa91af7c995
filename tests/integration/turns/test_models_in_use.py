"""`GET /models/in-use`: the models that an account asks, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.support.server import Account, Running

pytestmark = pytest.mark.anyio

SETTINGS = "/me/settings"


@pytest.fixture
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


async def list_models(account: Account) -> dict[str, dict[str, Any]]:
    listed = (await account.get("/models/in-use"))["items"]
    return {each["id"]: each for each in listed}


async def add_models(account: Account, model: OpenAIServer, *names: str) -> None:
    body = {"preset": "other", "slug": "home", "name": "Home", "base_url": model.url}
    entries = [{"name": name} for name in names]
    await account.post("/providers", {**body, "models": entries}, 201)


async def test_a_new_account_uses_the_demo(ada: Account) -> None:
    (only,) = (await list_models(ada)).values()
    assert (only["id"], only["uses"], only["chats"]) == ("demo", ["reply"], 0)


async def test_models_of_settings_and_chats_are_in_use(ada: Account, model: OpenAIServer) -> None:
    await add_models(ada, model, "teller", "small", "other", "idle")
    tasks = {"summary": "home/small", "embedding": "home/vectors"}
    await ada.patch(SETTINGS, {"model": "home/teller", "task_models": tasks})
    for own in ({}, {"model": "home/other"}, {"task_models": {"suggestions": "home/other"}}):
        chat = await ada.new_chat()
        settings = f"/chats/{chat['id']}/settings"
        await ada.patch(settings, {**own, "summary": {"enabled": bool(own)}})
        await ada.turn(chat["id"], text="Hello.")
    found = await list_models(ada)
    assert {name: (each["uses"], each["chats"]) for name, each in found.items()} == {
        "home/teller": (["reply"], 2),
        "home/small": (["summary"], 2),
        "home/other": (["reply", "suggestions"], 2),
        "home/vectors": (["embedding"], 0),
    }
    assert {each["provider_name"] for each in found.values()} == {"Home"}
    assert (found["home/vectors"]["title"], next(iter(found))) == ("vectors", "home/teller")


async def test_a_deleted_model_is_still_in_use(ada: Account, model: OpenAIServer) -> None:
    await add_models(ada, model, "teller")
    await ada.patch(SETTINGS, {"model": "home/teller"})
    (provider,) = (await ada.get("/providers"))["items"]
    await ada.delete(f"/providers/{provider['id']}")
    only = (await list_models(ada))["home/teller"]
    assert (only["title"], only["provider_name"]) == (None, None)


async def test_only_own_chats_count(server: Running, ada: Account, model: OpenAIServer) -> None:
    await add_models(ada, model, "teller")
    await ada.patch(SETTINGS, {"model": "home/teller"})
    await ada.turn((await ada.new_chat())["id"], text="Hello.")
    async with server.account("Ben") as ben:
        assert list(await list_models(ben)) == ["demo"]
