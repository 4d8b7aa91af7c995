"""Who comes in: cookies, bearer keys, requests from other sites, and what each route lets in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from litestar import Response
from litestar.config.csrf import CSRFConfig
from litestar.connection import ASGIConnection, Request
from litestar.datastructures import Cookie
from litestar.enums import ScopeType
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.middleware.csrf import CSRFMiddleware, generate_csrf_token
from litestar.types import ASGIApp, Receive, Scope, Send

from backend.accounts.auth.identity import Identity, TokenKind
from backend.accounts.auth.identity import Scope as KeyScope
from backend.accounts.auth.names import InstanceKeys
from backend.accounts.auth.sessions import SessionService
from backend.accounts.errors import (
    CrossSiteError,
    InsecureTransportError,
    ScopeError,
    UnknownHostError,
)
from backend.accounts.profile.activity import ActivityKind, ActivityLog
from backend.accounts.service import Unlocked
from backend.core.private_networks import Network, contains_address
from backend.errors import UnauthenticatedError
from backend.http.responses import requires_https
from backend.settings import Settings

PLAIN_COOKIE = "talekeeper_session"
SECURE_COOKIE = "__Host-talekeeper_session"
CSRF_COOKIE = "csrftoken"
CSRF_HEADER = "x-csrftoken"
CSRF_ADVICE = f"Send the cookie {CSRF_COOKIE} back in the header {CSRF_HEADER}."
HOST_ADVICE = (
    "Set TALEKEEPER_PUBLIC_ORIGIN to the address that browsers use, or put the host's name into "
    "TALEKEEPER_ALLOWED_HOSTS."
)
HTTPS_ADVICE = (
    "It came over plain http, and TALEKEEPER_PUBLIC_ORIGIN is https. If it came through a proxy "
    "with TLS, put the proxy's address into TALEKEEPER_TRUSTED_PROXIES."
)
PLAIN_ADVICE = (
    "A session over plain http could be read on the way. Open the page with https: for a phone in "
    "the same network start the server with `talekeeper serve --lan`, for the internet put a TLS "
    "proxy in front. On the server's own machine use http://localhost."
)
API = "/api/"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PUBLIC = "public"
"""Route option: nobody needs to be signed in."""
NEEDS = "needs"
"""Route option: the scope that an API key needs; by default `read` for GET and `chat` else."""

PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
"""Headers by which a proxy shows itself."""

SHOWN_ONCE = "shown_once"
"""Route option: the answer holds a secret, and is kept nowhere."""

AUTHENTICATIONS_AT_ONCE = 4
"""Of requests with one token; fewer than there are connections to the database."""

LOCALHOST = "localhost"

Connection = ASGIConnection[Any, Any, Any, Any]


def is_secure(connection: Connection) -> bool:
    """Whether the browser reached us over https, as `backend.http.responses.Transport` found."""
    return connection.url.scheme == "https"


def is_loopback(connection: Connection) -> bool:
    """Whether the browser reached us by a name of this machine alone."""
    host = connection.url.hostname or ""
    address = address_of(host)
    # Names other than this one may be anybody's: 127.0.0.1.example.org, say.
    return address.is_loopback if address else host == LOCALHOST


def may_have_session(connection: Connection, plain_networks: Sequence[Network] = ()) -> bool:
    """True over https, on this machine, and for clients of `plain_networks`."""
    return (
        is_secure(connection)
        or is_loopback(connection)
        or (bool(plain_networks) and contains_address(plain_networks, _client_address(connection)))
    )


def _client_address(connection: Connection) -> str:
    """The client's address; empty if it came by a proxy that is not trusted."""
    client = connection.client.host if connection.client else ""
    headers = connection.headers
    if any(name in headers for name in PROXY_HEADERS):
        forwarded = headers.get("x-forwarded-for", "").split(",")
        return client if client in {each.strip() for each in forwarded} else ""
    return client


def session_token(connection: Connection) -> str | None:
    """The session's token, from the cookie that fits the way the request came."""
    return connection.cookies.get(_session_cookie(connection))


def bearer_token(connection: Connection) -> str | None:
    """The API key in the `Authorization` header."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def session_cookies(
    connection: Connection,
    token: str,
    *,
    seconds: int,
    csrf: str,
    plain_networks: Sequence[Network] = (),
) -> list[Cookie]:
    """The cookies that a new session sets. Raises `InsecureTransportError` in the clear."""
    if not may_have_session(connection, plain_networks):
        raise InsecureTransportError(PLAIN_ADVICE)
    return [
        _cookie(connection, _session_cookie(connection), token, seconds=seconds, httponly=True),
        _cookie(connection, CSRF_COOKIE, generate_csrf_token(csrf), seconds=seconds),
    ]


def expired_cookies(connection: Connection) -> list[Cookie]:
    """The cookies that end a session in the browser."""
    return [
        _cookie(connection, key, "", seconds=0)
        for key in (_session_cookie(connection), CSRF_COOKIE)
    ]


def _session_cookie(connection: Connection) -> str:
    return SECURE_COOKIE if is_secure(connection) else PLAIN_COOKIE


def _cookie(
    connection: Connection, key: str, value: str, *, seconds: int, httponly: bool = False
) -> Cookie:
    return Cookie(
        key=key,
        value=value,
        max_age=seconds,
        path="/",
        secure=is_secure(connection),
        httponly=httponly,
        samesite="lax",
    )


class IdentityMiddleware(ASGIMiddleware):
    """Identify the caller: `scope["user"]` is an `Identity` or None.

    A bearer key wins over a cookie. Unsafe methods are for requests that this site's own pages, or
    no pages at all, sent: `Sec-Fetch-Site` and `Origin` are looked at, and with a cookie they need
    the CSRF token. The API answers under names of this server's alone: another site could give out
    this machine's address for its own name, and then its pages would be of the same origin.

    Args:
        public_origin: Origin under which browsers reach this server; empty for the request's own.
        allowed_hosts: Further names of this server, without ports.
        plain_networks: Networks whose clients may have sessions over plain http.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(
        self,
        sessions: SessionService,
        *,
        csrf_secret: str,
        public_origin: str,
        allowed_hosts: tuple[str, ...] = (),
        plain_networks: tuple[Network, ...] = (),
    ) -> None:
        self._sessions = sessions
        self._public_origin = public_origin.rstrip("/")
        self._requires_https = requires_https(public_origin)
        self._plain_networks = plain_networks
        own = urlsplit(public_origin).hostname or LOCALHOST
        self._hosts = frozenset({LOCALHOST, own, *map(str.lower, allowed_hosts)})
        self._csrf = CSRFConfig(
            secret=csrf_secret, cookie_name=CSRF_COOKIE, header_name=CSRF_HEADER
        )
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Name who asks, or refuse a request that another site may have sent."""
        connection: Connection = Request(scope, receive, send)
        if scope.get("path_template", "").startswith(API):
            self._check_host(connection)
            self._check_transport(connection)
        unsafe = _method(scope) not in SAFE_METHODS
        if unsafe:
            self._check_same_site(connection)
        if (key := bearer_token(connection)) is not None:
            scope["user"] = await self._authenticated(key, "api_key")
            await next_app(scope, receive, send)
            return
        may_have = may_have_session(connection, self._plain_networks)
        token = session_token(connection) if may_have else None
        scope["user"] = await self._authenticated(token, "session") if token else None
        if unsafe and scope["user"] is not None:
            # Without a token Litestar would look for it in a form, and so read an upload into a
            # temporary file, in the clear; and of what is not ASCII it makes a fault of ours.
            sent = connection.headers.get(CSRF_HEADER), connection.cookies.get(CSRF_COOKIE)
            if not all(each and each.isascii() for each in sent):
                raise CrossSiteError(CSRF_ADVICE)
            try:
                await CSRFMiddleware(next_app, self._csrf)(scope, receive, send)
            except PermissionDeniedException as error:
                raise CrossSiteError(CSRF_ADVICE) from error
            return
        await next_app(scope, receive, send)

    async def _authenticated(self, token: str, kind: TokenKind) -> Identity | None:
        """Whose token it is. Of requests with one token, some wait for the others."""
        turn = self._turns.setdefault(token, asyncio.Semaphore(AUTHENTICATIONS_AT_ONCE))
        async with turn:
            return await self._sessions.authenticate(token, kind)

    def _check_host(self, connection: Connection) -> None:
        host = connection.url.hostname or ""
        # No other site can be the owner of an address.
        if host not in self._hosts and address_of(host) is None:
            raise UnknownHostError(HOST_ADVICE)

    def _check_transport(self, connection: Connection) -> None:
        if self._requires_https and not is_secure(connection):
            raise InsecureTransportError(HTTPS_ADVICE)

    def _check_same_site(self, connection: Connection) -> None:
        site = connection.headers.get("sec-fetch-site")
        origin = connection.headers.get("origin")
        own = self._public_origin or f"{connection.url.scheme}://{connection.url.netloc}"
        if site in {"cross-site", "same-site"} or (
            origin is not None and not _same_origin(origin, own)
        ):
            raise CrossSiteError("Send the request from a page of this server, or with an API key.")


async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
    """Let in who may come: every route is closed unless it says that it is public.

    Awaits nothing: Litestar would send a plain function to a thread, for each request. Raises
    `UnauthenticatedError` or `ScopeError`.
    """
    if handler.opt.get(PUBLIC):
        return
    identity: Identity | None = connection.scope["user"]
    if identity is None:
        raise UnauthenticatedError("Sign in, or send an API key as `Authorization: Bearer`.")
    default: KeyScope = "read" if _method(connection.scope) in SAFE_METHODS else "chat"
    needed: KeyScope = handler.opt.get(NEEDS, default)
    if not identity.may(needed):
        raise ScopeError(f"This needs the scope {needed!r}; the key has {identity.scope!r}.")


def provide_identity(request: Request[Identity, Any, Any]) -> Identity:
    """The signed-in account, for handlers behind the guard."""
    return request.user


def _method(scope: Scope) -> str:
    return str(scope.get("method", "GET"))


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _same_origin(one: str, other: str) -> bool:
    try:
        return _origin(one) == _origin(other)
    except ValueError:  # no URL at all
        return False


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


class AuthMiddleware:
    """Opens sessions in browsers: a slot in the database, cookies in the answer."""

    def __init__(
        self,
        sessions: SessionService,
        settings: Settings,
        instance: InstanceKeys,
        activity: ActivityLog,
    ) -> None:
        self._sessions = sessions
        self._activity = activity
        self._seconds = round(settings.session_absolute_days * 86400)
        self._csrf = instance.csrf_secret
        self._plain_networks = settings.plain_http_networks

    def check_transport(self, request: Request[Any, Any, Any]) -> None:
        """Raise `InsecureTransportError` before a password is tried in vain."""
        self._cookies(request, "")

    async def open(
        self, request: Request[Any, Any, Any], unlocked: Unlocked, body: Any, *, kind: ActivityKind
    ) -> Response[Any]:
        """Answer with a new session's cookies: always a new token, never one that came in.

        `kind` is what the account's recent activity calls it.
        """
        label = request.headers.get("user-agent", "")
        token = await self._sessions.open_session(unlocked, label=label)
        await self._activity.note_unlocked(request, unlocked, kind)
        return Response(body, status_code=201, cookies=self._cookies(request, token))

    def _cookies(self, request: Request[Any, Any, Any], token: str) -> list[Cookie]:
        return session_cookies(
            request,
            token,
            seconds=self._seconds,
            csrf=self._csrf,
            plain_networks=self._plain_networks,
        )
