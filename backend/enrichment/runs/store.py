"""Runs as they are stored: what was read, written (sealed) and spent. Nothing here commits."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Subquery, case, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import now
from backend.enrichment.errors import RunNotFoundError
from backend.enrichment.models import RUN_DETAIL, EnrichmentRun
from backend.http.schemas import ShownProblem
from backend.quotas.ledgers import add_tokens
from backend.vault.sealing import Sealer


@cache
def select_run_shares() -> Subquery:
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


EffectKind = Literal[
    "event_created",
    "event_changed",
    "event_removed",
    "entry_created",
    "entry_changed",
    "entry_removed",
    "item_changed",
]


class RunEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a run wrote.

    `id` is the event's or the entry's, `container_id` its chronicle's or lorebook's; of an item of
    a campaign it is the change's in the ledger, and the campaign's. `title` is for people: the
    summary, the entry's title, the item's name. `revision` is what the run left it at, 0 where it
    is gone. `before` is what `snapshot` made of it before: enough to put it back as it was.
    """

    what: EffectKind
    id: UUID
    container_id: UUID
    title: str
    because: str = ""
    revision: int = 0
    before: dict[str, Any] | None = None


class RefusedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of the model's that came to nothing. `reason` is what the model was told.

    `tool` is empty where what it answered could not be read as calls.
    """

    tool: str
    reason: str
    duplicate_of: UUID | None = None


class RunDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The messages that a run read, by ids, the reasons of the model, and the effects.

    `why` is the triage's reason. `note` is for people: that a demo wrote this, say. `problem` is
    why the run failed. `kept` are the places among `effects` of those that undoing the run has left
    alone.
    """

    why: str = ""
    significant: bool = False
    kinds: list[str] = []
    message_ids: list[UUID] = []
    memory_ids: list[UUID] = []
    effects: list[RunEffect] = []
    refused: list[RefusedCall] = []
    note: str = ""
    problem: ShownProblem | None = None
    kept: list[int] = []


_DETAIL = msgspec.json.Decoder(RunDetail)


def seal_detail(sealer: Sealer, run_id: UUID, detail: RunDetail) -> bytes:
    """What a run read and wrote, for its row."""
    return sealer.seal_bytes(RUN_DETAIL, run_id, msgspec.json.encode(detail))


def open_detail(sealer: Sealer, run: EnrichmentRun) -> RunDetail:
    """What a run read and wrote."""
    if run.sealed_detail is None:
        return RunDetail()
    return _DETAIL.decode(sealer.open_bytes(RUN_DETAIL, run.id, run.sealed_detail))


async def record_success(session: AsyncSession, run: EnrichmentRun) -> None:
    """Keep a run that went well."""
    session.add(run)
    await add_tokens(session, run.user_id, run.prompt_tokens + run.completion_tokens)


async def record_failure(
    session: AsyncSession, sealer: Sealer, run: EnrichmentRun
) -> EnrichmentRun:
    """Keep a run that failed; the same failure again, of the same job, is one row: that one."""
    await add_tokens(session, run.user_id, run.prompt_tokens + run.completion_tokens)
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
        return run
    before.calls += run.calls
    before.prompt_tokens += run.prompt_tokens
    before.completion_tokens += run.completion_tokens
    before.triage_model = before.triage_model or run.triage_model
    before.triage_prompt_tokens += run.triage_prompt_tokens or 0
    before.triage_completion_tokens += run.triage_completion_tokens or 0
    before.sealed_detail = seal_detail(sealer, before.id, open_detail(sealer, run))
    # What it took counts as of today.
    before.created_at = now()
    return before


async def get_run(
    session: AsyncSession, run_id: UUID, *, owner_id: UUID, lock: bool = False
) -> EnrichmentRun:
    """Raises `RunNotFoundError`, both when absent and when someone else's."""
    query = select(EnrichmentRun).where(
        EnrichmentRun.id == run_id, EnrichmentRun.user_id == owner_id
    )
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    run = await session.scalar(query)
    if run is None:
        raise RunNotFoundError
    return run


async def list_runs(
    session: AsyncSession, chat_id: UUID, *, limit: int, after: UUID | None
) -> list[EnrichmentRun]:
    """A chat's runs, newest first, from behind `after`."""
    query = select(EnrichmentRun).where(EnrichmentRun.chat_id == chat_id)
    if after is not None:
        query = query.where(EnrichmentRun.id < after)
    return list(await session.scalars(query.order_by(EnrichmentRun.id.desc()).limit(limit)))
