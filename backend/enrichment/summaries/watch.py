"""Looks at the summaries that turns wait for, with one query for all turns of the process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, select

from backend.database.engine import Database
from backend.jobs.models import Job

LOOK_SECONDS = 0.1


class UnfinishedJob(NamedTuple):
    """The state of a job that is queued or runs, and how often it was tried."""

    state: str
    attempts: int


_Found = Mapping[UUID | None, Sequence[UnfinishedJob]]
"""Unfinished jobs by their lanes."""


class SummaryWatch:
    """Reads the unfinished jobs of one kind, by their lanes, at most every `LOOK_SECONDS`."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database = database
        self._query = select(Job.lane, Job.state, Job.attempts).where(
            Job.lane.in_(bindparam("lanes", expanding=True)),
            Job.kind == kind,
            Job.state.in_(["queued", "running"]),
        )
        self._lanes: set[UUID] = set()
        self._next: asyncio.Task[_Found] | None = None

    async def look(self, lane: UUID) -> Sequence[UnfinishedJob]:
        """Return the unfinished jobs of a lane, as of the next look."""
        self._lanes.add(lane)
        if self._next is None:
            self._next = asyncio.create_task(self._look())
        found = await asyncio.shield(self._next)
        return found.get(lane, ())

    async def _look(self) -> _Found:
        await asyncio.sleep(LOOK_SECONDS)
        # A turn that asks from here on waits for the look after this one.
        lanes, self._lanes, self._next = self._lanes, set(), None
        found: defaultdict[UUID | None, list[UnfinishedJob]] = defaultdict(list)
        async with self._database.read() as session:
            for lane, state, attempts in await session.execute(self._query, {"lanes": list(lanes)}):
                found[lane].append(UnfinishedJob(state, attempts))
        return found
