"""Tests of an index on a cluster of Qdrant nodes, one of which is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest

from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.index.server import ServerIndex
from backend.memory.index.server_cluster import (
    ClusterState,
    list_notes,
    list_weaknesses,
    plan_replication,
    read_cluster,
    replicate,
)
from backend.memory.index.server_nodes import RETURN_SECONDS
from backend.operations.doctor import examine
from backend.settings import Settings
from tests.fakes.qdrant_cluster import QdrantCluster
from tests.support.points import DIMENSION, connected, point, query, scope, server_settings, unit
from tests.support.process import run_command

pytestmark = pytest.mark.anyio

OWNER, CHAT = uuid4(), uuid4()
NAME = "talekeeper-tales"


@pytest.fixture
async def cluster() -> AsyncIterator[QdrantCluster]:
    async with QdrantCluster(3, grpc_port=0) as running:
        yield running


def connect_to(cluster: QdrantCluster, **more: Any) -> Settings:
    given = {"qdrant_grpc_port": cluster.grpc_port, "qdrant_shard_number": 3}
    return server_settings(cluster.url, **given, **more)


async def find(index: ServerIndex) -> set[UUID]:
    [hits] = await index.search([query(unit(1), scope(OWNER, CHAT))])
    return {hit.id for hit in hits}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_requests_go_to_the_next_node_and_return_to_the_first(
    cluster: QdrantCluster, protocol: str
) -> None:
    at = 100.0
    settings = connect_to(cluster, qdrant_protocol=protocol)
    index = ServerIndex(settings, "tales", DIMENSION, clock=lambda: at)
    first, second, _ = cluster.nodes
    items = [point(OWNER, CHAT) for _ in range(3)]
    await index.upsert(items[:1])
    assert (first.answered, second.answered) == (1, 0)

    await first.cut()
    assert await find(index) == {items[0].id}
    await index.upsert(items[1:2])
    assert (first.answered, second.answered) == (1, 2)

    await first.restore()
    await index.upsert(items[2:])
    assert (first.answered, second.answered) == (1, 3)
    while first.answered == 1:
        at += RETURN_SECONDS
        assert await find(index) == {item.id for item in items}
        await asyncio.sleep(0.05)  # the node is checked in the background

    for node in cluster.nodes:
        await node.cut()
    with pytest.raises(IndexUnavailableError, match="cannot be reached"):
        await find(index)
    await index.aclose()


async def test_a_new_collection_of_a_cluster_has_two_copies_and_refuses_filters_without_index(
    cluster: QdrantCluster,
) -> None:
    await (await connected(connect_to(cluster), "tales", DIMENSION)).aclose()
    made = cluster.store.find(NAME).made
    assert (made.shard_number, made.replication_factor) == (3, 2)
    assert made.strict_mode_config is not None
    assert made.strict_mode_config.unindexed_filtering_retrieve is False
    alone = connect_to(cluster, qdrant_replication_factor=1)
    await (await connected(alone, "words", None)).aclose()
    assert cluster.store.find("talekeeper-words").made.replication_factor == 1


async def test_weak_clusters_are_described(cluster: QdrantCluster) -> None:
    settings = connect_to(cluster)
    index = await connected(settings, "tales", DIMENSION)

    async def describe() -> list[str]:
        return [text for text, _ in list_weaknesses(settings, await read_cluster(settings))]

    assert await describe() == []
    stored = cluster.store.find(NAME)
    stored.replicas = [{1: "Active"}] * 3
    assert await describe() == [f"all shards of {NAME} are on one node"]
    stored.made.replication_factor = 1
    assert await describe() == [f"{NAME} has one copy of each shard (replication_factor 1)"]
    stored.made.replication_factor = 2
    stored.replicas = [{1: "Active", 2: "Active"}, {2: "Active", 3: "Active"}]
    await cluster.nodes[2].cut()
    await index.upsert([point(OWNER, CHAT)])
    cluster.nodes[1].version = "1.20.0"
    assert await describe() == [
        f"no response from {cluster.nodes[2].url}",
        "the nodes have different versions (1.19.0, 1.20.0)",
        f"dead shards of {NAME}: 1 on node 3",
    ]
    await index.aclose()


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("http://qdrant.example:6333", "weakness"),
        ("http://8.8.8.8:6333", "weakness"),
        ("http://[2600::1]:6333", "weakness"),
        ("http://qdrant:6333", "note"),
        ("http://qdrant.talekeeper.svc.cluster.local:6333", "note"),
        ("http://qdrant.talekeeper.svc:6333", "note"),
        ("http://qdrant.internal:6333", "note"),
        ("http://10.0.0.5:6333", "note"),
        ("http://[fd00::5]:6333", "note"),
        ("http://127.0.0.1:6333", "nothing"),
        ("http://[::1]:6333", "nothing"),
        ("http://localhost:6333", "nothing"),
        ("https://qdrant.example:6333", "nothing"),
    ],
)
async def test_an_api_key_without_tls_is_a_weakness_beyond_private_networks(
    host: str, kind: str
) -> None:
    settings = server_settings(host, qdrant_api_key="qdrant-key-for-tests")
    state = ClusterState({host: "1.19.0"}, {}, [])
    found = [f"weakness: {text}" for text, _ in list_weaknesses(settings, state)]
    found += [f"note: {text}" for text, _ in list_notes(settings)]
    texts = {
        "weakness": [f"weakness: the API key is sent without TLS to {host}"],
        "note": [f"note: the API key is sent without TLS on a private network, to {host}"],
    }
    assert found == texts.get(kind, [])
    without_key = server_settings(host)
    assert [*list_weaknesses(without_key, state), *list_notes(without_key)] == []


async def test_doctor_notes_an_api_key_on_a_private_network(cluster: QdrantCluster) -> None:
    node = cluster.nodes[0]
    port = urlsplit(node.url).port
    settings = server_settings(f"http://0.0.0.0:{port}", qdrant_api_key="qdrant-key-for-tests")
    findings = await examine(settings)
    found = next(each for each in findings if each.name == "index")
    assert found.state == "ok"
    assert "on a private network, to http://0.0.0.0" in found.detail
    assert "https" in found.advice


async def test_a_shard_without_an_active_copy_is_skipped_and_named(
    cluster: QdrantCluster, tmp_path: Path
) -> None:
    index = await connected(connect_to(cluster), "tales", DIMENSION)
    await index.aclose()
    stored = cluster.store.find(NAME)
    stored.replicas = [{1: "Dead"}, {1: "Active"}, {2: "Active", 3: "Active"}]
    command = partial(run_command, tmp_path, qdrant_url=cluster.url)
    done = await asyncio.to_thread(command, "index", "replicate")
    assert done.returncode == 1
    assert f"copy shard 1 of {NAME}" in done.stdout
    assert f"shard 0 of {NAME} is skipped, because no node has an active copy" in done.stderr
    assert done.stdout.endswith("Each other shard has 2 or more copies.\n")
    stored.replicas[0] = {1: "Active"}
    done = await asyncio.to_thread(command, "index", "replicate")
    assert done.returncode == 0
    assert done.stdout.endswith("Each shard has 2 or more copies.\n")


async def test_copies_are_added_and_shards_moved(cluster: QdrantCluster, tmp_path: Path) -> None:
    settings = connect_to(cluster, qdrant_replication_factor=1)
    index = await connected(settings, "tales", DIMENSION)
    item = point(OWNER, CHAT)
    await index.upsert([item])
    stored = cluster.store.find(NAME)
    stored.replicas = [{1: "Active"}, {1: "Active"}, {1: "Active"}]
    command = partial(run_command, tmp_path, qdrant_url=cluster.url)
    done = await asyncio.to_thread(command, "index", "replicate", "--dry-run")
    assert done.stdout == (
        f"set replication_factor of {NAME} to 2\n"
        f"copy shard 0 of {NAME} from node 1 to node 2\n"
        f"copy shard 1 of {NAME} from node 1 to node 3\n"
        f"copy shard 2 of {NAME} from node 1 to node 2\n"
        f"move shard 0 of {NAME} from node 1 to node 3\n"
        "Nothing was changed.\n"
    )
    assert stored.replicas == [{1: "Active"}, {1: "Active"}, {1: "Active"}]

    progress: list[tuple[int, int]] = []
    plan = plan_replication(await read_cluster(settings), 2)

    def report(done: int, total: int) -> None:
        progress.append((done, total))

    await replicate(settings, plan, report, poll_seconds=0)
    assert progress == [(done, 4) for done in range(5)]
    assert stored.made.replication_factor == 2
    assert stored.replicas == [
        {2: "Active", 3: "Active"},
        {1: "Active", 3: "Active"},
        {1: "Active", 2: "Active"},
    ]
    plan = plan_replication(await read_cluster(settings), 2)
    assert (plan.changed, plan.transfers) == ([], [])
    await cluster.nodes[0].cut()
    assert await find(index) == {item.id}
    await index.aclose()
