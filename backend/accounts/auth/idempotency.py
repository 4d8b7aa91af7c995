"""`Idempotency-Key`: a write that is sent again is answered as it was the first time.

The answer to a write that was done is kept for a day, sealed, under a keyed hash of the key, and is
given again to the same session or API key alone. Refusals and failures are not kept: nothing was
done, and the next try may succeed. Nor are streams (a turn has an id of its own for that) and
answers that hold a secret that is shown once.

A process may die after it did what was asked, and before the answer is kept; or the database did it
and the connection broke before it said so. So each transaction of such a request also marks its
row. A request that comes again and is marked is not done again: where the service wrote down what
it made (`note_made`), it is answered with that (`made_before`), elsewhere it is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from litestar.connection import Request
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import SAFE_METHODS, SHOWN_ONCE
from backend.accounts.models import IDEMPOTENT_RESPONSE, IdempotentRequest
from backend.core.logs import get_logger
from backend.database.base import new_id, now
from backend.database.engine import (
    EFFECT_NOTE,
    Database,
    DatabaseUnavailableError,
    OvertakenError,
)
from backend.errors import BadRequestError, ConflictError, TooLargeError, ValidationError
from backend.http.schemas import find_max_body_bytes
from backend.vault.sealing import digest

log = get_logger(__name__)

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 200
KEPT_FOR = timedelta(days=1)
GIVEN_UP_AFTER = timedelta(minutes=5)
"""A request that was never answered (its process died) may be sent again after this long."""

MAX_ANSWER_BYTES = 1024 * 1024
KEPT_HEADERS = frozenset({b"content-type", b"etag", b"location"})


class IdempotencyKeyReusedError(ValidationError):
    """The idempotency key was used before, for a different request."""

    slug, title = "idempotency-key-reused", "Idempotency key already used"


class RequestInProgressError(ConflictError):
    """A request with this idempotency key is still being processed."""

    slug, title = "request-in-progress", "The same request is in progress"


class RequestInterruptedError(ConflictError):
    """The request was processed, but its response was lost."""

    slug, title = "request-interrupted", "The response to this request was lost"


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer as it is kept."""

    headers: list[tuple[str, str]]
    body: bytes


class _Work:
    """A request that is worked on; `made_id` is what it made when it came before."""

    def __init__(self, row_id: UUID, made_id: UUID | None = None) -> None:
        self.row_id = row_id
        self.made_id = made_id
        self.is_over = False

    async def note(self, session: AsyncSession) -> None:
        """See `EFFECT_NOTE`. Tasks that go on after the answer have nothing to mark."""
        if not self.is_over:
            await self.mark(session, is_done=True)

    async def mark(self, session: AsyncSession, **values: Any) -> None:
        row = IdempotentRequest.id == self.row_id
        await session.execute(update(IdempotentRequest).where(row).values(**values))


_WORK: ContextVar[_Work | None] = ContextVar("idempotent_work", default=None)


def made_before() -> UUID | None:
    """What the request at hand made when it came before, and was not answered."""
    work = _WORK.get()
    return work.made_id if work else None


async def note_made(session: AsyncSession, thing_id: UUID) -> None:
    """Write down what the request at hand makes, in the transaction that makes it."""
    work = _WORK.get()
    if work is not None:
        await work.mark(session, made_id=thing_id)


class IdempotencyMiddleware(ASGIMiddleware):
    """Stands behind `IdentityMiddleware`: keys belong to accounts."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, database: Database) -> None:
        self._database = database

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Answer again what was answered, else keep the answer."""
        request: Request[Any, Any, Any] = Request(scope, receive, send)
        key = request.headers.get(HEADER)
        identity: Identity | None = scope["user"]
        shown_once = scope["route_handler"].opt.get(SHOWN_ONCE, False)
        if key is None or identity is None or shown_once or request.method in SAFE_METHODS:
            await next_app(scope, receive, send)
            return
        if not (0 < len(key) <= MAX_KEY_LENGTH and key.isprintable()):
            raise BadRequestError(f"{HEADER} has 1 to {MAX_KEY_LENGTH} characters.")
        messages = await _read(receive, largest=find_max_body_bytes(scope))
        work = await self._claim(identity, key, _fingerprint(identity, request, messages))
        if not isinstance(work, _Work):
            await _answer(send, *work)
            return

        async def keep() -> None:
            work.is_over = True
            try:
                await self._keep(identity, work.row_id, taken)
            except (DatabaseUnavailableError, OvertakenError) as error:
                # The client gets its answer. A repeated request finds the marks of the row.
                log.warning("request.answer_not_kept", problem=error.slug, exc_info=error)

        taken = _Taken(send, keep)
        at_work, noting = _WORK.set(work), EFFECT_NOTE.set(work.note)
        try:
            await next_app(scope, _again(messages, receive), taken.send)
        finally:
            EFFECT_NOTE.reset(noting)
            _WORK.reset(at_work)
            await taken.end()

    async def _claim(
        self, identity: Identity, key: str, fingerprint: bytes
    ) -> _Work | tuple[int, KeptAnswer]:
        """The work of a request that is to be done, or the status and answer that it got before."""
        sealer = identity.sealer
        key_digest = digest(sealer.derive_key("idempotency"), identity.slot_id.bytes, key.encode())
        is_same = (
            IdempotentRequest.user_id == identity.user_id,
            IdempotentRequest.key_digest == key_digest,
        )
        row = IdempotentRequest(
            id=new_id(),
            user_id=identity.user_id,
            key_digest=key_digest,
            request_digest=fingerprint,
        )
        try:
            async with self._database.write() as session:
                await session.execute(
                    delete(IdempotentRequest).where(
                        *is_same,
                        IdempotentRequest.status.is_(None),
                        ~IdempotentRequest.is_done,
                        IdempotentRequest.created_at < now() - GIVEN_UP_AFTER,
                    )
                )
                session.add(row)
        except OvertakenError:
            async with self._database.read() as session:
                found = await session.scalar(select(IdempotentRequest).where(*is_same))
        else:
            return _Work(row.id)
        if found is not None and found.request_digest != fingerprint:
            raise IdempotencyKeyReusedError("Create a new key for each request.")
        if found is None or found.status is None or found.sealed_response is None:
            return _unanswered(found)
        data = sealer.open_bytes(IDEMPOTENT_RESPONSE, found.id, found.sealed_response)
        return found.status, msgspec.json.decode(data, type=KeptAnswer)

    async def _keep(self, identity: Identity, row_id: UUID, taken: _Taken) -> None:
        async with self._database.write() as session:
            row = await session.get(IdempotentRequest, row_id)
            if row is None:
                return
            if not taken.is_worth_keeping and not (taken.has_failed and row.is_done):
                await session.delete(row)
                return
            row.status = taken.status
            if taken.is_worth_keeping:
                answer = KeptAnswer(taken.headers, bytes(taken.body))
                row.sealed_response = identity.sealer.seal_bytes(
                    IDEMPOTENT_RESPONSE, row_id, msgspec.json.encode(answer)
                )


def _unanswered(found: IdempotentRequest | None) -> _Work:
    """The work of a request whose answer was lost, to be answered with what it made.

    Raises `RequestInProgressError`, and `RequestInterruptedError` for what was done, and failed or
    was given up afterwards.
    """
    if found is None:
        raise RequestInProgressError("Wait for its response.")
    if found.made_id is not None:
        return _Work(found.id, found.made_id)
    is_over = found.status is not None or found.created_at < now() - GIVEN_UP_AFTER
    if not (found.is_done and is_over):
        raise RequestInProgressError("Wait for its response.")
    raise RequestInterruptedError(
        "At least part of it was done. Check the current state, and send what is missing with a "
        "new key."
    )


async def forget_old(database: Database, *, at: datetime) -> None:
    """Drop answers that were kept for long enough."""
    async with database.write() as session:
        await session.execute(
            delete(IdempotentRequest).where(IdempotentRequest.created_at < at - KEPT_FOR)
        )


class _Taken:
    """An answer, taken down on its way out, and kept before its end is sent."""

    def __init__(self, send: Send, keep: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._keep = keep
        self._is_over = False
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self._is_too_large = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (name.lower().decode("latin-1"), value.decode("latin-1"))
                for name, value in message["headers"]
                if name.lower() in KEPT_HEADERS
            ]
        elif message["type"] == "http.response.body" and not self._is_left_out:
            self._is_too_large = len(self.body) + len(message["body"]) > MAX_ANSWER_BYTES
            self.body += b"" if self._is_too_large else message["body"]
        if message["type"] == "http.response.body" and not message.get("more_body"):
            # Who has the whole answer may send the same request again at once.
            await self.end()
        await self._send(message)

    async def end(self) -> None:
        """Keep it, once."""
        if not self._is_over:
            self._is_over = True
            await self._keep()

    @property
    def _is_left_out(self) -> bool:
        is_stream = any(value.startswith("text/event-stream") for _, value in self.headers)
        return is_stream or self._is_too_large

    @property
    def has_failed(self) -> bool:
        """Whether the request failed on the way, and may have done part of its work."""
        return not self.status or self.status >= 500  # noqa: PLR2004  # the class of faults

    @property
    def is_worth_keeping(self) -> bool:
        """Whether something was done, and its answer is of a size to keep."""
        is_done = 200 <= self.status < 300  # noqa: PLR2004  # the class of success
        return is_done and not self._is_left_out


async def _read(receive: Receive, *, largest: int) -> list[Message]:
    """The request's body, message by message. Raises `TooLargeError`."""
    messages: list[Message] = []
    size = 0
    while True:
        message: Any = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > largest:
            raise TooLargeError(f"Send at most {largest:,} bytes.")
        if not message.get("more_body"):
            return messages


def _fingerprint(
    identity: Identity, request: Request[Any, Any, Any], messages: list[Message]
) -> bytes:
    """What makes two requests the same.

    Of a form without the boundary between its parts, which clients draw anew each time.
    """
    bodies: list[Any] = list(messages)
    body = b"".join(message.get("body", b"") for message in bodies)
    if boundary := request.content_type[1].get("boundary", ""):
        body = body.replace(boundary.encode("latin-1", "replace"), b"")
    return digest(
        identity.sealer.derive_key("idempotency"),
        request.method.encode(),
        request.scope["path"].encode(),
        request.scope["query_string"],
        body,
    )


def _again(messages: list[Message], receive: Receive) -> Receive:
    """The body once more, then whatever comes after it."""
    waiting = iter(messages)

    async def receiving() -> Any:
        return next(waiting, None) or await receive()

    return receiving


async def _answer(send: Send, status: int, answer: KeptAnswer) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    headers += [
        (b"content-length", str(len(answer.body)).encode()),
        (b"idempotency-replayed", b"true"),
    ]
    start: Any = {"type": "http.response.start", "status": status, "headers": headers}
    body: Any = {"type": "http.response.body", "body": answer.body, "more_body": False}
    await send(start)
    await send(body)
