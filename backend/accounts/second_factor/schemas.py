"""Shapes of second factors on the wire."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from backend.accounts.schemas import Code, Password, Struct

PasskeyLabel = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class SecondFactorConfirmation(Struct):
    """The password again, and the second factor if one is on."""

    password: Password
    otp: Code | None = None
    passkey: dict[str, Any] | None = None


class TotpCode(Struct):
    """A code that the authenticator app shows."""

    code: Code


class NewPasskey(Struct):
    """What `navigator.credentials.create` gave, as JSON, and what to call it."""

    credential: dict[str, Any]
    label: PasskeyLabel


class PasskeyRename(Struct):
    """Another name for a passkey."""

    label: PasskeyLabel


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
