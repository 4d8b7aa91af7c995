"""The engines that are held to the same tests."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import VectorIndex
from backend.settings import Settings
from tests.support.points import Open, open_collections

IMAGE = "qdrant/qdrant:v1.19.0"


@pytest.fixture(scope="session")
def qdrant() -> Iterator[Settings]:
    """Settings for a Qdrant server: the one that is named, else one in a container."""
    prefix = f"test-{uuid4().hex[:8]}-"
    if url := os.environ.get("TEST_QDRANT_URL"):  # noqa: TID251  no setting of the program's
        yield Settings.model_validate({"qdrant_url": url, "qdrant_collection_prefix": prefix})
        return
    if not _has_container_engine():
        pytest.skip("no container engine answers, and there is no TEST_QDRANT_URL")
    try:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import HttpWaitStrategy

        container = DockerContainer(IMAGE).with_exposed_ports(6333, 6334)
        container.waiting_for(HttpWaitStrategy(6333, "/readyz"))
        container.start()
    except Exception as error:  # noqa: BLE001  whatever keeps containers from starting here
        pytest.skip(f"a container with {IMAGE} does not start ({type(error).__name__})")
    try:
        host = container.get_container_host_ip()
        yield Settings.model_validate(
            {
                "qdrant_url": f"http://{host}:{container.get_exposed_port(6333)}",
                "qdrant_grpc_port": int(container.get_exposed_port(6334)),
                "qdrant_collection_prefix": prefix,
            }
        )
    finally:
        container.stop()


def _has_container_engine() -> bool:
    """Asked here, because the client for it leaves a socket open where there is none."""
    if os.environ.get("DOCKER_HOST"):  # noqa: TID251  no setting of the program's
        return True
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex("/var/run/docker.sock") == 0


@pytest.fixture(
    params=[
        "edge",
        pytest.param("grpc", marks=pytest.mark.qdrant),
        pytest.param("http", marks=pytest.mark.qdrant),
    ]
)
async def open_index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Open collections of one engine, closed at the end."""
    if request.param == "edge":
        async with _open_edges(tmp_path / "index") as open_one:
            yield open_one
        return
    settings: Settings = request.getfixturevalue("qdrant")
    prefix = f"{settings.qdrant_collection_prefix}{tmp_path.name}-"
    changes = {"qdrant_protocol": request.param, "qdrant_collection_prefix": prefix}
    async with open_collections(settings.model_copy(update=changes)) as open_one:
        yield open_one


@asynccontextmanager
async def _open_edges(folder: Path) -> AsyncGenerator[Open]:
    async with AsyncExitStack() as stack:

        async def open_one(name: str, dimension: int | None) -> VectorIndex:
            index = await open_edge(folder, name, dimension)
            stack.push_async_callback(index.aclose)
            return index

        yield open_one
