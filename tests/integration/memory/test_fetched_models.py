"""Tests of embedding models that an administrator fetches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from backend.memory.embedding.catalogue import fetch_model, list_models
from tests.fakes.hub_server import HubServer
from tests.support.memory import API, MODEL_FOLDER, Start, search, settled, tell
from tests.support.server import Account, Running, ok, problem
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.embeddings]

MODELS = f"{API}/admin/embedding-models"
SMALL = "all-MiniLM-L6-v2"
FACT = "The captain buried the astrolabe under the chapel bell."
OTHER_WORDS = "Where did the skipper hide his instrument?"


@pytest.fixture
async def hub() -> AsyncGenerator[HubServer]:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("there is no embedding model to serve")
    files = {path.name: path.read_bytes() for path in MODEL_FOLDER.iterdir()}
    async with HubServer(files) as hub:
        yield hub


@pytest.fixture
async def server(start: Start, hub: HubServer) -> AsyncGenerator[Running]:
    values = {"HF_ENDPOINT": hub.url, "registration": "open"}
    async with start(**values) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    """An administrator with a text to find."""
    async with server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", "A gannet dives."])
        yield ada


async def read_offer(account: Account) -> dict[str, Any]:
    models: list[dict[str, Any]] = ok(await account.client.get(MODELS))["models"]
    return models[0]


async def begin_fetch(account: Account) -> str:
    """Fetch the model. Return the path of the job."""
    job = ok(await account.client.post(f"{MODELS}/fetch", json={"name": SMALL}), 202)
    return f"{API}/jobs/{job['id']}"


async def wait_for_end(account: Account, path: str) -> dict[str, Any]:
    async def is_over() -> dict[str, Any] | None:
        job: dict[str, Any] = ok(await account.client.get(path))
        return job if job["state"] in {"done", "dead"} else None

    job: dict[str, Any] = await until(is_over)
    return job


@pytest.mark.every_database
async def test_a_fetched_model_is_used_without_a_restart_and_texts_move_to_it(
    server: Running, hub: HubServer, ada: Account
) -> None:
    first = await read_offer(ada)
    assert (first["name"], first["state"], first["job"]) == (SMALL, "on_offer", None)
    assert (first["languages"], first["licence"], first["size"]) == (["en"], "apache-2.0", 91102069)
    assert hub.requests == []
    assert await search(ada, OTHER_WORDS) == []

    path = await begin_fetch(ada)
    assert await begin_fetch(ada) == path
    job = await wait_for_end(ada, path)
    assert (job["error"], job["progress"]["done"]) == (None, job["progress"]["total"])
    assert (await read_offer(ada))["state"] == "in_use"
    await settled(server)
    assert (await search(ada, OTHER_WORDS))[0]["text"] == FACT

    async with server.account("Ben") as ben:
        chat = str((await ben.new_chat())["id"])
        await tell(server, ben, chat, [FACT])
        assert (await search(ben, OTHER_WORDS))[0]["text"] == FACT
        problem(await ben.client.get(MODELS), 403, "forbidden")
        problem(await ben.client.post(f"{MODELS}/fetch", json={"name": SMALL}), 403, "forbidden")


async def test_what_is_not_on_offer_is_not_fetched(hub: HubServer, ada: Account) -> None:
    for name in ("", "gpt", "../../etc"):
        asked = await ada.client.post(f"{MODELS}/fetch", json={"name": name})
        problem(asked, 404, "unknown-embedding-model")
    assert hub.requests == []


async def test_a_fetch_is_stopped_and_goes_on_where_it_was(
    server: Running, hub: HubServer, ada: Account
) -> None:
    hub.pace.clear()
    path = await begin_fetch(ada)

    async def has_begun() -> bool:
        return bool(ok(await ada.client.get(path))["progress"]["done"])

    await until(has_begun)
    ok(await ada.client.post(f"{path}/stop"), 202)
    assert (await wait_for_end(ada, path))["error"] == "stopped"
    assert server.parts.memory.chosen is None

    again = await begin_fetch(ada)
    hub.pace.set()
    assert again != path
    assert (await wait_for_end(ada, again))["error"] is None
    asked = [request.path for request in hub.requests if request.method == "GET"]
    assert sum(each.endswith("/config.json") for each in asked) == 1


async def test_a_damaged_model_ends_the_job_and_nothing_changes(
    server: Running, hub: HubServer, ada: Account
) -> None:
    hub.altered = {"model.onnx"}
    assert (await wait_for_end(ada, await begin_fetch(ada)))["error"] == "model-damaged"
    assert server.parts.memory.embedder is None
    assert (await search(ada, "astrolabe"))[0]["text"] == FACT


async def test_a_model_that_another_process_fetched_is_gone_over_to(
    server: Running, hub: HubServer, ada: Account, tmp_path: Path
) -> None:
    async def ignore(_done: int, _total: int) -> None:
        pass

    await fetch_model(list_models()[0], tmp_path / "models", ignore, hub=hub.url)
    chat = str((await ada.new_chat())["id"])
    await tell(server, ada, chat, ["Rain sets in."])

    assert (await search(ada, OTHER_WORDS))[0]["text"] == FACT
