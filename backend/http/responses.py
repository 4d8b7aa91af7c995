"""Request ids, security headers and log lines of all responses, and errors as problem+json."""

from __future__ import annotations

import re
import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from litestar import Response
from litestar._kwargs.extractors import create_query_default_dict
from litestar._parsers import parse_cookie_string, parse_query_string
from litestar.datastructures import URL
from litestar.enums import ParamType, ScopeType
from litestar.exceptions import HTTPException
from litestar.exceptions import ValidationException as LitestarValidationException
from litestar.serialization import decode_json, encode_json
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from backend import errors
from backend.core import traces
from backend.core.logs import bind_request, get_logger
from backend.core.traces import Trace
from backend.errors import MEDIA_TYPE, TYPE_PREFIX, AppError
from backend.http.cross_origin import (
    CrossOriginPolicy,
    drop_cookies,
    is_preflight,
    make_preflight_headers,
)
from backend.http.schemas import AnyRequest

log = get_logger(__name__)

AnyResponse = Response[dict[str, Any]]

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(:[0-9]{1,5})?")
SECURITY_HEADERS: dict[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types worker"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_NO_STORE = (b"cache-control", b"no-store")
_VARIES = (b"vary", b"Origin")
IN_BODY = re.compile(r"(?P<message>.*) - at `\$\.data\.(?P<member>[^`]+)`", re.DOTALL)
"""msgspec's message about a member of the body, which is an argument `data` for it."""

_CHALLENGES = {errors.UnauthenticatedError.status: {"WWW-Authenticate": "Bearer"}}

BROKEN_BODY_DETAIL = "client disconnected prematurely"
"""Litestar's detail of an error 500 for an incomplete body."""

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


class SchemeFinder:
    """Finds the scheme that the browser used, if the public origin is https behind a proxy.

    A request is plain http if its proxy says so, or if no proxy forwarded it. Without
    `X-Forwarded-Proto` the public origin decides, because every forwarded request looks like http.
    `signs_itself` means a self-made certificate. Then there is no HSTS: it would apply to every
    port of the name, and browsers that do not trust the certificate could not skip the warning.
    """

    def __init__(
        self,
        public_origin: str = "",
        trusted_proxies: Sequence[str] = (),
        *,
        signs_itself: bool = False,
    ) -> None:
        self._requires_https = requires_https(public_origin)
        self._signs_itself = signs_itself
        self._trusts_all = "*" in trusted_proxies
        self._networks = [each for each in map(_network, trusted_proxies) if each is not None]

    def scheme(self, scope: Scope) -> str:
        if scope["scheme"] == "https" or not self._requires_https:
            return scope["scheme"]
        headers = dict(scope["headers"])
        peer = scope.get("client")
        client = peer[0] if peer else ""
        if headers.get(b"x-forwarded-proto", b"").strip():
            return "http"  # `https` from a trusted proxy is already in the scope
        forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")
        came_by_proxy = client in {each.strip() for each in forwarded.split(",")}
        return "https" if came_by_proxy or self._is_proxy(client) else "http"

    def insists_on_https(self, scope: Scope) -> bool:
        """True if the response should contain HSTS."""
        return bool(scope["scheme"] == "https") and not self._signs_itself

    def _is_proxy(self, client: str) -> bool:
        """True if the address may be that of a proxy: a listed one, or one on this machine."""
        try:
            address = ip_address(client)
        except ValueError:  # the peer of a Unix socket has no address
            return True
        return (
            self._trusts_all
            or address.is_loopback
            or any(address in network for network in self._networks)
        )


def requires_https(public_origin: str) -> bool:
    return urlsplit(public_origin).scheme == "https"


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def observe(
    app: ASGIApp,
    transport: SchemeFinder | None = None,
    cross_origin: CrossOriginPolicy | None = None,
) -> ASGIApp:
    """Wrap Litestar: add a request id and headers to every response, and log it with its trace.

    The application sees the scheme that `transport` found. Requests of other sites' pages, which
    `cross_origin` allows, have no cookies, and preflight requests do not reach the application.
    """
    transport, cross_origin = transport or SchemeFinder(), cross_origin or CrossOriginPolicy()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        scope["scheme"] = transport.scheme(scope)
        headers = dict(scope["headers"])
        ids, trace = _find_ids(headers)
        started, status = time.perf_counter(), 0
        is_foreign = cross_origin.is_allowed(scope)
        if is_foreign:
            scope["headers"] = drop_cookies(list(scope["headers"]))

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = [*message["headers"], (b"x-request-id", ids["request_id"].encode())]
                if is_foreign:
                    present = drop_cookies(present)
                    present += cross_origin.find_headers(scope, present)
                if cross_origin.concerns(scope):
                    present.append(_VARIES)
                insist = transport.insists_on_https(scope)
                message["headers"] = [*present, *_missing(present, insist=insist)]
            await send(message)

        with bind_request(**ids), traces.bind(trace):
            try:
                if is_foreign and is_preflight(scope):
                    await _send_preflight(scope, send_with_headers)
                elif _is_readable(scope):
                    await app(scope, receive, send_with_headers)
                else:
                    problem = errors.BadRequestError("The host or the query string is malformed.")
                    await _send(problem, send_with_headers)
            finally:
                log.info(
                    "request.finished",
                    method=scope.get("method"),
                    # Contains the names of the parameters, not their values.
                    path_template=str(scope.get("path_template") or "unmatched"),
                    status=status,
                    duration_ms=round((time.perf_counter() - started) * 1000, 1),
                )

    return handle


def _find_ids(headers: Mapping[bytes, bytes]) -> tuple[dict[str, str], Trace | None]:
    """Return the ids for the log: that of the request, which may be new, and that of its trace."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    ids = {"request_id": given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)}
    trace = traces.parse_traceparent(headers.get(b"traceparent", b"").decode("latin-1"))
    if trace is not None:
        ids["trace_id"] = trace.id
    return ids, trace


_LIBRARY_CACHES: tuple[Any, ...] = (
    urlsplit,
    URL.from_components,
    URL._new,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # as below
    parse_query_string,
    parse_cookie_string,
    create_query_default_dict,
)
"""Cached functions of libraries. Their arguments are URLs with search terms, and cookies. Litestar
has no public setting for these caches."""


class RequestCaches:
    """Clears the libraries' caches of URLs and cookies, for all users together."""

    def user_signed_out(self, _: UUID) -> None:
        for each in _LIBRARY_CACHES:
            each.cache_clear()


def _is_readable(scope: Scope) -> bool:
    """True if host and query string make a valid URL. No later code checks this."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return scope["query_string"].isascii() and all(map(_is_host, hosts)) and len(hosts) <= 1


def _is_host(value: bytes) -> bool:
    match = HOST.fullmatch(value)
    return match is not None and int((match[2] or b":0")[1:]) < 2**16


async def _send(problem: AppError, send: Send) -> None:
    body = encode_json(problem.to_problem())
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_preflight(scope: Scope, send: Send) -> None:
    headers = make_preflight_headers(scope)
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _missing(present: Any, *, insist: bool) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in present}
    wanted = [*_HEADERS, _NO_STORE, *([_HSTS] if insist else [])]
    return [(name, value) for name, value in wanted if name not in names]


def _respond(
    problem: AppError,
    headers: Mapping[str, str] | None = None,
    *,
    for_administrator: bool = False,
) -> AnyResponse:
    return Response(
        problem.to_problem(for_administrator=for_administrator),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers={**_CHALLENGES.get(problem.status, {}), **problem.headers, **(headers or {})},
    )


def _handle_app_error(request: AnyRequest, error: AppError) -> AnyResponse:
    if error.status == errors.InternalError.status:
        return _handle_unexpected(request, error)
    if error.status > errors.InternalError.status:
        log.warning("request.failed", problem=error.slug, exc_info=error)
    identity = request.scope.get("user")
    is_administrator = identity is not None and identity.user.is_administrator
    return _respond(error, for_administrator=is_administrator)


def _handle_litestar_error(request: AnyRequest, error: HTTPException) -> AnyResponse:
    if isinstance(error, LitestarValidationException):
        return _respond_invalid(_read_faults(error))
    if fault := _read_dependency_fault(error):
        return _respond_invalid([fault])
    if error.detail == BROKEN_BODY_DETAIL:
        log.info("request.abandoned")
        return _respond(errors.BadRequestError("The request body is incomplete."))
    if error.status_code >= errors.InternalError.status:
        return _handle_unexpected(request, error)
    kind = _BY_STATUS.get(error.status_code, errors.BadRequestError)
    detail = "" if kind in {errors.NotFoundError, errors.MethodNotAllowedError} else error.detail
    return _respond(kind(detail), error.headers)


def _respond_invalid(faults: list[dict[str, str]]) -> AnyResponse:
    return _respond(
        errors.ValidationError(
            "The members listed in `errors` are missing or invalid.",
            extra={"errors": faults},
        )
    )


def _read_dependency_fault(error: HTTPException) -> dict[str, str] | None:
    """Return the fault of a body's member with the name of a dependency, such as `messages`.

    Litestar identifies both by name, and reports such a fault as an internal error.
    """
    cause = error.__cause__
    found = IN_BODY.fullmatch(str(cause)) if isinstance(cause, msgspec.ValidationError) else None
    return {"member": found["member"], "in": "body", "message": found["message"]} if found else None


def _read_faults(error: LitestarValidationException) -> list[dict[str, str]]:
    extra: Any = error.extra
    entries = cast("list[object]", extra if isinstance(extra, list) else [extra])
    return [_read_fault(cast("dict[str, Any]", each)) for each in entries if isinstance(each, dict)]


def _read_fault(entry: dict[str, Any]) -> dict[str, str]:
    """Return one of Litestar's validation errors without its internal names.

    Litestar calls the whole body `data`, and gives a `KeyError` as the message of a missing member.
    """
    key, source = str(entry.get("key", "")), entry.get("source", "body")
    message = str(entry.get("message", ""))
    return {
        "member": "" if key == "data" else key,
        "in": source.value if isinstance(source, ParamType) else str(source),
        "message": "This member is missing." if message == repr(key) else message,
    }


def _handle_undecodable(request: AnyRequest, error: Exception) -> AnyResponse:
    """Respond to a body that is not UTF-8, because Litestar does not handle it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code is decode_json.__code__:
        return _respond(errors.BadRequestError("The JSON text is not UTF-8."))
    return _handle_unexpected(request, error)


def _handle_unexpected(_: AnyRequest, error: Exception) -> AnyResponse:
    """Respond with an error id and no details, and log the error with this id."""
    error_id = secrets.token_hex(8)
    kind = type(error) if isinstance(error, AppError) else errors.InternalError
    log.error("request.crashed", problem=kind.slug, error_id=error_id, exc_info=error)
    problem = errors.InternalError(
        "Report this id to the operator, who can find the cause in the log.",
        extra={"error_id": error_id},
    ).to_problem()
    return Response(
        {**problem, "type": TYPE_PREFIX + kind.slug, "title": kind.title},
        status_code=errors.InternalError.status,
        media_type=MEDIA_TYPE,
    )


def _handle_recursion(_: AnyRequest, _error: RecursionError) -> AnyResponse:
    """Respond to a deeply nested body. This code recurses only over input."""
    return _respond(errors.BadRequestError("The JSON is nested too deeply."))


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[AnyRequest, Any], AnyResponse]] = {
    AppError: _handle_app_error,
    RecursionError: _handle_recursion,
    HTTPException: _handle_litestar_error,
    UnicodeDecodeError: _handle_undecodable,
    Exception: _handle_unexpected,
}
