"""What the rolling summary notes of each time it asked: the rows of its runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import new_id, now
from backend.enrichment.detail import RunDetail
from backend.enrichment.models import EnrichmentRun, RunState
from backend.enrichment.runs import sealed_detail
from backend.enrichment.summary_parts import Part
from backend.jobs.running import RunningJob
from backend.logs import get_logger

log = get_logger(__name__)


@dataclass(slots=True)
class Said:
    """What comes of asking once; filled in on the way, so that nothing spent is lost."""

    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    run_id: UUID = field(default_factory=new_id)
    begun: float = field(default_factory=time.monotonic)


def run_row(
    job: RunningJob,
    chat_id: UUID,
    part: Part,
    said: Said,
    *,
    model_id: str,
    problem: str | None = None,
) -> EnrichmentRun:
    """The row of a run, and a line in the log; with a `problem` it failed."""
    detail = RunDetail(message_ids=list(part.message_ids), significant=problem is None)
    duration_ms = round((time.monotonic() - said.begun) * 1000)
    state: RunState = "failed" if problem else "done"
    log.info(
        "enrichment.summarised",
        job_id=job.id,
        run_id=said.run_id,
        chat_id=chat_id,
        model=model_id,
        state=state,
        problem=problem,
        attempt=job.attempt,
        count=len(part.message_ids),
        prompt_tokens=said.prompt_tokens,
        completion_tokens=said.completion_tokens,
        duration_ms=duration_ms,
    )
    return EnrichmentRun(
        id=said.run_id,
        user_id=job.keys.user_id,
        chat_id=chat_id,
        job_id=job.id,
        kind="summary",
        state=state,
        model=model_id,
        from_position=part.first_position,
        to_position=part.last_position,
        calls=1,
        prompt_tokens=said.prompt_tokens,
        completion_tokens=said.completion_tokens,
        duration_ms=duration_ms,
        error=problem,
        sealed_detail=sealed_detail(job.keys, said.run_id, detail),
    )


async def note_failure(session: AsyncSession, run: EnrichmentRun) -> None:
    """A run that failed; the same failure again, of the same job, is one row."""
    before = await session.scalar(
        select(EnrichmentRun).where(
            EnrichmentRun.chat_id == run.chat_id,
            EnrichmentRun.job_id == run.job_id,
            EnrichmentRun.state == "failed",
            EnrichmentRun.error == run.error,
            EnrichmentRun.to_position == run.to_position,
        )
    )
    if before is None:
        session.add(run)
        return
    before.calls += run.calls
    before.prompt_tokens += run.prompt_tokens
    before.completion_tokens += run.completion_tokens
    # What it took counts as of today.
    before.created_at = now()
