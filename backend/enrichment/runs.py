"""Runs as they are stored: what was read, written and spent. Nothing here commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import now
from backend.enrichment.detail import RunDetail
from backend.enrichment.errors import RunNotFoundError
from backend.enrichment.models import RUN_DETAIL, EnrichmentRun
from backend.quotas.ledgers import add_tokens
from backend.vault.sealing import Sealer

_DETAIL = msgspec.json.Decoder(RunDetail)


def sealed_detail(sealer: Sealer, run_id: UUID, detail: RunDetail) -> bytes:
    """What a run read and wrote, for its row."""
    return sealer.seal_bytes(RUN_DETAIL, run_id, msgspec.json.encode(detail))


def open_detail(sealer: Sealer, run: EnrichmentRun) -> RunDetail:
    """What a run read and wrote."""
    if run.sealed_detail is None:
        return RunDetail()
    return _DETAIL.decode(sealer.open_bytes(RUN_DETAIL, run.id, run.sealed_detail))


async def note_done(session: AsyncSession, run: EnrichmentRun) -> None:
    """Keep a run that went well."""
    session.add(run)
    await session.flush()
    await _note_tokens(session, run)


async def _note_tokens(session: AsyncSession, run: EnrichmentRun) -> None:
    await add_tokens(session, run.user_id, run.prompt_tokens + run.completion_tokens)


async def note_failed(session: AsyncSession, sealer: Sealer, run: EnrichmentRun) -> EnrichmentRun:
    """Keep a run that failed; the same failure again, of the same job, is one row: that one."""
    await _note_tokens(session, run)
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
    before.sealed_detail = sealed_detail(sealer, before.id, open_detail(sealer, run))
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


@dataclass(frozen=True, slots=True)
class LaterRuns:
    """The runs into one chronicle that came after another run, the first one first.

    Those among them that were undone are there, too: what they found tells what was there before.
    """

    runs: Sequence[tuple[EnrichmentRun, RunDetail]] = ()

    def found(self, detail: RunDetail) -> dict[UUID, list[dict[str, Any]]]:
        """Of each thing that a run (`detail`) and these changed, what they found: its snapshots."""
        found: defaultdict[UUID, list[dict[str, Any]]] = defaultdict(list)
        for each in (detail, *(later for _, later in self.runs)):
            for effect in each.effects:
                if effect.before is not None:
                    found[effect.id].append(effect.before)
        return found

    def removed_any(self, ids: Collection[UUID]) -> UUID | None:
        """The last run that stands and has removed any of these; None where there is none."""
        for run, detail in reversed(self.runs):
            removed = {each.id for each in detail.effects if each.what.endswith("removed")}
            if run.state == "done" and not removed.isdisjoint(ids):
                return run.id
        return None


async def later_runs(session: AsyncSession, sealer: Sealer, run: EnrichmentRun) -> LaterRuns:
    """The runs into the same chronicle that came after one and did not fail."""
    if run.chronicle_id is None:
        return LaterRuns()
    rows = await session.scalars(
        select(EnrichmentRun)
        .where(
            EnrichmentRun.chronicle_id == run.chronicle_id,
            EnrichmentRun.user_id == run.user_id,
            EnrichmentRun.id > run.id,
            EnrichmentRun.state != "failed",
        )
        .order_by(EnrichmentRun.id)
    )
    return LaterRuns([(row, open_detail(sealer, row)) for row in rows])
