"""`Idempotency-Key`: a repeated write gets the response of the first one.

The response of a successful write is stored for a day, sealed, under a keyed hash of the key. Only
the same session or API key gets it again. Errors are not stored, because nothing was done and the
next attempt may succeed. Streams are not stored, because a turn has an id for that. Responses with
a secret that is shown once are not stored either.

A process may end after the write and before the response is stored. The connection to the database
may also break after a commit and before its confirmation. So each transaction of such a request
also marks its row. A repeated request whose row is marked is not executed again. If the service
recorded the created id (`record_made`), the response is made from that id (`find_made_id`).
Otherwise the request is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
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
from backend.http.schemas import STREAMS_BODY, AnyRequest, find_max_body_bytes
from backend.vault.sealing import digest

log = get_logger(__name__)

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 200
RESPONSE_RETENTION = timedelta(days=1)
CLAIM_TIMEOUT = timedelta(minutes=5)
"""A request without a response may be repeated after this time, because its process has ended."""

MAX_RESPONSE_BYTES = 1024 * 1024
STORED_HEADERS = frozenset({b"content-type", b"etag", b"location"})


class IdempotencyKeyReusedError(ValidationError):
    """The idempotency key was used before, for a different request."""

    slug, title = "idempotency-key-reused", "Idempotency key already used"


class RequestInProgressError(ConflictError):
    """A request with this idempotency key is still being processed."""

    slug, title = "request-in-progress", "The same request is in progress"


class RequestInterruptedError(ConflictError):
    """The request was processed, but its response was lost."""

    slug, title = "request-interrupted", "The response to this request was lost"


class StoredResponse(msgspec.Struct, frozen=True):
    headers: list[tuple[str, str]]
    body: bytes


class _RequestClaim:
    """A claim to execute a request. `made_id` is the id that an earlier execution created."""

    def __init__(self, row_id: UUID, made_id: UUID | None = None) -> None:
        self.row_id = row_id
        self.made_id = made_id
        self.is_over = False

    async def note(self, session: AsyncSession) -> None:
        """Mark the row. Tasks that continue after the response mark nothing."""
        if not self.is_over:
            await self.mark(session, is_done=True)

    async def mark(self, session: AsyncSession, **values: Any) -> None:
        row = IdempotentRequest.id == self.row_id
        await session.execute(update(IdempotentRequest).where(row).values(**values))


_CLAIM: ContextVar[_RequestClaim | None] = ContextVar("idempotent_claim", default=None)


def find_made_id() -> UUID | None:
    """Return the id that an earlier execution of the current request created."""
    claim = _CLAIM.get()
    return claim.made_id if claim else None


async def record_made(session: AsyncSession, thing_id: UUID) -> None:
    """Record the id that the current request creates, in the transaction that creates it."""
    claim = _CLAIM.get()
    if claim is not None:
        await claim.mark(session, made_id=thing_id)


class IdempotencyMiddleware(ASGIMiddleware):
    """Repeats stored responses. Runs after `IdentityMiddleware`: keys belong to accounts."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, database: Database) -> None:
        self._database = database

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        request: AnyRequest = Request(scope, receive, send)
        key = request.headers.get(HEADER)
        identity: Identity | None = scope["user"]
        shown_once = scope["route_handler"].opt.get(SHOWN_ONCE, False)
        if key is None or identity is None or shown_once or request.method in SAFE_METHODS:
            await next_app(scope, receive, send)
            return
        if not (0 < len(key) <= MAX_KEY_LENGTH and key.isprintable()):
            raise BadRequestError(f"{HEADER} has 1 to {MAX_KEY_LENGTH} characters.")
        messages: list[Message] = []
        if not scope["route_handler"].opt.get(STREAMS_BODY, False):
            messages = await _read_body(receive, largest=find_max_body_bytes(scope))
        claim = await self._claim(identity, key, _make_fingerprint(identity, request, messages))
        if not isinstance(claim, _RequestClaim):
            await _send_response(send, *claim)
            return

        async def store() -> None:
            claim.is_over = True
            try:
                await self._store(identity, claim.row_id, recorder)
            except (DatabaseUnavailableError, OvertakenError) as error:
                # The client gets its response. A repeated request finds the marks of the row.
                log.warning("request.answer_not_kept", problem=error.slug, exc_info=error)

        recorder = _ResponseRecorder(send, store)
        claim_token, note_token = _CLAIM.set(claim), EFFECT_NOTE.set(claim.note)
        try:
            await next_app(scope, _replay_body(messages, receive), recorder.send)
        finally:
            EFFECT_NOTE.reset(note_token)
            _CLAIM.reset(claim_token)
            await recorder.end()

    async def _claim(
        self, identity: Identity, key: str, fingerprint: bytes
    ) -> _RequestClaim | tuple[int, StoredResponse]:
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
                        IdempotentRequest.created_at < now() - CLAIM_TIMEOUT,
                    )
                )
                session.add(row)
        except OvertakenError:
            async with self._database.read() as session:
                found = await session.scalar(select(IdempotentRequest).where(*is_same))
        else:
            return _RequestClaim(row.id)
        if found is not None and found.request_digest != fingerprint:
            raise IdempotencyKeyReusedError("Create a new key for each request.")
        if found is None or found.status is None or found.sealed_response is None:
            return _resume_claim(found)
        data = sealer.open_bytes(IDEMPOTENT_RESPONSE, found.id, found.sealed_response)
        return found.status, msgspec.json.decode(data, type=StoredResponse)

    async def _store(self, identity: Identity, row_id: UUID, recorder: _ResponseRecorder) -> None:
        async with self._database.write() as session:
            row = await session.get(IdempotentRequest, row_id)
            if row is None:
                return
            if not recorder.can_be_stored and not (recorder.has_failed and row.is_done):
                await session.delete(row)
                return
            row.status = recorder.status
            if recorder.can_be_stored:
                answer = StoredResponse(recorder.headers, bytes(recorder.body))
                row.sealed_response = identity.sealer.seal_bytes(
                    IDEMPOTENT_RESPONSE, row_id, msgspec.json.encode(answer)
                )


def _resume_claim(found: IdempotentRequest | None) -> _RequestClaim:
    """Return a claim for the request if its response was lost and it created an id.

    Raises `RequestInProgressError`. Raises `RequestInterruptedError` if the request was executed,
    and then failed or was abandoned.
    """
    if found is None:
        raise RequestInProgressError("Wait for its response.")
    if found.made_id is not None:
        return _RequestClaim(found.id, found.made_id)
    is_over = found.status is not None or found.created_at < now() - CLAIM_TIMEOUT
    if not (found.is_done and is_over):
        raise RequestInProgressError("Wait for its response.")
    raise RequestInterruptedError(
        "At least part of it was done. Check the current state, and send what is missing with a "
        "new key."
    )


class _ResponseRecorder:
    """Records a response while it is sent, and stores it before its last part is sent."""

    def __init__(self, send: Send, store: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._store = store
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
                if name.lower() in STORED_HEADERS
            ]
        elif message["type"] == "http.response.body" and not self._is_excluded:
            self._is_too_large = len(self.body) + len(message["body"]) > MAX_RESPONSE_BYTES
            self.body += b"" if self._is_too_large else message["body"]
        if message["type"] == "http.response.body" and not message.get("more_body"):
            # Stored first, because a client may repeat the request as soon as it has the whole
            # response.
            await self.end()
        await self._send(message)

    async def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            await self._store()

    @property
    def _is_excluded(self) -> bool:
        is_stream = any(value.startswith("text/event-stream") for _, value in self.headers)
        return is_stream or self._is_too_large

    @property
    def has_failed(self) -> bool:
        """True if the request failed, and may have done part of its work."""
        return not self.status or self.status >= 500  # noqa: PLR2004  # the class of faults

    @property
    def can_be_stored(self) -> bool:
        is_done = 200 <= self.status < 300  # noqa: PLR2004  # the class of success
        return is_done and not self._is_excluded


async def _read_body(receive: Receive, *, largest: int) -> list[Message]:
    """Raises `TooLargeError`."""
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


def _make_fingerprint(identity: Identity, request: AnyRequest, messages: list[Message]) -> bytes:
    """Return a digest that is equal for equal requests.

    It leaves out the boundary of a form, because clients make a new one for each request.
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


def _replay_body(messages: list[Message], receive: Receive) -> Receive:
    """Return a `receive` that yields the body again, and then the messages that follow."""
    waiting = iter(messages)

    async def receiving() -> Any:
        return next(waiting, None) or await receive()

    return receiving


async def _send_response(send: Send, status: int, answer: StoredResponse) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    headers += [
        (b"content-length", str(len(answer.body)).encode()),
        (b"idempotency-replayed", b"true"),
    ]
    start: Any = {"type": "http.response.start", "status": status, "headers": headers}
    body: Any = {"type": "http.response.body", "body": answer.body, "more_body": False}
    await send(start)
    await send(body)
