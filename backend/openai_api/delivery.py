"""Send a reply to its client, and stop it if the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from litestar import Response
from litestar.types import ASGIApp, Receive, Scope, Send

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.sessions import SessionWatch
from backend.errors import UnauthenticatedError
from backend.openai_api.streaming import (
    KEEP_ALIVE,
    CompletionReply,
    Failed,
    ReplyCollector,
    ReplyEncoder,
    ReplyEvent,
    ReplyHead,
    UsageReported,
)

KEEP_ALIVE_SECONDS = 10.0
"""Silence after which a stream begins, or gets a comment. Proxies close silent connections."""


class CompletionResponse(Response[Any]):
    """The response with a reply: a stream, or one JSON object.

    The first events decide the status: an error before any text is an HTTP error, which SDKs
    handle better than one inside a stream. If the model is silent, the stream begins without it.
    """

    def __init__(
        self,
        reply: CompletionReply,
        head: ReplyHead,
        identity: Identity,
        watch: SessionWatch,
        *,
        is_stream: bool,
        with_usage: bool,
    ) -> None:
        super().__init__(None)
        self._reply = reply
        self._head = head
        self._identity = identity
        self._watch = watch
        self._is_stream = is_stream
        self._with_usage = with_usage

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIApp:  # type: ignore[override]
        return self._respond

    async def _respond(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the reply until it ends or the client leaves. Raises its error before any text."""
        deliver = self._send_stream if self._is_stream else self._send_object
        with self._watch.watching(self._identity.slot_id):
            async with contextlib.aclosing(self._reply.events()) as events:
                sending = asyncio.create_task(deliver(events, send))
                leaving = asyncio.create_task(_wait_for_disconnect(receive))
                try:
                    await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if sending.done():
                        sending.result()
                finally:
                    await _cancel(leaving)
                    await _cancel(sending)

    async def _send_stream(
        self, events: AsyncGenerator[list[ReplyEvent], None], send: Send
    ) -> None:
        encoder = ReplyEncoder(
            self._head,
            with_usage=self._with_usage,
            for_administrator=self._identity.user.is_administrator,
        )
        has_begun, sent_at = False, time.monotonic()
        async for next_events in events:
            batch = self._check_session(next_events)
            if not batch and time.monotonic() - sent_at < KEEP_ALIVE_SECONDS:
                continue
            if not has_begun:
                _raise_first_error(batch)
                await self._start(send, "text/event-stream")
                has_begun = True
            sent_at = time.monotonic()
            await _send_body(send, encoder.encode(batch) or KEEP_ALIVE)
            if encoder.has_failed:
                break
        if not has_begun:
            await self._start(send, "text/event-stream")
        await _send_body(send, encoder.finish(), is_last=True)

    async def _send_object(
        self, events: AsyncGenerator[list[ReplyEvent], None], send: Send
    ) -> None:
        collector = ReplyCollector(self._head)
        async for batch in events:
            collector.add(self._check_session(batch))
        body = msgspec.json.encode(collector.build())
        await self._start(send, "application/json")
        await _send_body(send, body, is_last=True)

    def _check_session(self, batch: list[ReplyEvent]) -> list[ReplyEvent]:
        """Return the batch, or an error if the API key has been deleted."""
        if self._watch.is_open(self._identity.slot_id):
            return batch
        return [Failed(UnauthenticatedError("The API key has been deleted."))]

    async def _start(self, send: Send, media_type: str) -> None:
        named = {"Content-Type": media_type, "X-Accel-Buffering": "no", **self._reply.headers}
        headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


def _raise_first_error(batch: list[ReplyEvent]) -> None:
    """Raise the error of a reply that has failed before any text."""
    for event in batch:
        match event:
            case Failed(error):
                raise error
            case UsageReported():
                pass
            case _:
                return


async def _send_body(send: Send, data: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": not is_last})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. Its error, if any, was raised before."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
