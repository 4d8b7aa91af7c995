"""The engines that are held to the same tests."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import VectorIndex
from backend.memory.index.server_nodes import list_peers, open_client
from backend.settings import Settings
from tests.support.databases import GRPC_PORT, HTTP_PORT, start_qdrant
from tests.support.points import Open, open_collections


@pytest.fixture(scope="session")
def qdrant() -> Iterator[Settings]:
    """Settings for a Qdrant server: the one that is named, else one in a container."""
    prefix = f"test-{uuid4().hex[:8]}-"
    if url := os.environ.get("TEST_QDRANT_URL"):  # noqa: TID251  no setting of the program's
        yield Settings.model_validate({"qdrant_url": url, "qdrant_collection_prefix": prefix})
        return
    container = start_qdrant()
    try:
        host = container.get_container_host_ip()
        yield Settings.model_validate(
            {
                "qdrant_url": f"http://{host}:{container.get_exposed_port(HTTP_PORT)}",
                "qdrant_grpc_port": int(container.get_exposed_port(GRPC_PORT)),
                "qdrant_collection_prefix": prefix,
            }
        )
    finally:
        container.stop()


@pytest.fixture(
    params=[
        "edge",
        pytest.param("grpc", marks=pytest.mark.qdrant),
        pytest.param("http", marks=pytest.mark.qdrant),
        pytest.param("cluster", marks=pytest.mark.qdrant),
    ]
)
async def open_index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Open collections of one engine, closed at the end. In a cluster they have several shards."""
    if request.param == "edge":
        async with _open_edges(tmp_path / "index") as open_one:
            yield open_one
        return
    settings: Settings = request.getfixturevalue("qdrant")
    prefix = f"{settings.qdrant_collection_prefix}{tmp_path.name}-"
    changes: dict[str, Any] = {"qdrant_collection_prefix": prefix}
    if request.param == "cluster":
        if len(await _list_nodes(settings)) < 2:
            pytest.skip("TEST_QDRANT_URL names no cluster")
        changes |= {"qdrant_shard_number": 3, "qdrant_replication_factor": 2}
    else:
        changes["qdrant_protocol"] = request.param
    async with open_collections(settings.model_copy(update=changes)) as open_one:
        yield open_one


async def _list_nodes(settings: Settings) -> Mapping[int, str]:
    async with open_client(settings, settings.qdrant_urls[0]) as client:
        return list_peers(await client.cluster_status())


@asynccontextmanager
async def _open_edges(folder: Path) -> AsyncGenerator[Open]:
    async with AsyncExitStack() as stack:

        async def open_one(name: str, dimension: int | None) -> VectorIndex:
            index = await open_edge(folder, name, dimension)
            stack.push_async_callback(index.aclose)
            return index

        yield open_one
