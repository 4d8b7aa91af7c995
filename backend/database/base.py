"""Base class and column types of every table, and what statements need on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID

from sqlalchemy import ColumnElement, ForeignKey, LargeBinary, MetaData, Select, Table, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, mapped_column
from uuid_utils.compat import uuid7

from backend.database.types import Id, UtcTime

T = TypeVar("T")

MAX_PARAMETERS = 5_000
"""Ids in one statement: both databases take some 32,000 parameters."""

ROWS_PER_PAGE = 500
"""Rows of a long result that are made on the event loop without a pause: some 5 ms."""

UNSYNCHRONIZED = {"synchronize_session": False}
"""Of a statement: rows that the session has in memory are not followed up."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def new_id() -> UUID:
    """A UUIDv7: unique everywhere, and later ones sort later."""
    return uuid7()


def now() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Base of every table. Columns named `sealed_*` hold blobs that `vault.sealing` made."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy's own declaration
        UUID: Id(),
        datetime: UtcTime(),
        bytes: LargeBinary(),
    }


PrimaryId = Annotated[UUID, mapped_column(primary_key=True, default=new_id)]
OwnerId = Annotated[UUID, mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)]
ListedOwnerId = Annotated[UUID, mapped_column(ForeignKey("users.id", ondelete="CASCADE"))]
"""For tables that are listed page by page: they have an index on owner and id together."""

CreatedAt = Annotated[datetime, mapped_column(default=now)]
UpdatedAt = Annotated[datetime, mapped_column(default=now)]
"""When a user's text in the row last changed: services set it, flags and sums leave it alone."""


def get_table(model: type[Base]) -> Table:
    """A model's table: a statement of it leaves the ORM out."""
    return cast("Table", model.__table__)


def split_chunks(items: Sequence[T], size: int = MAX_PARAMETERS) -> Iterator[Sequence[T]]:
    """Items in their order, as many at a time as one statement takes."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def skip_index(column: InstrumentedAttribute[UUID] | ColumnElement[UUID]) -> ColumnElement[UUID]:
    """A column of ids, for a condition on rows that are looked up by their own ids.

    SQLite prefers the index of an owner or a container to a list of ids, and reads all rows that
    it finds there: 4 ms where a user has 10,000 messages. It uses no index for an expression.
    """
    # Said here: a foreign key has the type of what it points at, once that is imported.
    return func.coalesce(column, column, type_=Id())


async def stream_rows(session: AsyncSession, query: Select[*tuple[Any, ...]]) -> AsyncIterator[Any]:
    """Read rows some hundred at a time, with pauses in which the loop serves others.

    Nothing else is asked of the session until the last row has come.
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
) -> None:
    """Insert a row, or at least one, or, where its `key` is taken, change the row that has it.

    That one gets the new values of the columns `update`, and one more in those of `count_up`.
    Without either it is left alone.
    """
    dialect = session.get_bind().dialect.name
    await session.execute(_upsert(dialect, table, key, update, count_up), values)


@cache
def _upsert(
    dialect: str,
    model: type[Base],
    key: tuple[str, ...],
    update: tuple[str, ...],
    count_up: tuple[str, ...],
) -> Any:
    """Built once: building it costs more than running it."""
    table = get_table(model)
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    changes = {name: statement.excluded[name] for name in update}
    changes |= {name: table.c[name] + 1 for name in count_up}
    if not changes:
        return statement.on_conflict_do_nothing(index_elements=key)
    return statement.on_conflict_do_update(index_elements=key, set_=changes)
