"""`Idempotency-Key`: a write that is sent again is answered as it was the first time.

The answer to a write that was done is kept for a day, sealed, under a keyed hash of the key, and is
given again to the same session or API key alone. Refusals and failures are not kept: nothing was
done, and the next try may succeed. Nor are streams (a turn has an id of its own for that) and
answers that hold a secret that is shown once.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from litestar.connection import Request
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from backend.accounts.door import SAFE_METHODS, SHOWN_ONCE
from backend.accounts.identity import Identity
from backend.accounts.models import IDEMPOTENT_RESPONSE, IdempotentRequest
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import BadRequestError, ConflictError, TooLargeError, ValidationError
from backend.vault.sealing import digest

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 200
KEPT_FOR = timedelta(days=1)
GIVEN_UP_AFTER = timedelta(minutes=5)
"""A request that was never answered (its process died) may be sent again after this long."""

MAX_ANSWER_BYTES = 1024 * 1024
KEPT_HEADERS = frozenset({b"content-type", b"etag", b"location"})


class IdempotencyKeyReusedError(ValidationError):
    """The key was used before, for another request."""

    slug, title = "idempotency-key-reused", "This idempotency key was used for another request"


class RequestInProgressError(ConflictError):
    """The same request is being worked on."""

    slug, title = "request-in-progress", "The same request is being worked on"


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer as it is kept."""

    headers: list[tuple[str, str]]
    body: bytes


class Claim(NamedTuple):
    """A request that is new, or the answer that it was given before."""

    row_id: UUID
    status: int = 0
    answer: KeptAnswer | None = None


class IdempotencyMiddleware(ASGIMiddleware):
    """Stands behind `IdentityMiddleware`: keys belong to accounts."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, database: Database, *, max_body: int) -> None:
        self._database = database
        self._max_body = max_body

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
        messages = await self._read(receive)
        claim = await self._claim(identity, key, _fingerprint(identity, request, messages))
        if claim.answer is not None:
            await _answer(send, claim.status, claim.answer)
            return
        taken = _Taken()
        try:
            await next_app(scope, _again(messages, receive), taken.listening(send))
        finally:
            await self._keep(identity, claim.row_id, taken)

    async def _read(self, receive: Receive) -> list[Message]:
        """The request's body, message by message. Raises `TooLargeError`."""
        messages: list[Message] = []
        size = 0
        while True:
            message: Any = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise TooLargeError(f"At most {self._max_body:,} bytes are taken.")
            if not message.get("more_body"):
                return messages

    async def _claim(self, identity: Identity, key: str, fingerprint: bytes) -> Claim:
        sealer = identity.sealer
        key_digest = digest(sealer.derived("idempotency"), identity.slot_id.bytes, key.encode())
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
                        IdempotentRequest.user_id == identity.user_id,
                        IdempotentRequest.key_digest == key_digest,
                        IdempotentRequest.status.is_(None),
                        IdempotentRequest.created_at < now() - GIVEN_UP_AFTER,
                    )
                )
                session.add(row)
        except IntegrityError:
            async with self._database.read() as session:
                found = await session.scalar(
                    select(IdempotentRequest).where(
                        IdempotentRequest.user_id == identity.user_id,
                        IdempotentRequest.key_digest == key_digest,
                    )
                )
        else:
            return Claim(row.id)
        if found is not None and found.request_digest != fingerprint:
            raise IdempotencyKeyReusedError("Make a new one for each request.")
        if found is None or found.status is None or found.sealed_response is None:
            raise RequestInProgressError("Wait for its answer.")
        data = sealer.open_bytes(IDEMPOTENT_RESPONSE, found.id, found.sealed_response)
        return Claim(found.id, found.status, msgspec.json.decode(data, type=KeptAnswer))

    async def _keep(self, identity: Identity, row_id: UUID, taken: _Taken) -> None:
        async with self._database.write() as session:
            row = await session.get(IdempotentRequest, row_id)
            if row is None:
                return
            if not taken.is_worth_keeping:
                await session.delete(row)
                return
            row.status = taken.status
            row.sealed_response = identity.sealer.seal_bytes(
                IDEMPOTENT_RESPONSE, row_id, msgspec.json.encode(taken.answer())
            )


async def forget_old(database: Database, *, at: datetime) -> None:
    """Drop answers that were kept for long enough."""
    async with database.write() as session:
        await session.execute(
            delete(IdempotentRequest).where(IdempotentRequest.created_at < at - KEPT_FOR)
        )


class _Taken:
    """An answer, taken down on its way out."""

    def __init__(self) -> None:
        self.status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._size = 0

    def listening(self, send: Send) -> Send:
        """The way out, listened to."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self._headers = [
                    (name.lower(), value)
                    for name, value in message["headers"]
                    if name.lower() in KEPT_HEADERS
                ]
            elif message["type"] == "http.response.body":
                self._size += len(message["body"])
                if not self._is_stream and self._size <= MAX_ANSWER_BYTES:
                    self._parts.append(message["body"])
            await send(message)

        return sending

    @property
    def _is_stream(self) -> bool:
        return any(value.startswith(b"text/event-stream") for _, value in self._headers)

    @property
    def is_worth_keeping(self) -> bool:
        """Whether something was done, and its answer is of a size to keep."""
        is_done = 200 <= self.status < 300  # noqa: PLR2004  # the class of success
        return is_done and not self._is_stream and self._size <= MAX_ANSWER_BYTES

    def answer(self) -> KeptAnswer:
        """The answer, to be kept."""
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers
        ]
        return KeptAnswer(headers, b"".join(self._parts))


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
        identity.sealer.derived("idempotency"),
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
