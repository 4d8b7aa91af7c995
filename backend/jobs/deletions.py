"""Queue the deletion of the rows of something that was hidden. `operations` has the job."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID, uuid5

from sqlalchemy.ext.asyncio import AsyncSession

from backend.jobs.queue import NewJob, insert_job

DELETE_KIND = "rows.delete"
CONTAINER_DELETE_KIND = "containers.delete"
"""The kind for campaigns, chronicles and lorebooks, which workers of earlier versions cannot delete
and leave to others."""

Root = Literal["account", "campaign", "chat", "chronicle", "lorebook"]
"""The kinds of data that are deleted in many transactions."""


def name_deletion(root: Root, row_id: UUID) -> str:
    """Return the dedupe key of the job."""
    return f"{DELETE_KIND}/{root}/{row_id}"


async def queue_deletion(
    session: AsyncSession, root: Root, row_id: UUID, *, run_after: datetime | None = None
) -> None:
    """Queue the deletion of a hidden row and of all rows that belong to it."""
    job = NewJob(
        kind=DELETE_KIND if root in {"account", "chat"} else CONTAINER_DELETE_KIND,
        payload={"root": root, "id": str(row_id)},
        lane=uuid5(row_id, DELETE_KIND),  # a long deletion gets another job every few minutes
        dedupe_key=name_deletion(root, row_id),
        run_after=run_after,
    )
    await insert_job(session, job)
