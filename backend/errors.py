"""Every error that Talekeeper raises on purpose, and its form on the wire (RFC 9457).

AppError
├── BadRequestError, ValidationError        what came in is not of the right form
├── UnauthenticatedError, ForbiddenError    who asks
├── NotFoundError                           absent, or someone else's: the same answer
├── ConflictError, PreconditionFailedError  it changed meanwhile
├── TooLargeError, TooManyRequestsError     limits
└── UnavailableError                        a part that Talekeeper leans on is down

A domain's errors subclass these beside the code that raises them. `status`, `slug` and `title`
belong to the class; `detail` says what happened and what to do; `extra` holds members that a
client can act on; `retry_after`, in seconds, is one of them, and the header `Retry-After`.
`private` holds members for administrators only. The slug is stable: clients may match on `type`.
"""

from __future__ import annotations

from typing import Any, ClassVar

TYPE_PREFIX = "urn:talekeeper:problem:"
"""The beginning of every `type`, followed by the slug. docs/reference/errors.md lists all."""

MEDIA_TYPE = "application/problem+json"


class AppError(Exception):
    """An error with a place in the API: subclass it, set the three class fields, raise it."""

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Something went wrong"

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
        """The members of the problem+json object, for an administrator with the private ones."""
        problem: dict[str, Any] = {
            "type": TYPE_PREFIX + self.slug,
            "title": self.title,
            "status": self.status,
        }
        if self.detail:
            problem["detail"] = self.detail
        return {**self.extra, **problem, **(self.private if for_administrator else {})}


class InternalError(AppError):
    """An unexpected exception: its text stays in the log, under the id that the client gets."""


class BadRequestError(AppError):
    """The request can't be read."""

    status, slug, title = 400, "bad-request", "The request could not be read"


class ValidationError(AppError):
    """The request can be read, but a value in it is not acceptable."""

    status, slug, title = 422, "validation-failed", "A value is not acceptable"


class UnauthenticatedError(AppError):
    """Nobody is signed in."""

    status, slug, title = 401, "unauthenticated", "Sign in first"


class ForbiddenError(AppError):
    """Somebody is signed in, and may not do this."""

    status, slug, title = 403, "forbidden", "Not allowed"


class NotFoundError(AppError):
    """Absent or someone else's; the answer never says which."""

    status, slug, title = 404, "not-found", "Not found"


class MethodNotAllowedError(AppError):
    """The path exists, the method does not."""

    status, slug, title = 405, "method-not-allowed", "Method not allowed"


class ConflictError(AppError):
    """The thing is not in a state in which this can be done."""

    status, slug, title = 409, "conflict", "Not possible in the present state"


class PreconditionFailedError(AppError):
    """`If-Match` named another revision than the one that is stored."""

    status, slug, title = 412, "revision-mismatch", "It was changed meanwhile"


class TooLargeError(AppError):
    """More came in than the limits allow."""

    status, slug, title = 413, "too-large", "Too large"


class UnsupportedMediaTypeError(AppError):
    """The body is in a form that this route does not read."""

    status, slug, title = 415, "unsupported-media-type", "Unsupported media type"


class TooManyRequestsError(AppError):
    """Too fast; `Retry-After` says how long to wait."""

    status, slug, title = 429, "too-many-requests", "Too many requests"


class UnavailableError(AppError):
    """A part that Talekeeper leans on does not answer."""

    status, slug, title = 503, "unavailable", "Not available right now"
