"""What a chat took of its models, in tokens and in money: `GET /chats/{chat_id}/usage`."""

from collections.abc import Sequence
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
    ColumnElement,
    Executable,
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
from backend.database.engine import Database
from backend.enrichment.models import EnrichmentRun, RunKind
from backend.enrichment.runs.store import run_shares
from backend.generation.registry import ModelRegistry
from backend.http.schemas import RAISES
from backend.jobs.models import Job
from backend.jobs.schemas import JobView
from backend.llm.user_models import UserModels
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
_SHARES = run_shares().c
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
    """The delay that so many percent of a kind's runs do not exceed: the nearest rank."""
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


class WorkMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """What one kind of work took.

    Seconds are from the reply that caused it to the end of a run that went well: half of the runs,
    and 95 of 100, took at most so long. The same failure of a job counts once, however often it is
    tried again.
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
    """What one model was asked by the work after replies, in tokens as its provider counts them.

    `cost` is in US dollars, by the model's price; null where nobody knows one.
    """

    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None = None


class PromptMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """A reply's prompt: what the whole history would have taken, and what was sent in its place."""

    at: datetime
    whole_tokens: int
    sent_tokens: int


class DayMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """What the work after replies took on a day, in UTC."""

    day: date
    runs: int
    failures: int
    calls: int
    prompt_tokens: int
    completion_tokens: int


class FailureMeasure(msgspec.Struct, kw_only=True, frozen=True):
    """A run that failed, and wrote nothing.

    `error` is the last part of a problem's `type`. `job` tries again, or gave up; null once the
    work is done.
    """

    id: UUID
    kind: RunKind
    error: str
    chat_id: UUID
    created_at: datetime
    job: JobView | None


class CampaignMemory(msgspec.Struct, kw_only=True, frozen=True):
    """What a campaign's memory takes and saves.

    Of the `replies` of its chats since this is noted, prompts with the whole history would have had
    `whole_tokens` of it. They had `sent_tokens`: the lines that were sent, the summary, the state
    block, and what was recalled. A turn counts once, however often its tools ask the model.
    `conflicts` counts proposals by what was decided. `cost` adds up that of the models with a
    known price, in US dollars; null where none has one. `prompts` are the last 60, `days`
    the last 30 on which something was done, both oldest first; `problems` are the last 10
    failures, newest first.
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
    """Adds up what campaigns took."""

    def __init__(self, database: Database, user_models: UserModels) -> None:
        self._database = database
        self._user_models = user_models

    async def get(self, identity: Identity, campaign_id: UUID) -> CampaignMemory:
        """Raises `CampaignNotFoundError`."""
        mine = {"campaign": campaign_id, "owner": identity.user_id}
        async with self._database.read() as session:
            await get_campaign(session, identity, campaign_id)
            totals: Any = (await session.execute(_SENT, mine)).one()
            prompts = await _read_rows(session, _PROMPTS, mine, PromptMeasure)
            conflicts = {row[0]: row[1] for row in await session.execute(_CONFLICTS, mine)}
            work = await _read_work(session, mine)
            registry = await self._user_models.of(session, identity.user, identity.sealer)
            asked = await _read_rows(session, _BY_MODEL, mine, ModelMeasure)
            models = [self._priced(registry, each) for each in asked]
            by_day = _count_by_day(session.get_bind().dialect.name)
            days = await _read_rows(session, by_day, mine, DayMeasure)
            failed: Sequence[Any] = (await session.execute(_FAILURES, mine)).all()
        costs = [each.cost for each in models if each.cost is not None]
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
            cost=sum(costs) if costs else None,
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
                    job=JobView.of(job) if job and job.state != "done" else None,
                )
                for run, job in failed
            ],
        )

    @staticmethod
    def _priced(registry: ModelRegistry, measure: ModelMeasure) -> ModelMeasure:
        price = registry.price(measure.model)
        if price is None:
            return measure
        cost = price.cost(measure.prompt_tokens, measure.completion_tokens)
        return msgspec.structs.replace(measure, cost=cost)


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
    """What was done day by day, in UTC, the last days first."""
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
    """What campaigns take."""

    path = "/campaigns/{campaign_id:uuid}/memory"
    tags = ("Campaigns",)

    @get(
        opt={RAISES: (CampaignNotFoundError,)},
        operation_id="getCampaignMemory",
        summary="Read what its memory takes",
    )
    async def get_memory(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        measures: NamedDependency[MeasureService],
    ) -> CampaignMemory:
        """Tokens saved and spent, compactions, failures and conflicts, and how long work took."""
        return await measures.get(identity, campaign_id)


_REPORTED = ("prompt_tokens", "cached_tokens", "completion_tokens", "thinking_tokens")
_COUNTED = ("turns", "runs", "unreported", *_REPORTED)


class Money(msgspec.Struct, kw_only=True, frozen=True):
    """An amount in US dollars."""

    amount: float
    currency: Literal["USD"] = "USD"


class ModelUsage(msgspec.Struct, kw_only=True, frozen=True):
    """What one model was asked, in tokens as its provider reported them.

    `completion_tokens` includes `thinking_tokens`, `prompt_tokens` includes `cached_tokens`. `runs`
    are those of the work after replies and of suggestions, which report no cached tokens; what
    another model said first of whether there is anything to do, is that one's tokens. `unreported`
    are turns that wrote something of which the provider told no tokens. `cost` is null where nobody
    knows the model's price.
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
    """What a chat took: its turns on all branches, the work after its replies, and suggestions.

    `cost` adds up that of the models with a known price; null where none has one. `by_model` is in
    the order of the models' ids. Turns count with what their providers reported; those without a
    report are `unreported`, and in no other figure. What embedding cost is not in it.
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


@cache
def _count_by_model(dialect: str, *, of_reply: bool) -> Select[Any]:
    """What each model was asked: in a whole chat, or for one reply of it."""
    # SQLite reads JSON out of texts; PostgreSQL has a type for it.
    report = cast(Turn.usage, JSON) if dialect == "postgresql" else type_coerce(Turn.usage, JSON)
    asked = select(
        Turn.model,
        case((Turn.usage.is_not(None), 1), else_=0).label("turns"),
        literal(0).label("runs"),
        case((Turn.usage.is_(None), 1), else_=0).label("unreported"),
        *(func.coalesce(report[name].as_integer(), 0).label(name) for name in _REPORTED),
    ).where(
        Turn.chat_id == bindparam("chat"),
        Turn.user_id == bindparam("owner"),
        Turn.usage.is_not(None) | Turn.state.in_(("completed", "stopped", "interrupted")),
    )
    if of_reply:
        found = asked.where(Turn.reply_id == bindparam("reply")).subquery()
    else:
        run = run_shares().c
        after = select(
            run.model,
            *(run[name] if name in run else literal(0) for name in _COUNTED),
        ).where(run.chat_id == bindparam("chat"), run.user_id == bindparam("owner"))
        found = union_all(asked, after).subquery()
    return (
        select(found.c.model, *_sum_columns(found.c))
        .group_by(found.c.model)
        .order_by(found.c.model)
    )


def _sum_columns(columns: Any) -> list[ColumnElement[Any]]:
    return [func.sum(columns[name]).label(name) for name in _COUNTED]


class ChatUsageService:
    """Adds up what chats took."""

    def __init__(self, database: Database, user_models: UserModels) -> None:
        self._database = database
        self._user_models = user_models

    async def get(
        self, identity: Identity, chat_id: UUID, reply_id: UUID | None = None
    ) -> ChatUsage:
        """Raises `ChatNotFoundError`."""
        values = {"chat": chat_id, "owner": identity.user_id}
        if reply_id is not None:
            values["reply"] = reply_id
        async with self._database.read() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            dialect = session.get_bind().dialect.name
            query = _count_by_model(dialect, of_reply=reply_id is not None)
            rows = (await session.execute(query, values)).mappings().all()
            registry = await self._user_models.of(session, identity.user, identity.sealer)
        models = [self._priced(registry, ModelUsage(**row)) for row in rows]
        costs = [each.cost.amount for each in models if each.cost is not None]
        return ChatUsage(
            **{name: sum(getattr(each, name) for each in models) for name in _COUNTED},
            cost=Money(amount=sum(costs)) if costs else None,
            by_model=models,
        )

    @staticmethod
    def _priced(registry: ModelRegistry, usage: ModelUsage) -> ModelUsage:
        price = registry.price(usage.model)
        if price is None:
            return usage
        cost = price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        return msgspec.structs.replace(usage, cost=Money(amount=cost))


class ChatUsageController(Controller):
    """What chats take of their models."""

    path = "/chats/{chat_id:uuid}/usage"
    tags = ("Chats",)

    @get(
        opt={RAISES: (ChatNotFoundError,)},
        operation_id="getChatUsage",
        summary="Read what a chat took of its models",
    )
    async def get_usage(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chat_usage: NamedDependency[ChatUsageService],
        reply_id: FromQuery[UUID | None] = None,
    ) -> ChatUsage:
        """Tokens and money by model; with `reply_id`, of the turns that wrote that reply alone."""
        return await chat_usage.get(identity, chat_id, reply_id)
