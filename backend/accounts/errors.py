"""What can go wrong at the door."""

from __future__ import annotations

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


class TooManyAttemptsError(TooManyRequestsError):
    """Too many failed log-ins in a row for this account or from this address."""

    slug, title = "too-many-attempts", "Too many failed attempts"

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"Try again in {seconds} seconds.",
            extra={"retry_after": seconds},
            headers={"Retry-After": str(seconds)},
        )


class BusyError(UnavailableError):
    """More people sign in or up at once than passwords can be checked for."""

    slug, title = "busy", "Too many people are signing in right now"

    def __init__(self, *, seconds: int) -> None:
        super().__init__(
            f"Try again in {seconds} seconds.",
            extra={"retry_after": seconds},
            headers={"Retry-After": str(seconds)},
        )


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


class TamperedAccountError(ForbiddenError):
    """The account's key mode or password costs were changed by other hands than Talekeeper's."""

    slug, title = "account-tampered", "This account's security settings were tampered with"
