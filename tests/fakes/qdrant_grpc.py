"""A Qdrant server as it looks over gRPC, in the messages of its client's own definitions.

Like its sister over HTTP it keeps no points: it answers every query with one made-up hit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import grpc  # type: ignore[import-untyped]  # it has no types
from qdrant_client import grpc as wire  # noqa: TID251  the messages that go over the wire

DIMENSION = 8
OWNER, CONTAINER, SOURCE, POINT = (UUID(int=number) for number in range(1, 5))
VERSION = 2**62


class QdrantGrpc(wire.CollectionsServicer, wire.PointsServicer, wire.QdrantServicer):
    """Records requests by method. If `refuses` is set, it answers with that status."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Any]] = {}
        self.keys: set[str | None] = set()
        self.refuses: grpc.StatusCode | None = None

    async def _note(self, method: str, request: Any, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        self.keys.add(metadata.get("api-key"))
        self.asked.setdefault(method, []).append(request)
        if self.refuses is not None:
            await context.abort(self.refuses, "A text of the server's own")

    async def HealthCheck(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("HealthCheck", request, context)
        return wire.HealthCheckReply(title="qdrant - vector search engine", version="1.19.0")

    async def CollectionExists(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("CollectionExists", request, context)
        found = wire.CollectionExists(exists="Create" in self.asked)
        return wire.CollectionExistsResponse(result=found)

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Create", request, context)
        return wire.CollectionOperationResponse(result=True)

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Update", request, context)
        return wire.CollectionOperationResponse(result=True)

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        """Of a collection, or of points: both services call it so."""
        if isinstance(request, wire.GetPoints):
            await self._note("GetPoints", request, context)
            return wire.GetResponse(
                result=[
                    wire.RetrievedPoint(
                        id=wire.PointId(uuid=str(POINT)),
                        vectors=wire.VectorsOutput(
                            vectors=wire.NamedVectorsOutput(
                                vectors={"dense": wire.VectorOutput(data=[0.5] * DIMENSION)}
                            )
                        ),
                    )
                ]
            )
        await self._note("GetCollection", request, context)
        made = self.asked["Create"][-1]
        config = wire.CollectionConfig(
            params=wire.CollectionParams(
                vectors_config=made.vectors_config,
                sparse_vectors_config=made.sparse_vectors_config,
                shard_number=made.shard_number,
            ),
            hnsw_config=wire.HnswConfigDiff(m=0, ef_construct=100, full_scan_threshold=10_000),
            optimizer_config=wire.OptimizersConfigDiff(
                deleted_threshold=0.2,
                vacuum_min_vector_number=1000,
                default_segment_number=0,
                flush_interval_sec=5,
            ),
            wal_config=wire.WalConfigDiff(wal_capacity_mb=32, wal_segments_ahead=0),
        )
        info = wire.CollectionInfo(
            status=wire.CollectionStatus.Green,
            optimizer_status=wire.OptimizerStatus(ok=True),
            config=config,
        )
        return wire.GetCollectionInfoResponse(result=info)

    async def CreateFieldIndex(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("CreateFieldIndex", request, context)
        return _done()

    async def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Upsert", request, context)
        return _done()

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Delete", request, context)
        return _done()

    async def QueryBatch(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("QueryBatch", request, context)
        hit = wire.ScoredPoint(id=wire.PointId(uuid=str(POINT)), score=0.5, payload=_payload())
        return wire.QueryBatchResponse(
            result=[wire.BatchResult(result=[hit]) for _ in request.query_points]
        )

    async def Scroll(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Scroll", request, context)
        point = wire.RetrievedPoint(id=wire.PointId(uuid=str(POINT)), payload=_payload())
        return wire.ScrollResponse(result=[point])

    async def Count(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Count", request, context)
        return wire.CountResponse(result=wire.CountResult(count=7))

    async def Facet(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        await self._note("Facet", request, context)
        hit = wire.FacetHit(value=wire.FacetValue(string_value=str(OWNER)), count=7)
        return wire.FacetResponse(hits=[hit])


def _done() -> Any:
    return wire.PointsOperationResponse(
        result=wire.UpdateResult(status=wire.UpdateStatus.Completed)
    )


def _payload() -> dict[str, Any]:
    texts = {"o": str(OWNER), "k": "message", "c": str(CONTAINER), "s": str(SOURCE)}
    return {
        **{name: wire.Value(string_value=text) for name, text in texts.items()},
        "p": wire.Value(integer_value=4),
        "v": wire.Value(integer_value=VERSION),
        "q": wire.Value(bool_value=True),
    }


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[QdrantGrpc, int]]:
    """The server and its port."""
    qdrant, server = QdrantGrpc(), grpc.aio.server()
    untyped: Any = wire
    untyped.add_CollectionsServicer_to_server(qdrant, server)
    untyped.add_PointsServicer_to_server(qdrant, server)
    untyped.add_QdrantServicer_to_server(qdrant, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield qdrant, port
    finally:
        await server.stop(None)
