"""Errors of accounts: sign-up, sign-in, keys and administration."""

from __future__ import annotations

from typing import Any

from backend.accounts.models import FactorKind
from backend.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
    UnauthenticatedError,
    UnavailableError,
    ValidationError,
)


class WrongCredentialsError(UnauthenticatedError):
    """The account does not exist, or the password is wrong."""

    slug, title = "wrong-credentials", "Incorrect username or password"


class WrongRecoveryCodeError(UnauthenticatedError):
    """The account does not exist, or the recovery code is wrong."""

    slug, title = "wrong-recovery-code", "Incorrect username or recovery code"


class SecondFactorRequiredError(UnauthenticatedError):
    """The password is correct, and the account has a second factor.

    `kinds` are those that can be used here. `passkey` are the options for
    `navigator.credentials.get`.
    """

    slug, title = "second-factor-required", "Second factor required"

    def __init__(self, kinds: list[FactorKind], passkey: dict[str, Any] | None) -> None:
        super().__init__(
            "Send the request again with `otp` or `passkey`.",
            extra={"kinds": kinds, "passkey": passkey},
        )


class WrongSecondFactorError(UnauthenticatedError):
    """The code or passkey is wrong, was used before, or came too late."""

    slug, title = "wrong-second-factor", "Incorrect code or passkey"


class PasskeyUnavailableError(ConflictError):
    """Passkeys need a host name and a secure connection."""

    slug, title = "passkey-unavailable", "Passkeys are not available at this address"


class PasskeyRefusedError(ValidationError):
    """The browser's response is not a new passkey for this account, or it came too late."""

    slug, title = "passkey-refused", "The passkey could not be added"


class TooManyPasskeysError(ConflictError):
    """The account has the maximum number of passkeys."""

    slug, title = "too-many-passkeys", "Passkey limit reached"


class SecondFactorOffError(ConflictError):
    """The account has no second factor of this kind."""

    slug, title = "second-factor-off", "Second factor not set up"


class PasskeyNotFoundError(NotFoundError):
    """The passkey does not exist or belongs to another user."""

    slug, title = "passkey-not-found", "Passkey not found"


class TooManyAttemptsError(TooManyRequestsError):
    """Too many failed sign-ins in a row for this account or from this address."""

    slug, title = "too-many-attempts", "Too many failed attempts"


class BusyError(UnavailableError):
    """More people sign in or sign up at once than the server can check passwords for."""

    slug, title = "busy", "Too many people are signing in"


class NameTakenError(ConflictError):
    """Another account has this name."""

    slug, title = "name-taken", "Username already taken"


class RegistrationClosedError(ForbiddenError):
    """Sign-up is disabled, or requires an invitation."""

    slug, title = "registration-closed", "Sign-up is closed"


class InvitationError(ForbiddenError):
    """The invitation is unknown, used, or expired."""

    slug, title = "invitation-not-valid", "The invitation is not valid"


class WeakPasswordError(ValidationError):
    """The password is too short, too long, or too common."""

    slug, title = "weak-password", "The password is too weak"


class InsecureTransportError(ForbiddenError):
    """The session cookie would be sent over an unencrypted connection."""

    slug, title = "insecure-transport", "HTTPS required to sign in"


class UnknownHostError(ForbiddenError):
    """The `Host` header is not a name of this server, so the request may come from another site."""

    slug, title = "unknown-host", "Unknown host name"


class CrossSiteError(ForbiddenError):
    """The request came from another site's page, or has no CSRF token."""

    slug, title = "cross-site-request", "Request from another site refused"


class ScopeError(ForbiddenError):
    """The API key does not have the scope that the request needs."""

    slug, title = "scope-missing", "The API key lacks the required scope"


class SessionNotFoundError(NotFoundError):
    """The session does not exist or belongs to another user."""

    slug, title = "session-not-found", "Session not found"


class ApiKeyNotFoundError(NotFoundError):
    """The API key does not exist or belongs to another user."""

    slug, title = "api-key-not-found", "API key not found"


class UserNotFoundError(NotFoundError):
    """The account does not exist."""

    slug, title = "user-not-found", "Account not found"


class InvitationNotFoundError(NotFoundError):
    """The invitation does not exist."""

    slug, title = "invitation-not-found", "Invitation not found"


class LastAdministratorError(ConflictError):
    """At least one administrator must remain."""

    slug, title = "last-administrator", "Last administrator"


class KeysChangedError(ConflictError):
    """The account's keys were changed during the request."""

    slug, title = "keys-changed", "The account's keys have changed"


class TooManyDataKeysError(TooManyRequestsError):
    """The account's keys were rotated too often."""

    slug, title = "too-many-data-keys", "The account's keys were rotated too often"

    def __init__(self) -> None:
        super().__init__(
            "Try again tomorrow. If it says so then, ask the administrator to run `talekeeper "
            "rotate-keys data` for this account."
        )


class TamperedAccountError(ForbiddenError):
    """Something other than Talekeeper changed the key mode, password costs or second factors."""

    slug, title = (
        "account-tampered",
        "The account's security settings were altered outside Talekeeper",
    )
