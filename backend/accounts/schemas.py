"""Request and response bodies of the accounts' routes."""

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
    """A request body. Unknown fields are refused."""


class SignUp(RequestBody):
    """A new account."""

    username: Name
    password: Password
    invitation: Code | None = None


class LogIn(RequestBody):
    """A name and its password, and the second factor if the account has one.

    `otp` is a code of an authenticator app or a one-time code. `passkey` is the JSON credential of
    `navigator.credentials.get`.
    """

    username: Name
    password: Password
    otp: Code | None = None
    passkey: dict[str, Any] | None = None


class Recovery(RequestBody):
    """A user name, its recovery code, and a new password."""

    username: Name
    recovery_code: Code
    new_password: Password


class PasswordChange(RequestBody):
    """The old password and the new one."""

    current_password: Password
    new_password: Password


class Confirmation(RequestBody):
    """The password, to confirm an action that cannot be undone."""

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
    """The JSON credential of `navigator.credentials.create`, and the passkey's name."""

    credential: dict[str, Any]
    label: PasskeyLabel


class PasskeyRename(RequestBody):
    """A new name for a passkey."""

    label: PasskeyLabel


class NewApiKey(RequestBody):
    """The label, scope and expiry of a new API key."""

    label: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    scope: Scope = "chat"
    expires_at: datetime | None = None


class NewInvitation(RequestBody):
    """The number of days for which an invitation can be used."""

    days: Annotated[int, msgspec.Meta(ge=1, le=365)] = 7


class AccountPatch(msgspec.Struct, kw_only=True):
    """The fields of an account that its user can change."""

    key_mode: KeyMode = DEFAULT_KEY_MODE


class UserChange(RequestBody):
    """The fields of an account that an administrator can change. Absent fields stay."""

    is_administrator: bool | msgspec.UnsetType = msgspec.UNSET
    is_disabled: bool | msgspec.UnsetType = msgspec.UNSET


class UserView(msgspec.Struct, kw_only=True):
    """An account."""

    id: UUID
    username: str
    is_administrator: bool
    is_disabled: bool = False
    key_mode: KeyMode
    created_at: datetime

    @classmethod
    def from_user(cls, user: User, name: str) -> "UserView":
        return cls(
            id=user.id,
            username=name,
            is_administrator=user.is_administrator,
            is_disabled=user.is_disabled,
            key_mode=user.key_mode,
            created_at=user.created_at,
        )


class SignedUp(msgspec.Struct, kw_only=True):
    """The response to a sign-up or a recovery. The code is shown only once."""

    user: UserView
    recovery_code: str


class RecoveryCode(msgspec.Struct, kw_only=True):
    """A new recovery code. It is shown only once. The old one stops working."""

    recovery_code: str


class SessionView(msgspec.Struct, kw_only=True):
    """A session."""

    id: UUID
    label: str
    is_current: bool
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class ApiKeyView(msgspec.Struct, kw_only=True):
    """An API key."""

    id: UUID
    label: str
    scope: Scope
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class MadeApiKey(msgspec.Struct, kw_only=True):
    """A new API key. The token is shown only once."""

    key: ApiKeyView
    token: str


class InvitationView(msgspec.Struct, kw_only=True):
    """An invitation. `code` is shown only once, when it is made."""

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
    """A passkey. It works only at the address with the name `site`."""

    id: UUID
    label: str
    site: str
    created_at: datetime
    last_used_at: datetime | None


class SecondFactorsView(msgspec.Struct, kw_only=True):
    """The account's second factors. `one_time_codes` is the number of unused codes."""

    totp: TotpView | None
    passkeys: list[PasskeyView]
    one_time_codes: int


class TotpSetUp(msgspec.Struct, kw_only=True):
    """The secret of an authenticator app. It is shown only once.

    `qr` is the QR code of `uri`: one string for each row, `1` for a dark module, without the
    margin.
    """

    secret: str
    uri: str
    qr: list[str]


class OneTimeCodes(msgspec.Struct, kw_only=True):
    """Ten codes, shown only once. Each can be used once as a second factor."""

    codes: list[str]


class SecondFactorOn(msgspec.Struct, kw_only=True):
    """The one-time codes of the account's first second factor. They are shown only once."""

    codes: list[str] | None


class PasskeyOptions(msgspec.Struct, kw_only=True):
    """JSON options for `navigator.credentials.create`."""

    options: dict[str, Any]


class PasskeyAdded(SecondFactorOn):
    """The new passkey, and one-time codes if it is the first second factor."""

    passkey: PasskeyView
