"""All quotas of an account, and the errors of requests that exceed them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from backend.database.base import now
from backend.errors import AppError, TooLargeError, TooManyRequestsError
from backend.settings import Settings

Unit = Literal["bytes", "chats", "entries", "requests", "at once", "jobs", "tokens"]


class QuotaExceededError(TooManyRequestsError):
    """A rate limit or a limit on concurrent work is reached. Wait for `retry_after` seconds."""

    slug, title = "quota-exceeded", "Quota exceeded"


class StorageQuotaExceededError(TooLargeError):
    """The account has reached its storage limit. Delete something to make room."""

    slug, title = "storage-quota-exceeded", "Storage quota exceeded"


class TooManyFromAddressError(TooManyRequestsError):
    """Too many requests without sign-in came from one address."""

    slug, title = "too-many-from-address", "Too many requests from your address"


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of one account.

    Args:
        name: Name in problems and in `GET /me/usage`.
        unit: Unit of the limit.
        advice: Advice to the user.
        is_stored: True for storage, which is freed by deleting something. Rates and concurrent work
            become free with time.
        retry_after: Seconds after which to retry, if the exact time is unknown.
    """

    name: str
    unit: Unit
    advice: str
    is_stored: bool = False
    retry_after: int | None = None

    def get_limit(self, settings: Settings) -> int:
        """Return the limit of this installation; 0 for no limit."""
        limit: int = getattr(settings, f"max_{self.name}_per_user")
        return limit

    def make_error(
        self, *, limit: int, used: int, wait: float | None = None, at: datetime | None = None
    ) -> AppError:
        """Make the error of a request that exceeds the limit.

        Args:
            limit: The limit.
            used: The usage, in `unit`.
            wait: Seconds until there is room again, if known.
            at: The current time, by default now.
        """
        detail = f"{used:,} of {limit:,} {self.unit}: {self.advice}"
        frees_at = (at or now()) + timedelta(seconds=wait) if wait is not None else None
        extra: dict[str, Any] = {
            "quota": self.name,
            "limit": limit,
            "used": used,
            "unit": self.unit,
            "frees_at": frees_at.isoformat() if frees_at else None,
        }
        if self.is_stored:
            return StorageQuotaExceededError(detail, extra=extra)
        seconds = self.retry_after if wait is None else max(1, round(wait + 0.5))
        return QuotaExceededError(detail, extra=extra, retry_after=seconds)


STORED_BYTES = Quota(
    "stored_bytes",
    "bytes",
    "delete chats, characters or lorebooks to make room. Reading and exporting still work.",
    is_stored=True,
)
CHATS = Quota("chats", "chats", "delete chats that you no longer need.", is_stored=True)
LOREBOOK_ENTRIES = Quota(
    "lorebook_entries",
    "entries",
    "delete lorebooks or entries that you no longer need.",
    is_stored=True,
)
REQUESTS = Quota("requests_per_minute", "requests", "send fewer requests per minute.")
REQUESTS_AT_ONCE = Quota(
    "requests_at_once",
    "at once",
    "wait until some of your requests are answered.",
    retry_after=1,
)
TURNS = Quota(
    "turns",
    "at once",
    "wait until one of your turns or suggestions has ended, or stop one.",
    retry_after=1,
)
PREVIEWS = Quota(
    "previews",
    "at once",
    "wait until one of your previews, token counts or tests has ended.",
    retry_after=1,
)
STREAMS = Quota(
    "streams",
    "at once",
    "close a page or program that follows your turns or jobs.",
    retry_after=5,
)
UPLOADS = Quota("uploads", "at once", "wait until your other upload has ended.", retry_after=5)
UPLOAD_BYTES = Quota(
    "upload_bytes", "bytes", "wait until your current upload has arrived.", retry_after=5
)
QUEUED_JOBS = Quota(
    "queued_jobs",
    "jobs",
    "wait until some of your jobs are done, or stop some.",
    retry_after=60,
)
TOKENS_PER_DAY = Quota(
    "tokens_per_day",
    "tokens",
    "today's tokens are used up. They are reset at midnight UTC.",
)

QUOTAS = (
    STORED_BYTES,
    CHATS,
    LOREBOOK_ENTRIES,
    REQUESTS,
    REQUESTS_AT_ONCE,
    TURNS,
    PREVIEWS,
    STREAMS,
    UPLOADS,
    UPLOAD_BYTES,
    QUEUED_JOBS,
    TOKENS_PER_DAY,
)
"""All quotas, in display order."""
