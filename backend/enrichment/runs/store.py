"""Stored runs: their messages, effects and tokens. Functions here never commit."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Subquery, case, exists, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat
from backend.chronicles.models import Chronicle
from backend.database.base import new_id, now
from backend.enrichment.errors import RunNotFoundError
from backend.enrichment.models import RUN_DETAIL, EnrichmentRun, RunKind
from backend.http.schemas import ShownProblem
from backend.llm.answers import RunBudget
from backend.quotas.ledgers import UnlistedUsage, add_tokens, add_unlisted
from backend.vault.sealing import Sealer


@cache
def select_run_shares() -> Subquery:
    """Select the cost of runs by model. The triage's model has a separate row, with one call.

    A run counts once, with its main model: the triage's row has 0 in `runs`.
    """
    run = EnrichmentRun
    whose = (run.user_id, run.chat_id, run.campaign_id, run.chronicle_id, run.created_at)
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

    `id` is an event or a lorebook entry, and `container_id` its chronicle or lorebook. For
    campaigns they are the change in the ledger and the campaign. `title` is shown to the user.
    `revision` is the row's revision after the run; 0 if it was deleted. `before` is a snapshot that
    can be restored. `telling` is the number of a telling that the run has added to an event.
    """

    what: EffectKind
    id: UUID
    container_id: UUID
    title: str
    because: str = ""
    revision: int = 0
    before: dict[str, Any] | None = None
    telling: int | None = None


class RefusedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that was refused. `reason` is the message that the model received.

    `tool` is empty if the answer could not be parsed.
    """

    tool: str
    reason: str
    duplicate_of: UUID | None = None


class RunDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The details of a run: its messages, the model's reasons and the effects.

    `why` is the reason of the triage. `note` is shown to the user. `problem` is the error of a
    failed run. `kept` are the indexes of `effects` that an undo has kept.
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
    """Encrypt the details of a run for its row."""
    return sealer.seal_bytes(RUN_DETAIL, run_id, msgspec.json.encode(detail))


def open_detail(sealer: Sealer, run: EnrichmentRun) -> RunDetail:
    """Decrypt the details of a run; empty if it has none."""
    if run.sealed_detail is None:
        return RunDetail()
    return _DETAIL.decode(sealer.open_bytes(RUN_DETAIL, run.id, run.sealed_detail))


def build_run(
    chat: Chat,
    kind: RunKind,
    *,
    model: str,
    positions: tuple[int, int],
    budget: RunBudget,
    seconds: float,
    error: str | None = None,
    **columns: Any,
) -> EnrichmentRun:
    """Build the row of a run of a chat, without storing it.

    Args:
        chat: The chat, as it is now.
        kind: The kind of work.
        model: The id of the model that did the work.
        positions: The first and the last position that was read.
        budget: The calls and tokens of the run.
        seconds: How long the run took.
        error: The slug of the error; None if it succeeded.
        columns: Further columns of the row.
    """
    triage: dict[str, Any] = {}
    if budget.calls and budget.triage is not None and budget.triage[0] != model:
        names = "triage_model", "triage_prompt_tokens", "triage_completion_tokens"
        triage = dict(zip(names, budget.triage, strict=True))
    return EnrichmentRun(
        **{"id": new_id(), **columns},
        user_id=chat.user_id,
        chat_id=chat.id,
        campaign_id=chat.campaign_id,
        kind=kind,
        state="failed" if error else "done",
        model=model,
        from_position=positions[0],
        to_position=positions[1],
        calls=budget.calls,
        prompt_tokens=budget.prompt_tokens,
        completion_tokens=budget.completion_tokens,
        **triage,
        duration_ms=round(seconds * 1000),
        error=error,
    )


async def record_unlisted(
    session: AsyncSession, user_id: UUID, model: str, budget: RunBudget
) -> None:
    """Count the tokens of a run if its chat was deleted while the model worked."""
    if not budget.calls:
        return
    small, prompt, completion = budget.triage or (model, 0, 0)
    shares = [
        UnlistedUsage(
            model=model,
            runs=1,
            prompt_tokens=budget.prompt_tokens - prompt,
            completion_tokens=budget.completion_tokens - completion,
        )
    ]
    if prompt or completion:
        shares.append(
            UnlistedUsage(model=small, prompt_tokens=prompt, completion_tokens=completion)
        )
    spent = budget.prompt_tokens + budget.completion_tokens
    await add_unlisted(session, user_id, shares, tokens=spent)


async def record_success(session: AsyncSession, run: EnrichmentRun) -> None:
    """Store a successful run, and count its tokens."""
    session.add(run)
    await add_tokens(session, run.user_id, run.prompt_tokens + run.completion_tokens)


async def record_failure(
    session: AsyncSession, sealer: Sealer, run: EnrichmentRun
) -> EnrichmentRun:
    """Store a failed run, and count its tokens. Return its row.

    If the same job fails again with the same error, the row of the first failure is updated.
    """
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
    # The tokens count as used today.
    before.created_at = now()
    return before


_IS_LISTED = ~exists().where(
    Chronicle.id == EnrichmentRun.chronicle_id, Chronicle.deleted_at.is_not(None)
)
"""Runs are deleted with their chronicle."""


async def get_run(
    session: AsyncSession, run_id: UUID, *, owner_id: UUID, lock: bool = False
) -> EnrichmentRun:
    """Raises `RunNotFoundError` if it does not exist, is being deleted, or is another user's."""
    query = select(EnrichmentRun).where(
        EnrichmentRun.id == run_id, EnrichmentRun.user_id == owner_id, _IS_LISTED
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
    """Return a chat's runs, newest first, starting after `after`."""
    query = select(EnrichmentRun).where(EnrichmentRun.chat_id == chat_id, _IS_LISTED)
    if after is not None:
        query = query.where(EnrichmentRun.id < after)
    return list(await session.scalars(query.order_by(EnrichmentRun.id.desc()).limit(limit)))
