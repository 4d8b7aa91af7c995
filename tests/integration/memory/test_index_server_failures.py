"""The adapter for a Qdrant server: what failures over real HTTP become."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from backend.memory.index.protocol import IndexUnavailableError, VectorIndex
from tests.fakes.qdrant_server import DIMENSION, QdrantServer, collection_info, failed
from tests.fakes.scripted_server import Answer
from tests.support.points import connected, point, query, scope, server_settings, unit

pytestmark = pytest.mark.anyio

NAME = "talekeeper-tales"
KEY = "qdrant-key-for-tests"
OWNER, CHAT = uuid4(), uuid4()


@pytest.fixture
async def server() -> AsyncIterator[QdrantServer]:
    async with QdrantServer() as running:
        running.collections[NAME] = collection_info()
        yield running


@pytest.fixture
async def index(server: QdrantServer) -> AsyncIterator[VectorIndex]:
    chosen = server_settings(server.url, qdrant_api_key=KEY)
    opened = await connected(chosen, "tales", DIMENSION)
    server.requests.clear()
    yield opened
    await opened.aclose()


async def test_the_key_goes_with_every_request_and_stands_in_no_error(
    server: QdrantServer, index: VectorIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await index.upsert([point(OWNER, CHAT)])
    assert [each.headers["api-key"] for each in server.requests] == [KEY]
    server.script(failed(401, f"Invalid API key {KEY}"))
    with pytest.raises(IndexUnavailableError) as caught:
        await index.ping()
    assert KEY not in json.dumps(caught.value.to_problem())
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (failed(401, "Must provide an API key"), "refuses the key"),
        (failed(403, "Forbidden"), "refuses the key"),
        (failed(404, "Not found: Collection doesn't exist!"), "gone from the Qdrant server"),
        (failed(500, "Service internal error"), "failed \\(500\\)"),
        (failed(503, "Service unavailable"), "failed \\(503\\)"),
        (Answer(429, {"retry-after": "3"}, {"status": {"error": "slow down"}}), "too much to do"),
        (Answer(body=b"<html>Welcome</html>"), "does not answer as a Qdrant server"),
        (Answer(body={"result": "yes"}), "does not answer as a Qdrant server"),
        (Answer(body={"result": None}), "does not answer as a Qdrant server"),
    ],
)
async def test_a_failure_is_told_in_words(
    server: QdrantServer, index: VectorIndex, answer: Answer, says: str
) -> None:
    server.script(answer)
    with pytest.raises(IndexUnavailableError, match=says):
        await index.count(OWNER)
    assert await index.count(OWNER) == 0


async def test_an_answer_that_is_too_few_is_a_failure(
    server: QdrantServer, index: VectorIndex
) -> None:
    server.answers["batch"] = []
    with pytest.raises(IndexUnavailableError, match="too few results"):
        await index.search([query(unit(1), scope(OWNER, CHAT))])


async def test_a_point_that_is_none_of_ours_is_a_failure(
    server: QdrantServer, index: VectorIndex
) -> None:
    foreign = {"id": str(uuid4()), "version": 1, "score": 1.0, "payload": {"text": "a tale"}}
    server.answers["batch"] = [{"points": [foreign]}]
    with pytest.raises(IndexUnavailableError, match="an unknown payload"):
        await index.search([query(unit(1), scope(OWNER, CHAT))])


async def test_a_server_that_is_silent_is_given_up() -> None:
    hung = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung.wait()
        writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    chosen = server_settings(url, qdrant_timeout_seconds=1)
    try:
        with pytest.raises(IndexUnavailableError, match="did not answer within 1 s"):
            await connected(chosen, "tales", DIMENSION)
    finally:
        hung.set()
        listener.close()


async def test_a_server_that_is_not_there_is_said_to_be_unreachable() -> None:
    async with QdrantServer() as gone:
        chosen = server_settings(gone.url, qdrant_protocol="grpc", qdrant_grpc_port=1)
    with pytest.raises(IndexUnavailableError, match="cannot be reached"):
        await connected(chosen, "tales", DIMENSION)


async def test_where_grpc_does_not_answer_http_is_spoken(server: QdrantServer) -> None:
    chosen = server_settings(server.url, qdrant_protocol="grpc", qdrant_grpc_port=1)
    await (await connected(chosen, "tales", DIMENSION)).aclose()
    assert server.asked("GET", f"/collections/{NAME}")
