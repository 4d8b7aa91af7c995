"""Every quota that an account has, each defined once, and what a request beyond it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from backend.database.base import now
from backend.errors import AppError, TooLargeError, TooManyRequestsError
from backend.settings import Settings

Unit = Literal["bytes", "chats", "entries", "requests", "at once", "jobs", "tokens"]


class QuotaExceededError(TooManyRequestsError):
    """A quota on a rate or on concurrent work is used up: wait for `retry_after` seconds."""

    slug, title = "quota-exceeded", "Quota exceeded"


class StorageQuotaExceededError(TooLargeError):
    """A storage quota of the account is used up. Deleting something frees it."""

    slug, title = "storage-quota-exceeded", "Storage quota exceeded"


class TooManyFromAddressError(TooManyRequestsError):
    """Too many requests from one address without a session or API key."""

    slug, title = "too-many-from-address", "Too many requests from your address"


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of one account.

    Args:
        name: What problems and `GET /me/usage` call it.
        unit: What is counted.
        advice: What to do about it.
        is_stored: Whether it is on what is stored, which frees when something is deleted. Rates,
            and work at once, free by themselves.
        retry_after: Seconds after which another try makes sense, where nothing tells exactly.
    """

    name: str
    unit: Unit
    advice: str
    is_stored: bool = False
    retry_after: int | None = None

    def limit(self, settings: Settings) -> int:
        """The limit that this installation sets; 0 is none."""
        limit: int = getattr(settings, f"max_{self.name}_per_user")
        return limit

    def exceeded(
        self, *, limit: int, used: int, wait: float | None = None, at: datetime | None = None
    ) -> AppError:
        """The problem of a request beyond it.

        Args:
            limit: The limit that holds.
            used: How much is used, in `unit`.
            wait: Seconds until it frees, where that is known.
            at: The present moment, by default now.
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
    "delete chats, characters or lorebooks to free space. Reading and exporting still work.",
    is_stored=True,
)
CHATS = Quota("chats", "chats", "delete some that you no longer need.", is_stored=True)
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
    "wait until one of your turns or suggestions has finished, or stop one.",
    retry_after=1,
)
PREVIEWS = Quota(
    "previews",
    "at once",
    "wait until one of your previews, token counts or tests has finished.",
    retry_after=1,
)
STREAMS = Quota(
    "streams",
    "at once",
    "close a page or program that follows your turns or jobs.",
    retry_after=5,
)
UPLOADS = Quota("uploads", "at once", "wait until your other upload has finished.", retry_after=5)
UPLOAD_BYTES = Quota(
    "upload_bytes", "bytes", "wait until your other uploads have finished.", retry_after=5
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
"""All of them, in the order in which they are shown."""
