"""One server for all tests of a module, with scripted replies behind the routes of `/v1`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count

import httpx
import pytest

import tests.support.server
from backend.container import Services, build_services
from tests.fakes.openai_server import OpenAIServer
from tests.integration.openai_api.sequences import GREETING, Player
from tests.support.clients import SillyTavernClient
from tests.support.openai_replies import ScriptedCompletions, ScriptedEmbedder, ScriptedTexts
from tests.support.server import APPLICATIONS, Account, Running, ok, running
from tests.support.shared import asking_server, shared_url, vendor

__all__ = ["asking_server", "shared_url", "vendor"]

_numbers = count(1)

ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
async def completions() -> ScriptedCompletions:
    return ScriptedCompletions()


@pytest.fixture(scope="module")
async def server(
    shared_url: str,
    completions: ScriptedCompletions,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Running]:
    async def build(*args: object, **options: object) -> Services:
        services: Services = await build_services(*args, **options)  # type: ignore[arg-type]
        vars(services).update(
            chat_completions=completions,
            text_completions=ScriptedTexts(),
            text_embedder=ScriptedEmbedder(),
        )
        return services

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tests.support.server, "build_services", build)
        APPLICATIONS.forget()
        folder = tmp_path_factory.mktemp("data")
        async with running(shared_url, folder, cors_origins=(ORIGIN,)) as server:
            yield server
        APPLICATIONS.forget()


@pytest.fixture(scope="module")
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account("Ada") as account:
        yield account


@pytest.fixture(scope="module")
async def key(ada: Account) -> str:
    return await make_key(ada, "chat")


@pytest.fixture(scope="module")
async def client(server: Running, key: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A program with an API key that may chat."""
    async with server.program(key) as client:
        yield client


async def make_key(account: Account, scope: str) -> str:
    body = {"label": scope, "scope": scope}
    token: str = ok(await account.client.post("/api/v1/api-keys", json=body), 201)["token"]
    return token


@pytest.fixture
async def player(asking_server: Running, vendor: OpenAIServer) -> AsyncGenerator[Player]:
    """A user with the character Marlena, who plays in a client."""
    async with asking_server.account(f"ada-{next(_numbers)}") as account:
        await account.new_character(name="Marlena", first_mes=GREETING)
        async with asking_server.program(await make_key(account, "chat")) as program:
            yield Player(
                server=asking_server,
                account=account,
                program=program,
                vendor=vendor,
                client=SillyTavernClient(),
            )
