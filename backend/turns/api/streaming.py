"""Responses with turns: server-sent events, or the turn as JSON once it has ended."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from litestar import Response
from litestar.response import Stream

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.sessions import SessionWatch
from backend.errors import BadRequestError, UnauthenticatedError
from backend.http.schemas import AnyRequest
from backend.turns.api.service import TurnService
from backend.turns.run.events import KEEP_ALIVE, TurnEvent

KEEP_ALIVE_SECONDS = 15.0

MAX_EVENT_ID_DIGITS = 18
"""Event ids count characters, so they stay far below this length."""

BEAT_SECONDS = 2.0
"""The interval at which a stream checks whether its session is still open."""


def _wants_json(request: AnyRequest) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


async def make_response(
    request: AnyRequest,
    turns: TurnService,
    watch: SessionWatch,
    identity: Identity,
    turn_id: UUID,
    *,
    last_id: int,
) -> Response[Any]:
    """Return the events after `last_id`, or as JSON the turn once it has ended or waits."""
    if not _wants_json(request):
        return stream_events(turns, watch, identity, turn_id, last_id=last_id)
    async for _ in _watch_events(turns, watch, identity, turn_id, last_id=last_id):
        pass
    return Response(await turns.get(identity, turn_id))


def read_last_event_id(request: AnyRequest) -> int:
    """Return the id of the client's last event. 0 for none. Raises `BadRequestError`."""
    text = request.headers.get("last-event-id", "").strip()
    if not text:
        return 0
    if not text.isdecimal() or len(text) > MAX_EVENT_ID_DIGITS:
        raise BadRequestError("Last-Event-ID must be the number of the last event received.")
    return int(text)


def stream_events(
    turns: TurnService, watch: SessionWatch, identity: Identity, turn_id: UUID, *, last_id: int
) -> Response[Any]:
    return Stream(
        _encode_events(_watch_events(turns, watch, identity, turn_id, last_id=last_id)),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "X-Turn-ID": str(turn_id)},
    )


async def _watch_events(
    turns: TurnService, watch: SessionWatch, identity: Identity, turn_id: UUID, *, last_id: int
) -> AsyncIterator[list[TurnEvent]]:
    """Yield the events of a turn while the session of the request is open.

    Raises `UnauthenticatedError` when it ends. A stream is closed then.
    """
    with watch.watching(identity.slot_id):
        async for batch in turns.events(identity, turn_id, last_id=last_id, beat=BEAT_SECONDS):
            if not watch.is_open(identity.slot_id):
                raise UnauthenticatedError("The session has ended. The turn continues.")
            yield batch


async def _encode_events(events: AsyncIterator[list[TurnEvent]]) -> AsyncIterator[bytes]:
    spoke_at = time.monotonic()
    try:
        async for batch in events:
            if batch:
                spoke_at = time.monotonic()
                yield b"".join(event.encode() for event in batch)
            elif time.monotonic() - spoke_at >= KEEP_ALIVE_SECONDS:
                spoke_at = time.monotonic()
                yield KEEP_ALIVE
    except UnauthenticatedError:
        return
