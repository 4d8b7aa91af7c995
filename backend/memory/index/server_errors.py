"""What can come in place of a Qdrant server's answer, in words for the person who runs it.

The server's own texts stay out: they may quote what was asked.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from backend.memory.index.protocol import IndexUnavailableError


@contextmanager
def reported(timeout: int) -> Generator[None]:
    """Raise `IndexUnavailableError` for whatever is raised inside, but for a cancellation."""
    try:
        yield
    except IndexUnavailableError:
        raise
    except Exception as error:
        raise IndexUnavailableError(_detail(error, timeout)) from error


def _detail(error: Exception, timeout: int) -> str:
    match _reason(error):
        case 401 | 403 | "UNAUTHENTICATED" | "PERMISSION_DENIED":
            detail = "The Qdrant server refuses the key: look at TALEKEEPER_QDRANT_API_KEY."
        case 404 | "NOT_FOUND":
            detail = (
                "The collection is gone from the Qdrant server, or its address is another one's. "
                "Restart: a collection is made then, and filled again."
            )
        case 408 | 504 | "DEADLINE_EXCEEDED":
            detail = f"The Qdrant server did not answer within {timeout} s."
        case 429 | "RESOURCE_EXHAUSTED":
            detail = "The Qdrant server has too much to do. Try again later."
        case "UNREACHABLE":
            detail = "The Qdrant server cannot be reached at TALEKEEPER_QDRANT_URL. Is it running?"
        case None:
            detail = "What is at TALEKEEPER_QDRANT_URL does not answer as a Qdrant server does."
        case reason:
            detail = f"The Qdrant server failed ({reason}). Its own log says why."
    return detail


def _reason(error: Exception) -> int | str | None:
    """An HTTP status, a gRPC status by name, or UNREACHABLE; None for an answer without sense."""
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415  # no types; slow to load
    import httpx  # noqa: PLC0415  slow to load, and loaded where there is a server
    from qdrant_client.common.client_exceptions import (  # noqa: PLC0415, TID251  its adapter
        ResourceExhaustedResponse,
    )
    from qdrant_client.http.exceptions import (  # noqa: PLC0415, TID251  its adapter
        ResponseHandlingException,
        UnexpectedResponse,
    )

    if isinstance(error, UnexpectedResponse):
        return error.status_code
    if isinstance(error, ResourceExhaustedResponse):
        return 429
    if isinstance(error, ResponseHandlingException):
        source = error.source
        if isinstance(source, httpx.TimeoutException):
            return "DEADLINE_EXCEEDED"
        return "UNREACHABLE" if isinstance(source, httpx.TransportError) else None
    if isinstance(error, grpc.aio.AioRpcError):
        name: str = error.code().name
        return "UNREACHABLE" if name == "UNAVAILABLE" else name
    return None
