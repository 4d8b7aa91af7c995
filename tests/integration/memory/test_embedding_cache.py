"""Tests of the cache of embeddings, and of failing embedders."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import func, select, update

from backend.accounts.models import User
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.memory.embedding.cache import CachedEmbedder, Retries
from backend.memory.embedding.protocol import EmbedderError
from backend.memory.embedding.remote import RemoteEmbedder
from backend.memory.indexing.indexer import VECTOR_RETENTION
from backend.memory.models import Embedding
from backend.operations.pruning import prune
from backend.settings import Settings
from backend.vault.sealing import KEY_BYTES, Sealer
from tests.fakes.gemini_server import GeminiServer, error
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Silence

pytestmark = pytest.mark.anyio

LINES = ("The ferry is late.", "A bell tolls.", "The ferry is late.", "Nobody answers.")


class Hands:
    """A clock that advances only by waiting."""

    def __init__(self) -> None:
        self.at = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.at

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds


async def sign_up(database: Database) -> Sealer:
    user_id = new_id()
    async with database.write() as session:
        session.add(
            User(
                id=user_id,
                name_lookup=user_id.bytes,
                wrapped_name=b"",
                wrapped_derivation_key=b"",
                settings_mac=b"",
            )
        )
    return Sealer(user_id, {1: os.urandom(KEY_BYTES)}, user_key=os.urandom(KEY_BYTES))


@pytest.fixture
async def ada(database: Database) -> Sealer:
    return await sign_up(database)


@pytest.fixture
async def server() -> AsyncGenerator[GeminiServer]:
    async with GeminiServer() as server:
        yield server


@pytest.fixture
def hands() -> Hands:
    return Hands()


Connect = Callable[..., CachedEmbedder]


@pytest.fixture
async def connect(
    database: Database, server: GeminiServer, hands: Hands
) -> AsyncGenerator[Connect]:
    """Make an embedder with an empty cache in memory, for the same table and server."""
    made: list[CachedEmbedder] = []

    def connect(*, batch: int = 100, query_timeout: float = 5) -> CachedEmbedder:
        made.append(
            CachedEmbedder(
                database,
                RemoteEmbedder("gemini", server.config(), dimension=64),
                batch=batch,
                query_timeout=query_timeout,
                retries=Retries(wait=hands.wait, clock=hands, draw=lambda: 1.0),
                clock=hands,
            )
        )
        return made[-1]

    yield connect
    for embedder in made:
        await embedder.aclose()


@pytest.fixture
def embedder(connect: Connect) -> CachedEmbedder:
    return connect()


def list_sent_texts(server: GeminiServer) -> list[list[str]]:
    return [
        [each["content"]["parts"][0]["text"] for each in request.body["requests"]]
        for request in server.requests
    ]


async def list_stored(database: Database) -> Sequence[Embedding]:
    async with database.read() as session:
        return (await session.scalars(select(Embedding))).all()


async def test_a_text_is_embedded_once(
    server: GeminiServer, embedder: CachedEmbedder, connect: Connect, ada: Sealer
) -> None:
    first = await embedder.embed_documents(ada, LINES)
    again = await connect().embed_documents(ada, [*LINES, "A new line."])
    assert list_sent_texts(server) == [
        ["The ferry is late.", "A bell tolls.", "Nobody answers."],
        ["A new line."],
    ]
    assert first.shape == (4, 64)
    assert first.dtype == np.float32
    assert np.array_equal(first, again[:4])
    assert np.array_equal(first[0], first[2])
    assert np.linalg.norm(again, axis=1) == pytest.approx(1, abs=1e-6)


async def test_no_texts_need_no_server(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer
) -> None:
    assert (await embedder.embed_documents(ada, [])).shape == (0, 64)
    assert server.requests == []


async def test_stored_vectors_are_sealed_for_their_owner(
    database: Database, embedder: CachedEmbedder, ada: Sealer
) -> None:
    ben = await sign_up(database)
    vectors = await embedder.embed_documents(ada, LINES[:1])
    await embedder.embed_documents(ben, LINES[:1])
    rows = {row.user_id: row for row in await list_stored(database)}
    assert rows[ada.user_id].digest != rows[ben.user_id].digest
    plain = vectors[0].astype("<f2").tobytes()
    assert all(plain not in row.sealed_vector for row in rows.values())


async def test_two_models_have_vectors_of_their_own(
    database: Database, server: GeminiServer, embedder: CachedEmbedder, ada: Sealer
) -> None:
    other = CachedEmbedder(database, RemoteEmbedder("gemini", server.config(), dimension=32))
    await embedder.embed_documents(ada, LINES[:1])
    assert (await other.embed_documents(ada, LINES[:1])).shape == (1, 32)
    assert (await embedder.embed_documents(ada, LINES[:1])).shape == (1, 64)
    assert len(server.requests) == 2
    await other.aclose()


async def test_vectors_from_before_a_failure_are_kept(
    server: GeminiServer, connect: Connect, ada: Sealer
) -> None:
    embedder = connect(batch=2)
    texts = [f"line {number}" for number in range(6)]
    await embedder.embed_documents(ada, texts[:2])
    server.requests.clear()
    server.script(error(429, "RESOURCE_EXHAUSTED", headers={"retry-after": "30"}))
    with pytest.raises(EmbedderError) as caught:
        await embedder.embed_documents(ada, texts)
    await embedder.embed_documents(ada, texts)
    assert caught.value.retry_after == 30
    assert list_sent_texts(server) == [texts[2:4], texts[2:4], texts[4:6]]


@pytest.mark.every_database
async def test_a_failing_server_is_asked_again(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer, hands: Hands
) -> None:
    server.script(error(500, "INTERNAL"), error(503, "UNAVAILABLE"))
    assert (await embedder.embed_documents(ada, LINES)).shape == (4, 64)
    assert hands.waits == [0.5, 1.0]


async def test_rate_limits_and_refusals_are_not_waited_for(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer, hands: Hands
) -> None:
    server.script(
        error(429, "RESOURCE_EXHAUSTED", headers={"retry-after": "1"}),
        error(400, "INVALID_ARGUMENT"),
    )
    for _ in range(2):
        with pytest.raises(EmbedderError):
            await embedder.embed_documents(ada, LINES)
    assert hands.waits == []
    assert len(server.requests) == 2


@pytest.mark.every_database
async def test_a_vector_that_does_not_open_is_made_again(
    database: Database, server: GeminiServer, embedder: CachedEmbedder, ada: Sealer
) -> None:
    await embedder.embed_documents(ada, LINES)
    async with database.write() as session:
        await session.execute(update(Embedding).values(sealed_vector=b"no vector"))
    await embedder.embed_documents(ada, LINES)
    await embedder.embed_documents(ada, LINES)
    assert len(server.requests) == 2
    assert len(await list_stored(database)) == 3


@pytest.mark.every_database
async def test_use_is_noted_once_a_day(
    database: Database, embedder: CachedEmbedder, ada: Sealer
) -> None:
    await embedder.embed_documents(ada, LINES)
    recently, long_ago = now() - timedelta(hours=23), now() - timedelta(days=40)
    texts = await list_stored(database)
    async with database.write() as session:
        for row, used_at in zip(texts, (recently, long_ago, long_ago), strict=True):
            change = update(Embedding).where(Embedding.id == row.id).values(used_at=used_at)
            await session.execute(change)
    await embedder.embed_documents(ada, LINES)
    used = sorted(row.used_at for row in await list_stored(database))
    assert used[0] == recently
    assert used[1] > recently


@pytest.mark.every_database
async def test_unused_vectors_are_deleted(
    database: Database, embedder: CachedEmbedder, ada: Sealer
) -> None:
    await embedder.embed_documents(ada, LINES)
    long_ago = now() - VECTOR_RETENTION
    unused = (await list_stored(database))[:2]
    async with database.write() as session:
        change = update(Embedding).where(Embedding.id.in_([row.id for row in unused]))
        await session.execute(change.values(used_at=long_ago))
    await prune(database, Settings.model_validate({}))
    assert len(await list_stored(database)) == 1


@pytest.mark.every_database
async def test_more_texts_than_a_statement_takes_parameters(
    database: Database, connect: Connect, server: GeminiServer, ada: Sealer
) -> None:
    texts = [f"line {number}" for number in range(2100)]
    first = await connect(batch=2100).embed_documents(ada, texts)
    server.requests.clear()
    again = await connect().embed_documents(ada, texts)
    assert np.array_equal(first, again)
    assert server.requests == []
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(Embedding)) == 2100


async def test_the_same_query_is_embedded_once_and_only_in_memory(
    database: Database, server: GeminiServer, embedder: CachedEmbedder, ada: Sealer
) -> None:
    ben = await sign_up(database)
    first = await embedder.embed_query(ada, "Where is the ferry?")
    assert first.shape == (64,)
    assert np.array_equal(await embedder.embed_query(ada, "Where is the ferry?"), first)
    assert len(server.requests) == 1
    await embedder.embed_query(ben, "Where is the ferry?")
    assert len(server.requests) == 2
    assert await list_stored(database) == []


async def test_a_query_is_a_query_to_the_model_even_where_the_text_is_stored(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer
) -> None:
    await embedder.embed_documents(ada, LINES[:1])
    await embedder.embed_query(ada, LINES[0])
    tasks = [request.body["requests"][0]["taskType"] for request in server.requests]
    assert tasks == ["RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"]


async def test_a_query_gets_one_attempt(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer, hands: Hands
) -> None:
    server.script(error(500, "INTERNAL"))
    with pytest.raises(EmbedderError):
        await embedder.embed_query(ada, "Where is the ferry?")
    assert len(server.requests) == 1
    assert hands.waits == []


async def test_a_query_that_takes_too_long_is_given_up(
    server: GeminiServer, connect: Connect, ada: Sealer
) -> None:
    await connect().embed_query(ada, "The SDK is imported now.")
    server.script(Answer(events=[Silence()]))
    with pytest.raises(EmbedderError, match=r"0\.3 seconds"):
        await connect(query_timeout=0.3).embed_query(ada, "Where is the ferry?")


async def test_after_three_failures_queries_are_refused_without_being_sent(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer, hands: Hands
) -> None:
    server.script(*[error(500, "INTERNAL")] * 3)
    for _ in range(5):
        with pytest.raises(EmbedderError):
            await embedder.embed_query(ada, "Where is the ferry?")
    assert len(server.requests) == 3
    hands.at += 15
    await embedder.embed_query(ada, "Where is the ferry?")
    await embedder.embed_query(ada, "And the bell?")
    assert len(server.requests) == 5


async def test_documents_go_on_while_queries_are_refused(
    server: GeminiServer, embedder: CachedEmbedder, ada: Sealer
) -> None:
    server.script(*[error(500, "INTERNAL")] * 3)
    for _ in range(3):
        with pytest.raises(EmbedderError):
            await embedder.embed_query(ada, "Where is the ferry?")
    assert (await embedder.embed_documents(ada, LINES)).shape == (4, 64)


async def test_a_query_is_remembered_though_the_server_alone_knows_the_dimension(
    database: Database, ada: Sealer
) -> None:
    async with OpenAIServer() as server:
        embedder = CachedEmbedder(
            database, RemoteEmbedder("openai", server.config(), model="bge-m3")
        )
        await embedder.ready()
        first = await embedder.embed_query(ada, "Where is the ferry?")
        again = await embedder.embed_query(ada, "Where is the ferry?")
        await embedder.aclose()
    assert np.array_equal(first, again)
    assert len(server.requests) == 2
    assert embedder.spec.dimension == len(first) == 256


async def test_half_an_emoji_does_no_harm(embedder: CachedEmbedder, ada: Sealer) -> None:
    assert (await embedder.embed_query(ada, "half an emoji: \ud83d")).shape == (64,)
    assert (await embedder.embed_documents(ada, ["half an emoji: \ud83d"])).shape == (1, 64)
