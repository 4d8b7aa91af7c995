"""Accounts before anybody is signed in: this installation, signing up, in, and back in."""

from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

import backend
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import PUBLIC, AuthMiddleware
from backend.accounts.auth.second_factor.gate import SecondFactorGate
from backend.accounts.auth.throttle import address_block
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
from backend.accounts.service import AccountService, SignUpState, Unlocked
from backend.http.schemas import EXAMPLE, RAISES

AnyRequest = Request[Any, Any, Any]

ENTERING = (TooManyAttemptsError, InsecureTransportError, BusyError)
"""What each way in may answer with."""

EXAMPLE_ACCOUNT = {"username": "Anna", "password": "a fine long password"}


class InstanceView(msgspec.Struct, kw_only=True):
    """This installation, as anybody may see it.

    `sign_up` is `first` while there is no account: the first to sign up becomes administrator.
    `user` is who asks, null where nobody is signed in.
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
        """The version, who may sign up, and who is signed in, if anybody is."""
        identity = request.user
        return InstanceView(
            version=backend.__version__,
            sign_up=await accounts.sign_up_state(),
            user=UserView.of(identity.user, accounts.name_of(identity)) if identity else None,
        )


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
                *ENTERING,
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
        auth: NamedDependency[AuthMiddleware],
    ) -> Response[SignedUp]:
        """Make an account and sign in. The first account becomes the administrator.

        The recovery code is shown this once. Without the password and without the code the texts
        are lost: there is no other key to them.
        """
        auth.check_transport(request)
        unlocked = await accounts.sign_up(
            data.username, data.password, invitation=data.invitation, address=_address(request)
        )
        return await auth.open(request, unlocked, _signed_up(unlocked), kind="signed_up")

    @post(
        "/sessions",
        opt={
            PUBLIC: True,
            RAISES: (
                WrongCredentialsError,
                SecondFactorRequiredError,
                WrongSecondFactorError,
                TamperedAccountError,
                *ENTERING,
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
        await second_factor_gate.enter(request, unlocked, data, address=address)
        body = UserView.of(unlocked.user, unlocked.name)
        return await auth.open(request, unlocked, body, kind="signed_in")

    @post(
        "/recoveries",
        opt={
            PUBLIC: True,
            RAISES: (WrongRecoveryCodeError, WeakPasswordError, *ENTERING),
        },
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
        return await auth.open(request, unlocked, _signed_up(unlocked), kind="recovered")


def _signed_up(unlocked: Unlocked) -> SignedUp:
    return SignedUp(
        user=UserView.of(unlocked.user, unlocked.name), recovery_code=unlocked.recovery_code
    )


def _address(request: AnyRequest) -> str:
    return address_block(request.client.host) if request.client else ""
