"""Accounts, sessions, API keys, administration: `/accounts`, `/sessions`, `/me`, ..."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.door import (
    NEEDS,
    PUBLIC,
    Door,
    expired_cookies,
)
from backend.accounts.errors import SessionNotFoundError
from backend.accounts.identity import Identity
from backend.accounts.models import SLOT_LABEL, KeySlot
from backend.accounts.profile import ProfileService
from backend.accounts.schemas import (
    ApiKeyView,
    Confirmation,
    LogIn,
    MadeApiKey,
    NewApiKey,
    PasswordChange,
    Recovery,
    RecoveryCode,
    SessionView,
    SignedUp,
    SignUp,
    UserView,
)
from backend.accounts.service import AccountService
from backend.accounts.sessions import SessionService
from backend.accounts.settings import UserSettings
from backend.errors import BadRequestError
from backend.wire import Page, etag

AnyRequest = Request[Any, Any, Any]


class DoorController(Controller):
    """Signing up, in and out, and getting back in."""

    tags = ("Accounts",)

    @post("/accounts", opt={PUBLIC: True}, operation_id="signUp", summary="Sign up")
    async def sign_up(
        self,
        request: AnyRequest,
        data: JSONBody[SignUp],
        accounts: NamedDependency[AccountService],
        door: NamedDependency[Door],
    ) -> Response[SignedUp]:
        """Make an account and sign in. The first account becomes the administrator.

        The recovery code is shown this once: whoever loses the password and the code loses the
        texts, for nobody else has a key to them.
        """
        door.check_transport(request)
        unlocked = await accounts.sign_up(data.username, data.password, invitation=data.invitation)
        body = SignedUp(
            user=UserView.of(unlocked.user, unlocked.name), recovery_code=unlocked.recovery_code
        )
        return await door.open(request, unlocked, body, status=201)

    @post("/sessions", opt={PUBLIC: True}, operation_id="logIn", summary="Log in")
    async def log_in(
        self,
        request: AnyRequest,
        data: JSONBody[LogIn],
        accounts: NamedDependency[AccountService],
        door: NamedDependency[Door],
    ) -> Response[UserView]:
        """Open a session; its cookie signs later requests in."""
        door.check_transport(request)
        unlocked = await accounts.unlock(data.username, data.password, address=_address(request))
        return await door.open(
            request, unlocked, UserView.of(unlocked.user, unlocked.name), status=201
        )

    @post("/recoveries", opt={PUBLIC: True}, operation_id="recover", summary="Recover an account")
    async def recover(
        self,
        request: AnyRequest,
        data: JSONBody[Recovery],
        accounts: NamedDependency[AccountService],
        door: NamedDependency[Door],
    ) -> Response[SignedUp]:
        """Set a new password with the recovery code. Other sessions end; a new code is shown."""
        door.check_transport(request)
        unlocked = await accounts.recover(
            data.username, data.recovery_code, data.new_password, address=_address(request)
        )
        body = SignedUp(
            user=UserView.of(unlocked.user, unlocked.name), recovery_code=unlocked.recovery_code
        )
        return await door.open(request, unlocked, body, status=201)


class SessionController(Controller):
    """The account's sessions."""

    path = "/sessions"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listSessions", summary="List sessions")
    async def list_sessions(
        self, identity: NamedDependency[Identity], sessions: NamedDependency[SessionService]
    ) -> Page[SessionView]:
        """Where the account is signed in."""
        return Page(
            items=[
                SessionView(
                    id=slot.id,
                    label=_label(identity, slot),
                    is_current=slot.id == identity.slot_id,
                    created_at=slot.created_at,
                    last_used_at=slot.last_used_at,
                    expires_at=slot.expires_at,
                )
                for slot in await sessions.list_slots(identity, "session")
            ]
        )

    @delete("/{session_id:str}", operation_id="endSession", summary="End a session")
    async def end_session(
        self,
        request: AnyRequest,
        session_id: FromPath[str],
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
    ) -> Response[None]:
        """End a session by its id, or this one with `current`. Its streams close within 5 s."""
        slot_id = identity.slot_id if session_id == "current" else _session_id(session_id)
        await sessions.end(slot_id, owner_id=identity.user_id, kind="session")
        mine = slot_id == identity.slot_id
        return Response(None, cookies=expired_cookies(request) if mine else [])


class MeController(Controller):
    """The account that asks."""

    path = "/me"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(opt={NEEDS: "read"}, operation_id="getMe", summary="Who am I")
    async def get_me(
        self, identity: NamedDependency[Identity], accounts: NamedDependency[AccountService]
    ) -> UserView:
        """The account that asks."""
        return _own_view(identity, accounts)

    @patch(operation_id="changeMe", summary="Change the key mode")
    async def change_me(
        self,
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        accounts: NamedDependency[AccountService],
        profile: NamedDependency[ProfileService],
    ) -> UserView:
        """Set `key_mode`.

        `per_job` lets work that a reply causes finish while you are away, `sealed` lets it run
        only while you are signed in.
        """
        user = await profile.patch_account(identity, data)
        return UserView.of(user, accounts.name_of(identity))

    @delete(operation_id="deleteMe", summary="Delete the account")
    async def delete_me(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        accounts: NamedDependency[AccountService],
    ) -> Response[None]:
        """Delete the account and everything in it: its keys first, so that nothing is readable."""
        await accounts.confirm_password(identity, data.password)
        await accounts.delete(identity.user_id)
        return Response(None, cookies=expired_cookies(request))

    @post("/password", status_code=204, operation_id="changePassword", summary="Change password")
    async def change_password(
        self,
        data: JSONBody[PasswordChange],
        identity: NamedDependency[Identity],
        accounts: NamedDependency[AccountService],
    ) -> None:
        """Replace the password. Every other session ends; API keys go on."""
        await accounts.change_password(identity, data.current_password, data.new_password)

    @post("/recovery-code", operation_id="newRecoveryCode", summary="New recovery code")
    async def new_recovery_code(
        self,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        accounts: NamedDependency[AccountService],
    ) -> RecoveryCode:
        """Make a new recovery code; the old one no longer works."""
        return RecoveryCode(recovery_code=await accounts.new_recovery_code(identity, data.password))

    @get("/settings", opt={NEEDS: "read"}, operation_id="getSettings", summary="Read settings")
    async def get_settings(self, identity: NamedDependency[Identity]) -> Response[UserSettings]:
        """Defaults of the account's chats."""
        return Response(identity.settings, headers={"ETag": etag(identity.settings_revision)})

    @patch("/settings", operation_id="patchSettings", summary="Change settings")
    async def patch_settings(
        self,
        request: AnyRequest,
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        profile: NamedDependency[ProfileService],
    ) -> Response[UserSettings]:
        """Merge into the settings: what is absent stays, null goes back to the default."""
        settings, revision = await profile.patch_settings(
            identity, data, if_match=request.headers.get("if-match")
        )
        return Response(settings, headers={"ETag": etag(revision)})


class ApiKeyController(Controller):
    """API keys, for programs: `Authorization: Bearer tk_...`."""

    path = "/api-keys"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listApiKeys", summary="List API keys")
    async def list_keys(
        self, identity: NamedDependency[Identity], sessions: NamedDependency[SessionService]
    ) -> Page[ApiKeyView]:
        """The account's API keys; their tokens are not kept."""
        slots = await sessions.list_slots(identity, "api_key")
        return Page(items=[_key_view(identity, slot) for slot in slots])

    @post(operation_id="makeApiKey", summary="Make an API key")
    async def make_key(
        self,
        data: JSONBody[NewApiKey],
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
    ) -> MadeApiKey:
        """Make a key. Scopes: `read` looks, `chat` also writes and plays, `manage` may do all."""
        if data.expires_at is not None and data.expires_at.tzinfo is None:
            raise BadRequestError("expires_at needs a time zone, such as a final Z.")
        token, slot = await sessions.make_api_key(
            identity, label=data.label, scope=data.scope, expires_at=data.expires_at
        )
        return MadeApiKey(key=_key_view(identity, slot), token=token)

    @delete("/{key_id:uuid}", operation_id="endApiKey", summary="End an API key")
    async def end_key(
        self,
        key_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        sessions: NamedDependency[SessionService],
    ) -> None:
        """The key opens nothing from now on."""
        await sessions.end(key_id, owner_id=identity.user_id, kind="api_key")


CONTROLLERS = (
    DoorController,
    SessionController,
    MeController,
    ApiKeyController,
)


def _address(request: AnyRequest) -> str:
    return request.client.host if request.client else ""


def _session_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SessionNotFoundError from error


def _own_view(identity: Identity, accounts: AccountService) -> UserView:
    return UserView(
        id=identity.user_id,
        username=accounts.name_of(identity),
        is_administrator=identity.is_administrator,
        key_mode=identity.key_mode,
        created_at=identity.created_at,
    )


def _label(identity: Identity, slot: KeySlot) -> str:
    if slot.sealed_label is None:
        return ""
    return identity.sealer.open(SLOT_LABEL, slot.id, slot.sealed_label)


def _key_view(identity: Identity, slot: KeySlot) -> ApiKeyView:
    return ApiKeyView(
        id=slot.id,
        label=_label(identity, slot),
        scope=slot.scope,
        created_at=slot.created_at,
        last_used_at=slot.last_used_at,
        expires_at=slot.expires_at,
    )
