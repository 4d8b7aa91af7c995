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
from backend.turns.run.events import KEEP_ALIVE, EventPlace, TurnEvent

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
    last: EventPlace,
) -> Response[Any]:
    """Return the events after `last`, or as JSON the turn once it has ended or waits.

    Turns that follow it by themselves belong to the response.
    """
    if not _wants_json(request):
        return stream_events(turns, watch, identity, turn_id, last=last)
    async for _ in _watch_events(turns, watch, identity, turn_id, last=last):
        pass
    return Response(await turns.get(identity, turn_id))


def read_last_event_id(request: AnyRequest) -> EventPlace:
    """Return the place of the client's last event. Raises `BadRequestError`."""
    text = request.headers.get("last-event-id", "").strip()
    if not text:
        return EventPlace()
    turn, colon, number = text.rpartition(":")
    if not number.isdecimal() or len(number) > MAX_EVENT_ID_DIGITS:
        raise BadRequestError("Last-Event-ID must be the id of the last event received.")
    try:
        return EventPlace(int(number), UUID(turn) if colon else None)
    except ValueError as error:
        raise BadRequestError("Last-Event-ID must be the id of the last event received.") from error


def stream_events(
    turns: TurnService, watch: SessionWatch, identity: Identity, turn_id: UUID, *, last: EventPlace
) -> Response[Any]:
    return Stream(
        _encode_events(_watch_events(turns, watch, identity, turn_id, last=last)),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "X-Turn-ID": str(turn_id)},
    )


async def _watch_events(
    turns: TurnService, watch: SessionWatch, identity: Identity, turn_id: UUID, *, last: EventPlace
) -> AsyncIterator[list[TurnEvent]]:
    """Yield the events of a turn while the session of the request is open.

    Raises `UnauthenticatedError` when it ends. A stream is closed then.
    """
    with watch.watching(identity.slot_id):
        async for batch in turns.joined_events(identity, turn_id, last=last, beat=BEAT_SECONDS):
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
