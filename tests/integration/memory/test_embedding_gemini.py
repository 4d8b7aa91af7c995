"""Gemini's embeddings, through Google's SDK, over a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest

from backend.memory.embedding.protocol import EmbedderError, Task
from backend.memory.embedding.remote import RemoteEmbedder
from tests.fakes.gemini_server import API_KEY, GeminiServer, embeddings, error
from tests.fakes.scripted_server import Answer, Silence

pytestmark = pytest.mark.anyio

SECRET = "the drowned bell of Vael"


@pytest.fixture
async def server() -> AsyncGenerator[GeminiServer]:
    async with GeminiServer() as server:
        yield server


@pytest.fixture
async def gemini(server: GeminiServer) -> AsyncGenerator[RemoteEmbedder]:
    embedder = RemoteEmbedder("gemini", server.config())
    yield embedder
    await embedder.aclose()


async def failure(gemini: RemoteEmbedder) -> EmbedderError:
    with pytest.raises(EmbedderError) as caught:
        await gemini.embed([SECRET], "document")
    return caught.value


@pytest.mark.parametrize(
    ("task", "named"), [("document", "RETRIEVAL_DOCUMENT"), ("query", "RETRIEVAL_QUERY")]
)
async def test_the_model_is_told_the_task_and_the_dimension(
    server: GeminiServer, gemini: RemoteEmbedder, task: Task, named: str
) -> None:
    await gemini.embed(["A ferry.", "A bell."], task)

    request = server.requests[0]
    assert request.path == "/v1beta/models/gemini-embedding-001:batchEmbedContents"
    assert request.headers["x-goog-api-key"] == API_KEY
    for asked, text in zip(request.body["requests"], ("A ferry.", "A bell."), strict=True):
        assert asked["content"]["parts"] == [{"text": text}]
        assert asked["taskType"] == named
        assert asked["outputDimensionality"] == 768


async def test_vectors_come_in_order_and_at_unit_length(gemini: RemoteEmbedder) -> None:
    vectors = await gemini.embed(["an old ferry", "a bell", "the old ferry"], "document")

    assert vectors.shape == (3, 768)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert vectors[0] @ vectors[2] > 0.6 > vectors[0] @ vectors[1]


async def test_a_model_of_images_too_gives_one_vector_a_text(server: GeminiServer) -> None:
    embedder = RemoteEmbedder("gemini", server.config(), model="gemini-embedding-2")

    assert (await embedder.embed(["a ferry", "a bell"], "document")).shape == (2, 768)
    await embedder.aclose()


async def test_many_texts_go_in_requests_of_a_hundred(
    server: GeminiServer, gemini: RemoteEmbedder
) -> None:
    texts = [f"word{number}" for number in range(250)]

    vectors = await gemini.embed(texts, "document")

    assert [len(request.body["requests"]) for request in server.requests] == [100, 100, 50]
    assert (await gemini.embed(texts[249:], "document"))[0] == pytest.approx(vectors[249])


async def test_no_text_costs_no_request(server: GeminiServer, gemini: RemoteEmbedder) -> None:
    assert (await gemini.embed([], "document")).shape == (0, 768)
    assert server.requests == []


async def test_a_blank_text_is_sent_as_something(
    server: GeminiServer, gemini: RemoteEmbedder
) -> None:
    await gemini.embed(["  \n"], "document")

    (asked,) = server.requests[0].body["requests"]
    assert asked["content"]["parts"][0]["text"].strip()


@pytest.mark.parametrize(
    "limited",
    [
        error(429, "RESOURCE_EXHAUSTED", headers={"retry-after": "21"}),
        error(
            429,
            "RESOURCE_EXHAUSTED",
            details=[{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21.0s"}],
        ),
    ],
)
async def test_a_rate_limit_says_when_to_come_back(
    server: GeminiServer, gemini: RemoteEmbedder, limited: Answer
) -> None:
    server.script(limited)

    error_ = await failure(gemini)

    assert error_.retry_after == 21
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "retryable", "said"),
    [
        (error(500, "INTERNAL", SECRET), True, "500 INTERNAL"),
        (error(503, "UNAVAILABLE", SECRET), True, "503"),
        (error(400, "INVALID_ARGUMENT", SECRET), False, "INVALID_ARGUMENT"),
        (error(403, "PERMISSION_DENIED", SECRET), False, "key"),
        (Answer(body=b"<html>over capacity</html>"), True, "Gemini"),
        (Answer(body={"surprise": 1}), False, "0 vectors for 1 texts"),
        (embeddings([0.0] * 768), False, "zero or not finite"),
        (embeddings([1.0] * 512), False, "512"),
        (embeddings([1.0] * 768, [1.0] * 768), False, "2 vectors for 1 texts"),
    ],
)
async def test_whatever_goes_wrong_is_one_error_without_the_text_and_the_key(
    server: GeminiServer, gemini: RemoteEmbedder, answer: Answer, retryable: bool, said: str
) -> None:
    server.script(answer)

    error_ = await failure(gemini)

    assert error_.retryable is retryable
    assert error_.retry_after is None
    assert said in error_.detail
    assert SECRET not in error_.detail
    assert API_KEY not in error_.detail
    assert len(server.requests) == 1


async def test_a_server_that_says_nothing_is_left_in_time(server: GeminiServer) -> None:
    server.script(Answer(events=[Silence()]))
    embedder = RemoteEmbedder("gemini", server.config(answer_timeout=0.2))

    error_ = await failure(embedder)

    assert error_.retryable
    assert "0.2 seconds" in error_.detail
    await embedder.aclose()


async def test_a_server_that_is_not_there_may_be_tried_again(unused_config: Any) -> None:
    embedder = RemoteEmbedder("gemini", unused_config)

    assert (await failure(embedder)).retryable
    await embedder.aclose()


@pytest.fixture
async def unused_config() -> Any:
    """The address of a server that has gone."""
    async with GeminiServer() as server:
        return server.config()
