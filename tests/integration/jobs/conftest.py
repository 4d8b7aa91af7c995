"""A queue on each database, and users to work for."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from backend.database.engine import Database
from backend.jobs.queue import JobQueue
from tests.integration.jobs.working import ROOT, Person, Workshop, new_person


@pytest.fixture
def queue(database: Database) -> JobQueue:
    return JobQueue(database, ROOT)


@pytest.fixture
async def ada(database: Database) -> Person:
    return await new_person(database, "Ada")


@pytest.fixture
async def ben(database: Database) -> Person:
    return await new_person(database, "Ben")


@pytest.fixture
async def workshop(queue: JobQueue) -> AsyncGenerator[Workshop]:
    workshop = Workshop(queue)
    yield workshop
    await workshop.close()
