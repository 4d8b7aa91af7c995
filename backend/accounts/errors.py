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
    """The account does not exist, or the password is wrong. Both cases look the same."""

    slug, title = "wrong-credentials", "That name and password do not go together"


class WrongRecoveryCodeError(UnauthenticatedError):
    """The account does not exist, or the recovery code is wrong. Both cases look the same."""

    slug, title = "wrong-recovery-code", "That name and recovery code do not go together"


class SecondFactorRequiredError(UnauthenticatedError):
    """The password is right, and the account has a second factor.

    `kinds` are those that can be used here. `passkey` are the options for
    `navigator.credentials.get`.
    """

    slug, title = "second-factor-required", "A second factor is needed as well"

    def __init__(self, kinds: list[FactorKind], passkey: dict[str, Any] | None) -> None:
        super().__init__(
            "Send the request again with `otp` or `passkey`.",
            extra={"kinds": kinds, "passkey": passkey},
        )


class WrongSecondFactorError(UnauthenticatedError):
    """The code or the passkey is wrong, was used before, or came too late."""

    slug, title = "wrong-second-factor", "That code or passkey is not right"


class PasskeyUnavailableError(ConflictError):
    """Passkeys belong to a name and need a secure connection."""

    slug, title = "passkey-unavailable", "Passkeys do not work at this address"


class PasskeyRefusedError(ValidationError):
    """The browser's response is not a new passkey for this account, or it came too late."""

    slug, title = "passkey-refused", "This passkey could not be added"


class TooManyPasskeysError(ConflictError):
    """The account has the maximum number of passkeys."""

    slug, title = "too-many-passkeys", "No more passkeys can be added"


class SecondFactorOffError(ConflictError):
    """The account has no second factor of the kind that the request names."""

    slug, title = "second-factor-off", "There is no such second factor"


class PasskeyNotFoundError(NotFoundError):
    """The passkey does not exist or belongs to someone else."""

    slug, title = "passkey-not-found", "No such passkey"


class TooManyAttemptsError(TooManyRequestsError):
    """Too many failed log-ins in a row for this account or from this address."""

    slug, title = "too-many-attempts", "Too many failed attempts"


class BusyError(UnavailableError):
    """More users sign in or up at the same time than passwords can be checked for."""

    slug, title = "busy", "Too many people are signing in right now"


class NameTakenError(ConflictError):
    """Another account has this name."""

    slug, title = "name-taken", "This name is taken"


class RegistrationClosedError(ForbiddenError):
    """Sign-up is closed, or needs an invitation."""

    slug, title = "registration-closed", "Signing up is not open here"


class InvitationError(ForbiddenError):
    """The invitation is unknown, used, or expired."""

    slug, title = "invitation-not-valid", "This invitation is not valid"


class WeakPasswordError(ValidationError):
    """The password is too short, too long, or too common."""

    slug, title = "weak-password", "Choose another password"


class InsecureTransportError(ForbiddenError):
    """The session's cookie would travel unencrypted."""

    slug, title = "insecure-transport", "Sign in over https"


class UnknownHostError(ForbiddenError):
    """The request's `Host` is not a name of this server. Another site's name may point here."""

    slug, title = "unknown-host", "This server does not go by that name"


class CrossSiteError(ForbiddenError):
    """The request came from another site's page, or lacks the CSRF token."""

    slug, title = "cross-site-request", "This request may come from another site"


class ScopeError(ForbiddenError):
    """The API key lacks the scope that the request needs."""

    slug, title = "scope-missing", "The API key lacks the scope for this"


class SessionNotFoundError(NotFoundError):
    """The session does not exist or belongs to someone else."""

    slug, title = "session-not-found", "No such session"


class ApiKeyNotFoundError(NotFoundError):
    """The API key does not exist or belongs to someone else."""

    slug, title = "api-key-not-found", "No such API key"


class UserNotFoundError(NotFoundError):
    """No account has this id."""

    slug, title = "user-not-found", "No such account"


class InvitationNotFoundError(NotFoundError):
    """No invitation has this id."""

    slug, title = "invitation-not-found", "No such invitation"


class LastAdministratorError(ConflictError):
    """At least one enabled account must be an administrator."""

    slug, title = "last-administrator", "This is the last administrator"


class KeysChangedError(ConflictError):
    """Another request changed the account's keys at the same time."""

    slug, title = "keys-changed", "The account's keys were changed meanwhile"


class TooManyDataKeysError(TooManyRequestsError):
    """The account has too many data keys that are still in use."""

    slug, title = "too-many-data-keys", "The keys were changed too often"

    def __init__(self) -> None:
        super().__init__(
            "Try again tomorrow. If it says so then, ask the administrator to run `talekeeper "
            "rotate-keys data` for this account."
        )


class TamperedAccountError(ForbiddenError):
    """Something other than Talekeeper changed the key mode, password costs or second factors."""

    slug, title = "account-tampered", "This account's security settings were tampered with"
