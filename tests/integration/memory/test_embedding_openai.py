"""OpenAI-compatible embeddings, through OpenAI's SDK, over a socket."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from typing import Any

import numpy as np
import pytest

from backend.memory.embedding.protocol import EmbedderError
from backend.memory.embedding.remote import RemoteEmbedder
from tests.fakes.openai_server import API_KEY, OpenAIServer, embeddings, error
from tests.fakes.scripted_server import Answer, Silence

pytestmark = pytest.mark.anyio

SECRET = "the drowned bell of Vael"
Connect = Callable[..., RemoteEmbedder]


@pytest.fixture
async def server() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def connect(server: OpenAIServer) -> AsyncGenerator[Connect]:
    """Makes an embedder under changed settings."""
    made: list[RemoteEmbedder] = []

    def connect(
        *, dimension: int | None = None, batch: int = 100, **changes: Any
    ) -> RemoteEmbedder:
        config = server.config(**changes)
        made.append(
            RemoteEmbedder("openai", config, model="bge-m3", dimension=dimension, batch=batch)
        )
        return made[-1]

    yield connect
    for embedder in made:
        await embedder.aclose()


async def failure(embedder: RemoteEmbedder) -> EmbedderError:
    with pytest.raises(EmbedderError) as caught:
        await embedder.embed([SECRET], "document")
    return caught.value


async def test_what_is_asked_is_as_little_as_possible(
    server: OpenAIServer, connect: Connect
) -> None:
    await connect().embed(["A ferry.", "A bell."], "document")

    request = server.requests[0]
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == f"Bearer {API_KEY}"
    assert request.body == {
        "model": "bge-m3",
        "input": ["A ferry.", "A bell."],
        "encoding_format": "base64",
    }


async def test_a_dimension_is_asked_for_where_it_is_set(
    server: OpenAIServer, connect: Connect
) -> None:
    embedder = connect(dimension=64)

    assert (await embedder.embed(["A ferry."], "query")).shape == (1, 64)
    assert server.requests[0].body["dimensions"] == 64


async def test_the_dimension_is_learned_where_it_is_not_set(
    server: OpenAIServer, connect: Connect
) -> None:
    embedder = connect()
    with pytest.raises(EmbedderError):
        _ = embedder.spec

    spec = await embedder.ready()

    assert (spec.dimension, spec.collection) == (256, "openai-bge-m3-256")
    assert await embedder.ready() == embedder.spec == spec
    assert len(server.requests) == 1


async def test_a_server_that_gives_another_dimension_is_told_on(
    server: OpenAIServer, connect: Connect
) -> None:
    server.script(embeddings([1.0] * 384))

    error_ = await failure(connect(dimension=1024))

    assert "384" in error_.detail
    assert "1024" in error_.detail
    assert "TALEKEEPER_EMBEDDING_DIMENSION" in error_.detail


async def test_numbers_and_base64_are_both_understood(
    server: OpenAIServer, connect: Connect
) -> None:
    packed = base64.b64encode(np.array([0.0, 5.0], "<f4").tobytes()).decode()
    server.script(embeddings([3.0, 4.0], packed))

    vectors = await connect().embed(["one", "two"], "document")

    assert vectors == pytest.approx(np.array([[0.6, 0.8], [0.0, 1.0]]))


async def test_vectors_are_put_in_the_texts_order(server: OpenAIServer, connect: Connect) -> None:
    answer = embeddings([1.0, 0.0], [0.0, 1.0])
    answer.body["data"].reverse()
    server.script(answer)

    assert (await connect().embed(["one", "two"], "document")).tolist() == [[1, 0], [0, 1]]


async def test_many_texts_go_in_batches(server: OpenAIServer, connect: Connect) -> None:
    vectors = await connect(batch=4).embed([f"word{number}" for number in range(10)], "document")

    assert [len(request.body["input"]) for request in server.requests] == [4, 4, 2]
    assert vectors.shape == (10, 256)


async def test_a_rate_limit_says_when_to_come_back(server: OpenAIServer, connect: Connect) -> None:
    server.script(error(429, code="rate_limit_exceeded", headers={"retry-after": "7"}))

    assert (await failure(connect())).retry_after == 7
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "retryable"),
    [
        (error(500, message=SECRET), True),
        (error(400, message=SECRET, code="context_length_exceeded"), False),
        (error(401, message=SECRET, code="invalid_api_key"), False),
        (Answer(body=b"<html>over capacity</html>"), False),
        (Answer(body={"data": None}), False),
        (Answer(body={"data": [{"index": 0}]}), False),
        (embeddings("no base64!"), False),
        (embeddings(["one", "two"]), False),
        (embeddings([]), False),
        (embeddings([float("nan"), 1.0]), False),
        (embeddings([1.0, 0.0], [1.0]), False),
    ],
)
async def test_whatever_goes_wrong_is_one_error_without_the_text_and_the_key(
    server: OpenAIServer, connect: Connect, answer: Answer, retryable: bool
) -> None:
    server.script(answer)

    error_ = await failure(connect())

    assert error_.retryable is retryable
    assert SECRET not in error_.detail
    assert API_KEY not in error_.detail
    assert len(server.requests) == 1


async def test_a_server_that_says_nothing_is_left_in_time(
    server: OpenAIServer, connect: Connect
) -> None:
    server.script(Answer(events=[Silence()]))

    assert (await failure(connect(answer_timeout=0.2))).retryable
