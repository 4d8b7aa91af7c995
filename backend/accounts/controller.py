"""Accounts: signing up, in, and back in; the account that asks (`/me`)."""

from typing import Any

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backend.accounts.errors import (
    BusyError,
    InsecureTransportError,
    InvitationError,
    KeysChangedError,
    LastAdministratorError,
    NameTakenError,
    RegistrationClosedError,
    SecondFactorRequiredError,
    TamperedAccountError,
    TooManyAttemptsError,
    TooManyDataKeysError,
    WeakPasswordError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
    WrongSecondFactorError,
)
from backend.accounts.identity import Identity
from backend.accounts.middleware import NEEDS, PUBLIC, SHOWN_ONCE, AuthMiddleware, expired_cookies
from backend.accounts.profile import ProfileService
from backend.accounts.recent_activity.log import ActivityLog, event_of
from backend.accounts.schemas import (
    AccountPatch,
    Confirmation,
    LogIn,
    PasswordChange,
    Recovery,
    RecoveryCode,
    SignedUp,
    SignUp,
    UserView,
)
from backend.accounts.second_factor.asking import SecondFactorGate
from backend.accounts.second_factor.check import Proof
from backend.accounts.service import AccountService
from backend.accounts.settings import UserSettings
from backend.accounts.throttle import address_block
from backend.errors import ForbiddenError, PreconditionFailedError
from backend.generation.registry import UnknownModelError
from backend.generation.sampling import SettingNotTakenError
from backend.wire import EXAMPLE, PATCHES, RAISES, etag

AnyRequest = Request[Any, Any, Any]


class DoorController(Controller):
    """Signing up, in and out, and getting back in."""

    tags = ("Accounts",)
    # Nobody is signed in yet: no more is read of them than names and passwords take.
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
                InsecureTransportError,
                TooManyAttemptsError,
                BusyError,
            ),
            EXAMPLE: {"username": "Anna", "password": "a fine long password"},
        },
        operation_id="signUp",
        summary="Sign up",
    )
    async def sign_up(
        self,
        request: AnyRequest,
        data: JSONBody[SignUp],
        accounts: NamedDependency[AccountService],
        auth: NamedDependency[AuthMiddleware],
    ) -> Response[SignedUp]:
        """Make an account and sign in. The first account becomes the administrator.

        The recovery code is shown this once: whoever loses the password and the code loses the
        texts, for nobody else has a key to them.
        """
        auth.check_transport(request)
        unlocked = await accounts.sign_up(
            data.username, data.password, invitation=data.invitation, address=_address(request)
        )
        body = SignedUp(
            user=UserView.of(unlocked.user, unlocked.name), recovery_code=unlocked.recovery_code
        )
        return await auth.open(request, unlocked, body, kind="signed_up")

    @post(
        "/sessions",
        opt={
            PUBLIC: True,
            RAISES: (
                WrongCredentialsError,
                SecondFactorRequiredError,
                WrongSecondFactorError,
                TooManyAttemptsError,
                InsecureTransportError,
                TamperedAccountError,
                BusyError,
            ),
            EXAMPLE: {"username": "Anna", "password": "a fine long password"},
        },
        operation_id="logIn",
        summary="Log in",
    )
    async def log_in(
        self,
        request: AnyRequest,
        data: JSONBody[LogIn],
        accounts: NamedDependency[AccountService],
        auth: NamedDependency[AuthMiddleware],
        second_factor_gate: NamedDependency[SecondFactorGate],
    ) -> Response[UserView]:
        """Open a session; its cookie signs later requests in.

        If the account has a second factor, the answer to a right password alone is the problem
        `second-factor-required`, which says what can be used. Send the request again with `otp` or
        `passkey`.
        """
        auth.check_transport(request)
        address = _address(request)
        unlocked = await accounts.unlock(data.username, data.password, address=address)
        proof = Proof(data.otp, data.passkey)
        await second_factor_gate.enter(request, unlocked, proof, address=address)
        await accounts.remember(unlocked, address=address)
        body = UserView.of(unlocked.user, unlocked.name)
        return await auth.open(request, unlocked, body, kind="signed_in")

    @post(
        "/recoveries",
        opt={
            PUBLIC: True,
            RAISES: (
                WrongRecoveryCodeError,
                TooManyAttemptsError,
                WeakPasswordError,
                InsecureTransportError,
                BusyError,
            ),
        },
        operation_id="recover",
        summary="Recover an account",
    )
    async def recover(
        self,
        request: AnyRequest,
        data: JSONBody[Recovery],
        accounts: NamedDependency[AccountService],
        auth: NamedDependency[AuthMiddleware],
    ) -> Response[SignedUp]:
        """Set a new password with the recovery code. All sessions and API keys end.

        Recovery is for when an account may be in other hands, so nothing that opened it before
        opens it after. Second factors are switched off: the code alone proves whose account it is.
        A new recovery code is shown.
        """
        auth.check_transport(request)
        unlocked = await accounts.recover(
            data.username, data.recovery_code, data.new_password, address=_address(request)
        )
        body = SignedUp(
            user=UserView.of(unlocked.user, unlocked.name), recovery_code=unlocked.recovery_code
        )
        return await auth.open(request, unlocked, body, kind="recovered")


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
        return UserView.of_identity(identity, accounts.name_of(identity))

    @patch(
        opt={PATCHES: AccountPatch, RAISES: (KeysChangedError, TooManyDataKeysError)},
        operation_id="changeMe",
        summary="Change the key mode",
    )
    async def change_me(
        self,
        request: AnyRequest,
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
        profile: NamedDependency[ProfileService],
    ) -> UserView:
        """Set `key_mode`; null goes back to the default, `per_job`.

        It says when work that a reply causes may run. `per_job`: each piece of work carries your
        key for a day at most, so it finishes while you are away. `managed`: the server keeps your
        key under its root key until you have been away for 30 days; only a session may set it.
        `sealed`: work runs while you are here, and waits otherwise.
        """
        user = await profile.patch_account(identity, data)
        if user.key_mode != identity.key_mode:
            event = event_of(request, "key_mode_changed", detail=user.key_mode)
            await activity.note(identity, event)
        return UserView.of(user, accounts.name_of(identity))

    @delete(
        opt={
            RAISES: (WrongCredentialsError, TooManyAttemptsError, LastAdministratorError, BusyError)
        },
        operation_id="deleteMe",
        summary="Delete the account",
    )
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

    @post(
        "/password",
        status_code=204,
        opt={
            RAISES: (
                WrongCredentialsError,
                TooManyAttemptsError,
                WeakPasswordError,
                KeysChangedError,
                BusyError,
            )
        },
        operation_id="changePassword",
        summary="Change password",
    )
    async def change_password(
        self,
        request: AnyRequest,
        data: JSONBody[PasswordChange],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
    ) -> None:
        """Replace the password, and change the keys. Other sessions end; API keys go on."""
        await accounts.change_password(identity, data.current_password, data.new_password)
        await activity.note(identity, event_of(request, "password_changed"))

    @post(
        "/rotate-key",
        status_code=204,
        opt={
            RAISES: (
                WrongCredentialsError,
                TooManyAttemptsError,
                TooManyDataKeysError,
                KeysChangedError,
                BusyError,
            )
        },
        operation_id="changeKeys",
        summary="Change the keys",
    )
    async def change_keys(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
    ) -> None:
        """Make a new user key, and a new data key for what is written from now on.

        For when the keys may have been read out of the server's memory. The password, the recovery
        code, sessions and API keys stay as they are. Texts that are there already stay under the
        data keys that they were sealed under; `talekeeper rotate-keys data` seals them again.
        """
        if identity.kind != "session":
            raise ForbiddenError("An API key can't change the account's keys. Sign in to do it.")
        await accounts.change_keys(identity, data.password)
        await activity.note(identity, event_of(request, "key_rotated"))

    @post(
        "/recovery-code",
        opt={
            SHOWN_ONCE: True,
            RAISES: (WrongCredentialsError, TooManyAttemptsError, KeysChangedError, BusyError),
        },
        operation_id="newRecoveryCode",
        summary="New recovery code",
    )
    async def new_recovery_code(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
    ) -> RecoveryCode:
        """Make a new recovery code; the old one no longer works."""
        code = await accounts.new_recovery_code(identity, data.password)
        await activity.note(identity, event_of(request, "recovery_code_made"))
        return RecoveryCode(recovery_code=code)

    @get("/settings", opt={NEEDS: "read"}, operation_id="getSettings", summary="Read settings")
    async def get_settings(self, identity: NamedDependency[Identity]) -> Response[UserSettings]:
        """Defaults of the account's chats."""
        return Response(identity.settings, headers={"ETag": etag(identity.settings_revision)})

    @patch(
        "/settings",
        opt={
            RAISES: (UnknownModelError, SettingNotTakenError, PreconditionFailedError),
            PATCHES: UserSettings,
            EXAMPLE: {"model": "demo", "sampling": {"temperature": 0.9}},
        },
        operation_id="patchSettings",
        summary="Change settings",
    )
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


def _address(request: AnyRequest) -> str:
    return address_block(request.client.host) if request.client else ""
