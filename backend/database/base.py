"""Base class and column types of all tables, and helpers for statements on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar, cast
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    LargeBinary,
    MetaData,
    Select,
    Table,
    bindparam,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, mapped_column
from uuid_utils.compat import uuid7

from backend.database.types import Id, UtcTime

T = TypeVar("T")

MAX_PARAMETERS = 5_000
"""Maximum number of ids in a statement. Both databases allow about 32,000 parameters."""

MAX_JOINED_ROWS = 16
"""Maximum number of rows of a table that one statement inserts together with other tables."""

MAX_JOINED_SHAPES = 100
"""Number of such statements that are kept. They differ in tables, columns and numbers of rows."""

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
) -> None:
    """Insert one row or several, or update the rows that have the same `key`.

    An existing row gets the new values of the columns `update`, and those of `count_up` are
    increased by one. Without these columns it stays unchanged.
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
    """Cached, because building the statement takes longer than running it."""
    table = get_table(model)
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    if not key:
        return statement
    changes = {name: statement.excluded[name] for name in update}
    changes |= {name: table.c[name] + 1 for name in count_up}
    if not changes:
        return statement.on_conflict_do_nothing(index_elements=key)
    return statement.on_conflict_do_update(index_elements=key, set_=changes)


@dataclass(frozen=True, slots=True)
class Upsert:
    """The arguments of `upsert`. Without a `key`, the rows are only inserted.

    All rows have the same columns. They include those that usually have a default.
    """

    table: type[Base]
    rows: list[dict[str, Any]]
    key: tuple[str, ...] = ()
    update: tuple[str, ...] = ()


async def upsert_all(session: AsyncSession, upserts: Iterable[Upsert]) -> None:
    """Insert or update rows of several tables, each of which is named once.

    On PostgreSQL this is one statement, because each statement is a round trip. No row may refer to
    another one that is new.
    """
    dialect, joined = session.get_bind().dialect.name, list[Upsert]()
    for each in upserts:
        if dialect == "postgresql" and 0 < len(each.rows) <= MAX_JOINED_ROWS:
            joined.append(each)
        elif each.rows:
            await _execute_upsert(session, each)
    if len(joined) > 1:
        await _execute_joined(session, joined)
    elif joined:
        await _execute_upsert(session, joined[0])


async def _execute_upsert(session: AsyncSession, wanted: Upsert) -> None:
    await upsert(session, wanted.table, wanted.rows, key=wanted.key, update=wanted.update)


async def _execute_joined(session: AsyncSession, joined: Sequence[Upsert]) -> None:
    shapes = [
        _Shape(each.table, tuple(each.rows[0]), len(each.rows), each.key, each.update)
        for each in joined
    ]
    values = {
        _name_value(part, number, name): value
        for part, each in enumerate(joined)
        for number, row in enumerate(each.rows)
        for name, value in row.items()
    }
    await session.execute(_join_upserts(tuple(shapes)), values)


class _Shape(NamedTuple):
    table: type[Base]
    columns: tuple[str, ...]
    count: int
    key: tuple[str, ...]
    update: tuple[str, ...]


def _name_value(part: int, number: int, column: str) -> str:
    return f"{column}_{part}_{number}"


@lru_cache(maxsize=MAX_JOINED_SHAPES)
def _join_upserts(shapes: tuple[_Shape, ...]) -> Any:
    """Build a statement of PostgreSQL with a CTE for each table.

    Cached, because building the statement takes longer than running it.
    """
    query = select(literal(1))
    for part, shape in enumerate(shapes):
        columns = [get_table(shape.table).c[name] for name in shape.columns]
        rows = (
            select(
                *(
                    bindparam(_name_value(part, number, each.name), type_=each.type)
                    for each in columns
                )
            )
            for number in range(shape.count)
        )
        statement = _upsert("postgresql", shape.table, shape.key, shape.update, ())
        # SQLAlchemy would compile a statement with several rows of VALUES each time.
        query = query.add_cte(statement.from_select(columns, union_all(*rows)).cte(f"part_{part}"))
    return query
