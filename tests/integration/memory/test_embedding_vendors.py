"""Tests of the adapters for embeddings over HTTP."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from typing import Any

import numpy as np
import pytest

from backend.memory.embedding.protocol import EmbedderError, Task
from backend.memory.embedding.remote import RemoteEmbedder
from tests.fakes import gemini_server, openai_server
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Silence

pytestmark = pytest.mark.anyio

SECRET = "the drowned bell of Vael"
Connect = Callable[..., RemoteEmbedder]


@pytest.fixture
async def google() -> AsyncGenerator[GeminiServer]:
    async with GeminiServer() as server:
        yield server


@pytest.fixture
async def gemini(google: GeminiServer) -> AsyncGenerator[RemoteEmbedder]:
    embedder = RemoteEmbedder("gemini", google.config())
    yield embedder
    await embedder.aclose()


@pytest.fixture
async def openai() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def connect(openai: OpenAIServer) -> AsyncGenerator[Connect]:
    made: list[RemoteEmbedder] = []

    def connect(
        *, dimension: int | None = None, batch: int = 100, **changes: Any
    ) -> RemoteEmbedder:
        config = openai.config(**changes)
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


FAILURES: list[tuple[str, Answer, bool, str]] = [
    ("gemini", gemini_server.error(500, "INTERNAL", SECRET), True, "500 INTERNAL"),
    ("gemini", gemini_server.error(503, "UNAVAILABLE", SECRET), True, "503"),
    ("gemini", gemini_server.error(400, "INVALID_ARGUMENT", SECRET), False, "INVALID_ARGUMENT"),
    ("gemini", gemini_server.error(403, "PERMISSION_DENIED", SECRET), False, "key"),
    ("gemini", Answer(body=b"<html>over capacity</html>"), True, "Gemini"),
    ("gemini", Answer(body={"surprise": 1}), False, "0 vectors for 1 texts"),
    ("gemini", gemini_server.embeddings([0.0] * 768), False, "zero or not finite"),
    ("gemini", gemini_server.embeddings([1.0] * 512), False, "512"),
    ("gemini", gemini_server.embeddings([1.0] * 768, [1.0] * 768), False, "2 vectors for 1 texts"),
    ("openai", openai_server.error(500, message=SECRET), True, ""),
    ("openai", openai_server.error(400, message=SECRET, code="context_length_exceeded"), False, ""),
    ("openai", openai_server.error(401, message=SECRET, code="invalid_api_key"), False, ""),
    ("openai", Answer(body=b"<html>over capacity</html>"), False, ""),
    ("openai", Answer(body={"data": None}), False, ""),
    ("openai", Answer(body={"data": [{"index": 0}]}), False, ""),
    ("openai", openai_server.embeddings("no base64!"), False, ""),
    ("openai", openai_server.embeddings(["one", "two"]), False, ""),
    ("openai", openai_server.embeddings([]), False, ""),
    ("openai", openai_server.embeddings([float("nan"), 1.0]), False, ""),
    ("openai", openai_server.embeddings([1.0, 0.0], [1.0]), False, ""),
]
"""Vendor, answer, whether to retry, and words of the error."""


@pytest.mark.parametrize(("vendor", "answer", "retryable", "said"), FAILURES)
async def test_a_failure_is_one_error_without_the_text_and_the_key(
    google: GeminiServer,
    gemini: RemoteEmbedder,
    openai: OpenAIServer,
    connect: Connect,
    vendor: str,
    answer: Answer,
    retryable: bool,
    said: str,
) -> None:
    server = google if vendor == "gemini" else openai
    server.script(answer)
    error = await failure(gemini if vendor == "gemini" else connect())
    assert error.retryable is retryable
    assert error.retry_after is None
    assert said in error.detail
    for secret in (SECRET, gemini_server.API_KEY, openai_server.API_KEY):
        assert secret not in error.detail
    assert len(server.requests) == 1


IN_21_SECONDS = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21.0s"}


@pytest.mark.parametrize(
    ("vendor", "answer"),
    [
        ("gemini", gemini_server.error(429, "RESOURCE_EXHAUSTED", headers={"retry-after": "21"})),
        ("gemini", gemini_server.error(429, "RESOURCE_EXHAUSTED", details=[IN_21_SECONDS])),
        (
            "openai",
            openai_server.error(429, code="rate_limit_exceeded", headers={"retry-after": "21"}),
        ),
    ],
    ids=["gemini header", "gemini body", "openai header"],
)
async def test_a_rate_limit_says_when_to_come_back(
    google: GeminiServer,
    gemini: RemoteEmbedder,
    openai: OpenAIServer,
    connect: Connect,
    vendor: str,
    answer: Answer,
) -> None:
    server = google if vendor == "gemini" else openai
    server.script(answer)
    assert (await failure(gemini if vendor == "gemini" else connect())).retry_after == 21
    assert len(server.requests) == 1


async def test_a_silent_server_is_given_up(
    google: GeminiServer, openai: OpenAIServer, connect: Connect
) -> None:
    gemini = RemoteEmbedder("gemini", google.config(answer_timeout=0.2))
    google.script(Answer(events=[Silence()]))
    error = await failure(gemini)
    assert error.retryable
    assert "0.2 seconds" in error.detail
    await gemini.aclose()
    openai.script(Answer(events=[Silence()]))
    assert (await failure(connect(answer_timeout=0.2))).retryable


@pytest.mark.parametrize(
    ("task", "named"), [("document", "RETRIEVAL_DOCUMENT"), ("query", "RETRIEVAL_QUERY")]
)
async def test_a_request_has_the_task_and_the_dimension(
    google: GeminiServer, gemini: RemoteEmbedder, task: Task, named: str
) -> None:
    await gemini.embed(["A ferry.", "A bell."], task)
    request = google.requests[0]
    assert request.path == "/v1beta/models/gemini-embedding-001:batchEmbedContents"
    assert request.headers["x-goog-api-key"] == gemini_server.API_KEY
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


async def test_a_model_of_images_too_gives_one_vector_a_text(google: GeminiServer) -> None:
    embedder = RemoteEmbedder("gemini", google.config(), model="gemini-embedding-2")
    assert (await embedder.embed(["a ferry", "a bell"], "document")).shape == (2, 768)
    await embedder.aclose()


async def test_many_texts_go_in_requests_of_a_hundred(
    google: GeminiServer, gemini: RemoteEmbedder
) -> None:
    texts = [f"word{number}" for number in range(250)]
    vectors = await gemini.embed(texts, "document")
    assert [len(request.body["requests"]) for request in google.requests] == [100, 100, 50]
    assert (await gemini.embed(texts[249:], "document"))[0] == pytest.approx(vectors[249])


async def test_no_text_costs_no_request(google: GeminiServer, gemini: RemoteEmbedder) -> None:
    assert (await gemini.embed([], "document")).shape == (0, 768)
    assert google.requests == []


async def test_a_blank_text_is_sent_as_something(
    google: GeminiServer, gemini: RemoteEmbedder
) -> None:
    await gemini.embed(["  \n"], "document")
    (asked,) = google.requests[0].body["requests"]
    assert asked["content"]["parts"][0]["text"].strip()


async def test_a_server_that_is_not_there_may_be_tried_again() -> None:
    async with GeminiServer() as server:
        config = server.config()
    embedder = RemoteEmbedder("gemini", config)
    assert (await failure(embedder)).retryable
    await embedder.aclose()


async def test_a_request_has_only_the_necessary_members(
    openai: OpenAIServer, connect: Connect
) -> None:
    await connect().embed(["A ferry.", "A bell."], "document")
    request = openai.requests[0]
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == f"Bearer {openai_server.API_KEY}"
    assert request.body == {
        "model": "bge-m3",
        "input": ["A ferry.", "A bell."],
        "encoding_format": "base64",
    }


async def test_a_dimension_is_asked_for_where_it_is_set(
    openai: OpenAIServer, connect: Connect
) -> None:
    embedder = connect(dimension=64)
    assert (await embedder.embed(["A ferry."], "query")).shape == (1, 64)
    assert openai.requests[0].body["dimensions"] == 64


async def test_the_dimension_is_learned_where_it_is_not_set(
    openai: OpenAIServer, connect: Connect
) -> None:
    embedder = connect()
    with pytest.raises(EmbedderError):
        _ = embedder.spec
    spec = await embedder.ready()
    assert (spec.dimension, spec.collection) == (256, "openai-bge-m3-256")
    assert await embedder.ready() == embedder.spec == spec
    assert len(openai.requests) == 1


async def test_a_wrong_dimension_of_a_server_is_reported(
    openai: OpenAIServer, connect: Connect
) -> None:
    openai.script(openai_server.embeddings([1.0] * 384))
    error_ = await failure(connect(dimension=1024))
    assert "384" in error_.detail
    assert "1024" in error_.detail
    assert "TALEKEEPER_EMBEDDING_DIMENSION" in error_.detail


async def test_numbers_and_base64_are_both_understood(
    openai: OpenAIServer, connect: Connect
) -> None:
    packed = base64.b64encode(np.array([0.0, 5.0], "<f4").tobytes()).decode()
    openai.script(openai_server.embeddings([3.0, 4.0], packed))
    vectors = await connect().embed(["one", "two"], "document")
    assert vectors == pytest.approx(np.array([[0.6, 0.8], [0.0, 1.0]]))


async def test_vectors_are_put_in_the_texts_order(openai: OpenAIServer, connect: Connect) -> None:
    answer = openai_server.embeddings([1.0, 0.0], [0.0, 1.0])
    answer.body["data"].reverse()
    openai.script(answer)
    assert (await connect().embed(["one", "two"], "document")).tolist() == [[1, 0], [0, 1]]


async def test_many_texts_go_in_batches(openai: OpenAIServer, connect: Connect) -> None:
    vectors = await connect(batch=4).embed([f"word{number}" for number in range(10)], "document")
    assert [len(request.body["input"]) for request in openai.requests] == [4, 4, 2]
    assert vectors.shape == (10, 256)
