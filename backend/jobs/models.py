"""The table of jobs, which the transactions that cause the work fill."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, PrimaryId, UpdatedAt, get_table
from backend.database.processes import Leases

JobState = Literal["queued", "running", "waiting_key", "dead", "done"]

IS_WAITING = text("state IN ('queued', 'waiting_key')")
"""At most one job with the same dedupe key is in these states."""

IS_OVER = text("state IN ('done', 'dead')")

SYSTEM_SHARE = UUID(int=0)


class Job(Base):
    """A background job.

    Attributes:
        user_id: The owner; null for jobs without a user.
        share: The user's id, or `SYSTEM_SHARE`. Workers serve shares in turn.
        lane: Jobs of a lane (a chat, a lorebook) run one at a time, in the order of their ids.
        lane_until: Time until which the waiting job blocks its lane; null for no limit.
        payload: JSON of ids and numbers, without text.
        dedupe_key: At most one job with the same key waits.
        attempts: Attempts so far, without lost leases.
        leases_lost: Lost leases in a row, without a failure or a checkpoint in between.
        fence: Number of claims. A worker with a lower number cannot commit.
        error: Slug of the last error.
        wrapped_key: The user key under root key `root_version`, for this job, until `key_until`.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "user_id", "id"),
        Index("ix_jobs_due", "state", "share", "run_after"),
        Index("ix_jobs_lane", "lane", "state", "id"),
        Index(
            "ix_jobs_key_until",
            "key_until",
            sqlite_where=text("key_until IS NOT NULL"),
            postgresql_where=text("key_until IS NOT NULL"),
        ),
        Index(
            "ix_jobs_over", "state", "created_at", sqlite_where=IS_OVER, postgresql_where=IS_OVER
        ),
        Index(
            "ix_jobs_waiting_once",
            "dedupe_key",
            unique=True,
            sqlite_where=IS_WAITING,
            postgresql_where=IS_WAITING,
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[UUID | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    share: Mapped[UUID]
    kind: Mapped[str]
    lane: Mapped[UUID | None]
    lane_until: Mapped[datetime | None]
    payload: Mapped[str] = mapped_column(default="{}")
    dedupe_key: Mapped[str | None]
    state: Mapped[JobState] = mapped_column(String, default="queued")
    attempts: Mapped[int] = mapped_column(default=0)
    leases_lost: Mapped[int] = mapped_column(default=0)
    run_after: Mapped[datetime]
    lease_owner: Mapped[UUID | None]
    lease_until: Mapped[datetime | None]
    fence: Mapped[int] = mapped_column(default=0)
    progress_done: Mapped[int] = mapped_column(default=0)
    progress_total: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None]
    wrapped_key: Mapped[bytes | None]
    root_version: Mapped[int | None]
    key_until: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


JOBS = get_table(Job)
"""The table. Queries on it take a third less time than queries on the class."""

JOB_LEASES = Leases(JOBS, text("state = 'running'"))
