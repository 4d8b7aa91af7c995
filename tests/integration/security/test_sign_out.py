"""Tests that no text of a user stays in memory after sign-out."""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from backend.memory.embedding.protocol import EmbedderSpec, Floats, Task
from backend.memory.search import terms
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.word_vectors import word_vector
from tests.support.memory import embedding, remembering, settled
from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio

SYLLABLES = ["zq", "uo", "vi", "xan", "ther"]


def canary() -> str:
    """Build the canary at run time, so that no constant of the test contains it."""
    return "".join(SYLLABLES)


class WordEmbedder:
    """Makes vectors without storing requests, unlike the fake server of other tests."""

    def __init__(self, spec: EmbedderSpec) -> None:
        self.spec = spec

    async def ready(self) -> EmbedderSpec:
        return self.spec

    async def embed(self, texts: Sequence[str], task: Task) -> Floats:  # noqa: ARG002  # as asked
        vectors = [word_vector(text, self.spec.dimension) for text in texts]
        return np.stack(vectors).astype(np.float32)

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
def unlogged() -> Generator[None]:
    """Disable logging, because pytest would keep the logged requests."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def server(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Running]:
    async with (
        OpenAIServer() as model,
        remembering(sqlite_url, tmp_path, **embedding(model)) as server,
    ):
        embedder = server.parts.memory.embedder
        assert embedder is not None
        monkeypatch.setattr(embedder, "_embedder", WordEmbedder(await embedder.ready()))
        yield server


def sightings() -> list[str]:
    """Return the objects in memory that contain the canary or its stem, by type."""
    gc.collect()
    needle, found = canary()[:-2], list[str]()
    seen: set[int] = set()
    for holder in [*gc.get_objects(), *map(vars, filter(_has_vars, gc.get_objects()))]:
        for each in gc.get_referents(holder):
            if id(each) in seen or not isinstance(each, str | bytes | bytearray):
                continue
            seen.add(id(each))
            text = each if isinstance(each, str) else bytes(each).decode("utf-8", "replace")
            if needle in text.casefold() and holder is not seen:
                found.append(f"{type(holder).__name__}: {str(holder)[:160]}")
    return found


def _has_vars(thing: object) -> bool:
    return isinstance(getattr(thing, "__dict__", None), dict)


async def play(server: Running, account: Account) -> None:
    """Write, search and play with the word, so that it passes every cache."""
    word = canary()
    client = account.client
    character = await account.new_character(name=word.title(), description=f"{word} " * 60)
    chat = (await account.new_chat(character_ids=[character["id"]]))["id"]
    book = ok(await client.post("/api/v1/lorebooks", json={"name": word, "is_global": True}), 201)
    for keys in ([word], [f"/{word}[a-z]*/i"]):
        entry = {"keys": keys, "content": f"The {word} sleeps."}
        ok(await client.post(f"/api/v1/lorebooks/{book['id']}/entries", json=entry), 201)
    await account.turn(chat, text=f"Where is the {word}?")
    await settled(server)
    await account.turn(chat, text=f"I ask again for {word}, and for {word.title()}.")
    ok(await client.get("/api/v1/search", params={"q": f"the {word}"}))
    await settled(server)


async def test_nothing_of_what_a_user_wrote_is_in_memory_after_signing_out(server: Running) -> None:
    async with server.account("Ada") as ada:
        await play(server, ada)
        ok(await ada.client.delete("/api/v1/sessions/current"), 204)
    del ada
    left = sightings()
    assert left == [], "\n".join(left)


async def test_vectors_of_queries_go_with_their_user_and_others_stay(server: Running) -> None:
    embedder = server.parts.memory.embedder
    assert embedder is not None
    async with server.account("Ada") as ada, server.account("Ben") as ben:
        for account in (ada, ben):
            await play(server, account)
        owners = {user_id for user_id, _ in embedder._queries}
        assert owners == {UUID(ada.user["id"]), UUID(ben.user["id"])}
        ok(await ada.client.delete("/api/v1/sessions/current"), 204)
        assert {user_id for user_id, _ in embedder._queries} == {UUID(ben.user["id"])}


def test_a_stemmer_remembers_no_words() -> None:
    """The stemmer's memory is not visible as Python objects."""
    terms._local.__dict__.clear()
    terms.get_stemmer("english")("lighthouses")
    (stem,) = terms._local.stemmers.values()
    snowball = inspect.getclosurevars(stem).nonlocals["snowball"]
    assert snowball.__self__.maxCacheSize == 0
