"""What can go wrong at the door."""

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
    """No such account, or not its password: one answer for both."""

    slug, title = "wrong-credentials", "That name and password do not go together"


class WrongRecoveryCodeError(UnauthenticatedError):
    """No such account, or not its recovery code: one answer for both."""

    slug, title = "wrong-recovery-code", "That name and recovery code do not go together"


class SecondFactorRequiredError(UnauthenticatedError):
    """The password is right, and the account has a second factor.

    `kinds` are those that can be used here; `passkey` is what `navigator.credentials.get` takes.
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
    """What the browser sent is no new passkey for this account, or its time was up."""

    slug, title = "passkey-refused", "This passkey could not be added"


class TooManyPasskeysError(ConflictError):
    """The account has as many passkeys as it may have."""

    slug, title = "too-many-passkeys", "No more passkeys can be added"


class SecondFactorOffError(ConflictError):
    """The account has no second factor of the kind that this is about."""

    slug, title = "second-factor-off", "There is no such second factor"


class PasskeyNotFoundError(NotFoundError):
    """No such passkey, or someone else's."""

    slug, title = "passkey-not-found", "No such passkey"


class TooManyAttemptsError(TooManyRequestsError):
    """Too many failed log-ins in a row for this account or from this address."""

    slug, title = "too-many-attempts", "Too many failed attempts"


class BusyError(UnavailableError):
    """More people sign in or up at once than passwords can be checked for."""

    slug, title = "busy", "Too many people are signing in right now"


class NameTakenError(ConflictError):
    """Another account has this name."""

    slug, title = "name-taken", "This name is taken"


class RegistrationClosedError(ForbiddenError):
    """Nobody may sign up here, or only with an invitation."""

    slug, title = "registration-closed", "Signing up is not open here"


class InvitationError(ForbiddenError):
    """The invitation is unknown, used, or expired."""

    slug, title = "invitation-not-valid", "This invitation is not valid"


class WeakPasswordError(ValidationError):
    """The password is too short, too long, or too common."""

    slug, title = "weak-password", "Choose another password"


class InsecureTransportError(ForbiddenError):
    """A session's cookie would travel in the clear."""

    slug, title = "insecure-transport", "Sign in over https"


class UnknownHostError(ForbiddenError):
    """The request's `Host` is no name of this server: another site's name may lead here."""

    slug, title = "unknown-host", "This server does not go by that name"


class CrossSiteError(ForbiddenError):
    """The request was sent by another site's page, or lacks the CSRF token."""

    slug, title = "cross-site-request", "This request may come from another site"


class ScopeError(ForbiddenError):
    """The API key was not made for this."""

    slug, title = "scope-missing", "The API key lacks the scope for this"


class SessionNotFoundError(NotFoundError):
    """No such session, or someone else's."""

    slug, title = "session-not-found", "No such session"


class ApiKeyNotFoundError(NotFoundError):
    """No such API key, or someone else's."""

    slug, title = "api-key-not-found", "No such API key"


class UserNotFoundError(NotFoundError):
    """No such account."""

    slug, title = "user-not-found", "No such account"


class InvitationNotFoundError(NotFoundError):
    """No such invitation."""

    slug, title = "invitation-not-found", "No such invitation"


class LastAdministratorError(ConflictError):
    """Somebody must be left who can administer."""

    slug, title = "last-administrator", "This is the last administrator"


class KeysChangedError(ConflictError):
    """The account's keys were changed while the request was under way."""

    slug, title = "keys-changed", "The account's keys were changed meanwhile"


class TooManyDataKeysError(TooManyRequestsError):
    """The account's keys were changed very often."""

    slug, title = "too-many-data-keys", "The keys were changed too often"

    def __init__(self) -> None:
        super().__init__(
            "Try again tomorrow. If it says so then, ask the administrator to run `talekeeper "
            "rotate-keys data` for this account."
        )


class TamperedAccountError(ForbiddenError):
    """Something else than Talekeeper changed the key mode, password costs or second factors."""

    slug, title = "account-tampered", "This account's security settings were tampered with"
