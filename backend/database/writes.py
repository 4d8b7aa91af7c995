"""Writes to several tables in one statement, because on PostgreSQL each one is a round trip.

A statement of PostgreSQL can contain others as CTEs. It checks foreign keys at its end, so that the
rows may refer to each other. On SQLite, each table has its own statement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ClauseElement, bindparam, inspect, literal, select, union_all, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import get_history

from backend.database.base import Base, get_table, make_upsert, upsert

MAX_JOINED_ROWS = 16
"""Maximum number of rows of a table in one statement with other tables."""

MAX_CACHED_STATEMENTS = 300
"""They differ in tables, columns and numbers of rows."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """The arguments of `upsert`. Without a `key`, the rows are only inserted.

    All rows have the same columns. They include those that usually have a default.
    """

    table: type[Base]
    rows: list[dict[str, Any]]
    key: tuple[str, ...] = ()
    update: tuple[str, ...] = ()
    min_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """Changed columns of the row with this id."""

    table: type[Base]
    id: Any
    values: dict[str, Any]


class _InsertShape(NamedTuple):
    table: type[Base]
    columns: tuple[str, ...]
    rows: int
    key: tuple[str, ...]
    update: tuple[str, ...]
    min_age: timedelta | None


class _ChangeShape(NamedTuple):
    table: type[Base]
    columns: tuple[str, ...]


_Write = Upsert | _Change
_Shape = _InsertShape | _ChangeShape


async def upsert_all(session: AsyncSession, upserts: Iterable[Upsert]) -> None:
    """Insert or update rows of several tables. No row may refer to another one that is new."""
    joined: list[_Write] = []
    for each in upserts:
        if _is_postgres(session) and 0 < len(each.rows) <= MAX_JOINED_ROWS:
            joined.append(each)
        elif each.rows:
            await upsert(
                session,
                each.table,
                each.rows,
                key=each.key,
                update=each.update,
                min_age=each.min_age,
            )
    await _execute(session, joined)


async def write_out(session: AsyncSession, upserts: Iterable[Upsert] = ()) -> None:
    """Write the new and changed rows of a session, and `upserts`. Then detach all rows.

    Use it at the end of a transaction. New rows must not take the place of changed ones in a unique
    index, because PostgreSQL may insert them first.
    """
    upserts = list(upserts)
    rows = _collect(session.sync_session) if _is_postgres(session) else None
    if rows is None or any(len(each.rows) > MAX_JOINED_ROWS for each in upserts):
        await session.flush()
        await upsert_all(session, upserts)
    else:
        with session.no_autoflush:
            await _execute(session, [*rows, *(each for each in upserts if each.rows)])
    session.expunge_all()


def _is_postgres(session: AsyncSession) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def _collect(session: Session) -> list[_Write] | None:
    """Return the new and changed rows. None if only the ORM can write them."""
    if session.deleted or not all(map(_has_id, session.dirty)):
        return None
    new: defaultdict[tuple[type[Base], tuple[str, ...]], list[dict[str, Any]]] = defaultdict(list)
    row: Base
    for row in session.new:
        values = _read_new_row(row)
        new[type(row), tuple(values)].append(values)
    changes = [change for row in session.dirty if (change := _read_change(row)).values]
    every_row = [*new.values(), [each.values for each in changes]]
    has_many = any(len(rows) > MAX_JOINED_ROWS for rows in every_row)
    has_expressions = any(
        isinstance(value, ClauseElement)
        for rows in every_row
        for values in rows
        for value in values.values()
    )
    if has_many or has_expressions:
        return None
    return [*changes, *(Upsert(table, rows) for (table, _), rows in new.items())]


def _has_id(row: Base) -> bool:
    return get_table(type(row)).primary_key.columns.keys() == ["id"]


def _read_new_row(row: Base) -> dict[str, Any]:
    """Return the values of a new row with its defaults, which are set as the ORM does."""
    state: Any = inspect(row)
    values: dict[str, Any] = {}
    for column in get_table(type(row)).c:
        default: Any = column.default
        if column.key in state.dict:
            values[column.key] = state.dict[column.key]
        elif default is not None:
            values[column.key] = default.arg(None) if default.is_callable else default.arg
            setattr(row, column.key, values[column.key])
    return values


def _read_change(row: Base) -> _Change:
    state: Any = inspect(row)
    values = {
        name: state.dict[name]
        for name in sorted(state.committed_state)
        if get_history(row, name).has_changes()
    }
    return _Change(type(row), state.dict["id"], values)


async def _execute(session: AsyncSession, writes: Sequence[_Write]) -> None:
    if not writes:
        return
    values: dict[str, Any] = {}
    for part, each in enumerate(writes):
        if isinstance(each, _Change):
            values[_name_value("__id", part)] = each.id
        for number, row in enumerate([each.values] if isinstance(each, _Change) else each.rows):
            values |= {_name_value(name, part, number): value for name, value in row.items()}
    await session.execute(_join(tuple(map(_get_shape, writes))), values)


def _get_shape(write: _Write) -> _Shape:
    if isinstance(write, _Change):
        return _ChangeShape(write.table, tuple(write.values))
    columns = tuple(write.rows[0])
    return _InsertShape(
        write.table, columns, len(write.rows), write.key, write.update, write.min_age
    )


def _name_value(column: str, part: int, number: int = 0) -> str:
    return f"{column}_{part}_{number}"


@lru_cache(maxsize=MAX_CACHED_STATEMENTS)
def _join(shapes: tuple[_Shape, ...]) -> Any:
    """Build a statement of PostgreSQL with a CTE for each write.

    Cached, because building it takes longer than running it.
    """
    query = select(literal(1))
    for part, shape in enumerate(shapes):
        if isinstance(shape, _ChangeShape):
            statement = _make_change(shape, part)
        else:
            statement = _make_insert(shape, part)
        query = query.add_cte(statement.cte(f"part_{part}"))
    return query


def _make_change(shape: _ChangeShape, part: int) -> Any:
    columns: Any = get_table(shape.table).c
    values: dict[str, Any] = {
        name: bindparam(_name_value(name, part), type_=columns[name].type) for name in shape.columns
    }
    is_it = columns["id"] == bindparam(_name_value("__id", part), type_=columns["id"].type)
    return update(get_table(shape.table)).where(is_it).values(values)


def _make_insert(shape: _InsertShape, part: int) -> Any:
    columns: list[Any] = [get_table(shape.table).c[name] for name in shape.columns]
    rows: Iterable[Any] = (
        select(
            *(bindparam(_name_value(each.name, part, number), type_=each.type) for each in columns)
        )
        for number in range(shape.rows)
    )
    statement = make_upsert(
        "postgresql", shape.table, shape.key, shape.update, min_age=shape.min_age
    )
    # SQLAlchemy would compile a statement with several rows of VALUES each time.
    return statement.from_select(columns, union_all(*rows), include_defaults=False)
