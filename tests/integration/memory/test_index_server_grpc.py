"""Tests of the adapter for a Qdrant server, over real gRPC."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import grpc  # type: ignore[import-untyped]  # it has no types
import pytest

from backend.memory.index.protocol import IndexUnavailableError, VectorIndex
from tests.fakes.qdrant_grpc import (
    CONTAINER,
    DIMENSION,
    OWNER,
    POINT,
    SOURCE,
    VERSION,
    QdrantGrpc,
    serving,
)
from tests.support.points import connected, point, query, scope, server_settings, terms, unit

pytestmark = pytest.mark.anyio

KEY = "qdrant-key-for-tests"


@pytest.fixture
async def server() -> AsyncIterator[tuple[QdrantGrpc, int]]:
    async with serving() as running:
        yield running


@pytest.fixture
async def qdrant(server: tuple[QdrantGrpc, int]) -> QdrantGrpc:
    return server[0]


@pytest.fixture
async def index(server: tuple[QdrantGrpc, int]) -> AsyncIterator[VectorIndex]:
    # There is no HTTP server at port 1.
    chosen = server_settings(
        "http://127.0.0.1:1", qdrant_protocol="grpc", qdrant_grpc_port=server[1], qdrant_api_key=KEY
    )
    opened = await connected(chosen, "tales", DIMENSION)
    yield opened
    await opened.aclose()


async def test_a_collection_is_made_with_its_indexes(
    qdrant: QdrantGrpc, index: VectorIndex
) -> None:
    [made] = qdrant.asked["Create"]
    assert index.is_new
    assert made.collection_name == "talekeeper-tales"
    assert {name: each.size for name, each in made.vectors_config.params_map.map.items()} == {
        "dense": DIMENSION,
        "dense_window": DIMENSION,
    }
    assert set(made.sparse_vectors_config.map) == {"sparse", "sparse_window"}
    assert {each.field_name for each in qdrant.asked["CreateFieldIndex"]} == set("ocskpu")
    assert qdrant.keys == {KEY}


async def test_points_and_queries_leave_whole_and_hits_come_back(
    qdrant: QdrantGrpc, index: VectorIndex
) -> None:
    item = point(OWNER, CONTAINER, sparse={"sparse": terms({2**32 - 1: 0.5})})
    await index.upsert([item])
    [stored] = qdrant.asked["Upsert"][0].points
    vectors = stored.vectors.vectors.vectors
    assert list(vectors["dense"].dense.data) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert list(vectors["sparse"].sparse.indices) == [2**32 - 1]
    assert qdrant.asked["Upsert"][0].wait

    within = scope(OWNER, CONTAINER, before=9)
    found = await index.search([query(unit(1), within), query(terms({7: 1}), within)])
    dense, sparse = qdrant.asked["QueryBatch"][0].query_points
    for asked in (dense, sparse):
        assert asked.filter.must[0].field.match.keyword == str(OWNER)
    assert sparse.params.idf.corpus.must[0].field.match.keyword == str(OWNER)
    assert not dense.params.HasField("idf")
    [[hit], _] = found
    assert (hit.id, hit.score, hit.payload.source_id) == (POINT, 0.5, SOURCE)
    assert (hit.payload.version, hit.payload.is_question) == (VERSION, True)


async def test_the_rest_is_asked_and_read(qdrant: QdrantGrpc, index: VectorIndex) -> None:
    assert await index.count(OWNER) == 7
    assert await index.owners() == {OWNER}
    vectors = await index.dense_vectors([POINT])
    assert list(vectors[POINT]) == [0.5] * DIMENSION
    [[(item, payload)]] = [page async for page in index.scan(OWNER)]
    assert (item, payload.position) == (POINT, 4)
    await index.delete_owner(OWNER)
    [deleted] = qdrant.asked["Delete"]
    assert deleted.wait
    [condition] = deleted.points.filter.must
    assert (condition.field.key, condition.field.match.keyword) == ("o", str(OWNER))
    await index.ping()


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "refuses the key"),
        (grpc.StatusCode.PERMISSION_DENIED, "refuses the key"),
        (grpc.StatusCode.NOT_FOUND, "missing on the Qdrant server"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "did not respond within"),
        (grpc.StatusCode.UNAVAILABLE, "cannot be reached"),
        (grpc.StatusCode.INTERNAL, r"failed \(INTERNAL\)"),
    ],
)
async def test_a_failure_is_described(
    qdrant: QdrantGrpc, index: VectorIndex, status: grpc.StatusCode, says: str
) -> None:
    qdrant.refuses = status
    with pytest.raises(IndexUnavailableError, match=says) as caught:
        await index.count(OWNER)
    assert "server's own" not in caught.value.detail


def test_the_client_is_not_loaded_before_there_is_a_server() -> None:
    script = (
        "import sys, backend.memory.index.server\n"
        "print([name for name in ('qdrant_client', 'grpc') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
