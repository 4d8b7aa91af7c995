"""What a request beyond a quota is answered with."""

from __future__ import annotations

from typing import Any

from backend.errors import AppError, TooLargeError, TooManyRequestsError


class QuotaExceededError(TooManyRequestsError):
    """A quota on a rate or on work at once is used up: wait for `retry_after` seconds."""

    slug, title = "quota-exceeded", "You have reached a limit"


class StorageQuotaExceededError(TooLargeError):
    """A quota on what an account stores is used up: it frees when something is deleted."""

    slug, title = "storage-quota-exceeded", "Your account is full"


class TooManyFromAddressError(TooManyRequestsError):
    """Too many requests from one address by those who are not signed in."""

    slug, title = "too-many-from-address", "Too many requests from your address"

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"Try again in {seconds} seconds.",
            extra={"retry_after": seconds},
            headers={"Retry-After": str(seconds)},
        )


def quota_error(
    *, status: int, detail: str, extra: dict[str, Any], retry_after: int | None
) -> AppError:
    """The error of a quota that answers with this status."""
    if status == StorageQuotaExceededError.status:
        return StorageQuotaExceededError(detail, extra=extra)
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
    return QuotaExceededError(detail, extra={**extra, "retry_after": retry_after}, headers=headers)
