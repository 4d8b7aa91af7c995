"""Delete and change many rows in short transactions, so that no one waits long for their locks.

Keys are read in pages by readers, which hold no locks. Each transaction then finds its rows by key.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Delete,
    ForeignKeyConstraint,
    Select,
    Table,
    Update,
    delete,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import Base
from backend.database.engine import Database

TARGET_SECONDS = 0.05
"""Aim for the time of a transaction. The limit is 0.2 s."""

MAX_PAUSE_SECONDS = 0.05

FIRST_ROWS, MAX_ROWS = 20, 1_000
"""Rows of the first transaction of a table, and of the largest one."""

PAGE_ROWS = 5_000
"""Keys that are read at once. A page is read past the deleted rows, so it is not too small."""

OnBatch = Callable[[int], Awaitable[None]]
"""Called after each transaction with the number of rows so far. May raise to stop the work."""


class OutOfBatchesError(Exception):
    """The work needs more transactions than were allowed."""


class ClaimEndedError(Exception):
    """The row that the work belongs to is gone, because another process has finished the work."""


@dataclass(slots=True)
class Pace:
    """The number of rows of the next transaction of a table."""

    rows: int = FIRST_ROWS

    def note(self, seconds: float) -> None:
        """Adjust it to the duration of a transaction, by a factor of two at most."""
        factor = min(2.0, max(0.5, TARGET_SECONDS / max(seconds, 0.001)))
        self.rows = max(1, min(MAX_ROWS, int(self.rows * factor)))


class Batches:
    """Work on many rows in transactions of about 50 ms, with a pause after each.

    Args:
        max_batches: Number of transactions, after which `OutOfBatchesError` is raised.
        claim: A query that locks the row that the work belongs to, in each transaction. If it finds
            none, `ClaimEndedError` is raised.
        skips_locked: True to leave rows that another transaction has locked. The others are locked,
            and the condition is checked again, because they may have got a reference since the
            check. Code that adds a reference locks the row as well.
    """

    def __init__(
        self,
        database: Database,
        *,
        claim: Select[Any] | None = None,
        max_batches: int | None = None,
        skips_locked: bool = False,
        on_batch: OnBatch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database = database
        self.row_count = 0
        self.last_seconds = 0.0
        self._claim = claim
        self._left = max_batches
        self._skips_locked = skips_locked
        self._on_batch = on_batch
        self._clock = clock
        self._paces: dict[str, Pace] = defaultdict(Pace)

    async def delete(
        self,
        table: Table,
        *where: ColumnElement[bool],
        order_by: Sequence[ColumnElement[Any]] = (),
    ) -> int:
        """Delete rows. Return their number."""
        return await self._change(table, delete(table).where(*where), where, order_by)

    async def update(
        self, table: Table, *where: ColumnElement[bool], values: Mapping[str, Any]
    ) -> int:
        """Change rows, so that the condition no longer holds. Return their number."""
        return await self._change(table, update(table).where(*where).values(values), where, ())

    async def delete_dependents(
        self,
        parent: Table,
        row_id: UUID,
        *,
        last: Mapping[str, Sequence[ColumnElement[Any]]],
    ) -> None:
        """Delete or detach all rows that refer to a row, as its deletion would.

        Rows are detached first. Tables in `last` follow the others, in this order of their rows.
        """
        references = sorted(
            find_references(parent), key=lambda each: (each.table.name in last, not each.detaches)
        )
        for each in references:
            is_child = each.column == row_id
            if each.detaches:
                await self.update(each.table, is_child, values={each.column.name: None})
            else:
                order = last.get(each.table.name, ())
                await self.delete(each.table, is_child, order_by=order)

    async def run(self, work: Callable[[AsyncSession], Awaitable[int]]) -> int:
        """Run one transaction of the work. Return the number of rows."""
        if self._left is not None:
            if self._left <= 0:
                raise OutOfBatchesError
            self._left -= 1
        begun_at = self._clock()
        async with self.database.write() as session:
            if self._claim is not None and await session.scalar(self._claim) is None:
                raise ClaimEndedError
            count = await work(session)
        self.last_seconds = self._clock() - begun_at
        self.row_count += count
        if self._on_batch is not None:
            await self._on_batch(self.row_count)
        await asyncio.sleep(min(self.last_seconds, MAX_PAUSE_SECONDS))
        return count

    async def _change(
        self,
        table: Table,
        statement: Delete | Update,
        where: Sequence[ColumnElement[bool]],
        order_by: Sequence[ColumnElement[Any]],
    ) -> int:
        columns = list(table.primary_key.columns)
        key: ColumnElement[Any] = columns[0] if len(columns) == 1 else tuple_(*columns)
        page = select(*columns).where(*where).order_by(*order_by).limit(PAGE_ROWS)
        pace, changed = self._paces[table.name], 0
        while True:
            async with self.database.read() as session:
                keys = await _read_keys(session, page)
            is_last, before = len(keys) < PAGE_ROWS, changed
            while keys:
                part, keys = keys[: pace.rows], keys[pace.rows :]

                async def work(session: AsyncSession, part: Sequence[Any] = part) -> int:
                    if self._skips_locked:
                        free = select(*columns).where(key.in_(part), *where)
                        lock = free.with_for_update(skip_locked=True, of=table)
                        part = await _read_keys(session, lock)
                    result: Any = await session.execute(statement.where(key.in_(part)))
                    return int(result.rowcount)

                changed += await self.run(work)
                pace.note(self.last_seconds)
            if is_last or changed == before:
                return changed


async def _read_keys(session: AsyncSession, query: Select[Any]) -> list[Any]:
    """Return primary keys: values, or tuples if they have several columns."""
    rows = [tuple(row) for row in await session.execute(query)]
    return [row[0] if len(row) == 1 else row for row in rows]


@dataclass(frozen=True, slots=True)
class RowReference:
    """A foreign key. `detaches` is true if the column becomes null when its target is deleted."""

    table: Table
    column: Column[Any]
    detaches: bool


def find_references(parent: Table) -> Iterator[RowReference]:
    """Yield the foreign keys to a table's rows, so that referring tables come before their own."""
    for table in reversed(Base.metadata.sorted_tables):
        for constraint in _list_constraints(table):
            if constraint.referred_table is parent and table is not parent:
                [column] = constraint.columns
                yield RowReference(table, column, constraint.ondelete == "SET NULL")


def _list_constraints(table: Table) -> list[ForeignKeyConstraint]:
    return sorted(table.foreign_key_constraints, key=lambda each: str(each.name))
