"""The state of a Qdrant cluster, its weaknesses, and the transfers of shards that remove them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from backend.memory.index.scope import IndexUnavailableError
from backend.memory.index.server_nodes import (
    ServerNodes,
    fetch_version,
    list_peers,
    load_mapping,
    open_client,
)
from backend.settings import Settings

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient  # noqa: TID251  this is its adapter

POLL_SECONDS = 0.5
"""Pause between two questions whether a transfer has ended."""

_ACTIVE, _DEAD = "Active", "Dead"
_SPREAD = "Run: talekeeper index replicate"
_REMOVE_NODE = "remove it from the cluster (DELETE /cluster/peer/ID?force=true)"
_PRIVATE_SUFFIXES = (".internal", ".local", ".svc")
"""Ends of names that only resolve on private networks, such as those of services in Kubernetes."""


@dataclass(frozen=True, slots=True)
class CollectionShards:
    """The shards of a collection.

    Attributes:
        name: The name on the server, with its prefix.
        replication_factor: The copies that each shard should have. If a shard has no active copy,
            the most copies that a shard has, because the server does not return the number.
        replicas: For each shard, the state of its copies by the node.
        transfers: The shards of which a copy is being made.
    """

    name: str
    replication_factor: int
    replicas: Mapping[int, Mapping[int, str]]
    transfers: frozenset[int] = frozenset()

    @property
    def places(self) -> set[int]:
        return {peer for states in self.replicas.values() for peer in states}


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of all nodes and of Talekeeper's collections.

    Attributes:
        versions: The version of each address in TALEKEEPER_QDRANT_URL; None without a response.
        peers: The nodes' own addresses by their ids. Empty for a single server.
        collections: The shards of each collection.
    """

    versions: Mapping[str, str | None]
    peers: Mapping[int, str]
    collections: Sequence[CollectionShards]

    @property
    def is_cluster(self) -> bool:
        return len(self.peers) > 1


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy or a move of a shard from one node to another."""

    kind: Literal["copy", "move"]
    collection: str
    shard: int
    source: int
    target: int

    def render(self) -> str:
        return (
            f"{self.kind} shard {self.shard} of {self.collection} from node {self.source} "
            f"to node {self.target}"
        )


@dataclass(frozen=True, slots=True)
class ReplicationPlan:
    """Changes that add missing copies and give each node the same number of shards.

    Attributes:
        factor: The copies that each shard will have at least.
        changed: The collections that need another replication factor.
        transfers: The transfers, in order.
        skipped: The shards that lack a copy and have no active one, each with its collection.
    """

    factor: int
    changed: Sequence[str]
    transfers: Sequence[Transfer] = field(default_factory=tuple[Transfer, ...])
    skipped: Sequence[tuple[str, int]] = ()


async def read_cluster(settings: Settings) -> ClusterState:
    """Return the state of the cluster. Raises `IndexUnavailableError` if no node responds."""
    versions: dict[str, str | None] = {}
    failure: IndexUnavailableError | None = None
    for url in settings.qdrant_urls:
        try:
            async with open_client(settings, url) as client:
                versions[url] = await fetch_version(client)
        except IndexUnavailableError as error:
            versions[url], failure = None, error
    found = [url for url, version in versions.items() if version is not None]
    if not found:
        raise failure or IndexUnavailableError("TALEKEEPER_QDRANT_URL has no address.")
    async with open_client(settings, found[0]) as client:
        peers = list_peers(await client.cluster_status())
        names = sorted(each.name for each in (await client.get_collections()).collections)
        prefix = settings.qdrant_collection_prefix
        shards = [await _read_shards(client, each) for each in names if each.startswith(prefix)]
    return ClusterState(versions, peers, shards)


async def _read_shards(client: AsyncQdrantClient, name: str) -> CollectionShards:
    cluster = await client.collection_cluster_info(name)
    replicas: dict[int, dict[int, str]] = {}
    for local in cluster.local_shards:
        replicas.setdefault(local.shard_id, {})[cluster.peer_id] = local.state.value
    for remote in cluster.remote_shards:
        replicas.setdefault(remote.shard_id, {})[remote.peer_id] = remote.state.value
    if all(_ACTIVE in states.values() for states in replicas.values()):
        factor = (await client.get_collection(name)).config.params.replication_factor or 1
    else:  # a server fails to describe such a collection
        factor = max(map(len, replicas.values()))
    return CollectionShards(
        name,
        factor,
        replicas,
        frozenset(each.shard_id for each in cluster.shard_transfers),
    )


def list_weaknesses(settings: Settings, state: ClusterState) -> Iterator[tuple[str, str]]:
    """Yield each weakness of the cluster with the advice that removes it."""
    if silent := [url for url, version in state.versions.items() if version is None]:
        yield (
            f"no response from {', '.join(silent)}",
            "Start these nodes, or correct the addresses.",
        )
    versions = {version for version in state.versions.values() if version is not None}
    if len(versions) > 1:
        yield (
            f"the nodes have different versions ({', '.join(sorted(versions))})",
            "Complete the upgrade of all nodes.",
        )
    if open_urls := _list_open_urls(settings, is_private=False):
        yield f"the API key is sent without TLS to {', '.join(open_urls)}", "Use https."
    if state.is_cluster:
        for each in state.collections:
            yield from _list_shard_weaknesses(each)


def list_notes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield facts that are a weakness only on some networks, with the advice for these."""
    if open_urls := _list_open_urls(settings, is_private=True):
        yield (
            f"the API key is sent without TLS on a private network, to {', '.join(open_urls)}",
            "Use https if anyone else can read this network.",
        )


def _list_open_urls(settings: Settings, *, is_private: bool) -> list[str]:
    """Return the addresses of other machines that get the API key without TLS."""
    if settings.qdrant_api_key is None:
        return []
    parts = ((url, urlsplit(url)) for url in settings.qdrant_urls)
    hosts = ((url, each.hostname or "") for url, each in parts if each.scheme != "https")
    return [
        url for url, host in hosts if not _is_this_machine(host) and _is_private(host) is is_private
    ]


def _is_this_machine(host: str) -> bool:
    address = _parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_private(host: str) -> bool:
    """True for names and addresses that no one can reach from the internet.

    A name without a dot is that of a service on a network of Compose or Kubernetes.
    """
    address = _parse_address(host)
    if address is not None:
        return address.is_private
    return "." not in host or host.endswith(_PRIVATE_SUFFIXES)


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _list_shard_weaknesses(shards: CollectionShards) -> Iterator[tuple[str, str]]:
    if shards.replication_factor == 1:
        yield f"{shards.name} has one copy of each shard (replication_factor 1)", _SPREAD
    elif len(shards.places) == 1:
        yield f"all shards of {shards.name} are on one node", _SPREAD
    dead = [
        f"{shard} on node {peer}"
        for shard, states in sorted(shards.replicas.items())
        for peer, state in states.items()
        if state == _DEAD
    ]
    if dead:
        yield (
            f"dead shards of {shards.name}: {', '.join(dead)}",
            f"Start the node. If it is lost for good, {_REMOVE_NODE}. {_SPREAD}",
        )


def plan_replication(state: ClusterState, factor: int) -> ReplicationPlan:
    """Plan the copies that shards lack, then moves from nodes with more shards to others.

    Dead copies of nodes in the cluster count, because they are restored when the node is back.
    """
    factor = min(factor, len(state.peers))
    transfers: list[Transfer] = []
    skipped: list[tuple[str, int]] = []
    for each in state.collections:
        places = {shard: dict(states) for shard, states in each.replicas.items()}
        load = Counter(dict.fromkeys(state.peers, 0))
        load.update(peer for states in places.values() for peer in states if peer in load)
        transfers += _plan_copies(each.name, places, load, factor)
        skipped += [
            (each.name, shard)
            for shard, states in sorted(places.items())
            if len(states.keys() & load.keys()) < factor
        ]
        transfers += _plan_moves(each.name, places, load)
    changed = [each.name for each in state.collections if each.replication_factor < factor]
    return ReplicationPlan(factor, changed, transfers, skipped)


def _plan_copies(
    name: str, places: dict[int, dict[int, str]], load: Counter[int], factor: int
) -> Iterator[Transfer]:
    for shard, states in sorted(places.items()):
        active = [peer for peer, state in states.items() if state == _ACTIVE]
        while active and len(states.keys() & load.keys()) < factor:
            target = min(load.keys() - states.keys(), key=lambda peer: (load[peer], peer))
            yield Transfer("copy", name, shard, active[0], target)
            states[target] = _ACTIVE
            load[target] += 1


def _plan_moves(
    name: str, places: dict[int, dict[int, str]], load: Counter[int]
) -> Iterator[Transfer]:
    while True:
        target = min(load, key=lambda peer: (load[peer], peer))
        source = max(load, key=lambda peer: (load[peer], -peer))
        movable = [
            shard
            for shard, states in sorted(places.items())
            if states.get(source) == _ACTIVE and target not in states
        ]
        if load[source] - load[target] <= 1 or not movable:
            return
        yield Transfer("move", name, movable[0], source, target)
        places[movable[0]][target] = places[movable[0]].pop(source)
        load[source] -= 1
        load[target] += 1


async def replicate(
    settings: Settings,
    plan: ReplicationPlan,
    report: Callable[[int, int], None],
    *,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Carry out a plan, one transfer at a time.

    Calls `report` with the numbers of completed and of all transfers. If this is stopped, a new
    plan continues. Raises `IndexUnavailableError`.
    """
    nodes = ServerNodes(settings.model_copy(update={"qdrant_protocol": "http"}))
    try:
        for name in plan.changed:
            await nodes.run(partial(_change_factor, name, plan.factor))
        for done, each in enumerate(plan.transfers):
            report(done, len(plan.transfers))
            await nodes.run(partial(_start_transfer, each))
            await _wait_for_transfer(nodes, each, poll_seconds)
        report(len(plan.transfers), len(plan.transfers))
    finally:
        await nodes.aclose()


async def _change_factor(name: str, factor: int, client: AsyncQdrantClient) -> None:
    params = load_mapping().build_replication(factor)
    await client.update_collection(name, collection_params=params)


async def _start_transfer(transfer: Transfer, client: AsyncQdrantClient) -> None:
    operation = load_mapping().build_transfer(
        is_move=transfer.kind == "move",
        shard=transfer.shard,
        source=transfer.source,
        target=transfer.target,
    )
    await client.cluster_collection_update(transfer.collection, operation)


async def _wait_for_transfer(nodes: ServerNodes, transfer: Transfer, poll_seconds: float) -> None:
    while True:
        shards = await nodes.run(lambda client: _read_shards(client, transfer.collection))
        if transfer.shard not in shards.transfers:
            break
        await asyncio.sleep(poll_seconds)
    if shards.replicas[transfer.shard].get(transfer.target) != _ACTIVE:
        raise IndexUnavailableError(
            f"The Qdrant server did not {transfer.render()}. Its log contains the reason."
        )
