"""Tokens and cost of chats and campaigns."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Executable,
    RowMapping,
    Select,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.expression import type_coerce

from backend.accounts.auth.identity import Identity
from backend.campaigns.errors import CampaignNotFoundError
from backend.campaigns.ledger.records import get_campaign
from backend.campaigns.models import CampaignProposal, ProposalState
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat
from backend.chats.repository import get_chat
from backend.chronicles.models import Chronicle
from backend.database.engine import Database
from backend.enrichment.models import EnrichmentRun, RunKind
from backend.enrichment.runs.store import select_run_shares
from backend.generation.registry import ModelRegistry
from backend.http.schemas import RAISES
from backend.jobs.models import Job
from backend.jobs.schemas import JobView
from backend.llm.user_models import UserModels
from backend.quotas.models import TokenLedger
from backend.turns.models import Turn

MAX_PROMPTS = 60
MAX_DAYS = 30
MAX_FAILURES = 10

_RUN = EnrichmentRun
_OF_RUNS = (_RUN.campaign_id == bindparam("campaign"), _RUN.user_id == bindparam("owner"))
_FAILED = func.coalesce(func.sum(case((_RUN.state == "failed", 1), else_=0)), 0)
_SPENT: tuple[ColumnElement[Any], ...] = tuple(
    func.coalesce(func.sum(column), 0).label(column.key)
    for column in (_RUN.calls, _RUN.prompt_tokens, _RUN.completion_tokens)
)
_BY_KIND = (
    select(_RUN.kind, func.count().label("runs"), _FAILED.label("failures"), *_SPENT)
    .where(*_OF_RUNS)
    .group_by(_RUN.kind)
    .order_by(_RUN.kind)
)
_SHARES = select_run_shares().c
_BY_MODEL = (
    select(
        _SHARES.model,
        *(
            func.sum(_SHARES[name]).label(name)
            for name in ("calls", "prompt_tokens", "completion_tokens")
        ),
    )
    .where(
        _SHARES.campaign_id == bindparam("campaign"),
        _SHARES.user_id == bindparam("owner"),
    )
    .group_by(_SHARES.model)
    .order_by(_SHARES.model)
)

_RANKED = (
    select(
        _RUN.kind,
        _RUN.delay_ms,
        func.row_number().over(partition_by=_RUN.kind, order_by=_RUN.delay_ms).label("rank"),
        func.count().over(partition_by=_RUN.kind).label("total"),
    )
    .where(*_OF_RUNS, _RUN.state != "failed", _RUN.delay_ms.is_not(None))
    .subquery()
)


def _percentile(percent: int) -> ColumnElement[Any]:
    """Return the delay that `percent` of the runs of a kind do not exceed (nearest rank)."""
    rank = (_RANKED.c.total * percent + 99) // 100
    return func.max(case((_RANKED.c.rank == rank, _RANKED.c.delay_ms)))


_DELAYS = select(
    _RANKED.c.kind, _percentile(50).label("p50"), _percentile(95).label("p95")
).group_by(_RANKED.c.kind)

_OF_TURNS = (
    Chat.campaign_id == bindparam("campaign"),
    Turn.user_id == bindparam("owner"),
    Turn.reply_id.is_not(None),
    Turn.path_tokens.is_not(None),
)
_SENT = (
    select(
        func.count().label("replies"),
        func.coalesce(func.sum(Turn.path_tokens), 0).label("whole"),
        func.coalesce(func.sum(Turn.sent_tokens), 0).label("sent"),
    )
    .join(Chat, Chat.id == Turn.chat_id)
    .where(*_OF_TURNS)
)
_PROMPTS = (
    select(Turn.created_at.label("at"), Turn.path_tokens.label("whole_tokens"), Turn.sent_tokens)
    .join(Chat, Chat.id == Turn.chat_id)
    .where(*_OF_TURNS)
    .order_by(Turn.id.desc())
    .limit(MAX_PROMPTS)
)
_CONFLICTS = (
    select(CampaignProposal.state, func.count())
    .where(
        CampaignProposal.campaign_id == bindparam("campaign"),
        CampaignProposal.user_id == bindparam("owner"),
    )
    .group_by(CampaignProposal.state)
)
_FAILURES = (
    select(_RUN, Job)
    .outerjoin(Job, (Job.id == _RUN.job_id) & (Job.user_id == _RUN.user_id))
    .where(*_OF_RUNS, _RUN.state == "failed")
    .order_by(_RUN.created_at.desc())
    .limit(MAX_FAILURES)
)


class Money(msgspec.Struct, kw_only=True, frozen=True):
    """An amount in US dollars."""

    amount: float
    currency: Literal["USD"] = "USD"


class WorkMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """Runs, tokens and delays of one kind of background work.

    Seconds are from the reply to the end of a successful run. They are the 50th and the 95th
    percentile. Repeated failures of a job count once if the error is the same.
    """

    kind: RunKind
    runs: int
    failures: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds_p50: float | None
    seconds_p95: float | None


class ModelMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens of one model in background work, as its provider counts them.

    `cost` is in US dollars. It is null if the model has no known price.
    """

    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None = None


class PromptMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """The tokens of one prompt: the whole history, and the text that was sent in its place."""

    at: datetime
    whole_tokens: int
    sent_tokens: int


class DayMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """The background work of one day, in UTC."""

    day: date
    runs: int
    failures: int
    calls: int
    prompt_tokens: int
    completion_tokens: int


class FailureMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """A run that failed and wrote nothing.

    `error` is the last part of a problem's `type`. `job` is the job that is still to be done. It is
    null once the work is done.
    """

    id: UUID
    kind: RunKind
    error: str
    chat_id: UUID
    created_at: datetime
    job: JobView | None


class CampaignMemory(msgspec.Struct, kw_only=True, frozen=True):
    """The tokens that a campaign's memory saves, and the work that it needs.

    For the last `replies` of its chats, prompts with the whole history would have taken
    `whole_tokens` for it. They took `sent_tokens` for the sent messages, the summary, the state
    block and recalled memories. A turn counts once, even if its tools ask the model several times.
    `conflicts` counts proposals by decision. `cost` is the sum for models with a known price, in US
    dollars. It is null if no price is known. `prompts` are the last 60, `days` the last 30 with any
    work, both oldest first. `problems` are the last 10 failures, newest first.
    """

    replies: int
    whole_tokens: int
    sent_tokens: int
    saved_tokens: int
    compactions: int
    failures: int
    conflicts: dict[ProposalState, int]
    calls: int
    tokens: int
    cost: float | None
    work: list[WorkMeasure]
    models: list[ModelMeasure]
    prompts: list[PromptMeasure]
    days: list[DayMeasure]
    problems: list[FailureMeasure]


class MeasureService:
    def __init__(self, database: Database, user_models: UserModels) -> None:
        self._database = database
        self._user_models = user_models

    async def get(self, identity: Identity, campaign_id: UUID) -> CampaignMemory:
        """Return the figures of a campaign. Raises `CampaignNotFoundError`."""
        mine = {"campaign": campaign_id, "owner": identity.user_id}
        async with self._database.read() as session:
            await get_campaign(session, identity, campaign_id)
            totals: Any = (await session.execute(_SENT, mine)).one()
            prompts = await _read_rows(session, _PROMPTS, mine, PromptMeasure)
            conflicts = {row[0]: row[1] for row in await session.execute(_CONFLICTS, mine)}
            work = await _read_work(session, mine)
            registry = await self._user_models.of(session, identity.user, identity.sealer)
            asked = await _read_rows(session, _BY_MODEL, mine, ModelMeasure)
            models = [
                msgspec.structs.replace(each, cost=find_cost(registry, each)) for each in asked
            ]
            by_day = _count_by_day(session.get_bind().dialect.name)
            days = await _read_rows(session, by_day, mine, DayMeasure)
            failed: Sequence[Any] = (await session.execute(_FAILURES, mine)).all()
        states: tuple[ProposalState, ...] = ("open", "accepted", "refused")
        return CampaignMemory(
            replies=totals.replies,
            whole_tokens=totals.whole,
            sent_tokens=totals.sent,
            saved_tokens=totals.whole - totals.sent,
            compactions=sum(
                each.runs - each.failures for each in work if each.kind == "compaction"
            ),
            failures=sum(each.failures for each in work),
            conflicts={state: conflicts.get(state, 0) for state in states},
            calls=sum(each.calls for each in work),
            tokens=sum(each.prompt_tokens + each.completion_tokens for each in work),
            cost=add_costs(each.cost for each in models),
            work=work,
            models=models,
            prompts=prompts[::-1],
            days=days[::-1],
            problems=[
                FailureMeasure(
                    id=run.id,
                    kind=run.kind,
                    error=run.error or "",
                    chat_id=run.chat_id,
                    created_at=run.created_at,
                    job=JobView.from_row(job) if job and job.state != "done" else None,
                )
                for run, job in failed
            ],
        )


T = TypeVar("T", bound=msgspec.Struct)


async def _read_rows(
    session: AsyncSession, query: Executable, mine: dict[str, UUID], kind: type[T]
) -> list[T]:
    rows = (await session.execute(query, mine)).mappings()
    return [msgspec.convert(dict(row), kind) for row in rows]


async def _read_work(session: AsyncSession, mine: dict[str, UUID]) -> list[WorkMeasure]:
    delays = {row.kind: row for row in await session.execute(_DELAYS, mine)}
    found: list[WorkMeasure] = []
    for row in (await session.execute(_BY_KIND, mine)).mappings():
        delay = delays.get(row["kind"])
        found.append(
            WorkMeasure(
                **row,
                seconds_p50=delay.p50 / 1000 if delay else None,
                seconds_p95=delay.p95 / 1000 if delay else None,
            )
        )
    return found


@cache
def _count_by_day(dialect: str) -> Select[Any]:
    day: ColumnElement[Any] = (
        func.to_char(func.timezone("UTC", _RUN.created_at), "YYYY-MM-DD")
        if dialect == "postgresql"
        else func.strftime("%Y-%m-%d", _RUN.created_at)
    )
    return (
        select(day.label("day"), func.count().label("runs"), _FAILED.label("failures"), *_SPENT)
        .where(*_OF_RUNS)
        .group_by(day)
        .order_by(day.desc())
        .limit(MAX_DAYS)
    )


class MeasureController(Controller):
    """Figures of a campaign's memory."""

    path = "/campaigns/{campaign_id:uuid}/memory"
    tags = ("Campaigns",)

    @get(
        opt={RAISES: (CampaignNotFoundError,)},
        operation_id="getCampaignMemory",
        summary="Read a campaign's memory statistics",
    )
    async def get_memory(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        measures: NamedDependency[MeasureService],
    ) -> CampaignMemory:
        """Return tokens saved and used, compactions, failures, conflicts and delays."""
        return await measures.get(identity, campaign_id)


_REPORTED = ("prompt_tokens", "cached_tokens", "completion_tokens", "thinking_tokens")
_COUNTED = ("turns", "runs", "unreported", *_REPORTED)


class ModelUsage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens of one model, as its provider reported them.

    `completion_tokens` includes `thinking_tokens`, `prompt_tokens` includes `cached_tokens`. `runs`
    are background work and suggestions. They report no cached tokens. The tokens of a triage model
    count for that model. `unreported` are turns with output for which the provider reported no
    tokens. `cost` is null if the model has no known price.
    """

    model: str
    turns: int
    runs: int
    unreported: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    thinking_tokens: int
    cost: Money | None = None


class ChatUsage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens of a chat: turns on all branches, background work and suggestions.

    `cost` is the sum for models with a known price. It is null if no price is known. `by_model` is
    in the order of model ids. Turns without a report count as `unreported` and in no other figure.
    The cost of embedding is not included.
    """

    turns: int
    runs: int
    unreported: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    thinking_tokens: int
    cost: Money | None
    by_model: list[ModelUsage]


def find_cost(registry: ModelRegistry, usage: ModelMeasure | ModelUsage) -> float | None:
    """Return the cost of tokens in US dollars. None if the model has no known price."""
    price = registry.price(usage.model)
    if price is None:
        return None
    cached = usage.cached_tokens if isinstance(usage, ModelUsage) else 0
    return price.cost(usage.prompt_tokens, usage.completion_tokens, cached)


def add_costs(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the known costs. None if no cost is known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def _make_money(amount: float | None) -> Money | None:
    return None if amount is None else Money(amount=amount)


UsageScope = Literal["chat", "reply", "month", "chat_in_month", "chronicle_in_month"]

_HIDDEN = select(Chat.id).where(Chat.user_id == bindparam("owner"), ~Chat.is_ready)
"""Chats that are being deleted. The token ledger has their usage already."""

_HIDDEN_CHRONICLES = select(Chronicle.id).where(
    Chronicle.user_id == bindparam("owner"), Chronicle.deleted_at.is_not(None)
)
"""The same for chronicles."""

_TURNS_OF: Mapping[UsageScope, tuple[ColumnElement[bool], ...]] = {
    "chat": (Turn.chat_id == bindparam("chat"),),
    "reply": (Turn.chat_id == bindparam("chat"), Turn.reply_id == bindparam("reply")),
    "month": (Turn.created_at >= bindparam("since"), Turn.chat_id.not_in(_HIDDEN)),
    "chat_in_month": (
        Turn.chat_id == bindparam("chat"),
        Turn.created_at >= bindparam("since"),
    ),
}


@cache
def count_by_model(dialect: str, scope: UsageScope) -> Select[Any]:
    """Return the query for an account's tokens by model. A chronicle has runs only."""
    # SQLite reads JSON from text columns. PostgreSQL needs a cast.
    report = cast(Turn.usage, JSON) if dialect == "postgresql" else type_coerce(Turn.usage, JSON)
    asked = select(
        Turn.model,
        case((Turn.usage.is_not(None), 1), else_=0).label("turns"),
        literal(0).label("runs"),
        case((Turn.usage.is_(None), 1), else_=0).label("unreported"),
        *(func.coalesce(report[name].as_integer(), 0).label(name) for name in _REPORTED),
    ).where(
        *_TURNS_OF.get(scope, ()),
        Turn.user_id == bindparam("owner"),
        Turn.usage.is_not(None) | Turn.state.in_(("completed", "stopped", "interrupted")),
    )
    parts: list[Any] = [asked] if scope in _TURNS_OF else []
    if scope != "reply":
        run = select_run_shares().c
        is_listed = run.chronicle_id.is_(None) | run.chronicle_id.not_in(_HIDDEN_CHRONICLES)
        of_runs = {
            "chat": (run.chat_id == bindparam("chat"), is_listed),
            "month": (
                run.created_at >= bindparam("since"),
                run.chat_id.not_in(_HIDDEN),
                is_listed,
            ),
            "chat_in_month": (
                run.chat_id == bindparam("chat"),
                run.created_at >= bindparam("since"),
                is_listed,
            ),
            "chronicle_in_month": (
                run.chronicle_id == bindparam("chronicle"),
                run.created_at >= bindparam("since"),
                run.chat_id.not_in(_HIDDEN),
            ),
        }
        after = select(
            run.model,
            *(run[name] if name in run else literal(0).label(name) for name in _COUNTED),
        ).where(*of_runs[scope], run.user_id == bindparam("owner"))
        parts.append(after)
    if scope == "month":
        unlisted = select(
            TokenLedger.model, *(getattr(TokenLedger, name) for name in _COUNTED)
        ).where(
            TokenLedger.user_id == bindparam("owner"),
            TokenLedger.day >= bindparam("first_day"),
            TokenLedger.model.is_not(None),
        )
        parts.append(unlisted)
    found = union_all(*parts).subquery()
    return (
        select(found.c.model, *_sum_columns(found.c))
        .group_by(found.c.model)
        .order_by(found.c.model)
    )


def _sum_columns(columns: Any) -> list[ColumnElement[Any]]:
    # PostgreSQL sums large integers as decimals.
    return [cast(func.sum(columns[name]), BigInteger).label(name) for name in _COUNTED]


def add_models(rows: Iterable[RowMapping], registry: ModelRegistry) -> dict[str, Any]:
    """Return the figures of a usage: its models with their costs, and the sums."""
    models = [ModelUsage(**row) for row in rows]
    costs = [find_cost(registry, each) for each in models]
    return {
        **{name: sum(getattr(each, name) for each in models) for name in _COUNTED},
        "cost": _make_money(add_costs(costs)),
        "by_model": [
            msgspec.structs.replace(each, cost=_make_money(cost))
            for each, cost in zip(models, costs, strict=True)
        ],
    }


class ChatUsageService:
    def __init__(self, database: Database, user_models: UserModels) -> None:
        self._database = database
        self._user_models = user_models

    async def get(
        self, identity: Identity, chat_id: UUID, reply_id: UUID | None = None
    ) -> ChatUsage:
        """Return the figures of a chat, or of one of its replies. Raises `ChatNotFoundError`."""
        values = {"chat": chat_id, "owner": identity.user_id}
        if reply_id is not None:
            values["reply"] = reply_id
        async with self._database.read() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            dialect = session.get_bind().dialect.name
            query = count_by_model(dialect, "chat" if reply_id is None else "reply")
            rows = (await session.execute(query, values)).mappings().all()
            registry = await self._user_models.of(session, identity.user, identity.sealer)
        return ChatUsage(**add_models(rows, registry))


class ChatUsageController(Controller):
    """Tokens and cost of a chat."""

    path = "/chats/{chat_id:uuid}/usage"
    tags = ("Chats",)

    @get(
        opt={RAISES: (ChatNotFoundError,)},
        operation_id="getChatUsage",
        summary="Read a chat's usage",
    )
    async def get_usage(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chat_usage: NamedDependency[ChatUsageService],
        reply_id: FromQuery[UUID | None] = None,
    ) -> ChatUsage:
        """Return tokens and cost by model. `reply_id` counts only turns that wrote that reply."""
        return await chat_usage.get(identity, chat_id, reply_id)
