"""What every HTTP answer has: a request id, security headers, a log line, a form for errors."""

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
from litestar import Request, Response
from litestar._kwargs.extractors import create_query_default_dict
from litestar._parsers import parse_cookie_string, parse_query_string
from litestar.datastructures import URL
from litestar.enums import ParamType, ScopeType
from litestar.exceptions import HTTPException
from litestar.exceptions import ValidationException as LitestarValidationException
from litestar.serialization import decode_json, encode_json
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from backend import errors
from backend.core.logs import bind_request, get_logger
from backend.errors import MEDIA_TYPE, TYPE_PREFIX, AppError

log = get_logger(__name__)

AnyRequest = Request[Any, Any, Any]
AnyResponse = Response[dict[str, Any]]

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(:[0-9]{1,5})?")
SECURITY_HEADERS: dict[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
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
IN_BODY = re.compile(r"(?P<message>.*) - at `\$\.data\.(?P<member>[^`]+)`", re.DOTALL)
"""What msgspec says of a member of a body, which is an argument `data` to it."""

_CHALLENGES = {errors.UnauthenticatedError.status: {"WWW-Authenticate": "Bearer"}}

BROKEN_BODY_DETAIL = "client disconnected prematurely"
"""Litestar's word, in an error of its own that is a 500, for a body that broke off."""

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


class Transport:
    """Distinguish https from plain http where the public origin is https, and a proxy ends TLS.

    A proxy that sends no `X-Forwarded-Proto` makes every request look like plain http, so there the
    origin decides. Plain http is what a proxy calls so, and what came past every proxy.

    Args:
        public_origin: Origin under which browsers reach this server; empty for the request's own.
        trusted_proxies: Addresses and networks of proxies, or `*`.
        signs_itself: Whether the server's certificate is one that it made. Then no browser is told
            to insist on https: that would hold for every port of the name, and leave no way past
            the warning of a device that does not trust the certificate yet.
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
        """`https` or `http`, as the browser sent the request."""
        if scope["scheme"] == "https" or not self._requires_https:
            return scope["scheme"]
        headers = dict(scope["headers"])
        peer = scope.get("client")
        client = peer[0] if peer else ""
        if headers.get(b"x-forwarded-proto", b"").strip():
            return "http"  # a trusted proxy's `https` would be the scope's by now
        forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")
        came_by_proxy = client in {each.strip() for each in forwarded.split(",")}
        return "https" if came_by_proxy or self._is_proxy(client) else "http"

    def insists_on_https(self, scope: Scope) -> bool:
        """True if browsers should use https alone from now on (HSTS)."""
        return bool(scope["scheme"] == "https") and not self._signs_itself

    def _is_proxy(self, client: str) -> bool:
        """Whether a proxy may have this address. One on this machine need not be named."""
        try:
            address = ip_address(client)
        except ValueError:  # a Unix socket's peer has none
            return True
        return (
            self._trusts_all
            or address.is_loopback
            or any(address in network for network in self._networks)
        )


def requires_https(public_origin: str) -> bool:
    """Whether browsers reach this server over https alone."""
    return urlsplit(public_origin).scheme == "https"


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def observe(app: ASGIApp, transport: Transport | None = None) -> ASGIApp:
    """Wrap the whole application: request id, headers, and one line in the log for each answer.

    It stands outside of Litestar, so that answers that no route gave have them too. What is inside
    sees the scheme that `transport` found.
    """
    transport = transport or Transport()

    async def observed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        scope["scheme"] = transport.scheme(scope)
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
                    *_missing(message["headers"], insist=transport.insists_on_https(scope)),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        with bind_request(request_id):
            try:
                if _is_readable(scope):
                    await app(scope, receive, sending)
                else:
                    await _send(errors.BadRequestError("Its address is malformed."), sending)
            finally:
                log.info(
                    "request.finished",
                    method=scope.get("method"),
                    # With the names of its parameters, never their values.
                    path_template=str(scope.get("path_template") or "unmatched"),
                    status=status,
                    duration_ms=round((time.perf_counter() - started) * 1000, 1),
                )

    return observed


_REMEMBERED: tuple[Any, ...] = (
    urlsplit,
    URL.from_components,
    URL._new,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # as below
    parse_query_string,
    parse_cookie_string,
    create_query_default_dict,
)
"""Functions of libraries that keep their last arguments: addresses with what was searched for, and
cookies. Litestar has no public way to tell it not to."""


class RequestCaches:
    """What Litestar and we keep of the addresses and cookies of requests, all users' together."""

    def user_signed_out(self, _: UUID) -> None:
        """Drop it all."""
        for each in _REMEMBERED:
            each.cache_clear()


def _is_readable(scope: Scope) -> bool:
    """Whether host and query are such that an URL can be made of them; nothing later checks."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return scope["query_string"].isascii() and all(map(_is_host, hosts)) and len(hosts) <= 1


def _is_host(value: bytes) -> bool:
    match = HOST.fullmatch(value)
    return match is not None and int((match[2] or b":0")[1:]) < 2**16


async def _send(problem: AppError, send: Send) -> None:
    """Answer with a problem where there is no Litestar to do it."""
    body = encode_json(problem.to_problem())
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _missing(present: Any, *, insist: bool) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in present}
    wanted = [*_HEADERS, _NO_STORE, *([_HSTS] if insist else [])]
    return [(name, value) for name, value in wanted if name not in names]


def _answer(
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


def _known(request: AnyRequest, error: AppError) -> AnyResponse:
    if error.status == errors.InternalError.status:
        return _unexpected(request, error)
    if error.status > errors.InternalError.status:
        log.warning("request.failed", problem=error.slug, exc_info=error)
    identity = request.scope.get("user")
    is_administrator = identity is not None and identity.user.is_administrator
    return _answer(error, for_administrator=is_administrator)


def _from_litestar(_: AnyRequest, error: HTTPException) -> AnyResponse:
    if isinstance(error, LitestarValidationException):
        return _invalid(_faults(error))
    if fault := _mistaken_fault(error):
        return _invalid([fault])
    if error.detail == BROKEN_BODY_DETAIL:
        log.info("request.abandoned")
        return _answer(errors.BadRequestError("It ended before all of it had come."))
    if error.status_code >= 500:  # noqa: PLR2004  # as above
        return _unexpected(_, error)
    kind = _BY_STATUS.get(error.status_code, errors.BadRequestError)
    detail = "" if kind in {errors.NotFoundError, errors.MethodNotAllowedError} else error.detail
    return _answer(kind(detail), error.headers)


def _invalid(faults: list[dict[str, str]]) -> AnyResponse:
    return _answer(
        errors.ValidationError(
            "The members named in `errors` are missing or not acceptable.",
            extra={"errors": faults},
        )
    )


def _mistaken_fault(error: HTTPException) -> dict[str, str] | None:
    """The fault of a body's member that is called like a dependency: `messages`, say.

    Litestar knows them by that name alone, and takes the fault for the server's own.
    """
    cause = error.__cause__
    found = IN_BODY.fullmatch(str(cause)) if isinstance(cause, msgspec.ValidationError) else None
    return {"member": found["member"], "in": "body", "message": found["message"]} if found else None


def _faults(error: LitestarValidationException) -> list[dict[str, str]]:
    extra: Any = error.extra
    entries = cast("list[object]", extra if isinstance(extra, list) else [extra])
    return [_fault(cast("dict[str, Any]", each)) for each in entries if isinstance(each, dict)]


def _fault(entry: dict[str, Any]) -> dict[str, str]:
    """One of Litestar's complaints, without its inner names.

    The whole body goes by the name `data` there, and what is absent by the `KeyError` it caused.
    """
    key, source = str(entry.get("key", "")), entry.get("source", "body")
    message = str(entry.get("message", ""))
    return {
        "member": "" if key == "data" else key,
        "in": source.value if isinstance(source, ParamType) else str(source),
        "message": "It is missing." if message == repr(key) else message,
    }


def _undecodable(request: AnyRequest, error: Exception) -> AnyResponse:
    """A body that is not UTF-8 (Litestar lets that through); from elsewhere a fault of ours."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code is decode_json.__code__:
        return _answer(errors.BadRequestError("The JSON text is not UTF-8."))
    return _unexpected(request, error)


def _unexpected(_: AnyRequest, error: Exception) -> AnyResponse:
    """Say nothing but an id, and the kind of an error that has one; the log says more under it."""
    error_id = secrets.token_hex(8)
    kind = type(error) if isinstance(error, AppError) else errors.InternalError
    log.error("request.crashed", problem=kind.slug, error_id=error_id, exc_info=error)
    problem = errors.InternalError(
        "Tell the operator this id; the log says more.", extra={"error_id": error_id}
    ).to_problem()
    return Response(
        {**problem, "type": TYPE_PREFIX + kind.slug, "title": kind.title},
        status_code=errors.InternalError.status,
        media_type=MEDIA_TYPE,
    )


def _too_deep(_: AnyRequest, _error: RecursionError) -> AnyResponse:
    """Only what came in can nest that deeply: Talekeeper's own work has an explicit stack."""
    return _answer(errors.BadRequestError("It is nested too deeply."))


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[AnyRequest, Any], AnyResponse]] = {
    AppError: _known,
    RecursionError: _too_deep,
    HTTPException: _from_litestar,
    UnicodeDecodeError: _undecodable,
    Exception: _unexpected,
}
