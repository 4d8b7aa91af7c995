"""Tests of the adapter for a Qdrant server, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from backend.memory.index.protocol import IndexUnavailableError, Scope, ScopePart, VectorIndex
from backend.memory.index.server import RECONNECT_SECONDS, ServerIndex
from tests.fakes.qdrant_server import DIMENSION, QdrantServer, collection_info, failed
from tests.fakes.scripted_server import Answer, Request, ScriptedServer
from tests.support.databases import start_qdrant
from tests.support.points import (
    connected,
    open_collections,
    point,
    query,
    scope,
    server_settings,
    terms,
    unit,
)

pytestmark = pytest.mark.anyio

NAME = "talekeeper-tales"
STRICT = {
    "enabled": True,
    "unindexed_filtering_retrieve": False,
    "unindexed_filtering_update": False,
}
OWNER, CHAT, BOOK = uuid4(), uuid4(), uuid4()


@pytest.fixture
async def server() -> AsyncIterator[QdrantServer]:
    async with QdrantServer() as running:
        yield running


@pytest.fixture
async def index(server: QdrantServer) -> AsyncIterator[VectorIndex]:
    """An index with an existing collection."""
    server.collections[NAME] = collection_info()
    opened = await connected(server_settings(server.url), "tales", DIMENSION)
    server.requests.clear()
    yield opened
    await opened.aclose()


def is_equal(field: str, value: UUID) -> dict[str, Any]:
    return {"key": field, "match": {"value": str(value)}}


def is_any(field: str, *values: object) -> dict[str, Any]:
    return {"key": field, "match": {"any": [str(each) for each in values]}}


async def test_a_missing_collection_is_made_with_all_that_was_set(server: QdrantServer) -> None:
    chosen = server_settings(
        server.url,
        qdrant_collection_prefix="two-",
        qdrant_shard_number=3,
        qdrant_replication_factor=2,
        qdrant_hnsw_m=24,
        qdrant_quantization="scalar",
        qdrant_storage="disk",
    )
    index = await connected(chosen, "tales", DIMENSION)
    await index.aclose()
    assert index.is_new
    [made] = server.asked("PUT", "/collections/two-tales")
    vector = {
        "size": DIMENSION,
        "distance": "Dot",
        "on_disk": True,
        "quantization_config": {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}},
    }
    sparse = {"modifier": "idf", "index": {"on_disk": True}}
    assert made.body == {
        "vectors": {"dense": vector, "dense_window": vector},
        "sparse_vectors": {"sparse": sparse, "sparse_window": sparse},
        "hnsw_config": {"m": 0, "payload_m": 24, "on_disk": True},
        "shard_number": 3,
        "replication_factor": 2,
        "on_disk_payload": True,
    }
    [changed] = server.asked("PATCH", "/collections/two-tales")
    assert changed.body == {"strict_mode_config": STRICT}


async def test_every_field_that_is_filtered_on_gets_an_index(server: QdrantServer) -> None:
    await (await connected(server_settings(server.url), "tales", DIMENSION)).aclose()
    asked = server.asked("PUT", f"/collections/{NAME}/index")
    made = {each.body["field_name"]: each.body["field_schema"] for each in asked}
    assert made.pop("o") == {"type": "uuid", "is_tenant": True}
    assert {name: schema["type"] for name, schema in made.items()} == {
        "c": "uuid",
        "s": "uuid",
        "k": "keyword",
        "p": "integer",
        "u": "keyword",
    }


async def test_a_collection_that_fits_and_is_strict_is_left_as_it_is(server: QdrantServer) -> None:
    server.collections[NAME] = collection_info(indexed=("o", "c", "k", "p", "u"))
    for _ in range(2):
        index = await connected(server_settings(server.url), "tales", DIMENSION)
        await index.aclose()
        assert not index.is_new
    added, changed = [each for each in server.requests if each.method != "GET"]
    assert added.body["field_name"] == "s"
    assert changed.body == {"strict_mode_config": STRICT}


async def test_a_collection_without_dense_vectors_is_made_and_found_again(
    server: QdrantServer,
) -> None:
    for is_new in (True, False):
        index = await connected(server_settings(server.url), "words", None)
        assert index.is_new is is_new
        assert await index.dense_vectors([uuid4()]) == {}
        await index.aclose()


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (collection_info(16), "dense \\(16, Dot\\).*must be dense \\(8, Dot\\)"),
        (collection_info(None), "dense vectors are none"),
        (collection_info(distance="Euclid"), "dense \\(8, Euclid\\)"),
        (collection_info(modifier=None), "lack the modifier `idf`"),
    ],
)
async def test_a_collection_that_does_not_fit_is_refused_and_left_alone(
    server: QdrantServer, info: dict[str, Any], says: str
) -> None:
    server.collections[NAME] = info
    with pytest.raises(IndexUnavailableError, match=says):
        await connected(server_settings(server.url), "tales", DIMENSION)
    assert {each.method for each in server.requests} == {"GET"}


@pytest.mark.parametrize(
    ("status", "text", "is_new"),
    [(409, f"Wrong input: Collection `{NAME}` already exists!", False), (504, "Timeout", True)],
)
async def test_a_collection_is_new_unless_another_start_has_created_it(
    server: QdrantServer, status: int, text: str, *, is_new: bool
) -> None:
    server.collections[NAME] = collection_info()
    absent = Answer(body={"result": {"exists": False}, "status": "ok", "time": 0.0})
    version = Answer(body={"title": "qdrant", "version": "1.19.3"})
    server.script(version, absent, failed(status, text))
    index = await connected(server_settings(server.url), "tales", DIMENSION)
    await index.aclose()
    assert index.is_new is is_new


@pytest.mark.parametrize("version", ["1.18.9", "1.9.0", "0.11.1"])
async def test_a_server_that_is_too_old_is_refused(server: QdrantServer, version: str) -> None:
    server.version = version
    with pytest.raises(IndexUnavailableError, match=r"needs 1\.19 or newer"):
        await connected(server_settings(server.url), "tales", DIMENSION)


@pytest.mark.parametrize("version", ["1.19.0", "1.20.1-dev", "2.0.0"])
async def test_a_newer_server_is_taken(server: QdrantServer, version: str) -> None:
    server.version = version
    await (await connected(server_settings(server.url), "tales", DIMENSION)).aclose()


async def test_a_point_leaves_as_vectors_ids_and_numbers(
    server: QdrantServer, index: VectorIndex
) -> None:
    item = point(
        OWNER,
        CHAT,
        position=4,
        dense={"dense": unit(1), "dense_window": unit(0, 1)},
        sparse={"sparse": terms({7: 0.5}), "sparse_window": terms({2**32 - 1: 2})},
    )
    await index.upsert([item])
    [request] = server.requests
    assert (request.method, request.path) == ("PUT", f"/collections/{NAME}/points")
    assert request.query == {"wait": "true"}
    assert request.body == {
        "points": [
            {
                "id": str(item.id),
                "vector": {
                    "dense": [1, 0, 0, 0, 0, 0, 0, 0],
                    "dense_window": [0, 1, 0, 0, 0, 0, 0, 0],
                    "sparse": {"indices": [7], "values": [0.5]},
                    "sparse_window": {"indices": [2**32 - 1], "values": [2.0]},
                },
                "payload": {
                    "o": str(OWNER),
                    "k": "message",
                    "c": str(CHAT),
                    "s": str(item.payload.source_id),
                    "p": 4,
                },
            }
        ]
    }


async def test_many_points_leave_in_several_requests(
    server: QdrantServer, index: VectorIndex
) -> None:
    await index.upsert([point(OWNER, CHAT) for _ in range(250)])
    assert [len(each.body["points"]) for each in server.requests] == [100, 100, 50]


async def test_queries_leave_in_one_batch_each_with_its_owner_and_corpus(
    server: QdrantServer, index: VectorIndex
) -> None:
    within = Scope(
        owner_id=OWNER,
        parts=[ScopePart(containers=[BOOK]), ScopePart(containers=[CHAT], before_position=9)],
        kinds=["lore", "message"],
    )
    await index.search(
        [
            query(unit(1), within, limit=100),
            query(terms({}), within),
            query(terms({7: 1}), within, vector="sparse_window", limit=20),
        ]
    )
    [request] = server.requests
    assert request.path == f"/collections/{NAME}/points/query/batch"
    before = {"must": [is_any("c", CHAT), {"key": "p", "range": {"lt": 9.0}}]}
    found_within = {
        "must": [
            is_equal("o", OWNER),
            is_any("k", "lore", "message"),
            {"should": [is_any("c", BOOK), before]},
        ]
    }
    assert request.body == {
        "searches": [
            {
                "query": {"nearest": [1, 0, 0, 0, 0, 0, 0, 0]},
                "using": "dense",
                "filter": found_within,
                "limit": 100,
                "with_payload": True,
            },
            {
                "query": {"nearest": {"indices": [7], "values": [1.0]}},
                "using": "sparse_window",
                "filter": found_within,
                "params": {"idf": {"corpus": {"must": [is_equal("o", OWNER)]}}},
                "limit": 20,
                "with_payload": True,
            },
        ]
    }


async def test_hits_of_quantized_vectors_are_rescored(server: QdrantServer) -> None:
    server.collections[NAME] = collection_info()
    chosen = server_settings(server.url, qdrant_quantization="binary")
    index = await connected(chosen, "tales", DIMENSION)
    await index.search([query(unit(1), scope(OWNER, CHAT))])
    await index.aclose()
    [search] = server.requests[-1].body["searches"]
    assert search["params"] == {"quantization": {"rescore": True, "oversampling": 2.0}}


async def test_answers_come_back_to_the_queries_that_they_belong_to(
    server: QdrantServer, index: VectorIndex
) -> None:
    item = point(OWNER, CHAT)
    payload = {"o": str(OWNER), "k": "message", "c": str(CHAT), "s": str(uuid4()), "p": 3, "a": 9}
    hit = {"id": str(item.id), "version": 1, "score": 0.5, "payload": payload}
    server.answers["batch"] = [{"points": []}, {"points": [hit]}]
    within = scope(OWNER, CHAT)
    found = await index.search(
        [query(unit(1), within), query(unit(1), scope(OWNER)), query(terms({7: 1}), within)]
    )
    assert [len(hits) for hits in found] == [0, 0, 1]
    assert (found[2][0].id, found[2][0].score) == (item.id, 0.5)
    assert (found[2][0].payload.position, found[2][0].payload.speaker) == (3, 9)


async def test_counts_owners_and_vectors_are_read(server: QdrantServer, index: VectorIndex) -> None:
    item = uuid4()
    gone = {"value": str(uuid4()), "count": 0}
    server.answers = {
        "count": {"count": 12},
        "facet": {"hits": [{"value": str(OWNER), "count": 12}, gone]},
        "points": [{"id": str(item), "vector": {"dense": [0.5] * 8}}, {"id": str(uuid4())}],
    }
    assert await index.count(OWNER) == 12
    assert await index.count() == 12
    assert await index.owners() == {OWNER}
    vectors = await index.dense_vectors([item, uuid4()])
    assert {name: list(vector) for name, vector in vectors.items()} == {item: [0.5] * 8}
    stored = {"sparse": {"indices": [7], "values": [0.5]}}
    server.answers["points"] = [{"id": str(item), "vector": stored}, {"id": str(uuid4())}]
    asked = await index.term_vectors([item, uuid4()])
    assert {name: (each.ids.tolist(), each.weights.tolist()) for name, each in asked.items()} == {
        item: ([7], [0.5])
    }
    filters = [each.body.get("filter") for each in server.requests[:2]]
    assert filters == [{"must": [is_equal("o", OWNER)]}, None]


async def test_a_scan_goes_on_from_page_to_page(server: QdrantServer, index: VectorIndex) -> None:
    ids = [uuid4(), uuid4()]
    payload = {"o": str(OWNER), "k": "lore", "c": str(BOOK), "s": str(uuid4()), "p": 0}

    def page(number: int, following: UUID | None) -> Answer:
        points = [{"id": str(ids[number]), "payload": payload}]
        offset = None if following is None else str(following)
        return Answer(body={"result": {"points": points, "next_page_offset": offset}})

    server.script(page(0, ids[1]), page(1, None))
    pages = [each async for each in index.scan(OWNER, container_id=BOOK)]
    assert [[item for item, _ in each] for each in pages] == [[ids[0]], [ids[1]]]
    first, second = server.requests
    assert first.body["filter"] == {"must": [is_equal("o", OWNER), is_equal("c", BOOK)]}
    assert "offset" not in first.body
    assert second.body["offset"] == str(ids[1])


async def test_deleting_names_the_owner_and_waits(server: QdrantServer, index: VectorIndex) -> None:
    row = uuid4()
    await index.delete_sources(OWNER, [row])
    await index.delete_sources(OWNER, [])
    await index.delete_container(OWNER, CHAT)
    await index.delete_owner(OWNER)
    asked = server.asked("POST", f"/collections/{NAME}/points/delete")
    assert asked == server.requests
    assert {each.query["wait"] for each in asked} == {"true"}
    assert [each.body["filter"]["must"] for each in asked] == [
        [is_equal("o", OWNER), is_any("s", row)],
        [is_equal("o", OWNER), is_any("c", CHAT)],
        [is_equal("o", OWNER)],
    ]


async def test_the_collections_of_a_test_are_deleted_though_it_closed_their_indexes(
    server: QdrantServer,
) -> None:
    async with open_collections(server_settings(server.url)) as open_one:
        first = await open_one("tales", DIMENSION)
        await first.aclose()
        await open_one("tales", DIMENSION)
        await open_one("words", None)
        assert server.collections.keys() == {NAME, "talekeeper-words"}
    assert server.collections == {}


KEY = "qdrant-key-for-tests"


@pytest.fixture
async def lone_server() -> AsyncIterator[QdrantServer]:
    async with QdrantServer() as running:
        running.collections[NAME] = collection_info()
        yield running


@pytest.fixture
async def index_with_key(lone_server: QdrantServer) -> AsyncIterator[VectorIndex]:
    chosen = server_settings(lone_server.url, qdrant_api_key=KEY)
    opened = await connected(chosen, "tales", DIMENSION)
    lone_server.requests.clear()
    yield opened
    await opened.aclose()


async def test_the_key_goes_with_every_request_and_stands_in_no_error(
    lone_server: QdrantServer, index_with_key: VectorIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await index_with_key.upsert([point(OWNER, CHAT)])
    assert [each.headers["api-key"] for each in lone_server.requests] == [KEY]
    lone_server.script(failed(401, f"Invalid API key {KEY}"))
    with pytest.raises(IndexUnavailableError) as caught:
        await index_with_key.ping()
    assert KEY not in json.dumps(caught.value.to_problem())
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (failed(401, "Must provide an API key"), "refuses the key"),
        (failed(403, "Forbidden"), "refuses the key"),
        (failed(404, "Not found: Collection doesn't exist!"), "missing on the Qdrant server"),
        (failed(500, "Service internal error"), "failed \\(500\\)"),
        (failed(503, "Service unavailable"), "failed \\(503\\)"),
        (Answer(429, {"retry-after": "3"}, {"status": {"error": "slow down"}}), "overloaded"),
        (Answer(body=b"<html>Welcome</html>"), "does not respond like a Qdrant server"),
        (Answer(body={"result": "yes"}), "does not respond like a Qdrant server"),
        (Answer(body={"result": None}), "does not respond like a Qdrant server"),
    ],
)
async def test_a_failure_is_described(
    lone_server: QdrantServer, index_with_key: VectorIndex, answer: Answer, says: str
) -> None:
    lone_server.script(answer)
    with pytest.raises(IndexUnavailableError, match=says):
        await index_with_key.count(OWNER)
    assert await index_with_key.count(OWNER) == 0


async def test_an_answer_that_is_too_few_is_a_failure(
    lone_server: QdrantServer, index_with_key: VectorIndex
) -> None:
    lone_server.answers["batch"] = []
    with pytest.raises(IndexUnavailableError, match="too few results"):
        await index_with_key.search([query(unit(1), scope(OWNER, CHAT))])


async def test_a_point_that_is_none_of_ours_is_a_failure(
    lone_server: QdrantServer, index_with_key: VectorIndex
) -> None:
    foreign = {"id": str(uuid4()), "version": 1, "score": 1.0, "payload": {"text": "a tale"}}
    lone_server.answers["batch"] = [{"points": [foreign]}]
    with pytest.raises(IndexUnavailableError, match="an unknown payload"):
        await index_with_key.search([query(unit(1), scope(OWNER, CHAT))])


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
        with pytest.raises(IndexUnavailableError, match="did not respond within 1 s"):
            await connected(chosen, "tales", DIMENSION)
    finally:
        hung.set()
        listener.close()


async def test_a_server_that_is_not_there_is_said_to_be_unreachable() -> None:
    async with QdrantServer() as gone:
        chosen = server_settings(gone.url, qdrant_protocol="grpc", qdrant_grpc_port=1)
    with pytest.raises(IndexUnavailableError, match="cannot be reached"):
        await connected(chosen, "tales", DIMENSION)


async def test_a_server_that_is_down_is_tried_every_few_seconds() -> None:
    at = 100.0
    async with QdrantServer() as server:
        settings = server_settings(server.url)
        index = ServerIndex(settings, "tales", DIMENSION, clock=lambda: at)
        server.script(*[failed(503, "Service unavailable")] * 3)
        for _ in range(3):
            with pytest.raises(IndexUnavailableError, match="503"):
                await index.ping()
        assert len(server.requests) == 1
        at += RECONNECT_SECONDS
        with pytest.raises(IndexUnavailableError):
            await index.ping()
        assert len(server.requests) == 2
        server.unscript()
        at += RECONNECT_SECONDS
        await index.ping()
        assert index.is_new
        await index.aclose()


async def test_an_unused_index_is_closed_without_a_request(server: QdrantServer) -> None:
    index = ServerIndex(server_settings(server.url), "tales", DIMENSION)
    await index.aclose()
    assert server.requests == []


async def test_http_is_used_if_grpc_does_not_answer(lone_server: QdrantServer) -> None:
    chosen = server_settings(lone_server.url, qdrant_protocol="grpc", qdrant_grpc_port=1)
    await (await connected(chosen, "tales", DIMENSION)).aclose()
    assert lone_server.asked("GET", f"/collections/{NAME}")


MESSAGE = "pull access denied for testcontainers/ryuk,\n repository does not exist"


class Engine(ScriptedServer):
    """A container engine that fails to make a container."""

    usual_answer: ClassVar[Answer] = Answer(500, body={"message": MESSAGE})

    def wants_stream(self, request: Request) -> bool:  # noqa: ARG002  # nothing is streamed
        """Return False, because nothing is streamed."""
        return False


async def test_the_message_of_an_engine_that_starts_no_container_is_the_reason_of_the_skip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Engine() as engine:
        engine.aside["/version"] = Answer(body={"ApiVersion": "1.47", "Version": "27.0"})
        monkeypatch.setenv("DOCKER_HOST", engine.url.replace("http:", "tcp:"))
        with pytest.raises(pytest.skip.Exception, match=r"pull access denied .*, repository does"):
            await asyncio.to_thread(start_qdrant)
