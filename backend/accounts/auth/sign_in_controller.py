"""Routes without sign-in: the installation, sign-up, sign-in and recovery."""

from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

import backend
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import PUBLIC, SessionOpener
from backend.accounts.auth.second_factor.gate import SecondFactorGate
from backend.accounts.auth.throttle import normalise_address
from backend.accounts.errors import (
    BusyError,
    InsecureTransportError,
    InvitationError,
    NameTakenError,
    RegistrationClosedError,
    SecondFactorRequiredError,
    TamperedAccountError,
    TooManyAttemptsError,
    WeakPasswordError,
    WrongCredentialsError,
    WrongRecoveryCodeError,
    WrongSecondFactorError,
)
from backend.accounts.schemas import LogIn, Recovery, SignedUp, SignUp, UserView
from backend.accounts.service import AccountService, SignUpState, UnlockedAccount
from backend.http.schemas import EXAMPLE, RAISES

AnyRequest = Request[Any, Any, Any]

SIGN_IN_ERRORS = (TooManyAttemptsError, InsecureTransportError, BusyError)
"""Errors of all sign-in routes."""

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
    """This installation."""

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
    """Sign-up, sign-in and recovery."""

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
        summary="Log in",
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
