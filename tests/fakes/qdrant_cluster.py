"""A cluster of Qdrant nodes that speak REST and gRPC, and can be cut off.

    python -m tests.fakes.qdrant_cluster --nodes 2 --port 6333 --grpc-port 6334

prints the value of TALEKEEPER_QDRANT_URL. The nodes have the addresses 127.0.0.1, 127.0.0.2 and so
on, because all have the same ports. While the program runs, the line `cut 1` on its input cuts off
the second node, and `restore 1` lets it run again.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import grpc  # type: ignore[import-untyped]  # it has no types
from pydantic_core import to_jsonable_python
from qdrant_client import grpc as wire  # noqa: TID251  # the messages of gRPC
from qdrant_client import models  # noqa: TID251  # what a server understands
from qdrant_client.conversions.conversion import (  # noqa: TID251  # likewise
    GrpcToRest,
    RestToGrpc,
)

from tests.fakes.qdrant_server import failed, ok
from tests.fakes.qdrant_store import QdrantStore, RefusedError
from tests.fakes.scripted_server import Answer, Request, ScriptedServer

_DONE = {"operation_id": 1, "status": "completed"}


class QdrantNode(ScriptedServer):
    """A node at `host`. `version` is the one that it reports. Without `store` it is alone.

    With a `grpc_port` it also speaks gRPC.
    """

    def __init__(
        self,
        peer: int = 1,
        store: QdrantStore | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grpc_port: int | None = None,
    ) -> None:
        super().__init__(host=host, port=port)
        self.peer = peer
        self.store = QdrantStore([peer]) if store is None else store
        self.version = "1.19.0"
        self.grpc_port = grpc_port
        self.answered = 0
        """The number of requests about points, over both protocols."""
        self._grpc: Any = None

    @property
    def collections(self) -> set[str]:
        return self.store.collections

    def lose(self, name: str) -> None:
        """Lose a collection with all its points."""
        self.store.delete(name)

    async def cut(self) -> None:
        """Close the ports and all connections."""
        self.store.lost.add(self.peer)
        await self._close()

    async def restore(self) -> None:
        """Open the ports again if they are closed."""
        if self.peer in self.store.lost:
            await self._open()
            self.store.restore(self.peer)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()
        if self.store.peers == [self.peer]:
            self.store.close()

    async def _open(self) -> None:
        await super().__aenter__()
        if self.grpc_port is not None:
            self._grpc = grpc.aio.server()
            speaker = _GrpcNode(self)
            untyped: Any = wire
            untyped.add_CollectionsServicer_to_server(speaker, self._grpc)
            untyped.add_PointsServicer_to_server(speaker, self._grpc)
            untyped.add_QdrantServicer_to_server(speaker, self._grpc)
            self.grpc_port = self._grpc.add_insecure_port(f"{self.host}:{self.grpc_port}")
            await self._grpc.start()

    async def _close(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop(None)
            self._grpc = None
        await super().__aexit__()

    def wants_stream(self, request: Request) -> bool:  # noqa: ARG002  # nothing is streamed
        """Nothing is streamed."""
        return False

    def usual(self, request: Request) -> Answer:
        """Answer by method and path."""
        try:
            return self._answer(request)
        except RefusedError as error:
            return failed(error.status, str(error))

    def _answer(self, request: Request) -> Answer:
        words = request.path.strip("/").split("/")
        if words == [""]:
            about = {"title": "qdrant", "version": self.version, "commit": "0" * 40}
            return Answer(body=about)
        if words == ["cluster"]:
            return ok(self._describe_cluster())
        if len(words) == 1:
            return ok({"collections": [{"name": each} for each in sorted(self.collections)]})
        name, path = words[1], "/".join(words[2:])
        self.answered += path.startswith("points")
        if path == "exists":
            return ok({"exists": name in self.collections})
        return ok(to_jsonable_python(self._act(name, request.method, path, request.body)))

    def _describe_cluster(self) -> dict[str, Any]:
        if len(self.store.peers) == 1:
            return {"status": "disabled"}
        return {
            "status": "enabled",
            "peer_id": self.peer,
            "peers": {str(each): {"uri": f"http://node-{each}:6335/"} for each in self.store.peers},
            "raft_info": {
                "term": 1,
                "commit": 1,
                "pending_operations": 0,
                "leader": self.store.peers[0],
                "role": "Leader",
                "is_voter": True,
            },
            "consensus_thread_status": {
                "consensus_thread_status": "working",
                "last_update": "2026-11-28T12:00:00Z",
            },
            "message_send_failures": {},
        }

    def _act(self, name: str, method: str, path: str, body: Any) -> Any:  # noqa: C901, PLR0912  # one case for each route
        store = self.store
        answer: Any = True
        match method, path:
            case "PUT", "":
                store.create(name, models.CreateCollection.model_validate(body))
            case "PATCH", "":
                store.update(name, models.UpdateCollection.model_validate(body))
            case "DELETE", "":
                store.find(name)
                store.delete(name)
            case "GET", "":
                answer = store.describe(name)
            case "GET", "cluster":
                answer = store.describe_shards(name, self.peer)
            case "POST", "cluster":
                store.transfer(name, body)
            case "PUT", "index":
                store.create_index(name, body["field_name"], body["field_schema"])
                answer = _DONE
            case "PUT", "points":
                store.upsert(name, models.PointsList.model_validate(body).points)
                answer = _DONE
            case "POST", "points":
                asked = models.PointRequest.model_validate(body)
                answer = store.retrieve(name, asked.ids, asked.with_vector or [])  # type: ignore[arg-type]
            case "POST", "points/query/batch":
                batch = models.QueryRequestBatch.model_validate(body)
                answer = [{"points": hits} for hits in store.query(name, batch.searches)]
            case "POST", "points/scroll":
                page = models.ScrollRequest.model_validate(body)
                points, offset = store.scroll(name, page.filter, page.limit or 10, page.offset)
                answer = {"points": points, "next_page_offset": offset}
            case "POST", "points/count":
                answer = {
                    "count": store.count(name, models.CountRequest.model_validate(body).filter)
                }
            case "POST", "points/delete":
                store.delete_points(name, models.FilterSelector.model_validate(body).filter)
                answer = _DONE
            case "POST", "facet":
                facet = models.FacetRequest.model_validate(body)
                answer = {"hits": store.facet(name, facet.key, facet.limit or 10)}
            case _:
                raise ValueError(path)
        return answer


_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
}


class _GrpcNode(wire.CollectionsServicer, wire.PointsServicer, wire.QdrantServicer):
    """The same node in the messages of gRPC."""

    def __init__(self, node: QdrantNode) -> None:
        self._node = node
        self._store = node.store

    async def HealthCheck(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802  # the wire's name
        return wire.HealthCheckReply(title="qdrant", version=self._node.version)

    async def CollectionExists(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802  # likewise
        exists = request.collection_name in self._store.collections
        return wire.CollectionExistsResponse(result=wire.CollectionExists(exists=exists))

    async def List(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802  # likewise
        names = sorted(self._store.collections)
        found = [wire.CollectionDescription(name=each) for each in names]
        return wire.ListCollectionsResponse(collections=found)

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        params = request.vectors_config.params_map.map
        vectors = {
            name: models.VectorParams(size=each.size, distance=models.Distance.DOT)
            for name, each in params.items()
        }
        sparse = {
            name: models.SparseVectorParams(modifier=models.Modifier.IDF)
            for name in request.sparse_vectors_config.map
        }
        strict = None
        if request.HasField("strict_mode_config"):
            strict = GrpcToRest.convert_strict_mode_config(request.strict_mode_config)
        made = models.CreateCollection(
            vectors=vectors,
            sparse_vectors=sparse,
            shard_number=request.shard_number or None,
            replication_factor=request.replication_factor or None,
            strict_mode_config=strict,
        )
        async with _refusing(context):
            self._store.create(request.collection_name, made)
        return wire.CollectionOperationResponse(result=True)

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        strict = GrpcToRest.convert_strict_mode_config(request.strict_mode_config)
        async with _refusing(context):
            changes = models.UpdateCollection(strict_mode_config=strict)
            self._store.update(request.collection_name, changes)
        return wire.CollectionOperationResponse(result=True)

    async def CreateFieldIndex(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        async with _refusing(context):
            self._store.create_index(request.collection_name, request.field_name, True)
        return _done()

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        """Of a collection, or of points: both services call it so."""
        async with _refusing(context):
            if isinstance(request, wire.GetPoints):
                asked: Any = request
                ids = [GrpcToRest.convert_point_id(each) for each in asked.ids]
                names = list(request.with_vectors.include.names)
                found = self._store.retrieve(request.collection_name, ids, names)
                return wire.GetResponse(result=[_convert_record(each) for each in found])
            info = self._store.describe(request.collection_name)
            info.config.metadata = None
            return wire.GetCollectionInfoResponse(result=RestToGrpc.convert_collection_info(info))

    async def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        self._node.answered += 1
        points = [GrpcToRest.convert_point_struct(each) for each in request.points]
        async with _refusing(context):
            self._store.upsert(request.collection_name, points)
        return _done()

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        async with _refusing(context):
            if isinstance(request, wire.DeleteCollection):
                self._store.delete(request.collection_name)
                return wire.CollectionOperationResponse(result=True)
            which = GrpcToRest.convert_filter(request.points.filter)
            self._store.delete_points(request.collection_name, which)
        return _done()

    async def QueryBatch(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        self._node.answered += 1
        asked = [GrpcToRest.convert_query_points(each) for each in request.query_points]
        async with _refusing(context):
            found = self._store.query(request.collection_name, asked)
        return wire.QueryBatchResponse(
            result=[
                wire.BatchResult(result=[RestToGrpc.convert_scored_point(hit) for hit in hits])
                for hits in found
            ]
        )

    async def Scroll(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        self._node.answered += 1
        which = GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None
        offset = GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None
        async with _refusing(context):
            page, following = self._store.scroll(
                request.collection_name, which, request.limit or 10, offset
            )
        return wire.ScrollResponse(
            result=[_convert_record(each) for each in page],
            next_page_offset=None if following is None else wire.PointId(uuid=following),
        )

    async def Count(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        self._node.answered += 1
        which = GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None
        async with _refusing(context):
            count = self._store.count(request.collection_name, which)
        return wire.CountResponse(result=wire.CountResult(count=count))

    async def Facet(self, request: Any, context: Any) -> Any:  # noqa: N802  # likewise
        async with _refusing(context):
            hits = self._store.facet(request.collection_name, request.key, request.limit or 10)
        return wire.FacetResponse(hits=[RestToGrpc.convert_facet_value_hit(each) for each in hits])


@asynccontextmanager
async def _refusing(context: Any) -> AsyncGenerator[None]:
    """Answer with the status of a refusal."""
    try:
        yield
    except RefusedError as error:
        await context.abort(_STATUS.get(error.status, grpc.StatusCode.INTERNAL), str(error))


def _done() -> Any:
    return wire.PointsOperationResponse(
        result=wire.UpdateResult(status=wire.UpdateStatus.Completed)
    )


def _convert_record(given: models.Record) -> Any:
    return RestToGrpc.convert_record(given.model_copy(update={"payload": given.payload or {}}))


class QdrantCluster:
    """Nodes that share all points. With gRPC, they have one port at different addresses."""

    def __init__(self, count: int = 2, *, port: int = 0, grpc_port: int | None = None) -> None:
        self.store = QdrantStore(range(1, count + 1))
        self.grpc_port = _find_port() if grpc_port == 0 else grpc_port
        self.nodes = [
            QdrantNode(
                peer, self.store, host=f"127.0.0.{peer}", port=port, grpc_port=self.grpc_port
            )
            for peer in self.store.peers
        ]

    @property
    def url(self) -> str:
        """The addresses of all nodes, as in TALEKEEPER_QDRANT_URL."""
        return ",".join(each.url for each in self.nodes)

    async def __aenter__(self) -> Self:
        for each in self.nodes:
            await each.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self.nodes:
            await each.__aexit__()
        self.store.close()


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def _serve(options: argparse.Namespace) -> None:
    async with QdrantCluster(
        options.nodes, port=options.port, grpc_port=options.grpc_port
    ) as cluster:
        print(cluster.url, flush=True)  # noqa: T201  # for the caller
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, _, number = line.strip().partition(" ")
            with suppress(ValueError, IndexError):
                node = cluster.nodes[int(number)]
                await (node.cut() if command == "cut" else node.restore())
                print(f"{command} {number}", flush=True)  # noqa: T201  # likewise


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--port", type=int, default=6333)
    parser.add_argument("--grpc-port", type=int, default=6334)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))
