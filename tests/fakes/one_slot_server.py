"""An OpenAI-compatible server that answers one request at a time.

    async with OneSlotServer() as server:
        server.background = held_back(gate)   # what work beside replies is answered
        server.script(reply("Well met."))     # what turns are answered

It notices at once that a client has hung up, as llama.cpp does, or only before it sends the next
chunk, as llama-cpp-python does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Literal

from tests.fakes.openai_server import OpenAIServer, chunk, reply, stream
from tests.fakes.scripted_server import (
    Answer,
    Exchange,
    Gate,
    Request,
    send_end,
    send_event,
    send_head,
)

SUMMARY = "Task: rolling summary"

TRIAGE = json.dumps({"why": "Nothing happened.", "significant": False, "kinds": []})


def is_background(request: Request) -> bool:
    """True if a request is for background work."""
    body: dict[str, Any] = request.body or {}
    messages: list[dict[str, Any]] = body.get("messages", [{}])
    system = str(messages[0].get("content", ""))
    return "response_format" in body or "tools" in body or system.startswith(SUMMARY)


def never_ending() -> Answer:
    """A stream that goes on until the client hangs up."""
    return stream(chunk(content="{"), Gate())


class OneSlotServer(OpenAIServer):
    """Answers one request at a time.

    Attributes:
        notices: When it notices that a client has hung up.
        slots: What `/slots` says; 0 for a server without that route.
        seconds: How long it thinks before each chunk.
        background: Answers to work beside replies, in order; then the agent finds nothing to keep,
            and summaries are one sentence.
        begun: Requests in the order in which their answers were begun.
        dropped: Those whose client hung up before the end.
        most: How many requests it had at the same time.
    """

    def __init__(
        self,
        notices: Literal["at once", "between chunks"] = "at once",
        *,
        slots: int = 0,
        seconds: float = 0.0,
    ) -> None:
        super().__init__()
        self.notices = notices
        self.slots = slots
        self.seconds = seconds
        self.background: deque[Answer] = deque()
        self._replies: deque[Answer] = deque()
        self.begun: list[Request] = []
        self.dropped: list[Request] = []
        self.here = self.most = 0
        self._slot = asyncio.Semaphore(slots or 1)

    def script(self, *answers: Answer) -> None:
        """Answer the next requests for replies with these."""
        self._replies.extend(answers)

    def usual(self, request: Request) -> Answer:
        if request.path == "/slots" and self.slots:
            return Answer(body=[{"id": number} for number in range(self.slots)])
        if not request.path.endswith("/completions"):
            return Answer(status=404, body={})
        if not is_background(request):
            return self._replies.popleft() if self._replies else super().usual(request)
        if self.background:
            return self.background.popleft()
        has_schema = "response_format" in request.body
        return reply(TRIAGE if has_schema else "They talked about the rain.")

    async def respond(self, exchange: Exchange) -> bool:
        request, answer, reader, writer = exchange
        if answer.events is None or not self.wants_stream(request):
            return await super().respond(exchange)
        async with self._visit(), self._slot:
            self.begun.append(request)
            is_complete = await self._send(answer, reader, writer)
        if not is_complete:
            self.dropped.append(request)
            self.hung_up.set()
        return is_complete

    @contextlib.asynccontextmanager
    async def _visit(self) -> AsyncGenerator[None]:
        self.here += 1
        self.most = max(self.most, self.here)
        try:
            yield
        finally:
            self.here -= 1

    async def _send(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send an answer. False if the client has hung up."""
        sending = asyncio.ensure_future(self._send_chunks(answer, reader, writer))
        if self.notices == "between chunks":
            return await sending
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        is_complete = sending.done() and sending.result()
        for task in (sending, leaving):
            task.cancel()
        await asyncio.wait((sending, leaving))
        return is_complete

    async def _send_chunks(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await send_head(answer, writer)
        for event in answer.events or ():
            await asyncio.sleep(self.seconds)
            if isinstance(event, Gate):
                await event.opened.wait()
                continue
            if reader.at_eof():
                return False
            assert isinstance(event, dict | str)
            await send_event(event, writer)
        await send_end(writer)
        return True
