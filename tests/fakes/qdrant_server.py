"""A Qdrant server as it looks over HTTP: its paths, its answers' shapes, and nothing behind them.

The shapes are those of Qdrant 1.19's REST interface. What the engine makes of points is not here:
that, the contract tests ask a real one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.fakes.scripted_server import Answer, Request, ScriptedServer

DIMENSION = 8


def ok(result: Any) -> Answer:
    """An answer that tells success."""
    return Answer(body={"result": result, "status": "ok", "time": 0.000123})


def failed(status: int, text: str) -> Answer:
    """An answer that tells failure, as every path of the server does."""
    return Answer(status, body={"status": {"error": text}, "time": 0.0})


def collection_info(
    dimension: int | None = DIMENSION,
    *,
    distance: str = "Dot",
    modifier: str | None = "idf",
    indexed: tuple[str, ...] = ("o", "c", "s", "k", "p"),
) -> dict[str, Any]:
    """What the server tells of a collection."""
    dense: dict[str, Any] = {}
    if dimension is not None:
        vector = {"size": dimension, "distance": distance, "on_disk": False}
        dense = {"dense": vector, "dense_window": vector}
    sparse = {"index": {"on_disk": False}} | ({"modifier": modifier} if modifier else {})
    kinds = {"k": "keyword", "p": "integer"}
    return {
        "status": "green",
        "optimizer_status": "ok",
        "indexed_vectors_count": 0,
        "points_count": 0,
        "segments_count": 2,
        "config": {
            "params": {
                "vectors": dense,
                "shard_number": 1,
                "replication_factor": 1,
                "write_consistency_factor": 1,
                "on_disk_payload": True,
                "sparse_vectors": {"sparse": sparse, "sparse_window": sparse},
            },
            "hnsw_config": {
                "m": 0,
                "ef_construct": 100,
                "full_scan_threshold": 10000,
                "max_indexing_threads": 0,
                "on_disk": False,
                "payload_m": 16,
            },
            "optimizer_config": {
                "deleted_threshold": 0.2,
                "vacuum_min_vector_number": 1000,
                "default_segment_number": 0,
                "max_segment_size": None,
                "memmap_threshold": None,
                "indexing_threshold": 10000,
                "flush_interval_sec": 5,
                "max_optimization_threads": None,
            },
            "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0, "wal_retain_closed": 1},
            "quantization_config": None,
            "strict_mode_config": {"enabled": False},
        },
        "payload_schema": {
            name: {"data_type": kinds.get(name, "uuid"), "points": 0} for name in indexed
        },
        "update_queue": {"length": 0},
    }


class QdrantServer(ScriptedServer):
    """Answers as a server whose collections are empty. `collections` are those that it has."""

    usual_answer: ClassVar[Answer] = failed(404, "Not found")

    def __init__(self) -> None:
        super().__init__()
        self.version = "1.19.0"
        self.collections: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}
        """Results by the last word of a path (`query/batch` is `batch`), in place of empty ones."""

    def asked(self, method: str, path: str) -> list[Request]:
        """The requests that came to a path, in order."""
        return [each for each in self.requests if (each.method, each.path) == (method, path)]

    def usual(self, request: Request) -> Answer:
        """Answer by method and path."""
        match request.method, request.path.strip("/").split("/"):
            case "GET", [""]:
                return Answer(
                    body={
                        "title": "qdrant - vector search engine",
                        "version": self.version,
                        "commit": "0000000000000000000000000000000000000000",
                    }
                )
            case "GET", ["collections", name, "exists"]:
                return ok({"exists": name in self.collections})
            case "GET", ["collections", name] if name in self.collections:
                return ok(self.collections[name])
            case "PUT", ["collections", name]:
                vectors = request.body.get("vectors") or {}
                size = next((each["size"] for each in vectors.values()), None)
                self.collections[name] = collection_info(size, indexed=())
                return ok(result=True)
            case _, ["collections", name, *_] if name not in self.collections:
                return failed(404, f"Not found: Collection `{name}` doesn't exist!")
            case "POST", [_, _, "points", "query", "batch"]:
                empty = [{"points": []} for _ in request.body["searches"]]
                return ok(self.answers.get("batch", empty))
            case "POST", [_, _, "points", "scroll"]:
                return ok(self.answers.get("scroll", {"points": [], "next_page_offset": None}))
            case "POST", [_, _, "points", "count"]:
                return ok(self.answers.get("count", {"count": 0}))
            case "POST", [_, _, "points"]:
                return ok(self.answers.get("points", []))
            case "POST", [_, _, "facet"]:
                return ok(self.answers.get("facet", {"hits": []}))
            case ("PUT", [_, _, "points" | "index"]) | ("POST", [_, _, "points", "delete"]):
                return ok({"operation_id": 1, "status": "completed"})
            case _:
                return self.usual_answer

    def wants_stream(self, request: Request) -> bool:
        """Nothing is streamed."""
        return False
