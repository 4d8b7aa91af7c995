"""Authentication of requests: cookies, API keys, cross-site checks, and access to routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from litestar import Response
from litestar.config.csrf import CSRFConfig
from litestar.connection import Request
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
from backend.accounts.service import UnlockedAccount
from backend.core.origins import is_same_origin
from backend.core.private_networks import Network, contains_address
from backend.errors import UnauthenticatedError
from backend.http.cross_origin import CrossOriginPolicy, find_own_origin
from backend.http.responses import requires_https
from backend.http.schemas import API_PREFIXES, AnyConnection, AnyRequest
from backend.settings import Settings

PLAIN_COOKIE = "talekeeper_session"
SECURE_COOKIE = "__Host-talekeeper_session"
CSRF_COOKIE = "csrftoken"
CSRF_HEADER = "x-csrftoken"
CSRF_ADVICE = f"Send the cookie {CSRF_COOKIE} back in the header {CSRF_HEADER}."
SIGN_IN_ADVICE = "Sign in, or send an API key as `Authorization: Bearer`."
KEY_ADVICE = "Send an API key as `Authorization: Bearer`."
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
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PUBLIC = "public"
"""Route option: True if the route needs no sign-in."""
NEEDS = "needs"
"""Route option: the scope that an API key needs. Default: `read` for GET, `chat` for other
methods."""

NEEDS_KEY = "needs_key"
"""Route option: True if only API keys open the route, and cookies are ignored."""

PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")

SHOWN_ONCE = "shown_once"
"""Route option: True if the response contains a secret. It is never stored."""

MAX_CONCURRENT_AUTHENTICATIONS = 4
"""Per token. Fewer than the connections to the database."""

LOCALHOST = "localhost"


def is_secure(connection: AnyConnection) -> bool:
    """True if the browser used https, according to `backend.http.responses.SchemeFinder`."""
    return connection.url.scheme == "https"


def is_loopback(connection: AnyConnection) -> bool:
    """True if the browser used a name or address that means only this machine."""
    host = connection.url.hostname or ""
    address = parse_address(host)
    # Any other name may belong to someone else, for example 127.0.0.1.example.org.
    return address.is_loopback if address else host == LOCALHOST


def has_proxy_headers(connection: AnyConnection) -> bool:
    return any(name in connection.headers for name in PROXY_HEADERS)


def may_have_session(connection: AnyConnection, plain_networks: Sequence[Network] = ()) -> bool:
    """True over https, on this machine, and for clients in `plain_networks`."""
    return (
        is_secure(connection)
        or is_loopback(connection)
        or (
            bool(plain_networks)
            and contains_address(plain_networks, _find_client_address(connection))
        )
    )


def _find_client_address(connection: AnyConnection) -> str:
    """Return the client's address; empty if the request came through an untrusted proxy."""
    client = connection.client.host if connection.client else ""
    if has_proxy_headers(connection):
        forwarded = connection.headers.get("x-forwarded-for", "").split(",")
        return client if client in {each.strip() for each in forwarded} else ""
    return client


def find_session_token(connection: AnyConnection) -> str | None:
    """Return the session's token, from the secure cookie over https, else from the plain one."""
    return connection.cookies.get(_get_cookie_name(connection))


def find_bearer_token(connection: AnyConnection) -> str | None:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def make_session_cookies(
    connection: AnyConnection,
    token: str,
    *,
    seconds: int,
    csrf: str,
    plain_networks: Sequence[Network] = (),
) -> list[Cookie]:
    """Return the cookies of a new session.

    Raises `InsecureTransportError` if they would travel unencrypted.
    """
    if not may_have_session(connection, plain_networks):
        raise InsecureTransportError(PLAIN_ADVICE)
    return [
        _make_cookie(
            connection, _get_cookie_name(connection), token, seconds=seconds, httponly=True
        ),
        _make_cookie(connection, CSRF_COOKIE, generate_csrf_token(csrf), seconds=seconds),
    ]


def make_expired_cookies(connection: AnyConnection) -> list[Cookie]:
    """Return cookies that delete the session in the browser."""
    return [
        _make_cookie(connection, key, "", seconds=0)
        for key in (_get_cookie_name(connection), CSRF_COOKIE)
    ]


def _get_cookie_name(connection: AnyConnection) -> str:
    return SECURE_COOKIE if is_secure(connection) else PLAIN_COOKIE


def _make_cookie(
    connection: AnyConnection, key: str, value: str, *, seconds: int, httponly: bool = False
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
    """Identifies the caller: `scope["user"]` is an `Identity` or None.

    A bearer key takes precedence over a cookie. Unsafe methods are accepted only from this site's
    own pages, from clients without a page, and with a key from pages of allowed origins:
    `Sec-Fetch-Site` and `Origin` are checked, and a request with a cookie needs the CSRF token. The
    API responds only under this server's own names. Otherwise another site could point its own name
    at this machine's address, and its pages would have the same origin.

    Args:
        public_origin: Origin that browsers use for this server. Empty for the request's own origin.
        allowed_hosts: Further names of this server, without ports.
        plain_networks: Clients in these networks may have sessions over plain http.
        cross_origin: Pages of these sites may send requests with an API key.
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
        cross_origin: CrossOriginPolicy | None = None,
    ) -> None:
        self._sessions = sessions
        self._cross_origin = cross_origin or CrossOriginPolicy()
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
        connection: AnyConnection = Request(scope, receive, send)
        if scope.get("path_template", "").startswith(API_PREFIXES):
            self._check_host(connection)
            self._check_transport(connection)
        unsafe = _get_method(scope) not in SAFE_METHODS
        key = find_bearer_token(connection)
        if unsafe and not (key is not None and self._cross_origin.is_allowed(scope)):
            self._check_same_site(connection)
        if key is not None:
            scope["user"] = await self._find_identity(key, "api_key")
            await next_app(scope, receive, send)
            return
        may_have = not scope["route_handler"].opt.get(NEEDS_KEY, False) and may_have_session(
            connection, self._plain_networks
        )
        token = find_session_token(connection) if may_have else None
        scope["user"] = await self._find_identity(token, "session") if token else None
        if unsafe and scope["user"] is not None:
            # Without a token in the header, Litestar would look for it in a form. It would then
            # write an upload to a temporary file, unencrypted. A token that is not ASCII would
            # raise an internal error.
            sent = connection.headers.get(CSRF_HEADER), connection.cookies.get(CSRF_COOKIE)
            if not all(each and each.isascii() for each in sent):
                raise CrossSiteError(CSRF_ADVICE)
            try:
                await CSRFMiddleware(next_app, self._csrf)(scope, receive, send)
            except PermissionDeniedException as error:
                raise CrossSiteError(CSRF_ADVICE) from error
            return
        await next_app(scope, receive, send)

    async def _find_identity(self, token: str, kind: TokenKind) -> Identity | None:
        """Limits concurrent checks of the same token."""
        turn = self._turns.setdefault(token, asyncio.Semaphore(MAX_CONCURRENT_AUTHENTICATIONS))
        async with turn:
            return await self._sessions.authenticate(token, kind)

    def _check_host(self, connection: AnyConnection) -> None:
        host = connection.url.hostname or ""
        # No other site can own an address.
        if host not in self._hosts and parse_address(host) is None:
            raise UnknownHostError(HOST_ADVICE)

    def _check_transport(self, connection: AnyConnection) -> None:
        if self._requires_https and not is_secure(connection):
            raise InsecureTransportError(HTTPS_ADVICE)

    def _check_same_site(self, connection: AnyConnection) -> None:
        site = connection.headers.get("sec-fetch-site")
        origin = connection.headers.get("origin")
        own = find_own_origin(connection.scope, self._public_origin)
        if site in {"cross-site", "same-site"} or (
            origin is not None and not is_same_origin(origin, own)
        ):
            raise CrossSiteError("Send the request from a page of this server, or with an API key.")


async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """Check access. Every route is closed unless it is marked as public.

    It is async without awaiting, because Litestar would run a plain function in a thread. Raises
    `UnauthenticatedError` or `ScopeError`.
    """
    if handler.opt.get(PUBLIC):
        return
    identity: Identity | None = connection.scope["user"]
    if identity is None:
        raise UnauthenticatedError(KEY_ADVICE if handler.opt.get(NEEDS_KEY) else SIGN_IN_ADVICE)
    default: KeyScope = "read" if _get_method(connection.scope) in SAFE_METHODS else "chat"
    needed: KeyScope = handler.opt.get(NEEDS, default)
    if not identity.may(needed):
        raise ScopeError(f"This needs the scope {needed!r}; the key has {identity.scope!r}.")


def provide_identity(request: Request[Identity, Any, Any]) -> Identity:
    return request.user


def _get_method(scope: Scope) -> str:
    return str(scope.get("method", "GET"))


def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


class SessionOpener:
    """Opens sessions in browsers: stores a slot in the database, and sets the cookies."""

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

    def check_transport(self, request: AnyRequest) -> None:
        """Raise `InsecureTransportError` before a password is checked in vain."""
        self._cookies(request, "")

    async def open(
        self,
        request: AnyRequest,
        unlocked: UnlockedAccount,
        body: Any,
        *,
        kind: ActivityKind,
    ) -> Response[Any]:
        """Respond with the cookies of a new session. The token is always new.

        `kind` is the entry's kind in the account's recent activity.
        """
        label = request.headers.get("user-agent", "")
        token = await self._sessions.open_session(unlocked, label=label, is_new=kind == "signed_up")
        await self._activity.note_sign_in(request, unlocked, kind)
        return Response(body, status_code=201, cookies=self._cookies(request, token))

    def _cookies(self, request: AnyRequest, token: str) -> list[Cookie]:
        return make_session_cookies(
            request,
            token,
            seconds=self._seconds,
            csrf=self._csrf,
            plain_networks=self._plain_networks,
        )
