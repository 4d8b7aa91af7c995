"""What every HTTP answer has: a request id, security headers, a log line, a form for errors."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from litestar import Request, Response
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.exceptions import ValidationException as LitestarValidationException
from litestar.types import (
    ASGIApp,
    ExceptionHandlersMap,
    Message,
    Receive,
    Scope,
    Send,
)

from backend import errors
from backend.errors import MEDIA_TYPE, AppError
from backend.logs import bind_request, get_logger

log = get_logger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
HEADERS: dict[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_NO_STORE = (b"cache-control", b"no-store")

_BY_STATUS: dict[int, type[AppError]] = {
    kind.status: kind
    for kind in (
        errors.BadRequestError,
        errors.UnauthenticatedError,
        errors.ForbiddenError,
        errors.NotFoundError,
        errors.MethodNotAllowedError,
        errors.TooLargeError,
        errors.UnsupportedMediaTypeError,
        errors.TooManyRequestsError,
        errors.UnavailableError,
    )
}


def observe(app: ASGIApp) -> ASGIApp:
    """Wrap the whole application: request id, headers, and one line in the log for each answer.

    It stands outside of Litestar, so that answers that no route gave have them too.
    """

    async def observed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        started, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *_missing(message["headers"], https=scope["scheme"] == "https"),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        with bind_request(request_id):
            try:
                await app(scope, receive, sending)
            finally:
                log.info(
                    "request.finished",
                    method=scope.get("method"),
                    path_template=_template(scope),
                    status=status,
                    duration_ms=round((time.perf_counter() - started) * 1000, 1),
                )

    return observed


def _missing(present: Any, *, https: bool) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in present}
    wanted = [*_HEADERS, _NO_STORE, *([_HSTS] if https else [])]
    return [(name, value) for name, value in wanted if name not in names]


def _template(scope: Scope) -> str:
    """The route's path with the names of its parameters, never their values."""
    return str(scope.get("path_template") or "unmatched")


def _answer(problem: AppError) -> Response[dict[str, Any]]:
    return Response(
        problem.to_problem(),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=problem.headers,
    )


def _known(_: Request[Any, Any, Any], error: AppError) -> Response[dict[str, Any]]:
    if error.status >= 500:  # noqa: PLR2004  # the class of server errors
        log.warning("request.failed", problem=error.slug, exc_info=error)
    return _answer(error)


def _from_litestar(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    if isinstance(error, LitestarValidationException):
        return _answer(
            errors.ValidationError(
                "The members named in `errors` are missing or not acceptable.",
                extra={"errors": _faults(error)},
            )
        )
    if error.status_code >= 500:  # noqa: PLR2004  # as above
        return _unexpected(_, error)
    kind = _BY_STATUS.get(error.status_code, errors.BadRequestError)
    detail = "" if kind in {errors.NotFoundError, errors.MethodNotAllowedError} else error.detail
    return _answer(kind(detail))


def _faults(error: LitestarValidationException) -> list[dict[str, str]]:
    extra: Any = error.extra
    entries: list[Any] = extra if isinstance(extra, list) else [extra] if extra else []
    return [
        {
            "member": str(entry.get("key", "")),
            "in": str(entry.get("source", "body")),
            "message": str(entry.get("message", "")),
        }
        for entry in entries
        if isinstance(entry, dict)
    ]


def _unexpected(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """Say nothing but an id; what happened stands in the log under it."""
    error_id = secrets.token_hex(8)
    log.error("request.crashed", error_id=error_id, exc_info=error)
    return _answer(
        errors.InternalError(
            "Tell the operator this id; the log says more.", extra={"error_id": error_id}
        )
    )


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    AppError: _known,
    HTTPException: _from_litestar,
    Exception: _unexpected,
}
