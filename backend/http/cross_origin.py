"""Cross-origin requests of pages on other sites (CORS).

The operator lists the allowed origins. Their pages send an API key as a Bearer token: cookies of
such requests are dropped, and their responses set none. So a page of another site never acts with
the session of the browser's user.

Litestar's own support does not fit, because it answers preflight requests of all paths, and adds
the headers to responses that other middleware has authenticated by a cookie.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from litestar.types import Scope

from backend.core.origins import ANY_ORIGIN, is_same_origin, parse_origin
from backend.http.schemas import API_PREFIXES

Headers = list[tuple[bytes, bytes]]

_METHODS = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_PREFLIGHT_SECONDS = b"7200"
_EXPOSED = (
    b"ETag",
    b"Idempotency-Replayed",
    b"Location",
    b"Retry-After",
    b"X-Request-Id",
    b"X-Should-Retry",
    b"X-Turn-ID",
)
_EXPOSED_PREFIX = b"x-talekeeper-"
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2000}")
"""A list of names of headers."""


class CrossOriginPolicy:
    """The origins of pages that may use the API with a key.

    Args:
        origins: Allowed origins, such as `https://app.example`, or `*` for all.
        public_origin: This server's own origin. Empty for the host of the request.
    """

    def __init__(self, origins: Sequence[str] = (), public_origin: str = "") -> None:
        self._allows_all = ANY_ORIGIN in origins
        self._origins = frozenset(parse_origin(each) for each in origins if each != ANY_ORIGIN)
        self._public_origin = public_origin

    def concerns(self, scope: Scope) -> bool:
        """True if the response depends on the header `Origin`."""
        return bool(self._origins or self._allows_all) and scope["path"].startswith(API_PREFIXES)

    def is_allowed(self, scope: Scope) -> bool:
        """True for a request to the API from a page of an allowed origin other than this server."""
        if not self.concerns(scope):
            return False
        origin = _get_header(scope, b"origin").decode("latin-1")
        if not origin or is_same_origin(origin, find_own_origin(scope, self._public_origin)):
            return False
        try:
            return self._allows_all or parse_origin(origin) in self._origins
        except ValueError:
            return False

    def find_headers(self, scope: Scope, present: Headers) -> Headers:
        """Return the headers to add to the response of an allowed request."""
        own = [name for name, _ in present if name.lower().startswith(_EXPOSED_PREFIX)]
        return [
            (
                b"access-control-allow-origin",
                ANY_ORIGIN.encode() if self._allows_all else _get_header(scope, b"origin"),
            ),
            (b"access-control-expose-headers", b", ".join([*_EXPOSED, *own])),
            (b"cross-origin-resource-policy", b"cross-origin"),
        ]


def is_preflight(scope: Scope) -> bool:
    """True if a browser asks for permission to send another request."""
    wanted = _get_header(scope, b"access-control-request-method")
    return scope.get("method") == "OPTIONS" and bool(wanted)


def make_preflight_headers(scope: Scope) -> Headers:
    """Return the headers of the response to a preflight request, in addition to all others."""
    asked = _get_header(scope, b"access-control-request-headers")
    headers = [
        (b"access-control-allow-methods", _METHODS),
        # `*` would not include `Authorization`.
        (b"access-control-allow-headers", asked if _NAMES.fullmatch(asked) else b""),
        (b"access-control-max-age", _PREFLIGHT_SECONDS),
    ]
    if _get_header(scope, b"access-control-request-private-network"):
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers


def drop_cookies(headers: Headers) -> Headers:
    """Return headers of a request or a response without cookies."""
    return [each for each in headers if each[0].lower() not in {b"cookie", b"set-cookie"}]


def find_own_origin(scope: Scope, public_origin: str) -> str:
    """Return the origin of this server's own pages."""
    return public_origin or f"{scope['scheme']}://{_get_header(scope, b'host').decode('latin-1')}"


def _get_header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
