"""The nodes of a Qdrant server or cluster, and the node that gets a request."""

from __future__ import annotations

import asyncio
import importlib
import math
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from backend.core.logs import get_logger
from backend.memory.index.scope import IndexUnavailableError
from backend.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient  # noqa: TID251  this is its adapter
    from qdrant_client.http.models import ClusterStatus, PeerInfo  # noqa: TID251  likewise

log = get_logger(__name__)

T = TypeVar("T")

MIN_VERSION = (1, 19)
"""The first version that can weigh terms by the points of one user (the corpus of IDF)."""

RETURN_SECONDS = 5.0
"""Pause between two checks of a node that did not respond."""

_PROBE_SECONDS = 2.0
_GRPC_OPTIONS = {"grpc.max_reconnect_backoff_ms": 2_000}
"""Limits the pause between two attempts to connect, which grows to two minutes by default."""


class ServerNode:
    """One address of the cluster. Its client is built at the first request."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        self.failed_at = -math.inf
        """Time at which it did not respond; minus infinity if it responds."""
        self._settings = settings
        self._client: AsyncQdrantClient | None = None
        self._connecting = asyncio.Lock()

    @property
    def has_failed(self) -> bool:
        return self.failed_at > -math.inf

    @property
    def place(self) -> str:
        """The host and port, for the log."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    async def get_client(self) -> AsyncQdrantClient:
        """Return a client of a node with a suitable version. Raises `IndexUnavailableError`."""
        async with self._connecting:
            if self._client is None:
                settings, url = self._settings, self.url
                has_grpc = await _has_grpc(settings, url)
                client = await asyncio.to_thread(build_client, settings, url, grpc=has_grpc)
                try:
                    await fetch_version(client)
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def check(self) -> None:
        """Raise an error unless it responds."""
        await fetch_version(await self.get_client())

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


class ServerNodes:
    """The addresses of a cluster, in the order of TALEKEEPER_QDRANT_URL.

    A request goes to the first node. If that one cannot be reached, the request goes to the next
    one. This also repeats writes, which change nothing when they are repeated. A node that did not
    respond within the timeout gets no further requests either, but the request has failed. Later
    requests check such nodes in the background, and return to them when they respond.

    `clock` returns seconds.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = [ServerNode(settings, url) for url in settings.qdrant_urls]
        self._timeout = settings.qdrant_timeout_seconds
        self._clock = clock
        self._mapping: ModuleType | None = None
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def run(self, call: Callable[[AsyncQdrantClient], Awaitable[T]]) -> T:
        """Return the result of a call at the first node that can be reached.

        Raises `IndexUnavailableError` for any failure.
        """
        # A thread, because this imports the client, which takes more than a second.
        if self._mapping is None:
            self._mapping = await asyncio.to_thread(load_mapping)
        mapping = self._mapping
        self._check_failed_nodes()
        nodes = self._sort_nodes()
        for node in nodes:
            try:
                with mapping.translate_errors(self._timeout):
                    answer = await call(await node.get_client())
            except IndexUnavailableError as error:
                reason = mapping.find_reason(error.__cause__)
                if reason in {"UNREACHABLE", "DEADLINE_EXCEEDED"}:
                    self._mark_failed(node)
                if reason != "UNREACHABLE" or node is nodes[-1]:
                    raise
            else:
                self._mark_responding(node)
                return answer
        raise IndexUnavailableError("TALEKEEPER_QDRANT_URL has no address.")

    async def aclose(self) -> None:
        for task in self._checks.values():
            task.cancel()
        for node in self._nodes:
            await node.aclose()

    def _sort_nodes(self) -> list[ServerNode]:
        """Return the nodes that respond in their order, then those that failed longest ago."""
        return sorted(self._nodes, key=lambda node: node.failed_at)

    def _mark_failed(self, node: ServerNode) -> None:
        if not node.has_failed:
            log.warning("index.node_lost", address=node.place)
        node.failed_at = self._clock()

    def _mark_responding(self, node: ServerNode) -> None:
        if node.has_failed:
            log.info("index.node_back", address=node.place)
        node.failed_at = -math.inf

    def _check_failed_nodes(self) -> None:
        if len(self._nodes) == 1:
            return  # each request tries it
        for node in self._nodes:
            is_due = node.has_failed and self._clock() - node.failed_at >= RETURN_SECONDS
            if is_due and node.url not in self._checks:
                task = asyncio.create_task(self._check(node), name="index.check_node")
                self._checks[node.url] = task
                task.add_done_callback(partial(self._forget_check, node.url))

    def _forget_check(self, url: str, _: asyncio.Task[None]) -> None:
        self._checks.pop(url, None)

    async def _check(self, node: ServerNode) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await node.check()
        except Exception:  # noqa: BLE001  # a later request checks it again
            self._mark_failed(node)
        else:
            self._mark_responding(node)


@asynccontextmanager
async def open_client(settings: Settings, url: str) -> AsyncGenerator[AsyncQdrantClient]:
    """Yield a client of one node over HTTP, which has more routes than gRPC.

    Every failure in the block becomes an `IndexUnavailableError`.
    """
    client = await asyncio.to_thread(build_client, settings, url, grpc=False)
    mapping = await asyncio.to_thread(load_mapping)
    try:
        with mapping.translate_errors(settings.qdrant_timeout_seconds):
            yield client
    finally:
        await client.close()


def build_client(settings: Settings, url: str, *, grpc: bool) -> AsyncQdrantClient:
    from qdrant_client import AsyncQdrantClient  # noqa: PLC0415, TID251  slow to load, its adapter

    key = settings.qdrant_api_key
    try:
        return AsyncQdrantClient(
            url=url,
            grpc_port=settings.qdrant_grpc_port,
            prefer_grpc=grpc,
            timeout=settings.qdrant_timeout_seconds,
            # A header, because the client's parameter warns without TLS, even on loopback.
            headers=None if key is None else {"api-key": key.get_secret_value()},
            check_compatibility=False,
            grpc_options=dict(_GRPC_OPTIONS),
        )
    except ValueError as error:
        raise IndexUnavailableError("TALEKEEPER_QDRANT_URL is not an address.") from error


async def fetch_version(client: AsyncQdrantClient) -> str:
    """Return a node's version. Raises `IndexUnavailableError` if it is too old."""
    version = (await client.info()).version
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if numbers < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        raise IndexUnavailableError(
            f"The Qdrant server has version {'.'.join(map(str, numbers)) or 'unknown'}; "
            f"Talekeeper needs {wanted} or newer."
        )
    return version


async def choose_replication_factor(settings: Settings, client: AsyncQdrantClient) -> int:
    """Return the copies of each shard of a new collection: by default 2 in a cluster, else 1."""
    if settings.qdrant_replication_factor is not None:
        return settings.qdrant_replication_factor
    try:
        # This is HTTP also with gRPC, which has no such call.
        status = await client.cluster_status()
    except Exception:  # noqa: BLE001  # the port of HTTP may be closed
        return min(2, len(settings.qdrant_urls))
    return min(2, len(list_peers(status)) or 1)


def list_peers(status: ClusterStatus) -> dict[int, str]:
    """Return the addresses of the cluster's nodes by their ids; nothing for a single server."""
    peers: dict[str, PeerInfo] = getattr(status, "peers", {})
    return {int(peer): info.uri for peer, info in peers.items()}


async def _has_grpc(settings: Settings, url: str) -> bool:
    if settings.qdrant_protocol != "grpc":
        return False
    host = urlsplit(url).hostname
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, settings.qdrant_grpc_port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
    return False


def load_mapping() -> ModuleType:
    """Return the module that converts to the client's models. The first call imports the client."""
    return importlib.import_module("backend.memory.index.server_mapping")
