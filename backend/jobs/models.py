"""The table of jobs: an outbox, filled by the transactions that cause the work."""

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
"""Of jobs with one dedupe key, at most one is in these states."""

SYSTEM_SHARE = UUID(int=0)
"""Share of the jobs that are done on behalf of nobody."""


class Job(Base):
    """A piece of work that outlives the request that caused it.

    `payload` is JSON of ids and numbers, never of text. Jobs of one `lane` (a chat, a lorebook) run
    one after the other, in the order of their ids. `share` is whose share of the workers it takes:
    the user's id, or `SYSTEM_SHARE`. Of jobs with one `dedupe_key` at most one waits.
    `fence` counts claims: a worker with an older number changes nothing any more. `wrapped_key` is
    the user's key under the root key of `root_version`, for this job alone, until `key_until`.
    `leases_lost` counts claims in a row whose worker was not heard of again, neither with a failure
    nor with a checkpoint; `attempts` does not count them. `error` is the slug of what went wrong
    last. `user_id` is null for work on behalf of nobody. While it waits, a job holds its lane up
    until `lane_until`, or for as long as it waits if that is null.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "user_id", "id"),
        Index("ix_jobs_due", "state", "share", "run_after"),
        Index("ix_jobs_lane", "lane", "state", "id"),
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
"""The table by itself: what every round asks costs a third less than by way of the class."""

JOB_LEASES = Leases(JOBS, text("state = 'running'"))
