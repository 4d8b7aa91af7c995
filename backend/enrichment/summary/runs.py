"""How the rolling summary asks, and what it notes of it: the rows of its runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from backend.database.base import new_id
from backend.enrichment.detail import RunDetail
from backend.enrichment.models import EnrichmentRun, RunState
from backend.enrichment.runs import sealed_detail
from backend.enrichment.summary.parts import SummaryPart
from backend.generation.model import ModelSpec
from backend.generation.sampling import Sampling
from backend.jobs.running import RunningJob
from backend.logs import get_logger

log = get_logger(__name__)

OVERLONG = 3
"""How many times as many words as were asked for are kept."""

TOKENS_PER_WORD = 2

THINKING = 4_096
"""Tokens left to models that think before they write."""


@dataclass(slots=True)
class Said:
    """What comes of asking once; filled in on the way, so that nothing spent is lost."""

    text: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    run_id: UUID = field(default_factory=new_id)
    begun: float = field(default_factory=time.monotonic)


def run_row(
    job: RunningJob,
    chat_id: UUID,
    part: SummaryPart,
    said: Said,
    *,
    model_id: str,
    problem: str | None = None,
    note: str = "",
) -> EnrichmentRun:
    """The row of a run, and a line in the log; with a `problem` it failed. `note` is for people."""
    detail = RunDetail(message_ids=list(part.message_ids), significant=problem is None, note=note)
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
        calls=said.calls,
        prompt_tokens=said.prompt_tokens,
        completion_tokens=said.completion_tokens,
        duration_ms=duration_ms,
        error=problem,
        sealed_detail=sealed_detail(job.keys, said.run_id, detail),
    )


def sampling_for(words: int, spec: ModelSpec, own: Sampling) -> Sampling:
    """Room for an answer of so many words, beside what the user chose."""
    if "max_output_tokens" not in spec.accepts:
        return own
    room = words * OVERLONG * TOKENS_PER_WORD
    if spec.accepts & {"thinking_budget", "reasoning_effort"}:
        room += THINKING
    return msgspec.structs.replace(own, max_output_tokens=min(spec.max_output_tokens, room))
