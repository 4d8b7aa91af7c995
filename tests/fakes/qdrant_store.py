"""The collections of a Qdrant cluster: points in Qdrant Edge, and the places of their shards.

All nodes share the points. A shard is only a list of nodes: a request fails if a shard has no
replica that is active at a running node.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import qdrant_edge  # noqa: TID251  # the engine of the stand-in
from qdrant_client import models  # noqa: TID251  # what a server understands

from tests.fakes.qdrant_server import collection_info

edge: Any = qdrant_edge

TRANSFER_POLLS = 1
"""Questions about a collection's shards during which a transfer is shown as running."""


class RefusedError(Exception):
    """A request that the server answers with an error status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Transfer:
    """A replica that is being copied. If `drops` is set, the source is dropped at the end."""

    shard: int
    source: int
    target: int
    drops: bool
    polls: int = TRANSFER_POLLS


@dataclass
class StoredCollection:
    """A collection. `replicas` has the states by node, for each shard."""

    made: models.CreateCollection
    points: Any
    folder: Path
    replicas: list[dict[int, str]]
    indexes: dict[str, Any] = field(default_factory=dict[str, Any])
    transfers: list[Transfer] = field(default_factory=list[Transfer])

    def check_filter(self, which: models.Filter | None) -> None:
        strict = self.made.strict_mode_config
        if which is None or strict is None or not strict.enabled:
            return
        for key in _list_keys(which):
            if key not in self.indexes:
                raise RefusedError(400, f'Bad request: Index required but not found for "{key}"')


class QdrantStore:
    """The collections. `peers` are the ids of all nodes, and `lost` those that do not run."""

    def __init__(self, peers: Sequence[int]) -> None:
        self.peers = list(peers)
        self.lost: set[int] = set()
        self.broken: set[str] = set()
        self._collections: dict[str, StoredCollection] = {}

    @property
    def collections(self) -> set[str]:
        return set(self._collections)

    def find(self, name: str) -> StoredCollection:
        if name in self.broken:
            raise RefusedError(500, "Service internal error: no space left on device")
        if name not in self._collections:
            raise RefusedError(404, f"Not found: Collection `{name}` doesn't exist!")
        return self._collections[name]

    def create(self, name: str, made: models.CreateCollection) -> None:
        if name in self._collections:
            raise RefusedError(409, f"Wrong input: Collection `{name}` already exists!")
        folder = Path(tempfile.mkdtemp(prefix="qdrant-store-"))
        config = edge.EdgeConfig(
            vectors={
                key: edge.EdgeVectorParams(size=each.size, distance=edge.Distance.Dot)
                for key, each in _list_vectors(made)
            }
            or None,
            sparse_vectors={
                key: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)
                for key in made.sparse_vectors or {}
            },
            hnsw_config=edge.HnswIndexConfig(
                m=0, payload_m=0, ef_construct=100, full_scan_threshold=10_000
            ),
        )
        count = len(self.peers)
        copies = min(made.replication_factor or 1, count)
        self._collections[name] = StoredCollection(
            made=made,
            points=edge.EdgeShard.create(str(folder), config),
            folder=folder,
            replicas=[
                {self.peers[(shard + each) % count]: "Active" for each in range(copies)}
                for shard in range(made.shard_number or 1)
            ],
        )

    def delete(self, name: str) -> None:
        if stored := self._collections.pop(name, None):
            stored.points.close()
            shutil.rmtree(stored.folder)

    def close(self) -> None:
        for name in list(self._collections):
            self.delete(name)

    def describe(self, name: str) -> models.CollectionInfo:
        stored = self.find(name)
        told = collection_info(None, indexed=())
        told["config"]["params"] |= {
            "vectors": {key: each.model_dump() for key, each in _list_vectors(stored.made)},
            "sparse_vectors": {
                key: each.model_dump() for key, each in (stored.made.sparse_vectors or {}).items()
            },
            "shard_number": len(stored.replicas),
            "replication_factor": stored.made.replication_factor or 1,
        }
        strict = stored.made.strict_mode_config
        told["config"]["strict_mode_config"] = strict and strict.model_dump()
        kinds = {"k": "keyword", "u": "keyword", "p": "integer"}
        told["payload_schema"] = {
            key: {"data_type": kinds.get(key, "uuid"), "points": 0} for key in stored.indexes
        }
        told["points_count"] = self.count(name, None)
        return models.CollectionInfo.model_validate(told)

    def update(self, name: str, changes: models.UpdateCollection) -> None:
        made = self.find(name).made
        if changes.strict_mode_config is not None:
            made.strict_mode_config = changes.strict_mode_config
        if changes.params is not None and changes.params.replication_factor is not None:
            made.replication_factor = changes.params.replication_factor

    def create_index(self, name: str, key: str, schema: Any) -> None:
        stored = self.find(name)
        stored.indexes[key] = schema
        kinds: dict[str, Any] = {
            "k": edge.KeywordIndexParams(),
            "u": edge.KeywordIndexParams(),
            "p": edge.IntegerIndexParams(lookup=False, range=True),
        }
        params = kinds.get(key) or edge.UuidIndexParams(is_tenant=key == "o")
        stored.points.update(edge.UpdateOperation.create_field_index(key, params))

    # Points

    def upsert(self, name: str, points: Sequence[models.PointStruct]) -> None:
        stored = self._open_for_write(name)
        made = [
            edge.Point(UUID(str(each.id)), _convert_vectors(each.vector), each.payload or {})
            for each in points
        ]
        stored.points.update(edge.UpdateOperation.upsert_points(made))

    def delete_points(self, name: str, which: models.Filter) -> None:
        stored = self._open_for_write(name)
        stored.check_filter(which)
        found = _convert_filter(which)
        stored.points.update(edge.UpdateOperation.delete_points_by_filter(found))

    def query(
        self, name: str, queries: Sequence[models.QueryRequest]
    ) -> list[list[models.ScoredPoint]]:
        stored = self._open(name)
        for each in queries:
            stored.check_filter(each.filter)
        batch = edge.QueryBatchRequest([_convert_query(each) for each in queries])
        return [
            [
                models.ScoredPoint(
                    id=str(hit.id), version=hit.version, score=hit.score, payload=hit.payload
                )
                for hit in hits
            ]
            for hits in stored.points.query_batch(batch)
        ]

    def retrieve(
        self, name: str, ids: Sequence[Any], vectors: Sequence[str]
    ) -> list[models.Record]:
        wanted = [UUID(str(each)) for each in ids]
        found = self._open(name).points.retrieve(
            wanted, with_payload=False, with_vector=list(vectors)
        )
        return [models.Record(id=str(each.id), vector=_restore(each.vector)) for each in found]

    def scroll(
        self, name: str, which: models.Filter | None, limit: int, offset: Any
    ) -> tuple[list[models.Record], str | None]:
        stored = self._open(name)
        stored.check_filter(which)
        records, following = stored.points.scroll(
            edge.ScrollRequest(
                offset=None if offset is None else UUID(str(offset)),
                limit=limit,
                filter=which and _convert_filter(which),
                with_payload=True,
                with_vector=False,
            )
        )
        page = [models.Record(id=str(each.id), payload=each.payload) for each in records]
        return page, None if following is None else str(following)

    def count(self, name: str, which: models.Filter | None) -> int:
        stored = self._open(name)
        stored.check_filter(which)
        found: int = stored.points.count(
            edge.CountRequest(exact=True, filter=which and _convert_filter(which))
        )
        return found

    def facet(self, name: str, key: str, limit: int) -> list[models.FacetValueHit]:
        request = edge.FacetRequest(key, limit=limit, exact=True)
        hits = self._open(name).points.facet(request).hits
        return [models.FacetValueHit(value=str(hit.value), count=hit.count) for hit in hits]

    # Shards

    def describe_shards(self, name: str, peer: int) -> dict[str, Any]:
        """Answer the question of `peer` about a collection's shards, and continue transfers."""
        stored = self.find(name)
        running = [
            {"shard_id": each.shard, "from": each.source, "to": each.target, "sync": True}
            for each in stored.transfers
        ]
        shards = [
            (shard, place, state)
            for shard, states in enumerate(stored.replicas)
            for place, state in states.items()
        ]
        answer = {
            "peer_id": peer,
            "shard_count": len(stored.replicas),
            "local_shards": [
                {"shard_id": shard, "points_count": 0, "state": state}
                for shard, place, state in shards
                if place == peer
            ],
            "remote_shards": [
                {"shard_id": shard, "peer_id": place, "state": state}
                for shard, place, state in shards
                if place != peer
            ],
            "shard_transfers": running,
        }
        self._continue_transfers(stored)
        return answer

    def transfer(self, name: str, change: Any) -> None:
        """Start to copy or move a shard, as the body of a request says."""
        stored = self.find(name)
        ((kind, asked),) = change.items()
        shard: int = asked["shard_id"]
        states = stored.replicas[shard]
        if states.get(asked["from_peer_id"]) != "Active" or asked["to_peer_id"] in states:
            raise RefusedError(400, "Bad request: Shard cannot be transferred")
        states[asked["to_peer_id"]] = "Partial"
        stored.transfers.append(
            Transfer(
                shard,
                asked["from_peer_id"],
                asked["to_peer_id"],
                drops=kind == "move_shard",
            )
        )

    def restore(self, peer: int) -> None:
        """Let a node run again. Its replicas are brought up to date."""
        self.lost.discard(peer)
        for stored in self._collections.values():
            for states in stored.replicas:
                if states.get(peer) == "Dead":
                    states[peer] = "Active"

    def _continue_transfers(self, stored: StoredCollection) -> None:
        for each in list(stored.transfers):
            each.polls -= 1
            if each.polls < 0:
                stored.transfers.remove(each)
                states = stored.replicas[each.shard]
                states[each.target] = "Active"
                if each.drops:
                    del states[each.source]

    def _open(self, name: str) -> StoredCollection:
        stored = self.find(name)
        for shard, states in enumerate(stored.replicas):
            if not any(
                state == "Active" and peer not in self.lost for peer, state in states.items()
            ):
                raise RefusedError(500, f"Service internal error: shard {shard} is not available")
        return stored

    def _open_for_write(self, name: str) -> StoredCollection:
        stored = self._open(name)
        for states in stored.replicas:
            for peer in self.lost & states.keys():
                states[peer] = "Dead"
        return stored


def _list_vectors(made: models.CreateCollection) -> list[tuple[str, models.VectorParams]]:
    return list(made.vectors.items()) if isinstance(made.vectors, dict) else []


def _convert_vectors(given: Any) -> dict[str, Any]:
    return {
        name: edge.SparseVector(vector.indices, vector.values)
        if isinstance(vector, models.SparseVector)
        else vector
        for name, vector in given.items()
    }


def _restore(vectors: dict[str, Any] | None) -> dict[str, Any]:
    return {
        name: models.SparseVector(indices=list(vector.indices), values=list(vector.values))
        if isinstance(vector, edge.SparseVector)
        else vector
        for name, vector in (vectors or {}).items()
    }


def _convert_query(asked: models.QueryRequest) -> Any:
    assert isinstance(asked.query, models.NearestQuery)
    near: Any = asked.query.nearest
    params = None
    if isinstance(near, models.SparseVector):
        near = edge.SparseVector(near.indices, near.values)
        corpus = getattr(asked.params and asked.params.idf, "corpus", None)
        if corpus is not None:
            params = edge.SearchParams(idf=edge.IdfParams(corpus=_convert_filter(corpus)))
    return edge.QueryRequest(
        limit=asked.limit or 10,
        query=edge.Query.Nearest(near, using=asked.using),
        filter=asked.filter and _convert_filter(asked.filter),
        with_payload=True,
        params=params,
    )


def _convert_filter(given: models.Filter) -> Any:
    parts = {
        name: [_convert_condition(each) for each in conditions]
        for name in ("must", "should")
        if (conditions := getattr(given, name))
    }
    return edge.Filter(**parts)


def _convert_condition(given: Any) -> Any:
    if isinstance(given, models.Filter):
        return _convert_filter(given)
    if given.range is not None:
        within = edge.RangeFloat(gte=given.range.gte, lt=given.range.lt)
        return edge.FieldCondition(key=given.key, range=within)
    match = given.match
    if isinstance(match, models.MatchAny):
        return edge.FieldCondition(key=given.key, match=edge.MatchAny(list(match.any)))
    return edge.FieldCondition(key=given.key, match=edge.MatchValue(match.value))


def _list_keys(which: models.Filter) -> Iterator[str]:
    for each in [*(which.must or ()), *(which.should or ())]:
        if isinstance(each, models.Filter):
            yield from _list_keys(each)
        elif isinstance(each, models.FieldCondition):
            yield each.key
