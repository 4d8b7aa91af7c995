"""The engines that are held to the same tests."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import VectorIndex
from backend.memory.index.server import ServerIndex
from backend.settings import Settings
from tests.support.points import connected

Open = Callable[[str, int | None], Awaitable[VectorIndex]]
"""Opens a collection by its name, with this dimension."""

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
    opened: list[VectorIndex] = []
    settings = None
    if request.param != "edge":
        settings = request.getfixturevalue("qdrant")
        settings = settings.model_copy(update={"qdrant_protocol": request.param})

    async def open_one(name: str, dimension: int | None) -> VectorIndex:
        if settings is None:
            index: VectorIndex = await open_edge(tmp_path / "index", name, dimension)
        else:
            index = await connected(settings, f"{tmp_path.name}-{name}", dimension)
        opened.append(index)
        return index

    yield open_one
    for index in opened:
        if isinstance(index, ServerIndex):
            await (await index.connected()).delete_collection(index._collection)
        await index.aclose()
