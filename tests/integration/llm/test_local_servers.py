"""Model servers on the machine of the server: `GET /providers/local`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from backend.generation.client.network import NetworkPolicy
from backend.llm.providers import local
from backend.llm.providers.schemas import ProviderPreset, find_presets
from tests.fakes.openai_server import MODEL, OpenAIServer
from tests.fakes.scripted_server import Answer
from tests.support.server import problem, running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/providers/local"
CLOSED = "http://127.0.0.1:9/v1"
"""An address at which nothing listens."""


@pytest.fixture
async def ollama(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[OpenAIServer]:
    """A program at the address of Ollama. The other programs do not run."""
    async with OpenAIServer() as ollama:

        def find(network: NetworkPolicy) -> dict[str, ProviderPreset]:
            presets = find_presets(network)
            for name in local.PROGRAMS:
                url = ollama.url if name == "ollama" else CLOSED
                presets[name] = replace(presets[name], base_url=url)
            return presets

        monkeypatch.setattr(local, "find_presets", find)
        yield ollama


async def test_administrators_find_programs_that_list_their_models(
    sqlite_url: str, tmp_path: Path, ollama: OpenAIServer
) -> None:
    listed = Answer(200, body={"data": [{"id": MODEL}, {"id": 3}, "odd"]})
    async with running(sqlite_url, tmp_path) as server, server.account("ada") as ada:
        ollama.script(listed)
        (found,) = (await ada.get("/providers/local"))["items"]
        assert found == {
            "preset": "ollama",
            "title": "Ollama",
            "base_url": ollama.url,
            "models": [MODEL],
            "is_used": False,
        }
        provider = {"preset": "ollama", "base_url": ollama.url}
        await ada.post("/providers", provider, status=201)
        ollama.script(listed)
        assert (await ada.get("/providers/local"))["items"][0]["is_used"]
        for other in (Answer(200, body=[]), Answer(404, body={}), Answer(200, body={"ok": True})):
            ollama.script(other)
            assert (await ada.get("/providers/local"))["items"] == []
        assert {each.method for each in ollama.requests} == {"GET"}
        async with server.account("ben") as ben:
            problem(await ben.client.get(PATH), 403, "forbidden")


async def test_a_server_that_others_reach_looks_for_nothing(
    sqlite_url: str, tmp_path: Path, ollama: OpenAIServer
) -> None:
    hosts = ("tales.lan",)
    async with (
        running(sqlite_url, tmp_path, allowed_hosts=hosts) as server,
        server.account("ada") as ada,
    ):
        assert (await ada.get("/providers/local"))["items"] == []
    assert list(ollama.requests) == []
