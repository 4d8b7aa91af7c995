"""Tables with sealed columns, and resealing them under an account's newest data key.

The columns are read from the table definitions, so that none can be forgotten. The rule: every
column named `sealed_*` contains sealed values. Its table has the primary key `id`, and names the
owner in `user_id`, or is `users`. A value is sealed for (table name, column name, `id`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Column as TableColumn
from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Table,
    bindparam,
    func,
    inspect,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.database.base import Base
from backend.database.engine import Database
from backend.vault.sealing import FORMAT, HEADER, Column, SealBrokenError, Sealer

SEALED_PREFIX = "sealed_"
PAGE_ROWS = 10_000
BATCH_ROWS = 200
BATCH_BYTES = 8 * 1024 * 1024

ReportProgress = Callable[[int, int], None]
"""Called with the number of finished rows, and the total."""


@dataclass(frozen=True, slots=True)
class SealedTable:
    table: Table
    columns: tuple[TableColumn[Any], ...]

    @property
    def id(self) -> TableColumn[Any]:
        return self.table.c.id

    @property
    def owner(self) -> TableColumn[Any]:
        return self.id if self.table is User.__table__ else self.table.c.user_id

    @property
    def is_listed(self) -> bool:
        """True if an index sorts an account's rows by id."""
        wanted = ["user_id", "id"]
        return any([c.name for c in index.columns][:2] == wanted for index in self.table.indexes)

    @property
    def size(self) -> ColumnElement[int]:
        lengths = (func.coalesce(func.length(column), 0) for column in self.columns)
        return sum(lengths, start=literal(0))

    def stale(self, number: int) -> ColumnElement[bool]:
        """Select rows of any account with a value under a data key older than `number`."""
        # Big-endian numbers sort like their bytes.
        newest = HEADER.pack(FORMAT, number)
        return or_(*(select_header(column) < newest for column in self.columns))

    def place(self, column: TableColumn[Any]) -> Column:
        return Column(self.table.name, column.name)


def select_header(column: TableColumn[Any]) -> ColumnElement[bytes]:
    """Select only the start of a sealed value, which names its data key."""
    return func.substr(column, 1, HEADER.size, type_=LargeBinary())


def find_model_tables() -> list[SealedTable]:
    """Return the tables with sealed columns among the imported models."""
    found = (
        SealedTable(
            table, tuple(each for each in table.columns if each.name.startswith(SEALED_PREFIX))
        )
        for table in Base.metadata.sorted_tables
    )
    return [each for each in found if each.columns]


async def find_sealed_tables(session: AsyncSession) -> Sequence[SealedTable]:
    """Return every table with sealed columns. Models and database must agree.

    Raises `RuntimeError` if the database has a sealed column that no imported model describes. A
    rotation that skipped it would delete the key that its texts are under.
    """
    described = find_model_tables()
    known = {(each.table.name, column.name) for each in described for column in each.columns}
    connection = await session.connection()
    if unknown := await connection.run_sync(_find_sealed_columns) - known:
        names = ", ".join(sorted(f"{table}.{column}" for table, column in unknown))
        raise RuntimeError(f"No imported model describes these sealed columns: {names}.")
    return described


def _find_sealed_columns(connection: Connection) -> set[tuple[str, str]]:
    tables = inspect(connection).get_multi_columns()
    return {
        (table, column["name"])
        for (_, table), columns in tables.items()
        for column in columns
        if column["name"].startswith(SEALED_PREFIX)
    }


class Resealer:
    """Reseals values that are under older keys than the sealer's newest.

    `done` counts the rows that were changed, `damaged` the values that do not open.
    """

    def __init__(
        self,
        database: Database,
        tables: Sequence[SealedTable],
        sealer: Sealer,
        report: ReportProgress,
    ) -> None:
        self._database = database
        self._tables = tables
        self._sealer = sealer
        self._report = report
        self._total = 0
        self.done = 0
        self.damaged = 0

    async def run(self) -> None:
        """Reseal until only damaged values and locked rows remain."""
        self._total = await self._count()
        self._report(0, self._total)
        before = -1
        while before != self.done:
            before, self.damaged = self.done, 0
            for sealed in self._tables:
                await self._run_through(sealed)

    async def _count(self) -> int:
        async with self._database.read() as session:
            counts = [
                await session.scalar(
                    select(func.count()).select_from(sealed.table).where(*self._mine(sealed))
                )
                for sealed in self._tables
            ]
        return sum(filter(None, counts))

    async def _run_through(self, sealed: SealedTable) -> None:
        # Ids are read in large pages, and texts in small batches, because each page scans all rows
        # of the account.
        after: UUID | None = None
        while page := await self._page(sealed, after):
            for ids in split_batches(page):
                await self._reseal(sealed, ids)
            after = page[-1][0]

    async def _page(self, sealed: SealedTable, after: UUID | None) -> list[tuple[UUID, int]]:
        query = (
            select(sealed.id, sealed.size)
            .where(*self._mine(sealed))
            .order_by(sealed.id)
            .limit(PAGE_ROWS)
        )
        if after is not None:
            query = query.where(sealed.id > after)
        async with self._database.read() as session:
            return [(row_id, size) for row_id, size in await session.execute(query)]

    async def _reseal(self, sealed: SealedTable, ids: Sequence[UUID]) -> None:
        """Reseal some rows. Reads them again, because they may have changed."""
        query = (
            select(sealed.id, *sealed.columns)
            # Not filtered by owner as well: SQLite would then scan all rows of the account for each
            # batch.
            .where(sealed.id.in_(ids), sealed.stale(self._sealer.current_key))
            # Skips locked rows, so that it cannot be part of a deadlock.
            .with_for_update(key_share=True, skip_locked=True)
        )
        async with self._database.write() as session:
            rows = (await session.execute(query)).all()
            changes = [change for row in rows if (change := self._reseal_row(sealed, *row))]
            if changes:
                await _store(session, sealed, changes)
        self.done += len(changes)
        self._report(self.done, max(self.done, self._total))

    def _reseal_row(
        self, sealed: SealedTable, row_id: UUID, *blobs: bytes | None
    ) -> dict[str, Any]:
        """Return the row's resealed values by parameter of `_store`; empty if nothing changed."""
        changed = False
        change: dict[str, Any] = {"row_id": row_id}
        for column, blob in zip(sealed.columns, blobs, strict=True):
            change[f"new_{column.name}"] = blob
            try:
                fresh = blob and self._sealer.reseal(sealed.place(column), row_id, blob)
            except SealBrokenError:
                self.damaged += 1
                continue
            if fresh:
                change[f"new_{column.name}"] = fresh
                changed = True
        return change if changed else {}

    def _mine(self, sealed: SealedTable) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return sealed.owner == self._sealer.user_id, sealed.stale(self._sealer.current_key)


def split_batches(page: Sequence[tuple[UUID, int]]) -> Iterator[list[UUID]]:
    """Split (id, bytes) rows into lists of at most 200 ids and 8 MiB, or a single larger row."""
    ids: list[UUID] = []
    weight = 0
    for row_id, size in page:
        if ids and (len(ids) == BATCH_ROWS or weight + size > BATCH_BYTES):
            yield ids
            ids, weight = [], 0
        ids.append(row_id)
        weight += size
    if ids:
        yield ids


async def has_texts_under_later_key(session: AsyncSession, user_id: UUID, number: int) -> bool:
    """True if the newest text in a table of the account is under a data key after `number`.

    This is the case if the account's keys, but not its texts, were restored from an older copy.
    Only tables with an index that finds the newest row are checked.
    """
    for sealed in find_model_tables():
        if not sealed.is_listed:
            continue
        query = select(*(select_header(column) for column in sealed.columns))
        query = query.where(sealed.owner == user_id).order_by(sealed.id.desc()).limit(1)
        row = (await session.execute(query)).one_or_none() or ()
        if any(header and read_key_number(header) > number for header in row):
            return True
    return False


async def find_used_keys(
    session: AsyncSession, tables: Sequence[SealedTable], user_id: UUID
) -> set[int]:
    headers: set[bytes] = set()
    for sealed in tables:
        for column in sealed.columns:
            query = select(select_header(column)).where(
                sealed.owner == user_id, column.is_not(None)
            )
            headers.update(await session.scalars(query.distinct()))
    return {read_key_number(header) for header in headers if len(header) == HEADER.size}


def read_key_number(header: bytes) -> int:
    """Return the number of the data key that a sealed value names; 0 for other bytes."""
    if len(header) != HEADER.size:
        return 0
    number: int = HEADER.unpack(header)[1]
    return number


async def _store(
    session: AsyncSession, sealed: SealedTable, changes: Sequence[dict[str, Any]]
) -> None:
    values: dict[str, Any] = {
        column.name: bindparam(f"new_{column.name}") for column in sealed.columns
    }
    query = update(sealed.table).where(sealed.id == bindparam("row_id")).values(values)
    await session.execute(query, changes)
