"""`/me/second-factors`: the account's authenticator app, passkeys and one-time codes."""

from uuid import UUID

from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS, SHOWN_ONCE
from backend.accounts.auth.second_factor.gate import SecondFactorGate
from backend.accounts.auth.second_factor.service import SecondFactorService
from backend.accounts.errors import (
    BusyError,
    PasskeyNotFoundError,
    PasskeyRefusedError,
    PasskeyUnavailableError,
    SecondFactorOffError,
    SecondFactorRequiredError,
    TamperedAccountError,
    TooManyAttemptsError,
    TooManyPasskeysError,
    WrongCredentialsError,
    WrongSecondFactorError,
)
from backend.accounts.profile.activity import ActivityLog
from backend.accounts.schemas import (
    NewPasskey,
    OneTimeCodes,
    PasskeyAdded,
    PasskeyOptions,
    PasskeyRename,
    PasskeyView,
    SecondFactorConfirmation,
    SecondFactorOn,
    SecondFactorsView,
    TotpCode,
    TotpSetUp,
)
from backend.accounts.service import AccountService
from backend.http.schemas import RAISES, AnyRequest

CONFIRMATION_ERRORS = (
    WrongCredentialsError,
    SecondFactorRequiredError,
    WrongSecondFactorError,
    TooManyAttemptsError,
    TamperedAccountError,
    BusyError,
)

APP_LABEL = "authenticator app"


class SecondFactorController(Controller):
    path = "/me/second-factors"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration
    # A browser's response for a passkey takes a few kilobytes.
    request_max_body_size = 65_536

    @get(
        opt={RAISES: (TamperedAccountError,)},
        operation_id="getSecondFactors",
        summary="Read the second factors",
    )
    async def get_factors(
        self,
        identity: NamedDependency[Identity],
        second_factors: NamedDependency[SecondFactorService],
    ) -> SecondFactorsView:
        """The second factors that a sign-in needs after the password. API keys need none."""
        return await second_factors.show(identity)

    @post(
        "/totp",
        opt={SHOWN_ONCE: True, RAISES: CONFIRMATION_ERRORS},
        summary="Set up an authenticator app",
    )
    async def begin_totp(
        self,
        request: AnyRequest,
        data: JSONBody[SecondFactorConfirmation],
        identity: NamedDependency[Identity],
        second_factor_gate: NamedDependency[SecondFactorGate],
        second_factors: NamedDependency[SecondFactorService],
        accounts: NamedDependency[AccountService],
    ) -> TotpSetUp:
        """A secret for an authenticator app, and its QR code.

        Nothing changes until a code of the app is sent to `/me/second-factors/totp/confirmation`,
        within 10 minutes.
        """
        await second_factor_gate.confirm(request, identity, data)
        return await second_factors.begin_totp(identity, name=accounts.name_of(identity))

    @post(
        "/totp/confirmation",
        opt={
            SHOWN_ONCE: True,
            RAISES: (WrongSecondFactorError, SecondFactorOffError, TamperedAccountError),
        },
        summary="Turn on the authenticator app",
    )
    async def finish_totp(
        self,
        request: AnyRequest,
        data: JSONBody[TotpCode],
        identity: NamedDependency[Identity],
        second_factors: NamedDependency[SecondFactorService],
        activity: NamedDependency[ActivityLog],
    ) -> SecondFactorOn:
        """Switch the app on. It replaces an older one. The code cannot be used again.

        If it is the account's first second factor, the response contains ten one-time codes, and
        every other session ends.
        """
        codes = await second_factors.finish_totp(identity, data.code)
        await activity.note(request, "second_factor_on", detail=APP_LABEL)
        return SecondFactorOn(codes=codes)

    @delete(
        "/totp",
        opt={RAISES: (*CONFIRMATION_ERRORS, SecondFactorOffError)},
        summary="Turn off the authenticator app",
    )
    async def remove_totp(
        self,
        request: AnyRequest,
        data: JSONBody[SecondFactorConfirmation],
        identity: NamedDependency[Identity],
        second_factor_gate: NamedDependency[SecondFactorGate],
        second_factors: NamedDependency[SecondFactorService],
        activity: NamedDependency[ActivityLog],
    ) -> None:
        """Switch the app off. The last app or passkey takes the one-time codes with it."""
        await second_factor_gate.confirm(request, identity, data)
        await second_factors.remove_totp(identity)
        await activity.note(request, "second_factor_off", detail=APP_LABEL)

    @post(
        "/codes",
        opt={SHOWN_ONCE: True, RAISES: (*CONFIRMATION_ERRORS, SecondFactorOffError)},
        operation_id="newOneTimeCodes",
        summary="New one-time codes",
    )
    async def new_codes(
        self,
        request: AnyRequest,
        data: JSONBody[SecondFactorConfirmation],
        identity: NamedDependency[Identity],
        second_factor_gate: NamedDependency[SecondFactorGate],
        second_factors: NamedDependency[SecondFactorService],
        activity: NamedDependency[ActivityLog],
    ) -> OneTimeCodes:
        """Make ten new codes. The old ones stop working."""
        await second_factor_gate.confirm(request, identity, data)
        codes = await second_factors.renew_codes(identity)
        await activity.note(request, "one_time_codes_made")
        return OneTimeCodes(codes=codes)

    @post(
        "/passkeys",
        opt={
            SHOWN_ONCE: True,
            RAISES: (*CONFIRMATION_ERRORS, PasskeyUnavailableError, TooManyPasskeysError),
        },
        summary="Start adding a passkey",
    )
    async def begin_passkey(
        self,
        request: AnyRequest,
        data: JSONBody[SecondFactorConfirmation],
        identity: NamedDependency[Identity],
        second_factor_gate: NamedDependency[SecondFactorGate],
        second_factors: NamedDependency[SecondFactorService],
        accounts: NamedDependency[AccountService],
    ) -> PasskeyOptions:
        """Options for `navigator.credentials.create`.

        Send the credential that it returns to `/me/second-factors/passkeys/confirmation`, within 10
        minutes.
        """
        site = second_factor_gate.site(request)
        await second_factor_gate.confirm(request, identity, data)
        name = accounts.name_of(identity)
        options = await second_factors.begin_passkey(identity, site, name=name)
        return PasskeyOptions(options=options)

    @post(
        "/passkeys/confirmation",
        opt={
            SHOWN_ONCE: True,
            RAISES: (
                PasskeyRefusedError,
                PasskeyUnavailableError,
                TooManyPasskeysError,
                TamperedAccountError,
            ),
        },
        summary="Add the passkey",
    )
    async def finish_passkey(
        self,
        request: AnyRequest,
        data: JSONBody[NewPasskey],
        identity: NamedDependency[Identity],
        second_factor_gate: NamedDependency[SecondFactorGate],
        second_factors: NamedDependency[SecondFactorService],
        activity: NamedDependency[ActivityLog],
    ) -> PasskeyAdded:
        """Add the passkey that the browser made.

        If it is the account's first second factor, the response contains ten one-time codes, and
        every other session ends.
        """
        passkey, codes = await second_factors.finish_passkey(
            identity, second_factor_gate.site(request), data.credential, label=data.label
        )
        await activity.note(request, "second_factor_on", detail=data.label)
        return PasskeyAdded(passkey=passkey, codes=codes)

    @patch(
        "/passkeys/{passkey_id:uuid}",
        opt={RAISES: (PasskeyNotFoundError,)},
        summary="Rename a passkey",
    )
    async def rename_passkey(
        self,
        passkey_id: FromPath[UUID],
        data: JSONBody[PasskeyRename],
        identity: NamedDependency[Identity],
        second_factors: NamedDependency[SecondFactorService],
    ) -> PasskeyView:
        """Rename a passkey."""
        return await second_factors.rename_passkey(identity, passkey_id, label=data.label)

    @delete(
        "/passkeys/{passkey_id:uuid}",
        opt={RAISES: (*CONFIRMATION_ERRORS, PasskeyNotFoundError)},
        summary="Remove a passkey",
    )
    async def remove_passkey(
        self,
        request: AnyRequest,
        passkey_id: FromPath[UUID],
        data: JSONBody[SecondFactorConfirmation],
        identity: NamedDependency[Identity],
        second_factor_gate: NamedDependency[SecondFactorGate],
        second_factors: NamedDependency[SecondFactorService],
        activity: NamedDependency[ActivityLog],
    ) -> None:
        """Remove a passkey. The last app or passkey takes the one-time codes with it."""
        await second_factor_gate.confirm(request, identity, data)
        label = await second_factors.remove_passkey(identity, passkey_id)
        await activity.note(request, "second_factor_off", detail=label)
