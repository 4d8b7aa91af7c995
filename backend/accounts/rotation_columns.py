"""Which columns hold sealed texts, read off the tables, so that none is forgotten by hand.

The rule: every column named `sealed_*` holds blobs; its table has the primary key `id` and names
the owner in `user_id`, or is `users`; a blob is sealed for (table's name, column's name, `id`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column as TableColumn
from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Table,
    func,
    inspect,
    literal,
    or_,
)
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.database.base import Base
from backend.vault.sealing import FORMAT, HEADER, Column

PREFIX = "sealed_"


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table with sealed columns, and what a rotation asks of it."""

    table: Table
    columns: tuple[TableColumn[Any], ...]

    @property
    def id(self) -> TableColumn[Any]:
        """The primary key, to which each blob is bound."""
        return self.table.c.id

    @property
    def owner(self) -> TableColumn[Any]:
        """Whose row it is."""
        return self.id if self.table is User.__table__ else self.table.c.user_id

    @property
    def is_listed(self) -> bool:
        """Whether an index gives an account's rows in the order of their ids."""
        wanted = ["user_id", "id"]
        return any([c.name for c in index.columns][:2] == wanted for index in self.table.indexes)

    @property
    def size(self) -> ColumnElement[int]:
        """Bytes in a row's sealed columns."""
        lengths = (func.coalesce(func.length(column), 0) for column in self.columns)
        return sum(lengths, start=literal(0))

    def stale(self, number: int) -> ColumnElement[bool]:
        """Rows with a blob under a data key older than `number`, whichever account's."""
        # Big-endian numbers: bytes compare as the numbers do.
        newest = HEADER.pack(FORMAT, number)
        return or_(*(header_of(column) < newest for column in self.columns))

    def place(self, column: TableColumn[Any]) -> Column:
        """The column as its blobs know it."""
        return Column(self.table.name, column.name)


def header_of(column: TableColumn[Any]) -> ColumnElement[bytes]:
    """The start of a blob, which names its data key; the rest is not read."""
    return func.substr(column, 1, HEADER.size, type_=LargeBinary())


def described_tables() -> list[SealedTable]:
    """The tables with sealed columns among the models that were imported."""
    found = (
        SealedTable(table, tuple(each for each in table.columns if each.name.startswith(PREFIX)))
        for table in Base.metadata.sorted_tables
    )
    return [each for each in found if each.columns]


async def sealed_tables(session: AsyncSession) -> Sequence[SealedTable]:
    """Every table with sealed columns, in the models and in the database alike.

    Raises `RuntimeError` when the database has one that no imported model describes: a rotation
    that passed it by would delete the key that its texts are under.
    """
    described = described_tables()
    known = {(each.table.name, column.name) for each in described for column in each.columns}
    connection = await session.connection()
    if unknown := await connection.run_sync(_sealed_columns) - known:
        names = ", ".join(sorted(f"{table}.{column}" for table, column in unknown))
        raise RuntimeError(f"No imported model describes these sealed columns: {names}.")
    return described


def _sealed_columns(connection: Connection) -> set[tuple[str, str]]:
    tables = inspect(connection).get_multi_columns()
    return {
        (table, column["name"])
        for (_, table), columns in tables.items()
        for column in columns
        if column["name"].startswith(PREFIX)
    }
