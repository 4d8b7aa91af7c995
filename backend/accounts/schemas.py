"""Shapes of the accounts' part of the API."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Scope
from backend.accounts.keys.keyring import DEFAULT_KEY_MODE
from backend.accounts.models import KeyMode, User

Password = Annotated[str, msgspec.Meta(max_length=1024)]
Name = Annotated[str, msgspec.Meta(max_length=200)]
Code = Annotated[str, msgspec.Meta(max_length=200)]
PasskeyLabel = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request body: a member that is not known is a mistake worth hearing of."""


class SignUp(RequestBody):
    """A new account."""

    username: Name
    password: Password
    invitation: Code | None = None


class LogIn(RequestBody):
    """A name and its password, and the second factor if the account has one.

    `otp` is an authenticator app's code or a one-time code, `passkey` what
    `navigator.credentials.get` gave, as JSON.
    """

    username: Name
    password: Password
    otp: Code | None = None
    passkey: dict[str, Any] | None = None


class Recovery(RequestBody):
    """A way back in for who has lost the password and kept the code."""

    username: Name
    recovery_code: Code
    new_password: Password


class PasswordChange(RequestBody):
    """The old password and the new one."""

    current_password: Password
    new_password: Password


class Confirmation(RequestBody):
    """The password once more, before what can't be undone."""

    password: Password


class SecondFactorConfirmation(RequestBody):
    """The password again, and the second factor if one is on."""

    password: Password
    otp: Code | None = None
    passkey: dict[str, Any] | None = None


class TotpCode(RequestBody):
    """A code that the authenticator app shows."""

    code: Code


class NewPasskey(RequestBody):
    """What `navigator.credentials.create` gave, as JSON, and what to call it."""

    credential: dict[str, Any]
    label: PasskeyLabel


class PasskeyRename(RequestBody):
    """Another name for a passkey."""

    label: PasskeyLabel


class NewApiKey(RequestBody):
    """What an API key is for."""

    label: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    scope: Scope = "chat"
    expires_at: datetime | None = None


class NewInvitation(RequestBody):
    """How long an invitation can be used."""

    days: Annotated[int, msgspec.Meta(ge=1, le=365)] = 7


class AccountPatch(msgspec.Struct, kw_only=True):
    """What an account may change about itself."""

    key_mode: KeyMode = DEFAULT_KEY_MODE


class UserChange(RequestBody):
    """What an administrator may change about an account: true or false, what is absent stays."""

    is_administrator: bool | msgspec.UnsetType = msgspec.UNSET
    is_disabled: bool | msgspec.UnsetType = msgspec.UNSET


class UserView(msgspec.Struct, kw_only=True):
    """An account as it is shown."""

    id: UUID
    username: str
    is_administrator: bool
    is_disabled: bool = False
    key_mode: KeyMode
    created_at: datetime

    @classmethod
    def from_user(cls, user: User, name: str) -> "UserView":
        """The view of an account's row."""
        return cls(
            id=user.id,
            username=name,
            is_administrator=user.is_administrator,
            is_disabled=user.is_disabled,
            key_mode=user.key_mode,
            created_at=user.created_at,
        )


class SignedUp(msgspec.Struct, kw_only=True):
    """The answer to a sign-up or a recovery. The code is shown this once."""

    user: UserView
    recovery_code: str


class RecoveryCode(msgspec.Struct, kw_only=True):
    """A new recovery code, shown this once. The old one no longer works."""

    recovery_code: str


class SessionView(msgspec.Struct, kw_only=True):
    """A session as it is listed."""

    id: UUID
    label: str
    is_current: bool
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class ApiKeyView(msgspec.Struct, kw_only=True):
    """An API key as it is listed."""

    id: UUID
    label: str
    scope: Scope
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class MadeApiKey(msgspec.Struct, kw_only=True):
    """A new API key. The token is shown this once."""

    key: ApiKeyView
    token: str


class InvitationView(msgspec.Struct, kw_only=True):
    """An invitation. `code` is shown once, when it is made."""

    id: UUID
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    code: str | None = None


class TotpView(msgspec.Struct, kw_only=True):
    """An authenticator app."""

    created_at: datetime
    last_used_at: datetime | None


class PasskeyView(msgspec.Struct, kw_only=True):
    """A passkey. It works at the address whose name is `site` alone."""

    id: UUID
    label: str
    site: str
    created_at: datetime
    last_used_at: datetime | None


class SecondFactorsView(msgspec.Struct, kw_only=True):
    """The account's second factors. `one_time_codes` is how many are left."""

    totp: TotpView | None
    passkeys: list[PasskeyView]
    one_time_codes: int


class TotpSetUp(msgspec.Struct, kw_only=True):
    """What an authenticator app needs, shown this once.

    `qr` is the QR code of `uri`: a row of modules each, `1` for a dark one, without the margin.
    """

    secret: str
    uri: str
    qr: list[str]


class OneTimeCodes(msgspec.Struct, kw_only=True):
    """Ten codes, shown this once. Each can be used once as a second factor."""

    codes: list[str]


class SecondFactorOn(msgspec.Struct, kw_only=True):
    """`codes` come with the account's first second factor. They are shown this once."""

    codes: list[str] | None


class PasskeyOptions(msgspec.Struct, kw_only=True):
    """What `navigator.credentials.create` takes, as JSON."""

    options: dict[str, Any]


class PasskeyAdded(SecondFactorOn):
    """The new passkey."""

    passkey: PasskeyView
