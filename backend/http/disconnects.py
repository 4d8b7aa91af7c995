"""Stops the work of a request when its client disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar.enums import HttpMethod, ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from backend.core.cpu_pool import client_gone
from backend.http.schemas import ENDS_WITH_CLIENT


class DisconnectMiddleware(ASGIMiddleware):
    """Signals to `CpuPool` that the client of an `ENDS_WITH_CLIENT` route has disconnected.

    Only work in the pool stops. A running transaction is never interrupted. Place this after all
    middlewares that read the body, because it reads all messages after the body.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        if not scope["route_handler"].opt.get(ENDS_WITH_CLIENT, False):
            await next_app(scope, receive, send)
            return
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch: asyncio.Task[None] | None = None

        async def watch_connection() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set_result(None)

        async def receive_and_watch() -> Any:
            nonlocal watch
            if watch is not None:
                await asyncio.shield(gone)
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                watch = asyncio.create_task(watch_connection())
            return message

        if scope.get("method") == HttpMethod.GET:  # without a body, no one reads
            watch = asyncio.create_task(watch_connection())
        token = client_gone.set(gone)
        try:
            await next_app(scope, receive_and_watch, send)
        finally:
            client_gone.reset(token)
            if watch is not None:
                watch.cancel()
