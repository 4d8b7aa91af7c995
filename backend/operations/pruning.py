"""Rules by which old rows are deleted or folded, and the hourly job that follows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Column, ColumnElement, Date, Table, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.idempotency import RESPONSE_RETENTION
from backend.accounts.auth.throttle import FAILURE_RETENTION, KNOWN_ADDRESS_RETENTION
from backend.accounts.models import (
    ActivityEntry,
    IdempotentRequest,
    Invitation,
    KeySlot,
    KnownAddress,
    LoginFailures,
)
from backend.accounts.profile.activity import ADDRESS_RETENTION
from backend.chats.files import IS_UNUSED
from backend.chats.models import StoredFile
from backend.database.base import Base, get_table, now
from backend.database.batches import Batches, OnBatch
from backend.database.engine import Database
from backend.enrichment.models import EnrichmentRun
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.service import DONE_RETENTION
from backend.memory.indexing.indexer import VECTOR_RETENTION
from backend.memory.models import Embedding
from backend.quotas.ledgers import TOKEN_RETENTION, fold_tokens
from backend.quotas.models import TokenLedger
from backend.settings import Settings
from backend.transfer.models import Import, ImportResult
from backend.turns.models import ContextText, StoredContextRecord
from backend.turns.run.store import TEXT_RENEWAL

PRUNE_KIND = "rows.prune"
PRUNE_INTERVAL = timedelta(hours=1)

GRACE = timedelta(days=2)
"""Pruning is late if a row is due for longer than this."""

Keep = (
    timedelta
    | Literal[
        "keep_prompts_days",
        "keep_run_details_days",
        "keep_activity_days",
        "keep_imports_days",
        "keep_failed_jobs_days",
    ]
)
"""The time for which rows are kept: fixed, or the name of a setting in days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningRule:
    """Rows of a table that are deleted, or lose a column, at a certain age.

    Attributes:
        rows: The rows, for people.
        model: Their table.
        age: The column with the time from which the age counts. It has an index.
        keep: The time for which the rows are kept.
        longer: Is added to `keep`.
        where: The condition for the rows. The index of `age` covers it, or most rows fulfil it.
        ended: A column with a later time, from which the age counts if it is set.
        clears: A column that becomes null. Without it, rows are deleted.
    """

    rows: str
    model: type[Base]
    age: str
    keep: Keep
    longer: timedelta = timedelta()
    where: str = ""
    ended: str = ""
    clears: str = ""

    @property
    def table(self) -> Table:
        return get_table(self.model)

    @property
    def age_column(self) -> Column[Any]:
        return self.table.c[self.age]

    def find_keep(self, settings: Settings) -> timedelta | None:
        """Return the time for which rows are kept. None if they are not pruned."""
        if isinstance(self.keep, timedelta):
            return self.keep + self.longer
        days: int = getattr(settings, self.keep)
        return timedelta(days=days) + self.longer if days else None

    def select_due(self, settings: Settings, at: datetime) -> list[ColumnElement[bool]]:
        """Return the conditions for rows that are due at a time; none if no row ever is."""
        keep = self.find_keep(settings)
        if keep is None:
            return []
        before: datetime | date = at - keep
        if isinstance(self.age_column.type, Date):
            before = (at - keep).date()
        due: list[ColumnElement[bool]] = [self.age_column <= before, *self.select_rows()]
        if self.ended:
            due.append(self.table.c[self.ended] <= before)
        return due

    def select_rows(self) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions for the rows of the rule, of any age."""
        if self.clears:
            yield self.table.c[self.clears].is_not(None)
        if self.where:
            yield text(self.where)  # type: ignore[misc]  # a text clause is a condition
        if self.model is StoredFile:
            yield self.age_column.is_not(None)

    def describe(self, settings: Settings) -> str:
        keep = self.find_keep(settings)
        name = "" if isinstance(self.keep, timedelta) else f" (TALEKEEPER_{self.keep.upper()})"
        if keep is None:
            return f"{self.rows}, kept{name}"
        if not keep:
            return f"{self.rows}, deleted within an hour"
        days = keep / timedelta(days=1)
        period = f"{days:,.0f} days" if days > 1 else f"{keep / timedelta(hours=1):,.0f} hours"
        return f"{self.rows}, kept for {period}{name}"


RULES: Sequence[PruningRule] = (
    PruningRule(
        rows="records of prompts",
        model=StoredContextRecord,
        age="created_at",
        keep="keep_prompts_days",
    ),
    PruningRule(
        rows="texts of prompts",
        model=ContextText,
        age="created_at",
        keep="keep_prompts_days",
        longer=TEXT_RENEWAL,
    ),
    PruningRule(
        rows="details of background work",
        model=EnrichmentRun,
        age="created_at",
        keep="keep_run_details_days",
        clears="sealed_detail",
    ),
    PruningRule(
        rows="recent activity",
        model=ActivityEntry,
        age="created_at",
        keep="keep_activity_days",
    ),
    PruningRule(
        rows="addresses of recent activity",
        model=ActivityEntry,
        age="created_at",
        keep=ADDRESS_RETENTION,
        clears="sealed_address",
    ),
    PruningRule(
        rows="results of imports",
        model=ImportResult,
        age="created_at",
        keep="keep_imports_days",
    ),
    PruningRule(rows="imports", model=Import, age="created_at", keep="keep_imports_days"),
    PruningRule(
        rows="finished jobs",
        model=Job,
        age="created_at",
        keep=DONE_RETENTION,
        where="state = 'done'",
        ended="updated_at",
    ),
    PruningRule(
        rows="failed jobs",
        model=Job,
        age="created_at",
        keep="keep_failed_jobs_days",
        where="state = 'dead'",
        ended="updated_at",
    ),
    PruningRule(
        rows="used tokens, in one row for each account, day and model",
        model=TokenLedger,
        age="day",
        keep=TOKEN_RETENTION,
    ),
    PruningRule(
        rows="responses to repeated requests",
        model=IdempotentRequest,
        age="created_at",
        keep=RESPONSE_RETENTION,
    ),
    PruningRule(rows="failed sign-ins", model=LoginFailures, age="last_at", keep=FAILURE_RETENTION),
    PruningRule(
        rows="known addresses", model=KnownAddress, age="last_at", keep=KNOWN_ADDRESS_RETENTION
    ),
    PruningRule(
        rows="ended sessions",
        model=KeySlot,
        age="expires_at",
        keep=timedelta(),
        where="kind IN ('session', 'standing')",
    ),
    PruningRule(
        rows="invitations that are over",
        model=Invitation,
        age="expires_at",
        keep=timedelta(days=30),
    ),
    PruningRule(
        rows="uploads without a message", model=StoredFile, age="waits_until", keep=timedelta()
    ),
    PruningRule(
        rows="cached vectors that are not used",
        model=Embedding,
        age="used_at",
        keep=VECTOR_RETENTION,
    ),
)


OTHER_RULES: Mapping[str, frozenset[str]] = {
    "until the account is deleted": frozenset(
        {
            *("users", "data_keys", "second_factors", "presets", "providers", "personas"),
            *("avatars", "characters", "character_assets", "card_files", "backgrounds"),
            *("imported_files", "index_states", "token_ratios"),
        }
    ),
    "until the chat is deleted": frozenset(
        {
            *("chats", "chat_characters", "messages", "message_files", "turns", "lore_states"),
            *("enrichment_marks", "chat_summaries", "chat_lorebooks", "client_chats"),
        }
    ),
    "until the lorebook, chronicle or campaign is deleted": frozenset(
        {
            *("lorebooks", "lore_entries", "lorebook_links", "chronicles", "chronicle_events"),
            *("chronicle_event_sources", "campaigns", "campaign_items", "campaign_changes"),
            *("campaign_change_sources", "campaign_marks", "campaign_proposals"),
            "campaign_proposal_sources",
        }
    ),
    "a few for each account, the oldest are deleted or folded": frozenset(
        {"storage_ledger", "client_requests", "client_rules", "archives"}
    ),
    "until the work is done": frozenset({"index_changes", "slot_claims", "processes"}),
    "a few for the installation": frozenset(
        {"instance_keys", "installation_providers", "provider_addresses", "compatible_revisions"}
    ),
}
"""The tables without a rule, by the time for which their rows are kept."""


async def prune(
    database: Database,
    settings: Settings,
    *,
    at: datetime | None = None,
    on_batch: OnBatch | None = None,
) -> None:
    """Delete all rows that are due, and fold the token ledger. It can be interrupted."""
    at = at or now()
    # Rows that others have locked are left to the next time.
    batches = Batches(database, skips_locked=True, on_batch=on_batch)
    await fold_tokens(batches, today=at.date())
    for rule in RULES:
        due = rule.select_due(settings, at)
        if not due:
            continue
        if rule.model is StoredFile:
            due.append(IS_UNUSED)
        if rule.clears:
            await batches.update(rule.table, *due, values={rule.clears: None})
        else:
            await batches.delete(rule.table, *due)


class Pruning:
    """The hourly job. One process at a time runs it."""

    def __init__(self, database: Database, queue: JobQueue, settings: Settings) -> None:
        self._database = database
        self._queue = queue
        self._settings = settings

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {PRUNE_KIND: JobKind(self.run, needs_key=False)}

    async def schedule(self) -> None:
        """Queue the next job, unless one is queued."""
        async with self._database.write() as session:
            await self._enqueue(session)

    async def run(self, job: RunningJob) -> None:
        async def report(count: int) -> None:
            await job.progress(count, count + 1)

        await prune(self._database, self._settings, on_batch=report)
        async with job.finish() as session:
            await self._enqueue(session)

    async def _enqueue(self, session: AsyncSession) -> None:
        job = NewJob(kind=PRUNE_KIND, dedupe_key=PRUNE_KIND, run_after=now() + PRUNE_INTERVAL)
        await self._queue.enqueue(session, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """A rule, its table's estimated number of rows, and the age of its oldest row.

    `is_late` is true if rows are due for more than two days.
    """

    rule: PruningRule
    row_count: int
    oldest: timedelta | None
    is_late: bool


async def examine_tables(database: Database, settings: Settings) -> list[RuleState]:
    """Return the state of each rule's table."""
    at, found = now(), list[RuleState]()
    async with database.read() as session:
        counts = await estimate_rows(session)
        for rule in RULES:
            oldest = await session.scalar(
                select(func.min(rule.age_column)).where(*rule.select_rows())
            )
            if oldest is not None and not isinstance(oldest, datetime):
                oldest = datetime.combine(oldest, datetime.min.time(), at.tzinfo)
            late = rule.select_due(settings, at - GRACE)
            if rule.model is StoredFile:
                late.append(IS_UNUSED)
            query = select(rule.age_column).where(*late).limit(1)
            found.append(
                RuleState(
                    rule=rule,
                    row_count=counts.get(rule.table.name, 0),
                    oldest=at - oldest if oldest else None,
                    is_late=bool(late) and await session.scalar(query) is not None,
                )
            )
    return found


async def estimate_rows(session: AsyncSession) -> dict[str, int]:
    """Return the number of rows of each table. On PostgreSQL it is estimated."""
    if session.get_bind().dialect.name == "postgresql":
        # The estimate is -1 until the first vacuum or analysis.
        query = text(
            "SELECT relname, greatest(reltuples, 0)::bigint FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        )
        return {row[0]: row[1] for row in await session.execute(query)}
    tables = {rule.table.name: rule.table for rule in RULES}
    return {
        name: await session.scalar(select(func.count()).select_from(table)) or 0
        for name, table in tables.items()
    }
