"""A Qdrant server in a container, if the machine has an engine for it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = "qdrant/qdrant:v1.19.0"
HTTP_PORT, GRPC_PORT = 6333, 6334


def start_qdrant() -> DockerContainer:
    """Start the container, or skip the test with the engine's message."""
    if not _has_container_engine():
        pytest.skip("no container engine answers, and there is no TEST_QDRANT_URL")
    try:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import HttpWaitStrategy

        container = DockerContainer(IMAGE).with_exposed_ports(HTTP_PORT, GRPC_PORT)
        container.waiting_for(HttpWaitStrategy(HTTP_PORT, "/readyz"))
        container.start()
    except Exception as error:  # noqa: BLE001  # whatever keeps containers from starting here
        message = " ".join(str(error).split())
        pytest.skip(f"a container with {IMAGE} does not start: {type(error).__name__}: {message}")
    return container


def _has_container_engine() -> bool:
    """True if one listens. Its client is not asked: it leaves a socket open if there is none."""
    if os.environ.get("DOCKER_HOST"):  # noqa: TID251  # no setting of the program's
        return True
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex("/var/run/docker.sock") == 0
