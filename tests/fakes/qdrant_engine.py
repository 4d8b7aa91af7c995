"""A Qdrant server that keeps points: its REST interface before the vendor's own local mode.

What it finds is what the vendor's Python engine finds, but for the corpus of IDF, which that engine
takes to be the whole collection. It is one for several Talekeepers.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from qdrant_client import models
from qdrant_client.local.qdrant_local import QdrantLocal

from tests.fakes.qdrant_server import failed, ok
from tests.fakes.scripted_server import Answer, Request, ScriptedServer


class QdrantEngine(ScriptedServer):
    """Answers from what was stored. `is_down` refuses everything; `broken` collections fail."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = QdrantLocal(":memory:")
        self.is_down = False
        self.broken: set[str] = set()

    @property
    def collections(self) -> set[str]:
        """The names of those that there are."""
        return {each.name for each in self.engine.get_collections().collections}

    def lose(self, name: str) -> None:
        """Lose a collection with all its points."""
        self.engine.delete_collection(name)

    def usual(self, request: Request) -> Answer:
        """Answer by method and path."""
        words = request.path.strip("/").split("/")
        if self.is_down:
            return failed(503, "Service unavailable")
        if words == [""]:
            return Answer(body={"title": "qdrant", "version": "1.19.0", "commit": "0" * 40})
        name, rest = words[1], words[2:]
        if name in self.broken:
            return failed(500, "Service internal error: no space left on device")
        if rest == ["exists"]:
            return ok({"exists": self.engine.collection_exists(name)})
        if request.method == "PUT" and not rest:
            return self._made(name, models.CreateCollection.model_validate(request.body))
        if name not in self.collections:
            return failed(404, f"Not found: Collection `{name}` doesn't exist!")
        return ok(_plain(self._done(name, request.method, "/".join(rest), request.body)))

    def wants_stream(self, request: Request) -> bool:  # noqa: ARG002  # nothing is streamed
        """Nothing is streamed."""
        return False

    def _made(self, name: str, body: models.CreateCollection) -> Answer:
        if name in self.collections:
            return failed(409, f"Wrong input: Collection `{name}` already exists!")
        self.engine.create_collection(
            name,
            vectors_config=body.vectors,
            sparse_vectors_config=body.sparse_vectors,
        )
        return ok(True)  # noqa: FBT003  # the result itself

    def _done(self, name: str, method: str, path: str, body: Any) -> Any:
        engine = self.engine
        match method, path:
            case "GET", "":
                return engine.get_collection(name)
            case "PUT", "index":
                return models.UpdateResult(operation_id=1, status=models.UpdateStatus.COMPLETED)
            case "PUT", "points":
                return engine.upsert(name, models.PointsList.model_validate(body).points)
            case "POST", "points":
                wanted = models.PointRequest.model_validate(body)
                return engine.retrieve(
                    name, wanted.ids, with_payload=False, with_vectors=wanted.with_vector or False
                )
            case "POST", "points/query/batch":
                batch = models.QueryRequestBatch.model_validate(body)
                return engine.query_batch_points(name, batch.searches)
            case "POST", "points/scroll":
                page = models.ScrollRequest.model_validate(body)
                points, offset = engine.scroll(
                    name, scroll_filter=page.filter, limit=page.limit or 10, offset=page.offset
                )
                return {"points": points, "next_page_offset": offset}
            case "POST", "points/count":
                return engine.count(name, models.CountRequest.model_validate(body).filter)
            case "POST", "points/delete":
                return engine.delete(name, models.FilterSelector.model_validate(body))
            case "POST", "facet":
                facet = models.FacetRequest.model_validate(body)
                return engine.facet(name, facet.key, limit=facet.limit or 10)
        raise ValueError(path)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
