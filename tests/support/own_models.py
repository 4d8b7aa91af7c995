"""Helpers for tests of embedding models that accounts provide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from backend.memory.index.protocol import VectorIndex
from backend.operations.doctor import Finding, examine
from backend.settings import Settings
from tests.fakes.openai_server import API_KEY, OpenAIServer
from tests.support.memory import API, jobs_left, points_of, rows_of, settled, tell
from tests.support.server import Account, Running, ok

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where is the astrolabe of the captain?"
OWN = "own-256-v1"


async def provide(account: Account, model: OpenAIServer, slug: str = "mine") -> str:
    """The path of a provider of the account's own."""
    body = {"kind": "openai", "slug": slug, "base_url": model.url, "api_key": API_KEY}
    made = ok(await account.client.post(f"{API}/providers", json=body), 201)
    return f"{API}/providers/{made['id']}"


async def choose(account: Account, model_id: str | None) -> None:
    ok(await account.client.patch(f"{API}/me/settings", json=chosen(model_id)))


def chosen(model_id: str | None) -> dict[str, Any]:
    return {"task_models": {"embedding": model_id}}


async def status(account: Account) -> dict[str, Any]:
    found: dict[str, Any] = ok(await account.client.get(f"{API}/memory"))
    return found


async def problems(account: Account) -> list[str]:
    return [each["kind"] for each in (await status(account))["problems"]]


async def notes(account: Account) -> list[str]:
    answer = ok(await account.client.get(f"{API}/search", params={"q": QUESTION}))
    assert FACT in str(answer["items"])
    found: list[str] = answer["notes"]
    return found


async def own_index(server: Running) -> VectorIndex:
    return await server.parts.memory.collections.open(OWN)


async def rows_in(index: VectorIndex, account: Account) -> set[UUID]:
    return set(rows_of(await points_of(index, UUID(account.user["id"]))))


async def retried(server: Running, account: Account) -> None:
    for job in await jobs_left(server):
        await account.client.post(f"{API}/jobs/{job.id}/retry")
    await settled(server)


def queries(model: OpenAIServer) -> int:
    return sum(QUESTION in str(each.body) for each in model.requests)


async def lines(server: Running, owner_id: UUID) -> list[UUID]:
    """Points of lines in the collection of own models."""
    pages = (await own_index(server)).scan(owner_id)
    return [each async for page in pages for each, payload in page if payload.kind == "message"]


async def told(settings: Settings) -> Finding:
    """The finding of the doctor about the accounts' own models."""
    (found,) = [each for each in await examine(settings) if each.name == "own embeddings"]
    return found


def quietly(done: int, total: int) -> None:
    """Report nothing."""


async def moved(
    server: Running, account: Account, model: OpenAIServer, texts: Sequence[str]
) -> tuple[str, str]:
    """Create a chat that an own model indexes. Return its id and the provider's path."""
    chat = str((await account.new_chat())["id"])
    await tell(server, account, chat, texts)
    path = await provide(account, model)
    await choose(account, "mine/words")
    await settled(server)
    return chat, path
