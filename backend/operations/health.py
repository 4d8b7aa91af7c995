"""Routes for operators: `/health`, `/ready` and `/metrics`."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from prometheus_client import CONTENT_TYPE_LATEST

from backend.accounts.auth.middleware import PUBLIC, has_proxy_headers, is_loopback
from backend.database.engine import Database, DatabaseUnavailableError
from backend.errors import AppError, NotFoundError
from backend.generation.registry import ModelRegistry
from backend.http.connections import Drain, ServerStoppingError
from backend.http.schemas import AnyRequest
from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.runtime import MemoryRuntime
from backend.operations.metrics import MetricsService
from backend.regex.process import RegexProcess
from backend.settings import Settings

PING_SECONDS = 5.0
"""Time limit of `/ready` for one part. Probes wait longer, so they get a response."""


class HealthCheck(msgspec.Struct, kw_only=True):
    """The state of one part. Requests fail if a `needed` part is not ready."""

    name: str
    ready: bool
    detail: str
    needed: bool = True


class Readiness(msgspec.Struct, kw_only=True):
    """The state of the server and its parts."""

    ready: bool
    parts: list[HealthCheck]


class HealthController(Controller):
    tags = ("Operation",)
    opt = {PUBLIC: True}  # noqa: RUF012  # Litestar's own declaration

    @get("/health", summary="Alive")
    async def health(self) -> dict[str, str]:
        """Return 200 while the process runs."""
        return {"status": "alive"}

    @get(
        "/ready",
        summary="Ready",
        status_code=200,
        responses={
            503: ResponseSpec(Readiness, generate_examples=False, description="A part is not ready")
        },
    )
    async def ready(
        self,
        database: NamedDependency[Database],
        registry: NamedDependency[ModelRegistry],
        memory: NamedDependency[MemoryRuntime],
        regexes: NamedDependency[RegexProcess],
        drain: NamedDependency[Drain],
    ) -> Response[Readiness]:
        """Return the state of each part, and 503 if a needed part is not ready.

        During a shutdown the part `server` is not ready.
        """
        index, embedder = memory.collections.current, memory.embedder
        names = ", ".join(spec.id for spec in registry.specs())
        kind = database.url.get_backend_name()
        by_words = "none: memory is searched by words only"
        stopping = HealthCheck(name="server", ready=False, detail=ServerStoppingError.title)
        parts = [
            *([stopping] if drain.is_on else []),
            await _ping("database", kind, database.ping, DatabaseUnavailableError),
            HealthCheck(name="models", ready=True, detail=names),
            await _ping("index", index.name, index.ping, IndexUnavailableError, needed=False),
            HealthCheck(
                name="embeddings",
                ready=True,
                detail=embedder.spec.model if embedder else by_words,
                needed=False,
            ),
            HealthCheck(
                name="patterns",
                ready=not regexes.starts.is_failing,
                detail=regexes.starts.describe(),
                needed=False,
            ),
        ]
        ready = all(part.ready for part in parts if part.needed)
        return Response(Readiness(ready=ready, parts=parts), status_code=200 if ready else 503)

    @get("/metrics", summary="Metrics", include_in_schema=False)
    async def metrics(
        self,
        request: AnyRequest,
        settings: NamedDependency[Settings],
        metrics_service: NamedDependency[MetricsService],
    ) -> Response[bytes]:
        """Return the figures of this process and of the installation, without user data."""
        if settings.metrics == "off" or (settings.metrics == "loopback" and not _is_local(request)):
            raise NotFoundError
        media_type = CONTENT_TYPE_LATEST.partition("; charset")[0]
        return Response(await metrics_service.render(), media_type=media_type)


async def _ping(
    name: str,
    detail: str,
    ping: Callable[[], Awaitable[None]],
    refused: type[AppError],
    *,
    needed: bool = True,
) -> HealthCheck:
    try:
        async with asyncio.timeout(PING_SECONDS):
            await ping()
    except (refused, TimeoutError):
        return HealthCheck(name=name, ready=False, detail=refused.title, needed=needed)
    return HealthCheck(name=name, ready=True, detail=detail, needed=needed)


def _is_local(request: AnyRequest) -> bool:
    """True if the request comes directly from this machine, without a proxy."""
    client = request.client.host if request.client else ""
    is_own = client in {"127.0.0.1", "::1"} and is_loopback(request)
    return is_own and not has_proxy_headers(request)
