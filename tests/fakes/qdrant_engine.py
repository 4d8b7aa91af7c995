"""A Qdrant server with points: its REST interface over the vendor's local mode.

What it finds is what the vendor's Python engine finds, but for the corpus of IDF, which that engine
takes to be the whole collection. It is one for several Talekeepers.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python
from qdrant_client import models  # noqa: TID251  # what a server understands
from qdrant_client.local.qdrant_local import QdrantLocal  # noqa: TID251  # likewise

from tests.fakes.qdrant_server import failed, ok
from tests.fakes.scripted_server import Answer, Request, ScriptedServer


class QdrantEngine(ScriptedServer):
    """Answers from stored points, except for `broken` collections."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = QdrantLocal(":memory:")
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
        if words == [""]:
            return Answer(body={"title": "qdrant", "version": "1.19.0", "commit": "0" * 40})
        if len(words) == 1:
            return ok(to_jsonable_python(self.engine.get_collections()))
        name, path = words[1], "/".join(words[2:])
        return self._about(name, path, request)

    def _about(self, name: str, path: str, request: Request) -> Answer:
        if name in self.broken:
            return failed(500, "Service internal error: no space left on device")
        if request.method == "PUT" and not path:
            return self._made(name, models.CreateCollection.model_validate(request.body))
        if path == "exists":
            return ok({"exists": name in self.collections})
        if name not in self.collections:
            return failed(404, f"Not found: Collection `{name}` doesn't exist!")
        if request.method == "DELETE":
            return ok(self.engine.delete_collection(name))
        return ok(to_jsonable_python(self._done(name, request.method, path, request.body)))

    def wants_stream(self, request: Request) -> bool:  # noqa: ARG002  # nothing is streamed
        """Nothing is streamed."""
        return False

    def _made(self, name: str, body: models.CreateCollection) -> Answer:
        if name in self.collections:
            return failed(409, f"Wrong input: Collection `{name}` already exists!")
        self.engine.create_collection(
            name, vectors_config=body.vectors, sparse_vectors_config=body.sparse_vectors
        )
        return ok(True)  # the result itself

    def _done(self, name: str, method: str, path: str, body: Any) -> Any:
        engine = self.engine
        answer: Any
        match method, path:
            case "GET", "":
                answer = engine.get_collection(name)
            case "PUT", "index":
                answer = {"operation_id": 1, "status": "completed"}
            case "PUT", "points":
                answer = engine.upsert(name, models.PointsList.model_validate(body).points)
            case "POST", "points":
                wanted = models.PointRequest.model_validate(body)
                vectors = wanted.with_vector or False
                answer = engine.retrieve(name, wanted.ids, with_payload=False, with_vectors=vectors)
            case "POST", "points/query/batch":
                batch = models.QueryRequestBatch.model_validate(body)
                answer = engine.query_batch_points(name, batch.searches)
            case "POST", "points/scroll":
                page = models.ScrollRequest.model_validate(body)
                points, offset = engine.scroll(
                    name, scroll_filter=page.filter, limit=page.limit or 10, offset=page.offset
                )
                answer = {"points": points, "next_page_offset": offset}
            case "POST", "points/count":
                answer = engine.count(name, models.CountRequest.model_validate(body).filter)
            case "POST", "points/delete":
                answer = engine.delete(name, models.FilterSelector.model_validate(body))
            case "POST", "facet":
                facet = models.FacetRequest.model_validate(body)
                answer = engine.facet(name, facet.key, limit=facet.limit or 10)
            case _:
                raise ValueError(path)
        return answer
