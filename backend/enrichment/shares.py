"""What each model took of runs: a run may ask a small one first whether there is anything to do."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Subquery, case, literal, select, union_all

from backend.enrichment.models import EnrichmentRun


@cache
def run_shares() -> Subquery:
    """Runs by the models that were asked: of `triage_model` a row of its own, with one call.

    A run counts with its own model; a row of the other has 0 in `runs`.
    """
    run = EnrichmentRun
    whose = (run.user_id, run.chat_id, run.campaign_id)
    has_two = run.triage_model.is_not(None)
    own = select(
        *whose,
        run.model,
        literal(1).label("runs"),
        (run.calls - case((has_two, 1), else_=0)).label("calls"),
        (run.prompt_tokens - run.triage_prompt_tokens).label("prompt_tokens"),
        (run.completion_tokens - run.triage_completion_tokens).label("completion_tokens"),
    ).where(run.calls > 0)
    small = select(
        *whose,
        run.triage_model,
        literal(0),
        literal(1),
        run.triage_prompt_tokens,
        run.triage_completion_tokens,
    ).where(has_two)
    return union_all(own, small).subquery()
