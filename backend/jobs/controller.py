"""Background jobs: `/jobs`."""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.sessions import SessionWatch
from backend.http.schemas import RAISES, STORES, STREAMS, Page, PageSize
from backend.jobs.errors import JobNotFoundError, JobNotRetryableError, JobNotStoppableError
from backend.jobs.models import JobState
from backend.jobs.schemas import JobProgress, JobView
from backend.jobs.service import JobService

Caller = NamedDependency[Identity]
Jobs = NamedDependency[JobService]

KEEP_ALIVE = b": still here\n\n"
KEEP_ALIVE_SECONDS = 15.0

EVENTS: dict[str, tuple[str, ...]] = {
    "state": JobView.__struct_fields__,
    "progress": JobProgress.__struct_fields__,
    "done": JobView.__struct_fields__,
}
"""The members of each event's data."""


class JobController(Controller):
    """Your background jobs."""

    path = "/jobs"
    tags = ("Jobs",)

    @get(summary="List jobs")
    async def list_jobs(
        self,
        identity: Caller,
        jobs: Jobs,
        in_state: Annotated[JobState | None, QueryParameter(name="state")] = None,
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[JobView]:
        """Jobs that are queued, running, waiting for your key, or dead, newest first.

        Most finished jobs are deleted at once; some are kept for a day.
        """
        return await jobs.list_jobs(identity.user_id, state=in_state, limit=limit, after=after)

    @get("/{job_id:uuid}", opt={RAISES: (JobNotFoundError,)}, summary="Read a job")
    async def get_job(self, job_id: FromPath[UUID], identity: Caller, jobs: Jobs) -> JobView:
        """A job and its progress."""
        return await jobs.get(identity.user_id, job_id)

    @post(
        "/{job_id:uuid}/retry",
        status_code=202,
        opt={STORES: False, RAISES: (JobNotFoundError, JobNotRetryableError)},
        summary="Retry a job",
    )
    async def retry_job(self, job_id: FromPath[UUID], identity: Caller, jobs: Jobs) -> JobView:
        """Retry a dead or waiting job now, with a new set of attempts."""
        return await jobs.retry(identity, job_id)

    @post(
        "/{job_id:uuid}/stop",
        status_code=202,
        opt={STORES: False, RAISES: (JobNotFoundError, JobNotStoppableError)},
        summary="Stop a job",
    )
    async def stop_job(self, job_id: FromPath[UUID], identity: Caller, jobs: Jobs) -> JobView:
        """Stop a job, if its kind allows it. All jobs that use a model do.

        Completed steps are kept. The job becomes `done` with the error `stopped`, and is listed for
        a day.
        """
        return await jobs.stop(identity.user_id, job_id)

    @get(
        "/{job_id:uuid}/events",
        opt={RAISES: (JobNotFoundError,), STREAMS: EVENTS},
        summary="Follow a job",
    )
    async def follow_job(
        self,
        job_id: FromPath[UUID],
        identity: Caller,
        jobs: Jobs,
        watch: NamedDependency[SessionWatch],
    ) -> Response[Any]:
        """A job's progress as server-sent events, until it ends.

        `state` is the first event and follows each change of state, with the whole job; `progress`
        has `{done, total}`; the last event is `done`, or `state` with `dead`. The stream begins
        with the current state, so reconnect after an interruption. A deleted job is done.
        """
        await jobs.get(identity.user_id, job_id)
        return Stream(
            _body(jobs, watch, identity, job_id),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )


async def _body(
    jobs: JobService, watch: SessionWatch, identity: Identity, job_id: UUID
) -> AsyncIterator[bytes]:
    """Yield the encoded events while the caller's session is open."""
    number, spoke_at, before = 0, time.monotonic(), None
    with watch.watching(identity.slot_id), contextlib.suppress(JobNotFoundError):
        async for view in jobs.follow(identity.user_id, job_id):
            if not watch.is_open(identity.slot_id):
                return
            events = [] if view is None else _events(before, view)
            before = view or before
            if events:
                spoke_at = time.monotonic()
                for name, data in events:
                    number += 1
                    yield _encode(number, name, data)
            elif time.monotonic() - spoke_at >= KEEP_ALIVE_SECONDS:
                spoke_at = time.monotonic()
                yield KEEP_ALIVE


def _events(before: JobView | None, view: JobView) -> list[tuple[str, Any]]:
    events: list[tuple[str, Any]] = []
    if before is not None and before.progress != view.progress:
        events.append(("progress", view.progress))
    if view.state == "done":
        events.append(("done", view))
    elif before is None or (before.state, before.attempts) != (view.state, view.attempts):
        events.append(("state", view))
    return events


def _encode(number: int, name: str, data: Any) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), msgspec.json.encode(data))
