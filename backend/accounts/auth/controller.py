"""Routes of the installation, sign-up, sign-in, recovery, sessions and API keys."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

import backend
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import (
    NEEDS,
    PUBLIC,
    SHOWN_ONCE,
    SessionOpener,
    make_expired_cookies,
)
from backend.accounts.auth.second_factor.gate import SecondFactorGate
from backend.accounts.auth.sessions import SessionService, read_scope
from backend.accounts.auth.throttle import normalise_address
from backend.accounts.errors import (
    ApiKeyNotFoundError,
    BusyError,
    InsecureTransportError,
    InvitationError,
    NameTakenError,
    RegistrationClosedError,
    SecondFactorRequiredError,
    SessionNotFoundError,
    TamperedAccountError,
    TooManyAttemptsError,
    WeakPasswordError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
    WrongSecondFactorError,
)
from backend.accounts.models import SLOT_LABEL, KeySlot
from backend.accounts.profile.activity import ActivityLog
from backend.accounts.schemas import (
    ApiKeyView,
    LogIn,
    MadeApiKey,
    NewApiKey,
    Recovery,
    SessionView,
    SignedUp,
    SignUp,
    UserView,
)
from backend.accounts.service import AccountService, SignUpState, UnlockedAccount
from backend.database.base import now
from backend.errors import BadRequestError, ValidationError
from backend.http.schemas import EXAMPLE, RAISES, AnyRequest, Page, PageSize

SIGN_IN_ERRORS = (TooManyAttemptsError, InsecureTransportError, BusyError)

EXAMPLE_ACCOUNT = {"username": "Anna", "password": "a fine long password"}


class InstanceView(msgspec.Struct, kw_only=True):
    """The public information about this installation.

    `sign_up` is `first` while there is no account: the first user becomes the administrator. `user`
    is the signed-in account, or null.
    """

    version: str
    sign_up: SignUpState
    user: UserView | None


class InstanceController(Controller):
    path = "/instance"
    tags = ("Accounts",)

    @get(opt={PUBLIC: True}, summary="This installation")
    async def get_instance(
        self,
        request: Request[Identity | None, Any, Any],
        accounts: NamedDependency[AccountService],
    ) -> InstanceView:
        """The version, who may sign up, and the signed-in account."""
        identity = request.user
        return InstanceView(
            version=backend.__version__,
            sign_up=await accounts.find_sign_up_state(),
            user=UserView.from_user(identity.user, accounts.name_of(identity))
            if identity
            else None,
        )


class SignInController(Controller):
    tags = ("Accounts",)
    # A small limit, because anyone can send these requests.
    request_max_body_size = 16_384

    @post(
        "/accounts",
        opt={
            PUBLIC: True,
            RAISES: (
                RegistrationClosedError,
                InvitationError,
                NameTakenError,
                WeakPasswordError,
                *SIGN_IN_ERRORS,
            ),
            EXAMPLE: EXAMPLE_ACCOUNT,
        },
        summary="Sign up",
    )
    async def sign_up(
        self,
        request: AnyRequest,
        data: JSONBody[SignUp],
        accounts: NamedDependency[AccountService],
        auth: NamedDependency[SessionOpener],
    ) -> Response[SignedUp]:
        """Make an account and sign in. The first account becomes the administrator.

        The recovery code is shown only once. Without the password and the code, the account's texts
        are lost: no other key opens them.
        """
        auth.check_transport(request)
        unlocked = await accounts.sign_up(
            data.username, data.password, invitation=data.invitation, address=_get_address(request)
        )
        return await auth.open(request, unlocked, _make_signed_up(unlocked), kind="signed_up")

    @post(
        "/sessions",
        opt={
            PUBLIC: True,
            RAISES: (
                WrongCredentialsError,
                SecondFactorRequiredError,
                WrongSecondFactorError,
                TamperedAccountError,
                *SIGN_IN_ERRORS,
            ),
            EXAMPLE: EXAMPLE_ACCOUNT,
        },
        summary="Sign in",
    )
    async def log_in(
        self,
        request: AnyRequest,
        data: JSONBody[LogIn],
        accounts: NamedDependency[AccountService],
        auth: NamedDependency[SessionOpener],
        second_factor_gate: NamedDependency[SecondFactorGate],
    ) -> Response[UserView]:
        """Open a session. Its cookie authenticates later requests.

        If the account has a second factor, a request with only the right password gets the problem
        `second-factor-required`, which lists the usable factors. Send the request again with `otp`
        or `passkey`.
        """
        auth.check_transport(request)
        address = _get_address(request)
        unlocked = await accounts.unlock(data.username, data.password, address=address)
        await second_factor_gate.enter(request, unlocked, data, address=address)
        body = UserView.from_user(unlocked.user, unlocked.name)
        return await auth.open(request, unlocked, body, kind="signed_in")

    @post(
        "/recoveries",
        opt={
            PUBLIC: True,
            RAISES: (WrongRecoveryCodeError, WeakPasswordError, *SIGN_IN_ERRORS),
        },
        summary="Recover an account",
    )
    async def recover(
        self,
        request: AnyRequest,
        data: JSONBody[Recovery],
        accounts: NamedDependency[AccountService],
        auth: NamedDependency[SessionOpener],
    ) -> Response[SignedUp]:
        """Set a new password with the recovery code. All sessions and API keys end.

        Recovery assumes that someone else may have had access, so everything that opened the
        account before stops working. Second factors are switched off, because the code alone proves
        ownership. A new recovery code is shown.
        """
        auth.check_transport(request)
        unlocked = await accounts.recover(
            data.username, data.recovery_code, data.new_password, address=_get_address(request)
        )
        return await auth.open(request, unlocked, _make_signed_up(unlocked), kind="recovered")


def _make_signed_up(unlocked: UnlockedAccount) -> SignedUp:
    return SignedUp(
        user=UserView.from_user(unlocked.user, unlocked.name), recovery_code=unlocked.recovery_code
    )


def _get_address(request: AnyRequest) -> str:
    return normalise_address(request.client.host) if request.client else ""


class SessionController(Controller):
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
        """The account's sessions, newest first. A page may be short."""
        slots, following = await sessions.list_slots(identity, "session", after=after, limit=limit)
        return Page(
            next=following,
            items=[
                SessionView(
                    id=slot.id,
                    label=_open_label(identity, slot),
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
        slot_id = identity.slot_id if session_id == "current" else _parse_session_id(session_id)
        await sessions.end(slot_id, owner_id=identity.user_id, kind="session")
        mine = slot_id == identity.slot_id
        await activity.note(request, "signed_out" if mine else "session_ended")
        return Response(None, cookies=make_expired_cookies(request) if mine else [])


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
        return Page(items=[_make_key_view(identity, slot) for slot in slots], next=following)

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
        """Make an API key with one of three scopes.

        `read` only reads, `chat` also writes and plays, `manage` allows everything. Only a session
        can make a key. Otherwise deleting an API key would not delete the keys that it made.
        """
        token, slot = await sessions.make_api_key(
            identity,
            label=data.label,
            scope=data.scope,
            expires_at=None if data.expires_at is None else _check_expiry(data.expires_at),
        )
        await activity.note(request, "api_key_made", detail=f"{data.label} ({data.scope})")
        return MadeApiKey(key=_make_key_view(identity, slot), token=token)

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
        """End an API key. It stops working immediately."""
        await sessions.end(key_id, owner_id=identity.user_id, kind="api_key")
        await activity.note(request, "api_key_ended")


def _parse_session_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SessionNotFoundError from error


def _check_expiry(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise BadRequestError("expires_at needs a time zone, such as a trailing Z.")
    try:
        at = at.astimezone(UTC)
    except OverflowError as error:
        raise ValidationError("expires_at is out of range.") from error
    if at <= now():
        raise ValidationError("expires_at must be in the future.")
    return at


def _open_label(identity: Identity, slot: KeySlot) -> str:
    if slot.sealed_label is None:
        return ""
    return identity.sealer.open(SLOT_LABEL, slot.id, slot.sealed_label)


def _make_key_view(identity: Identity, slot: KeySlot) -> ApiKeyView:
    return ApiKeyView(
        id=slot.id,
        label=_open_label(identity, slot),
        scope=read_scope(slot),
        created_at=slot.created_at,
        last_used_at=slot.last_used_at,
        expires_at=slot.expires_at,
    )
