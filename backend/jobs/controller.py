"""Work in the background: `/jobs`."""

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
    """Your work in the background."""

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
        """What is queued, runs, waits for your key, or gave up, newest first.

        Most jobs are gone when they are done; some stay for a day.
        """
        return await jobs.list_jobs(identity.user_id, state=in_state, limit=limit, after=after)

    @get("/{job_id:uuid}", opt={RAISES: (JobNotFoundError,)}, summary="Read a job")
    async def get_job(self, job_id: FromPath[UUID], identity: Caller, jobs: Jobs) -> JobView:
        """How a job is going."""
        return await jobs.get(identity.user_id, job_id)

    @post(
        "/{job_id:uuid}/retry",
        status_code=202,
        opt={STORES: False, RAISES: (JobNotFoundError, JobNotRetryableError)},
        summary="Try a job again",
    )
    async def retry_job(self, job_id: FromPath[UUID], identity: Caller, jobs: Jobs) -> JobView:
        """Have a job that gave up, or waits, tried again now, with all its attempts before it."""
        return await jobs.retry(identity, job_id)

    @post(
        "/{job_id:uuid}/stop",
        status_code=202,
        opt={STORES: False, RAISES: (JobNotFoundError, JobNotStoppableError)},
        summary="Stop a job",
    )
    async def stop_job(self, job_id: FromPath[UUID], identity: Caller, jobs: Jobs) -> JobView:
        """End a job half-way, if its kind allows it. All work that asks a model does.

        What it has done stays, what it was about to do is dropped. It is `done`, with `stopped` as
        its error, and is shown for a day.
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
        """A job's progress as server-sent events, until it has ended.

        `state` comes first and whenever the job's state changes, with the whole job; `progress`
        with `{done, total}`; `done` last, or `state` with `dead`. It begins with how things stand,
        so after a break just ask again; a job that is gone by then is done.
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
    """The events on the wire, for as long as the session that asked is open."""
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
