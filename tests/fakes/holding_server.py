"""An OpenAI-compatible server that delays some requests until a test releases them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Exchange, Request


class HoldingServer(OpenAIServer):
    """Delays the requests that `holds` selects during `thinking`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.is_opened = asyncio.Event(), asyncio.Event()
        self.is_opened.set()

    def holds(self, request: Request) -> bool:
        """True if the request is delayed."""
        return bool(request.body)

    @contextlib.asynccontextmanager
    async def thinking(self) -> AsyncGenerator[asyncio.Event]:
        """Delay requests until the block ends. The event is set by the first delayed request."""
        self.is_reached, self.is_opened = asyncio.Event(), asyncio.Event()
        try:
            yield self.is_reached
        finally:
            self.is_opened.set()

    async def respond(self, exchange: Exchange) -> bool:
        if self.holds(exchange.request):
            self.is_reached.set()
            await self.is_opened.wait()
        return await super().respond(exchange)
