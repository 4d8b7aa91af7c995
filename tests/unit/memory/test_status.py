"""What memory says of its jobs."""

from __future__ import annotations

import pytest

from backend.jobs.models import Job, JobState
from backend.memory.controller import ProblemKind, _find_problem


@pytest.mark.parametrize(
    ("state", "error", "trouble"),
    [
        ("queued", None, None),
        ("running", None, None),
        ("queued", "embedder-unavailable", "delayed"),
        # While it is tried again, which may take seconds: the problem does not come and go.
        ("running", "embedder-unavailable", "delayed"),
        ("dead", "embedder-unavailable", "gave_up"),
        ("waiting_key", None, "waiting_key"),
    ],
)
def test_a_job_that_failed_is_a_problem_until_it_is_done(
    state: JobState, error: str | None, trouble: ProblemKind | None
) -> None:
    assert _find_problem(Job(state=state, error=error)) == trouble
