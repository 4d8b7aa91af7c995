"""Tokens and cost of an account in the current month: `GET /usage/month`."""

from datetime import datetime
from uuid import UUID

from litestar import Controller, get
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.events import ChatDeleted
from backend.chats.models import Chat
from backend.chronicles.service import ChronicleDeleted
from backend.database.base import now
from backend.database.engine import Database
from backend.llm.user_models import UserModels
from backend.quotas.ledgers import UnlistedUsage, add_unlisted
from backend.usage.spending import ChatUsage, UsageScope, add_models, count_by_model


class MonthUsage(ChatUsage, kw_only=True, frozen=True):
    """Tokens of an account in a month (UTC): turns, background work and suggestions.

    `month` is the year and the month (`2026-11`). `cost` is the sum for models with a known price.
    Deleted chats and chronicles count. So does each choice of a request without a chat, as a turn.
    """

    month: str
    since: datetime


def find_month_start() -> datetime:
    """Return the beginning of the current month (UTC)."""
    return now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)


class DeletedUsage(ChatDeleted, ChronicleDeleted):
    """Keeps the month's usage of chats and chronicles that are deleted, by model.

    Earlier months are read nowhere.
    """

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        await _keep(session, identity, "chat_in_month", chat=chat.id)

    async def chronicle_deleted(
        self, session: AsyncSession, identity: Identity, chronicle_id: UUID
    ) -> None:
        """Keep the usage of the runs that are deleted with the chronicle."""
        await _keep(session, identity, "chronicle_in_month", chronicle=chronicle_id)


async def _keep(
    session: AsyncSession, identity: Identity, scope: UsageScope, **holder: UUID
) -> None:
    query = count_by_model(session.get_bind().dialect.name, scope)
    values = {"since": find_month_start(), "owner": identity.user_id, **holder}
    rows = (await session.execute(query, values)).mappings().all()
    await add_unlisted(session, identity.user_id, [UnlistedUsage(**row) for row in rows])


class MonthUsageService:
    def __init__(self, database: Database, user_models: UserModels) -> None:
        self._database = database
        self._user_models = user_models

    async def get(self, identity: Identity) -> MonthUsage:
        """Return the figures of the account since the beginning of the month."""
        since = find_month_start()
        async with self._database.read() as session:
            query = count_by_model(session.get_bind().dialect.name, "month")
            values = {"since": since, "first_day": since.date(), "owner": identity.user_id}
            rows = (await session.execute(query, values)).mappings().all()
            registry = await self._user_models.of(session, identity.user, identity.sealer)
        return MonthUsage(month=f"{since:%Y-%m}", since=since, **add_models(rows, registry))


class MonthUsageController(Controller):
    """Tokens and cost of the current month."""

    path = "/usage/month"
    tags = ("Accounts",)

    @get(summary="Read the month's usage")
    async def get_month_usage(
        self, identity: NamedDependency[Identity], month_usage: NamedDependency[MonthUsageService]
    ) -> MonthUsage:
        """Return tokens and cost by model since the first of the month (UTC)."""
        return await month_usage.get(identity)
