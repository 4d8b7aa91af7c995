"""Checks the quotas of a request before its body is read."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS, SAFE_METHODS
from backend.accounts.auth.throttle import normalise_address
from backend.http.schemas import (
    API_PREFIXES,
    CHUNKS,
    PREVIEWS,
    STORES,
    STREAMS,
    STREAMS_BODY,
    find_max_body_bytes,
)
from backend.quotas.limits import STORED_BYTES
from backend.quotas.service import Quotas

REQUEST_TIMEOUT_SECONDS = 30.0
"""Time that a request waits for others of the same account."""
MAX_WAITING_REQUESTS = 200
"""Maximum number of waiting requests of one account."""
UPLOAD_TIMEOUT_SECONDS = 30.0
"""Time that an upload waits for an earlier one."""
STREAMED_BODY_BYTES = 4 * 1024 * 1024
"""Bytes of a streamed body that are in memory at the same time."""
MAX_WAITING_UPLOADS = 8
"""Maximum number of waiting uploads of one account."""


class QuotaMiddleware(ASGIMiddleware):
    """Place it after `IdentityMiddleware`, and before anything that reads the body.

    Args:
        upload_above: A route is for uploads if its maximum body size in bytes is larger than this.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, quotas: Quotas, *, upload_above: int) -> None:
        self._quotas = quotas
        self._upload_above = upload_above

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Handle a request. Raises `QuotaExceededError` and `StorageQuotaExceededError`."""
        if not scope.get("path_template", "").startswith(API_PREFIXES):
            await next_app(scope, receive, send)
            return
        identity: Identity | None = scope["user"]
        if identity is None:
            client = scope.get("client")
            self._quotas.count_from_address(normalise_address(client[0]) if client else "")
            await next_app(scope, receive, send)
            return
        async with contextlib.AsyncExitStack() as held, contextlib.AsyncExitStack() as body:
            await self._reserve(scope, identity.user_id, held=held, body=body)

            async def send_and_release(message: Message) -> None:
                # The body has been read and parsed.
                if message["type"] == "http.response.start":
                    await body.aclose()
                await send(message)

            await next_app(scope, receive, send_and_release)

    async def _reserve(
        self,
        scope: Scope,
        user_id: UUID,
        *,
        held: contextlib.AsyncExitStack,
        body: contextlib.AsyncExitStack,
    ) -> None:
        """Reserve the quotas of a request. `body` releases those of its body.

        Requests of one account wait here, before they use the database, so that one account cannot
        occupy all connections.
        """
        quotas, opt = self._quotas, scope["route_handler"].opt
        method = str(scope.get("method", "GET"))
        is_safe = method in SAFE_METHODS
        if not (opt.get(STREAMS) and is_safe):  # streams have a separate limit
            quotas.count_request(user_id)
        size, largest = _body_size(scope), find_max_body_bytes(scope)
        takes_files = largest > self._upload_above
        streams_body = opt.get(STREAMS_BODY, False)
        if opt.get(STREAMS) or opt.get(CHUNKS) or streams_body:
            held.enter_context(quotas.streams.hold(user_id))
        elif not takes_files:
            waiting = quotas.requests_at_once.wait(
                user_id, patience=REQUEST_TIMEOUT_SECONDS, queue=MAX_WAITING_REQUESTS
            )
            await held.enter_async_context(waiting)
        elif size != 0:
            uploading = quotas.uploads.wait(
                user_id, patience=UPLOAD_TIMEOUT_SECONDS, queue=MAX_WAITING_UPLOADS
            )
            await body.enter_async_context(uploading)
        if size != 0:
            most = STREAMED_BODY_BYTES if streams_body else largest
            expected = most if size is None else min(size, most)
            body.enter_context(quotas.upload_bytes.hold(user_id, expected))
        if not is_safe and _adds(method, opt):
            await quotas.check(STORED_BYTES, user_id, adding=size or 0)
        if opt.get(PREVIEWS):
            held.enter_context(quotas.previews.hold(user_id))


def _body_size(scope: Scope) -> int | None:
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    announced = headers.get(b"content-length", b"0")
    return int(announced) if announced.isdigit() else None


def _adds(method: str, opt: dict[str, Any]) -> bool:
    """True if a writing route increases the account's storage.

    Routes with another scope change the account itself, or store nothing.
    """
    stores: bool = opt.get(STORES, True)
    return method != "DELETE" and opt.get(NEEDS, "chat") == "chat" and stores
