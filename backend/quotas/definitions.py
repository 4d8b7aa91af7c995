"""Every quota that an account has, each defined once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from backend.database.base import now
from backend.errors import AppError
from backend.quotas.errors import quota_error
from backend.settings import Settings

Unit = Literal["bytes", "chats", "entries", "requests", "at once", "jobs", "tokens"]


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of one account.

    Args:
        name: What problems and `GET /me/usage` call it.
        setting: The field of `Settings` that holds the limit; 0 there is no limit.
        unit: What is counted.
        status: 413 for what is stored, which frees when something is deleted; 429 for rates and
            for work at once, which free by themselves.
        advice: What to do about it.
        retry_after: Seconds after which another try makes sense, where nothing tells exactly.
    """

    name: str
    setting: str
    unit: Unit
    status: Literal[413, 429]
    advice: str
    retry_after: int | None = None

    def limit(self, settings: Settings) -> int:
        """The limit that this installation sets; 0 is none."""
        limit: int = getattr(settings, self.setting)
        return limit

    def exceeded(
        self, *, limit: int, used: int, wait: float | None = None, at: datetime | None = None
    ) -> AppError:
        """The problem of a request beyond it.

        Args:
            limit: The limit that holds.
            used: How much is used, in `unit`.
            wait: Seconds until it frees, where that is known.
            at: The present moment, for tests.
        """
        seconds = self.retry_after if wait is None else max(1, round(wait + 0.5))
        frees_at = (at or now()) + timedelta(seconds=wait) if wait is not None else None
        return quota_error(
            status=self.status,
            detail=f"{used:,} of {limit:,} {self.unit}: {self.advice}",
            extra={
                "quota": self.name,
                "limit": limit,
                "used": used,
                "unit": self.unit,
                "frees_at": frees_at.isoformat() if frees_at else None,
            },
            retry_after=seconds if self.status == 429 else None,  # noqa: PLR2004  # as above
        )


STORED_BYTES = Quota(
    "stored_bytes",
    "max_stored_bytes_per_user",
    "bytes",
    413,
    "delete chats, characters or lorebooks to make room. Reading and exporting go on.",
)
CHATS = Quota("chats", "max_chats_per_user", "chats", 413, "delete some that you no longer need.")
LOREBOOK_ENTRIES = Quota(
    "lorebook_entries",
    "max_lorebook_entries_per_user",
    "entries",
    413,
    "delete lorebooks, or entries, that you no longer need.",
)
REQUESTS = Quota(
    "requests_per_minute",
    "max_requests_per_minute_per_user",
    "requests",
    429,
    "send fewer requests a minute.",
)
REQUESTS_AT_ONCE = Quota(
    "requests_at_once",
    "max_requests_at_once_per_user",
    "at once",
    429,
    "wait until some of your requests are answered.",
    retry_after=1,
)
TURNS = Quota(
    "turns",
    "max_turns_per_user",
    "at once",
    429,
    "wait until one of your turns or suggestions is over, or stop one.",
    retry_after=1,
)
PREVIEWS = Quota(
    "previews",
    "max_previews_per_user",
    "at once",
    429,
    "wait until one of your previews, lorebook tests or token counts is over.",
    retry_after=1,
)
STREAMS = Quota(
    "streams",
    "max_streams_per_user",
    "at once",
    429,
    "close a page or a program that follows your turns or jobs.",
    retry_after=5,
)
UPLOADS = Quota(
    "uploads",
    "max_uploads_per_user",
    "at once",
    429,
    "wait until your other upload is over.",
    retry_after=5,
)
UPLOAD_BYTES = Quota(
    "upload_bytes",
    "max_upload_bytes_per_user",
    "bytes",
    429,
    "wait until what you are sending has arrived.",
    retry_after=5,
)
QUEUED_JOBS = Quota(
    "queued_jobs",
    "max_queued_jobs_per_user",
    "jobs",
    429,
    "wait until some of your jobs are done, or stop some.",
    retry_after=60,
)
TOKENS_PER_DAY = Quota(
    "tokens_per_day",
    "max_tokens_per_day_per_user",
    "tokens",
    429,
    "the day's tokens are spent; the next day begins at midnight UTC.",
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
