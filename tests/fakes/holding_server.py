"""An OpenAI-compatible server that holds up what a test names, until it is let go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Request


class HoldingServer(OpenAIServer):
    """Answers as it is told; a subclass says in `holds` what waits while a test is `thinking`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.is_opened = asyncio.Event(), asyncio.Event()
        self.is_opened.set()

    def holds(self, request: Request) -> bool:
        """Whether a request is of what is held up."""
        return bool(request.body)

    @contextlib.asynccontextmanager
    async def thinking(self) -> AsyncGenerator[asyncio.Event]:
        """For the length of the block what is held up is not answered; set once it is asked for."""
        self.is_reached, self.is_opened = asyncio.Event(), asyncio.Event()
        try:
            yield self.is_reached
        finally:
            self.is_opened.set()

    async def _answer(
        self,
        request: Request,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        if self.holds(request):
            self.is_reached.set()
            await self.is_opened.wait()
        return await super()._answer(request, answer, reader, writer)
