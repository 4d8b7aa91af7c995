"""Measure searches of a large user: among other users, and in a shard of their own.

    scripts/bench.py tenants --points 20000 60000 --others 50000

Qdrant Edge is the engine, with the graphs and filters of Talekeeper's collections on a server. In
the shared shard each user has a graph (`payload_m`); the own shard has one graph of all points.
Times are CPU times, so that other work on the machine disturbs them less.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import qdrant_edge  # noqa: TID251  # the engine that is measured
from numpy.typing import NDArray

edge: Any = qdrant_edge

DIMENSION = 384
CLUSTERS = 500
TERMS_PER_POINT, VOCABULARY = 25, 20_000
CONTAINERS = 10
OTHER_USER_POINTS = 500
LIMIT = 100
BATCH = 2_000


@dataclass(frozen=True, slots=True)
class User:
    """A user with containers of equal size. `salt` makes the ids of their terms their own."""

    id: UUID
    containers: Sequence[str]
    salt: int


class Shard:
    """A shard with a graph for each user, or with one graph if it is `own`."""

    def __init__(self, folder: str, *, own: bool, has_dense: bool, seed: int = 7) -> None:
        self._draw = np.random.default_rng(seed)
        self._centres = self._draw.normal(size=(CLUSTERS, DIMENSION))
        self._own, self._has_dense = own, has_dense
        self._shard = edge.EdgeShard.create(
            folder,
            edge.EdgeConfig(
                vectors={"dense": edge.EdgeVectorParams(size=DIMENSION, distance=edge.Distance.Dot)}
                if has_dense
                else None,
                sparse_vectors={"sparse": edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
                hnsw_config=edge.HnswIndexConfig(
                    m=16 if own else 0,
                    payload_m=0 if own else 16,
                    ef_construct=100,
                    full_scan_threshold=10_000,
                ),
            ),
        )
        fields = {
            "o": edge.UuidIndexParams(is_tenant=True, enable_hnsw=not own),
            "c": edge.UuidIndexParams(enable_hnsw=False),
            "k": edge.KeywordIndexParams(enable_hnsw=False),
        }
        for field, schema in fields.items():
            self._shard.update(edge.UpdateOperation.create_field_index(field, schema))

    def fill(self, user: User, count: int) -> None:
        for start in range(0, count, BATCH):
            points = list(self._make_points(user, min(BATCH, count - start)))
            self._shard.update(edge.UpdateOperation.upsert_points(points))

    def optimize(self) -> float:
        """Build the graphs. Return the seconds that it takes."""
        started = time.process_time()
        self._shard.optimize()
        return time.process_time() - started

    def measure(self, user: User, vector: str, queries: int) -> tuple[float, float]:
        """Return the median and the 95th percentile of a search, in milliseconds."""
        taken: list[float] = []
        for _ in range(queries):
            request = self._make_query(user, vector)
            started = time.process_time()
            hits = self._shard.query_batch(edge.QueryBatchRequest([request]))[0]
            taken.append((time.process_time() - started) * 1000)
            if not hits:
                raise RuntimeError("A search found nothing.")
        return statistics.median(taken), statistics.quantiles(taken, n=20)[-1]

    def close(self) -> None:
        self._shard.close()

    def _make_points(self, user: User, count: int) -> Iterator[Any]:
        vectors = self._draw_vectors(count) if self._has_dense else None
        for number, container in enumerate(self._draw.integers(CONTAINERS, size=count)):
            payload = {"o": str(user.id), "c": user.containers[container], "k": "message"}
            named: dict[str, Any] = {"sparse": self._draw_terms(user, TERMS_PER_POINT)}
            if vectors is not None:
                named["dense"] = vectors[number].tolist()
            yield edge.Point(uuid4(), named, payload)

    def _draw_vectors(self, count: int) -> NDArray[np.float32]:
        centres = self._centres[self._draw.integers(CLUSTERS, size=count)]
        vectors = centres + self._draw.normal(size=centres.shape) * 0.7
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32)

    def _draw_terms(self, user: User, count: int) -> Any:
        words = np.unique(self._draw.zipf(1.2, size=4 * count) % VOCABULARY)[:count]
        ids = ((words * 2_654_435_761 + user.salt) % 2**32).tolist()
        return edge.SparseVector(ids, [1.0] * len(ids))

    def _make_query(self, user: User, vector: str) -> Any:
        owned = edge.FieldCondition(key="o", match=edge.MatchValue(str(user.id)))
        near: Any
        params = None
        if vector == "dense":
            near = self._draw_vectors(1)[0].tolist()
        else:
            near = self._draw_terms(user, 12)
            if not self._own:
                params = edge.SearchParams(idf=edge.IdfParams(corpus=edge.Filter(must=[owned])))
        half = edge.MatchAny(list(user.containers[: CONTAINERS // 2]))
        conditions = [
            edge.FieldCondition(key="k", match=edge.MatchValue("message")),
            edge.FieldCondition(key="c", match=half),
        ]
        return edge.QueryRequest(
            limit=LIMIT,
            query=edge.Query.Nearest(near, using=vector),
            filter=edge.Filter(must=conditions if self._own else [owned, *conditions]),
            with_payload=True,
            params=params,
        )


def make_user(number: int) -> User:
    return User(uuid4(), [str(uuid4()) for _ in range(CONTAINERS)], salt=number * 7_919)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.py tenants", description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[20_000])
    parser.add_argument("--others", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--terms-only", action="store_true", help="without dense vectors")
    options = parser.parse_args(arguments)
    has_dense = not options.terms_only
    print("points  shard   graph s  dense p50  p95   sparse p50  p95 (ms)")
    for count in options.points:
        for own in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                shard, user = Shard(folder, own=own, has_dense=has_dense), make_user(0)
                for number in range(0 if own else options.others // OTHER_USER_POINTS):
                    shard.fill(make_user(number + 1), OTHER_USER_POINTS)
                shard.fill(user, count)
                seconds = shard.optimize()
                dense = (0.0, 0.0)
                if has_dense:
                    dense = shard.measure(user, "dense", options.queries)
                sparse = shard.measure(user, "sparse", options.queries)
                shard.close()
            print(
                f"{count:>6}  {'own' if own else 'shared':<6} {seconds:>7.1f}"
                f"  {dense[0]:>8.2f} {dense[1]:>6.2f}  {sparse[0]:>8.2f} {sparse[1]:>6.2f}",
                flush=True,
            )
