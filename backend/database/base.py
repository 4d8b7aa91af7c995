"""Base class and column types of all tables, and helpers for statements on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    Select,
    Table,
    and_,
    bindparam,
    func,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import (
    DeclarativeBase,
    InstrumentedAttribute,
    Mapped,
    declared_attr,
    mapped_column,
)
from uuid_utils.compat import uuid7

from backend.database.types import Id, UtcTime

T = TypeVar("T")

MAX_PARAMETERS = 5_000
"""Maximum number of ids in a statement. Both databases allow about 32,000 parameters."""

ROWS_PER_PAGE = 500
"""Rows of a long result that are created without a pause. They take about 5 ms."""

UNSYNCHRONIZED = {"synchronize_session": False}
"""Option of a bulk statement: do not update the rows that the session has loaded."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def new_id() -> UUID:
    """Return a UUIDv7. Later ids sort after earlier ones."""
    return uuid7()


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Base of all tables. Columns named `sealed_*` contain blobs of `vault.sealing`."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy's own declaration
        UUID: Id(),
        datetime: UtcTime(),
        bytes: LargeBinary(),
    }


PrimaryId = Annotated[UUID, mapped_column(primary_key=True, default=new_id)]
OwnerId = Annotated[UUID, mapped_column(Id, ForeignKey("users.id", ondelete="CASCADE"), index=True)]
ListedOwnerId = Annotated[UUID, mapped_column(Id, ForeignKey("users.id", ondelete="CASCADE"))]
"""For tables that are listed in pages. They have an index on owner and id."""

CreatedAt = Annotated[datetime, mapped_column(default=now)]
UpdatedAt = Annotated[datetime, mapped_column(default=now)]
"""The time of the last change of a user's text in the row. Services set it; flags do not count."""


class Deletable:
    """A table of rows that are hidden first, and deleted later with all that belongs to them.

    Every query that filters by owner uses `match_owner`.
    """

    user_id: Mapped[ListedOwnerId]
    deleted_at: Mapped[datetime | None]

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Index, ...]:
        return Index(None, "user_id", "id"), index_hidden()

    @classmethod
    def match_owner(cls, owner: Any) -> ColumnElement[bool]:
        """Return the condition for rows of an owner that are not being deleted."""
        return and_(cls.user_id == owner, cls.deleted_at.is_(None))


def index_hidden() -> Index:
    """Return the index by which jobs find hidden rows. Usually there are none."""
    is_hidden = text("deleted_at IS NOT NULL")
    return Index(None, "deleted_at", sqlite_where=is_hidden, postgresql_where=is_hidden)


RecordCreated = Callable[[AsyncSession, UUID], Awaitable[None]]
"""Called with the id of a new row, in the transaction that creates it."""


async def record_nothing(_session: AsyncSession, _row_id: UUID) -> None:
    """The default `RecordCreated`."""


def get_table(model: type[Base]) -> Table:
    return cast("Table", model.__table__)


def split_chunks(items: Sequence[T], size: int = MAX_PARAMETERS) -> Iterator[Sequence[T]]:
    """Split items into parts of the maximum size of one statement."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def skip_index(column: InstrumentedAttribute[UUID] | ColumnElement[UUID]) -> ColumnElement[UUID]:
    """Return an expression for an id column that SQLite cannot use an index for.

    Use it for owners and containers if rows are found by their ids. Otherwise SQLite may prefer the
    owner's index and read all its rows: 4 ms for 10,000 messages.
    """
    # The type is explicit, because that of a foreign key may not be known yet.
    return func.coalesce(column, column, type_=Id())


async def stream_rows(session: AsyncSession, query: Select[*tuple[Any, ...]]) -> AsyncIterator[Any]:
    """Yield rows in pages, and let the event loop run other tasks between them.

    Do not use the session for other statements until the last row.
    """
    result = await session.stream(query.execution_options(yield_per=ROWS_PER_PAGE))
    async for page in result.partitions():
        for row in page:
            yield row
        await asyncio.sleep(0)


async def upsert(
    session: AsyncSession,
    table: type[Base],
    values: dict[str, Any] | list[dict[str, Any]],
    *,
    key: tuple[str, ...],
    update: tuple[str, ...] = (),
    count_up: tuple[str, ...] = (),
    min_age: timedelta | None = None,
) -> None:
    """Insert one row or several, or update the rows that have the same `key`.

    An existing row gets the new values of the columns `update`, and those of `count_up` are
    increased by one. Without these columns, or if it is younger than `min_age`, it stays unchanged.
    """
    dialect = session.get_bind().dialect.name
    await session.execute(make_upsert(dialect, table, key, update, count_up, min_age), values)


@cache
def make_upsert(
    dialect: str,
    model: type[Base],
    key: tuple[str, ...],
    update: tuple[str, ...],
    count_up: tuple[str, ...] = (),
    min_age: timedelta | None = None,
) -> Any:
    """Return the statement of `upsert`. Without a `key`, it only inserts.

    Cached, because building the statement takes longer than running it.
    """
    table = get_table(model)
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    if not key:
        return statement
    changes = {name: statement.excluded[name] for name in update}
    changes |= {name: table.c[name] + 1 for name in count_up}
    if not changes:
        return statement.on_conflict_do_nothing(index_elements=key)
    is_old = None if min_age is None else table.c.created_at < _bind_time_ago(min_age)
    return statement.on_conflict_do_update(index_elements=key, set_=changes, where=is_old)


def _bind_time_ago(age: timedelta) -> Any:
    return bindparam(None, callable_=lambda: now() - age, type_=UtcTime())
