"""The errors that Talekeeper raises, and their form in responses (RFC 9457).

AppError
├── BadRequestError, ValidationError        the request is malformed or invalid
├── UnauthenticatedError, ForbiddenError    the client has no permission
├── NotFoundError                           the resource is absent, or belongs to someone else
├── ConflictError, PreconditionFailedError  the state of the resource has changed
├── TooLargeError, TooManyRequestsError     a limit is exceeded
└── UnavailableError                        a required service does not respond

Each package defines its own subclasses. `status`, `slug` and `title` belong to the class. `detail`
says what happened and what to do. `extra` contains members that clients can act on, such as
`retry_after` in seconds, which is also the header `Retry-After`. `private` contains members for
administrators. Slugs never change, because clients may compare `type`.
"""

from __future__ import annotations

from typing import Any, ClassVar

TYPE_PREFIX = "urn:talekeeper:problem:"
"""The beginning of every `type`, followed by the slug. docs/reference/errors.md lists all."""

MEDIA_TYPE = "application/problem+json"


class AppError(Exception):
    """The base of all errors."""

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(
        self,
        detail: str = "",
        *,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        retry_after: int | None = None,
    ) -> None:
        if retry_after is not None:
            detail = detail or f"Try again in {retry_after} seconds."
            extra = {**(extra or {}), "retry_after": retry_after}
            headers = {**(headers or {}), "Retry-After": str(retry_after)}
        super().__init__(detail or self.title)
        self.detail = detail
        self.extra = extra or {}
        self.headers = headers or {}
        self.private: dict[str, Any] = {}

    def disclose(self) -> None:
        """Show the private members to everyone who sees this error."""
        private = dict(self.private)
        self.detail = private.pop("detail", self.detail)
        self.extra, self.private = {**self.extra, **private}, {}

    def to_problem(self, *, for_administrator: bool = False) -> dict[str, Any]:
        """Return the problem+json object. That of an administrator has the private members."""
        problem: dict[str, Any] = {
            "type": TYPE_PREFIX + self.slug,
            "title": self.title,
            "status": self.status,
        }
        if self.detail:
            problem["detail"] = self.detail
        return {**self.extra, **problem, **(self.private if for_administrator else {})}


class InternalError(AppError):
    """An unexpected exception. Its text is in the log, under the id that the client receives."""


class BadRequestError(AppError):
    """The request cannot be read."""

    status, slug, title = 400, "bad-request", "The request could not be read"


class ValidationError(AppError):
    """The request is readable, but a value in it is not valid."""

    status, slug, title = 422, "validation-failed", "Invalid value"


class UnauthenticatedError(AppError):
    """The request has no session and no API key."""

    status, slug, title = 401, "unauthenticated", "Sign-in required"


class ForbiddenError(AppError):
    """The user is signed in, but has no permission for this."""

    status, slug, title = 403, "forbidden", "Not allowed"


class NotFoundError(AppError):
    """The resource does not exist or belongs to another user. The response is the same."""

    status, slug, title = 404, "not-found", "Not found"


class MethodNotAllowedError(AppError):
    """The path exists, but does not support this method."""

    status, slug, title = 405, "method-not-allowed", "Method not allowed"


class ConflictError(AppError):
    """The current state of the resource does not allow this."""

    status, slug, title = 409, "conflict", "Not possible in the current state"


class PreconditionFailedError(AppError):
    """`If-Match` names another revision than the stored one."""

    status, slug, title = 412, "revision-mismatch", "The resource has changed since you read it"


class TooLargeError(AppError):
    """The request is larger than the limits allow."""

    status, slug, title = 413, "too-large", "Too large"


class UnsupportedMediaTypeError(AppError):
    """This route does not accept bodies of this type."""

    status, slug, title = 415, "unsupported-media-type", "Unsupported media type"


class TooManyRequestsError(AppError):
    """The client sends too many requests: `Retry-After` is the time to wait."""

    status, slug, title = 429, "too-many-requests", "Too many requests"


class UnavailableError(AppError):
    """A required service does not respond."""

    status, slug, title = 503, "unavailable", "Temporarily unavailable"
