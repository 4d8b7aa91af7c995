"""What opens an account without its password: `/sessions` and `/api-keys`."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS, SHOWN_ONCE, expired_cookies
from backend.accounts.auth.sessions import SessionService, scope_of
from backend.accounts.errors import ApiKeyNotFoundError, SessionNotFoundError
from backend.accounts.models import SLOT_LABEL, KeySlot
from backend.accounts.profile.activity import ActivityLog
from backend.accounts.schemas import ApiKeyView, MadeApiKey, NewApiKey, SessionView
from backend.database.base import now
from backend.errors import BadRequestError, ValidationError
from backend.http.schemas import EXAMPLE, RAISES, Page, PageSize

AnyRequest = Request[Any, Any, Any]


class SessionController(Controller):
    """The account's sessions."""

    path = "/sessions"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="List sessions")
    async def list_sessions(
        self,
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[SessionView]:
        """Where the account is signed in, newest first. A page may be short."""
        slots, following = await sessions.list_slots(identity, "session", after=after, limit=limit)
        return Page(
            next=following,
            items=[
                SessionView(
                    id=slot.id,
                    label=_label(identity, slot),
                    is_current=slot.id == identity.slot_id,
                    created_at=slot.created_at,
                    last_used_at=slot.last_used_at,
                    expires_at=slot.expires_at,
                )
                for slot in slots
            ],
        )

    @delete("/{session_id:str}", opt={RAISES: (SessionNotFoundError,)}, summary="End a session")
    async def end_session(
        self,
        request: AnyRequest,
        session_id: FromPath[str],
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
        activity: NamedDependency[ActivityLog],
    ) -> Response[None]:
        """End a session by its id, or this one with `current`. Its streams close within 5 s."""
        slot_id = identity.slot_id if session_id == "current" else _session_id(session_id)
        await sessions.end(slot_id, owner_id=identity.user_id, kind="session")
        mine = slot_id == identity.slot_id
        await activity.note(request, "signed_out" if mine else "session_ended")
        return Response(None, cookies=expired_cookies(request) if mine else [])


class ApiKeyController(Controller):
    """API keys, for programs: `Authorization: Bearer tk_...`."""

    path = "/api-keys"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listApiKeys", summary="List API keys")
    async def list_keys(
        self,
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ApiKeyView]:
        """The account's API keys, newest first; their tokens are not kept. A page may be short."""
        slots, following = await sessions.list_slots(identity, "api_key", after=after, limit=limit)
        return Page(items=[_key_view(identity, slot) for slot in slots], next=following)

    @post(
        opt={SHOWN_ONCE: True, EXAMPLE: {"label": "A script of mine", "scope": "chat"}},
        operation_id="makeApiKey",
        summary="Create an API key",
    )
    async def make_key(
        self,
        request: AnyRequest,
        data: JSONBody[NewApiKey],
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
        activity: NamedDependency[ActivityLog],
    ) -> MadeApiKey:
        """Make a key. Scopes: `read` looks, `chat` also writes and plays, `manage` may do all.

        Only a session may: an API key that makes others could not be ended by ending it.
        """
        token, slot = await sessions.make_api_key(
            identity,
            label=data.label,
            scope=data.scope,
            expires_at=None if data.expires_at is None else _expiry(data.expires_at),
        )
        await activity.note(request, "api_key_made", detail=f"{data.label} ({data.scope})")
        return MadeApiKey(key=_key_view(identity, slot), token=token)

    @delete(
        "/{key_id:uuid}",
        opt={RAISES: (ApiKeyNotFoundError,)},
        operation_id="endApiKey",
        summary="End an API key",
    )
    async def end_key(
        self,
        request: AnyRequest,
        key_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
        activity: NamedDependency[ActivityLog],
    ) -> None:
        """The key opens nothing from now on."""
        await sessions.end(key_id, owner_id=identity.user_id, kind="api_key")
        await activity.note(request, "api_key_ended")


def _session_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SessionNotFoundError from error


def _expiry(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise BadRequestError("expires_at needs a time zone, such as a trailing Z.")
    try:
        at = at.astimezone(UTC)
    except OverflowError as error:
        raise ValidationError("expires_at is out of range.") from error
    if at <= now():
        raise ValidationError("expires_at must be in the future.")
    return at


def _label(identity: Identity, slot: KeySlot) -> str:
    if slot.sealed_label is None:
        return ""
    return identity.sealer.open(SLOT_LABEL, slot.id, slot.sealed_label)


def _key_view(identity: Identity, slot: KeySlot) -> ApiKeyView:
    return ApiKeyView(
        id=slot.id,
        label=_label(identity, slot),
        scope=scope_of(slot),
        created_at=slot.created_at,
        last_used_at=slot.last_used_at,
        expires_at=slot.expires_at,
    )
