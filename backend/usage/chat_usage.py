"""What a chat took of its models, in tokens and in money: `GET /chats/{chat_id}/usage`."""

from functools import cache
from typing import Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from sqlalchemy import (
    JSON,
    ColumnElement,
    Select,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.sql.expression import type_coerce

from backend.accounts.auth.identity import Identity
from backend.chats.errors import ChatNotFoundError
from backend.chats.repository import get_chat
from backend.database.engine import Database
from backend.enrichment.runs.store import select_run_shares
from backend.generation.registry import ModelRegistry
from backend.http.schemas import RAISES
from backend.llm.user_models import UserModels
from backend.turns.models import Turn

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
def _by_model(dialect: str, *, of_reply: bool) -> Select[Any]:
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
        run = select_run_shares().c
        after = select(
            run.model,
            *(run[name] if name in run else literal(0) for name in _COUNTED),
        ).where(run.chat_id == bindparam("chat"), run.user_id == bindparam("owner"))
        found = union_all(asked, after).subquery()
    return select(found.c.model, *_sums(found.c)).group_by(found.c.model).order_by(found.c.model)


def _sums(columns: Any) -> list[ColumnElement[Any]]:
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
            query = _by_model(dialect, of_reply=reply_id is not None)
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
