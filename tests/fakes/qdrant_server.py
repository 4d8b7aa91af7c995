"""The HTTP interface of an empty Qdrant server: paths and shapes of answers.

The shapes are those of Qdrant 1.19's REST interface. What the engine makes of points is not here:
that, the contract tests ask a real one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.fakes.scripted_server import Answer, Request, ScriptedServer

DIMENSION = 8


_EMPTY: dict[str, Any] = {
    "scroll": {"points": [], "next_page_offset": None},
    "count": {"count": 0},
    "points": [],
    "facet": {"hits": []},
}
"""Results of an empty collection, by the last word of the path."""


def ok(result: Any) -> Answer:
    """A successful answer."""
    return Answer(body={"result": result, "status": "ok", "time": 0.000123})


def failed(status: int, text: str) -> Answer:
    """An error answer, in the form that every path uses."""
    return Answer(status, body={"status": {"error": text}, "time": 0.0})


def collection_info(
    dimension: int | None = DIMENSION,
    *,
    distance: str = "Dot",
    modifier: str | None = "idf",
    indexed: tuple[str, ...] = ("o", "c", "s", "k", "p"),
) -> dict[str, Any]:
    """The description of a collection."""
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
    """Answers like a server with these empty `collections`."""

    usual_answer: ClassVar[Answer] = failed(404, "Not found")

    def __init__(self) -> None:
        super().__init__()
        self.aside["/cluster"] = ok({"status": "disabled"})
        self.version = "1.19.0"
        self.collections: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}
        """Results by the last word of a path (`query/batch` is `batch`), in place of empty ones."""

    def asked(self, method: str, path: str) -> list[Request]:
        """The requests that came to a path, in order."""
        return [each for each in self.requests if (each.method, each.path) == (method, path)]

    def usual(self, request: Request) -> Answer:
        """Answer by method and path."""
        words = request.path.strip("/").split("/")
        if words == [""]:
            return Answer(body={"title": "qdrant", "version": self.version, "commit": "0" * 40})
        name, rest = words[1], words[2:]
        if rest in ([], ["exists"]) and (
            name in self.collections or request.method == "PUT" or rest
        ):
            return ok(self._about_collection(request, name, rest))
        if name not in self.collections:
            return failed(404, f"Not found: Collection `{name}` doesn't exist!")
        last = rest[-1]
        if last == "index":
            field: str = request.body["field_name"]
            schema: dict[str, Any] = self.collections[name]["payload_schema"]
            schema[field] = {"data_type": request.body["field_schema"]["type"], "points": 0}
        if request.method == "PUT" or last == "delete":
            return ok({"operation_id": 1, "status": "completed"})
        empty: list[Any] = [{"points": []}] * len(request.body.get("searches", ()))
        return ok((_EMPTY | {"batch": empty} | self.answers)[last])

    def _about_collection(self, request: Request, name: str, rest: list[str]) -> Any:
        if rest:
            return {"exists": name in self.collections}
        if request.method == "GET":
            return self.collections[name]
        if request.method == "DELETE":
            del self.collections[name]
            return True
        if request.method == "PATCH":
            self.collections[name]["config"] |= request.body
            return True
        vectors: dict[str, dict[str, int]] = request.body["vectors"]
        size = vectors["dense"]["size"] if vectors else None
        self.collections[name] = collection_info(size, indexed=())
        return True

    def wants_stream(self, request: Request) -> bool:  # noqa: ARG002  # nothing is streamed
        """Nothing is streamed."""
        return False
